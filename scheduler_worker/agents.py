"""Records heartbeats of agents and other schedulers, and counts recent and failed builds of each host."""

import logging
from collections import Counter as Tally
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from prometheus_client import Counter, Gauge

from bus.candidates import Ints
from bus.clock import Clock
from bus.messages import HostReported, SchedulerAlive
from scheduler_worker.core.host_map import NEVER, NOBODY, HostColumns, HostKey, Numbers

LEAST_SILENCE = 10.0  # minimum silence before an agent counts as down, even if its period is short
PERIODS = 3  # minimum number of missed reports before an agent counts as down
FORGOTTEN_PERIODS = 60  # missed reports after which an agent is deleted, at least ten minutes
LEAST_REMEMBERED = 600.0

AgentKey = tuple[str, str]  # cell and name: a cell cannot report for another cell's agent of the same name


class Listening:
    """Measures how long this process could receive messages. An agent counts as silent only during this time.

    After a gap without any message, at most the shortest heartbeat period is added: the broker may have
    failed.
    """

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self.shortest_period = LEAST_SILENCE  # seconds; the shortest heartbeat period of the known agents
        self._last = now

    def received(self, now: float) -> None:
        """Add the seconds since the previous message, at most `shortest_period`, to the time of listening."""
        self.seconds += min(max(now - self._last, 0.0), self.shortest_period)
        self._last = now

    def disconnected_until(self, now: float) -> None:
        self._last = now


@dataclass(slots=True)
class ReportedAgent:
    """The last heartbeat of an agent, with the period of its heartbeats and the id of its process run."""

    number: int
    received: float  # the last heartbeat, in seconds of `Listening`
    at: float  # the last heartbeat, by the monotonic clock
    period: float
    sequence: int
    run: str
    partial: bool  # each report lists only some of the agent's hosts
    first: float  # the first heartbeat, in seconds of `Listening`
    life: int = 0  # number of restarts of the agent

    @property
    def silence(self) -> float:
        return max(PERIODS * self.period, LEAST_SILENCE)

    @property
    def remembered(self) -> float:
        return max(FORGOTTEN_PERIODS * self.period, LEAST_REMEMBERED)


@dataclass(frozen=True, slots=True)
class Silence:
    """The reason why the hosts of an agent count as down, and the time of the agent's last heartbeat."""

    why: str
    at: float | None = None  # the last heartbeat, by the monotonic clock

    def sentence(self, now: float) -> str:
        return f"down: {self.why}" + ("" if self.at is None else f" for {now - self.at:.0f} s")


class Agents:
    """All agents that placement knows or that sent a heartbeat, sorted by their last heartbeat."""

    def __init__(self, listening: Listening, grace: float) -> None:
        self.grace = grace
        self.opened = 0.0  # seconds of `Listening` when this process could first receive heartbeats
        self._listening = listening
        self._known: OrderedDict[AgentKey, ReportedAgent] = OrderedDict()
        self._numbers: dict[AgentKey, int] = {}
        self._of_cell: Tally[str] = Tally()  # by cell: number of agents that sent heartbeats
        self._table = _empty_table(64)

    def handle(self, report: HostReported, now: float) -> ReportedAgent:
        """Record a report as its agent's last heartbeat, unless a later one has arrived; return the agent."""
        name, listened = (report.cell, report.agent), self._listening.seconds
        agent = self._known.get(name)
        if agent is None:
            number = self.number(name)
            reported = (report.period, report.sequence, report.run, report.partial)
            agent = ReportedAgent(number, listened, now, *reported, first=listened)
            self._known[name] = agent
            self._of_cell[report.cell] += 1
        elif report.run != agent.run or (  # without run numbers, a long silence is a restart
            report.sequence < agent.sequence and listened - agent.received > agent.silence
        ):
            agent.run, agent.life, agent.sequence = report.run, agent.life + 1, report.sequence
        elif report.sequence <= agent.sequence:
            return agent
        agent.received, agent.at = listened, now
        agent.sequence, agent.partial = report.sequence, report.partial
        agent.period = report.period
        self._write(agent)
        self._listening.shortest_period = max(min(self._listening.shortest_period, report.period), 1.0)
        self._known.move_to_end(name)
        return agent

    def silence_of(self, key: AgentKey) -> Silence | None:
        known = self._known.get(key)
        if known is None:
            return None if self.early else Silence(f"no heartbeat from its agent {key[1]}")
        if self._listening.seconds - known.received <= known.silence:
            return None
        return Silence(f"no heartbeat from its agent {key[1]}", known.at)

    def down(self, key: AgentKey, now: float) -> str:
        silence = self.silence_of(key)
        return "" if silence is None else silence.sentence(now)

    def known(self, key: AgentKey) -> ReportedAgent | None:
        return self._known.get(key)

    @property
    def early(self) -> bool:
        """Return True shortly after the start, while a live agent may not have sent a heartbeat yet."""
        return self._listening.seconds - self.opened < self.grace

    def table_of(self, agent_at: Ints) -> Numbers:
        """Return an array with a column for each given agent and four rows: time of the last report, seconds
        of silence until the agent is down, time of the first report, and 1 if the agent's reports list only
        some of its hosts, else 0.
        """
        return self._table.take(agent_at, axis=1)

    def number(self, name: AgentKey) -> int:
        """Return the agent's position in the array of agents, which is valid until `renumber` is called."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            if number == self._table.shape[1]:
                self._table = np.hstack([self._table, _empty_table(number)])
        return number

    @property
    def crowded(self) -> bool:
        return len(self._numbers) > 2 * len(self._known) + 1024

    def renumber(self, named: Iterable[AgentKey]) -> None:
        """Assign new positions in the array of agents: first to the agents in `named`, then to other agents
        that have sent heartbeats. All remaining agents are removed from the array.
        """
        self._numbers = {}
        for name in named:
            self._numbers.setdefault(name, len(self._numbers))
        for name in self._known:
            self._numbers.setdefault(name, len(self._numbers))
        self._table = _empty_table(max(64, 2 * len(self._numbers)))
        for name, agent in self._known.items():
            agent.number = self._numbers[name]
            self._write(agent)

    def keep(self, most: int) -> None:
        """Delete agents until at most `most` are known: each time, in the cell with the most agents, the
        agent that is silent the longest.
        """
        while len(self._known) > most:
            [(most_of, _)] = self._of_cell.most_common(1)
            self._forget(next(key for key in self._known if key[0] == most_of))

    def tidy(self) -> None:
        """Delete agents that were silent too long; compute the shortest heartbeat period of live agents."""
        listened = self._listening.seconds
        while self._known:
            name, agent = next(iter(self._known.items()))
            if listened - agent.received <= agent.remembered:
                break
            self._forget(name)
        periods = [each.period for each in self._known.values() if listened - each.received <= each.silence]
        self._listening.shortest_period = max(min(periods, default=LEAST_SILENCE), 1.0)

    def _write(self, agent: ReportedAgent) -> None:
        self._table[:, agent.number] = agent.received, agent.silence, agent.first, agent.partial

    def _forget(self, name: AgentKey) -> None:
        self._table[0, self._known.pop(name).number] = NEVER
        self._of_cell[name[0]] -= 1


def _empty_table(size: int) -> Numbers:
    table = np.zeros((4, size))
    table[0] = NEVER
    return table


RECENT = 1.0  # seconds for which a build counts in addition to the host's report
HALVED_AFTER = 300.0  # seconds after which a failed build counts half
FORGIVEN = 2.0**-10  # counts of failed builds below this are set to 0
FULL_SCALE = 64  # number of half-lives after which all counts of failed builds are scaled down


class BuildCounts:
    """Counts the recent and failed builds of each host. All times are of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self._columns = HostColumns()
        self._choices: deque[tuple[float, HostKey]] = deque()
        self._counted_until = now  # choices before this time no longer count
        self._undone: Tally[HostKey] = Tally()  # number of undone choices by host
        # A build that failed at this time counts 1. A later one counts more, so no count must be lowered as
        # time passes.
        self._whole = now

    def _place_new(self) -> None:
        pass

    def chose(self, cell: str, root: str, now: float) -> None:
        key = cell, root
        self._choices.append((now + RECENT, key))
        slot = self._columns.slots.get(key)
        if slot is None:
            slot = self._columns.slot(key)
            self._place_new()
        self._columns.recent[slot] += 1

    def unchose(self, cell: str, root: str, at: float) -> None:
        """Undo `chose`: remove the choice made at `at` from a host's recent builds, unless it has expired."""
        if at + RECENT <= self._counted_until:
            return
        key = cell, root
        self._columns.recent[self._columns.slots[key]] -= 1
        self._undone[key] += 1

    def failed(self, cell: str, root: str, now: float) -> None:
        slot, weight = self._columns.slot((cell, root)), self._weight(now)
        self._columns.failures[slot] += weight

    def built(self, cell: str, root: str) -> None:
        """Record that a build succeeded on a host, which halves the host's count of failed builds."""
        slot = self._columns.slots.get((cell, root), NOBODY)
        self._columns.failures[slot] /= 2

    def _weight(self, now: float) -> float:
        halvings = (now - self._whole) / HALVED_AFTER
        if halvings > FULL_SCALE:
            failures = self._columns.failures
            failures *= 2.0**-halvings if halvings < 1000 else 0.0
            failures[failures < FORGIVEN] = 0.0
            self._whole, halvings = now, 0.0
        return float(2.0**halvings)

    def _past(self, now: float) -> None:
        choices, columns, undone = self._choices, self._columns, self._undone
        self._counted_until = max(self._counted_until, now)
        while choices and choices[0][0] <= now:
            key = choices.popleft()[1]
            if undone and undone[key]:
                undone[key] -= 1
            else:
                columns.recent[columns.slots[key]] -= 1
        if not choices and undone:
            undone.clear()


CROSSED = Counter("berth_scheduler_crossings", "picks outside this scheduler's slice, which had no room")
LIVE = Gauge("berth_schedulers_live", "schedulers that share the hosts, by their heartbeats")
UNPLACEABLE = Counter("berth_scheduler_unplaceable", "requests that ended without a host")
HOSTS = Gauge("berth_scheduler_hosts", "hosts by state, as this scheduler judges it", ["status"])


log = logging.getLogger(__name__)

SAYS_SECONDS = 1.0
GONE_SECONDS = 3.5  # seconds after which a silent scheduler's share of the hosts is divided among the others


class Roster:
    """The live schedulers, including this one. They divide the hosts among themselves."""

    def __init__(self, clock: Clock, name: str = "") -> None:
        self.name = name or f"s{clock.uuid()[:8]}"
        self.waits = 0  # number of changes of the waiting requests
        self._clock = clock
        self._received: dict[str, float] = {}
        self._live: tuple[str, ...] = (self.name,)

    @property
    def live(self) -> tuple[str, ...]:
        """Return the sorted names of the live schedulers, including this one."""
        after = self._clock.monotonic() - GONE_SECONDS
        if any(at < after for at in self._received.values()):
            self._received = {name: at for name, at in self._received.items() if at >= after}
            self._live = tuple(sorted({self.name, *self._received}))
            log.info("%d schedulers share the hosts", len(self._live))
            LIVE.set(len(self._live))
        return self._live

    async def message(self) -> SchedulerAlive:
        return SchedulerAlive(scheduler=self.name, waits=self.waits)

    async def handle(self, message: SchedulerAlive) -> None:
        if message.scheduler == self.name:
            return
        self._received[message.scheduler] = self._clock.monotonic()
        if message.scheduler not in self._live:
            self._live = tuple(sorted({self.name, *self._received}))
            log.info("scheduler %s takes part: %d share the hosts", message.scheduler, len(self._live))
            LIVE.set(len(self._live))
