"""The hosts as one scheduler knows them: their reports and health, placement's index, and its own choices."""

import logging
from collections import Counter as Tally
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

import msgspec
import numpy as np
from prometheus_client import Counter, Gauge

from bus.candidates import Bools, CandidateSource, Ints, PlacedHost
from bus.clock import Clock
from bus.host_health import (
    FindHostHealth,
    HostCapabilities,
    HostHealth,
    HostHealthFound,
    condition,
    down_sentence,
)
from bus.messages import HostReported, SchedulerAlive
from bus.queries import Candidate
from bus.reports import HostState
from bus.sql.database import Database
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Allocations, Id, portions, without
from scheduler_worker.core.demand import UNKNOWN_DEMAND, DemandCounts, UsualShapes, weight_at
from scheduler_worker.core.events import ReserveHost
from scheduler_worker.core.host_map import (
    NEVER,
    NOBODY,
    HostColumns,
    HostKey,
    HostMap,
    HostsNow,
    Numbers,
    numbered,
)
from scheduler_worker.core.ranking import Pick
from scheduler_worker.core.rule import PLAIN, Scope
from scheduler_worker.store import demand as stored_demand

# Records heartbeats of agents and other schedulers, and counts recent and failed builds of each host.


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


GRACE = 30.0  # seconds before a host without any heartbeat counts as down
MOST_HOSTS = 250_000  # hosts with a report; beyond, the oldest in the cell with the most hosts are deleted
TIDY_SECONDS = 10.0
JUDGED_EVERY = 1.0  # seconds; maximum delay until a silent host counts as down


@dataclass(slots=True)
class LastHostReport:
    """The last report of a host and the time of its arrival."""

    state: HostState
    agent: str
    cell: str
    version: tuple[int, int]  # the agent's restarts and sequence number: the higher pair is the newer report
    received: float  # the last heartbeat, in seconds of `Listening`
    remembered: float
    at: float  # the last heartbeat, by the monotonic clock


class HostBook(BuildCounts):
    """Decides from heartbeats and stored records whether each host is up, down or unknown.

    A host is down without a heartbeat for three periods (at least 10 seconds), or if it was recorded as down.
    It is unknown until its first heartbeat is overdue. Heartbeats of a cell count only for hosts of this
    cell: placement decides which cell a root is in. All times are of a monotonic clock.
    """

    def __init__(self, now: float, grace: float = GRACE) -> None:
        super().__init__(now)
        self._listening = Listening(now)
        self._agents = Agents(self._listening, grace)
        self._hosts: dict[str, OrderedDict[str, LastHostReport]] = {}  # last reports, by cell and root
        self._count = 0
        self._cell_of: dict[str, str] = {}  # root → cell of the host in placement
        self._tidied = now
        self._source: CandidateSource | None = None
        # the index's layout number when the hosts were last read; None: read again
        self._layout: int | None = None
        self._slot_at: Ints = np.zeros(0, np.intp)
        self._agent_at: Ints = np.zeros(0, np.intp)
        self._placed: Ints = np.zeros(0, np.intp)
        self._placed_hosts: list[PlacedHost] = []
        self._appeared: dict[str, float] = {}  # root of a new host → since when placement has it
        self._appeared_at: Numbers = np.zeros(0)
        self._records: dict[HostKey, HostHealth] = {}  # stored health of hosts without a heartbeat so far
        self._up: Bools = np.zeros(0, np.bool_)
        self._unknown: Bools = np.zeros(0, np.bool_)
        self._some_unknown: Bools | None = None
        self._judged: float | None = None  # when the health of all hosts was computed; None: compute again

    def opened(self, now: float) -> None:
        """Begin to measure the silence of agents: from now on this process can receive heartbeats."""
        self._listening.disconnected_until(now)
        self._agents.opened = self._listening.seconds
        self._judged = None

    def restore(self, records: Iterable[HostHealth]) -> None:
        """Use the stored health for hosts that have sent no heartbeat to this process so far."""
        for record in records:
            key = record.cell, record.root
            if record.root in self._hosts.get(record.cell, ()):
                continue
            self._records[key] = record
            self._columns.recorded_down[self._columns.slot(key)] = record.availability == "down"
            self._judged = None
            self._columns.put(record.cell, msgspec.convert(record, HostState, from_attributes=True))

    def listened(self, now: float) -> None:
        """Record that a message arrived: only while messages arrive do agents count as silent."""
        self._listening.received(now)
        if now - self._tidied > TIDY_SECONDS:
            self._tidied = now
            self._tidy(now)

    def handle(self, report: HostReported, now: float) -> None:
        """Apply the report of an agent about its hosts; ignore an outdated report."""
        self.listened(now)
        if self._agents.down((report.cell, report.agent), now):
            self._agent_returns(report)
        agent = self._agents.handle(report, now)
        version = (agent.life, report.sequence)
        hosts = self._hosts.setdefault(report.cell, OrderedDict())
        for state in report.hosts:
            known = hosts.get(state.root)
            if known is None or known.agent != report.agent or version > known.version:
                times = agent.received, agent.remembered, now
                self._put(LastHostReport(state, report.agent, report.cell, version, *times))
                self._heartbeat((report.cell, state.root), agent)
        if not hosts:
            del self._hosts[report.cell]
        while self._count > MOST_HOSTS:
            cell, most = max(self._hosts.items(), key=lambda item: len(item[1]))
            self._drop(cell, next(iter(most)))
        self._agents.keep(MOST_HOSTS)

    def state(self, cell: str, root: str) -> HostState | None:
        hosts = self._hosts.get(cell)
        known = None if hosts is None else hosts.get(root)
        return None if known is None else known.state

    def down(self, cell: str, agent: str, now: float) -> str:
        """Return why the hosts of this agent are down; empty if they are not."""
        return self._agents.down((cell, agent), now)

    def why_down(self, cell: str, root: str, agent: str, now: float) -> str:
        """Return why a host is down; empty if it is up or unknown."""
        record = self._recorded_down(cell, root, agent)
        if record is not None:
            return down_sentence(record)
        silence = self._silence_of(cell, root, agent)
        return "" if silence is None else silence.sentence(now)

    def _recorded_down(self, cell: str, root: str, agent: str) -> HostHealth | None:
        record = self._records.get((cell, root))
        if record is None or record.availability != "down":
            return None
        known = self._agents.known((cell, agent))
        partial = known is not None and known.partial and self._agents.silence_of((cell, agent)) is None
        return None if partial else record

    def _silence_of(self, cell: str, root: str, agent: str) -> Silence | None:
        silence, known = self._agents.silence_of((cell, agent)), self._agents.known((cell, agent))
        if silence is not None or known is None or known.partial:
            return silence
        listened, slot = self._listening.seconds, self._columns.slots.get((cell, root), NOBODY)
        heartbeat = self._columns.heartbeat.item(slot)
        detail = f"though its agent {agent} reports other hosts"
        if heartbeat != NEVER:
            up = listened - heartbeat <= self._columns.silence.item(slot)
            at = self._hosts[cell][root].at
            return None if up else Silence(f"no heartbeat from it, {detail},", at)
        early = listened - max(known.first, self._appeared.get(root, 0.0)) <= known.silence
        return None if early else Silence(f"no heartbeat from it, {detail}")

    def snapshot(self, source: CandidateSource, now: float, demand: UsualShapes = UNKNOWN_DEMAND) -> HostsNow:
        """Return the present data of all hosts as arrays in the sequence of placement's index."""
        self._past(now)
        if source is not self._source or source.layout != self._layout:
            self._reread(source)
        self._place_new()
        self._judge(now)
        self._columns.read.pop("failures", None)  # the counts of failed builds decay with time
        return HostsNow(
            source=source,
            columns=self._columns,
            slot_at=self._slot_at,
            placed=self._placed,
            up=self._up,
            unknown=self._some_unknown,
            fading=1.0 / self._weight(now),
            why_down=lambda host: self.why_down(host.cell, host.uuid, host.agent, now),
            _read=self._columns.read,
            demand=demand,
        )

    def health(self, source: CandidateSource, now: float, unix_now: float) -> dict[HostKey, HostHealth]:
        """Return the health of the hosts that are down, unknown or disabled by their agents, by cell and
        root. `unix_now` is the time `now` (of the monotonic clock) in seconds since 1970.
        """
        self.snapshot(source, now)
        slots = self._slot_at.take(self._placed)
        closed = (self._columns.fact("enabled") == 0) | (self._columns.fact("forced_down") == 1)
        unusable = ~self._up.take(self._placed) | self._unknown.take(self._placed) | closed.take(slots)
        found = {}
        for index in np.flatnonzero(unusable).tolist():
            host = self._placed_hosts[index]
            if host.agent:
                found[host.cell, host.uuid] = self._health_of(host, now, unix_now)
        return found

    def capabilities(self, roots: Iterable[str]) -> list[HostCapabilities]:
        """Return the reported capabilities of the hosts, leaving out hosts without a heartbeat so far."""
        found = []
        for root in roots:
            slot = self._columns.slots.get((self._cell_of.get(root, ""), root), NOBODY)
            if (state := self._columns.states[slot]) is not None:
                fields = HostCapabilities.__struct_fields__
                found.append(HostCapabilities(**{name: getattr(state, name) for name in fields}))
        return found

    def has(self, key: HostKey) -> bool:
        cell, root = key
        return self._cell_of.get(root) == cell

    def _health_of(self, host: PlacedHost, now: float, unix_now: float) -> HostHealth:
        cell, root = host.cell, host.uuid
        state = self._columns.states[self._columns.slots.get((cell, root), NOBODY)]
        record = self._recorded_down(cell, root, host.agent)
        silence = self._silence_of(cell, root, host.agent) if record is None else None
        report = self._hosts[cell].get(root) if cell in self._hosts else None
        at = None if silence is None else silence.at if report is None else report.at
        down = record is not None or silence is not None
        return HostHealth(
            root=root,
            host=host.host,
            cell=cell,
            agent=host.agent,
            availability="down" if down else "unknown" if self._unknown[host.position] else "up",
            since=record.since if record is not None else 0.0 if at is None else unix_now - (now - at),
            why=record.why if record is not None else "" if silence is None else silence.why.rstrip(","),
            enabled=state is None or state.enabled,
            why_disabled="" if state is None else state.why_disabled,
            forced_down=state is not None and state.forced_down,
        )

    def _judge(self, now: float) -> None:
        """Compute for all hosts which are up and which are unknown, by the rules of `why_down`."""
        if self._judged is not None and 0 <= now - self._judged < JUDGED_EVERY:
            return
        listened, columns, slots = self._listening.seconds, self._columns, self._slot_at
        received, silence, first, partial = self._agents.table_of(self._agent_at)
        alive = listened - received <= silence
        heartbeat, recorded = columns.heartbeat.take(slots), columns.recorded_down.take(slots) > 0
        beats = listened - heartbeat <= columns.silence.take(slots)
        new = alive & (listened - np.maximum(self._appeared_at, first) <= silence)
        early = new | (np.isneginf(received) & self._agents.early)
        fresh = alive & (beats | (partial > 0))
        self._unknown = np.isneginf(heartbeat) & early & ~recorded & ~fresh
        self._up = fresh | self._unknown
        unknown = self._unknown.take(self._placed)
        self._some_unknown = self._unknown if unknown.any() and not unknown.all() else None
        self._judged, columns.read = now, {}

    def _heartbeat(self, key: HostKey, agent: ReportedAgent) -> None:
        columns, slot = self._columns, self._columns.slots[key]
        if agent.received - columns.heartbeat.item(slot) > columns.silence.item(slot):
            self._judged = None
            columns.recorded_down[slot] = 0.0
            self._records.pop(key, None)
        columns.heartbeat[slot], columns.silence[slot] = agent.received, agent.silence

    def _agent_returns(self, report: HostReported) -> None:
        self._judged = None
        if report.partial:  # hosts of this agent are up as long as the agent sends heartbeats
            agent = report.cell, report.agent
            for key, record in list(self._records.items()):
                if (record.cell, record.agent) == agent:
                    del self._records[key]
                    self._columns.recorded_down[self._columns.slots[key]] = 0.0

    def _put(self, host: LastHostReport) -> None:
        root, hosts = host.state.root, self._hosts[host.cell]
        known = hosts.get(root)
        hosts[root] = host
        hosts.move_to_end(root)
        self._count += known is None
        self._columns.put(host.cell, host.state)
        if known is not None and host.state.instances > known.state.instances:
            self.built(host.cell, root)

    def _drop(self, cell: str, root: str) -> None:
        del self._hosts[cell][root]
        self._count -= 1
        if not self._hosts[cell]:
            del self._hosts[cell]
        self._columns.forget((cell, root))

    def _place_new(self) -> None:
        columns = self._columns
        if columns.new:
            self._judged = None
        for cell, root in columns.new:
            position = None
            if self._source is not None and self._cell_of.get(root) == cell:
                position = self._source.position(root)
            if position is not None and position < len(self._slot_at):
                self._slot_at[position] = columns.slots[cell, root]
        columns.new.clear()

    def _reread(self, source: CandidateSource) -> None:
        placed = self._placed_hosts = list(source.hosts())
        positions = [host.position for host in placed]
        self._placed = np.array(positions, np.intp)
        self._cell_of = {host.uuid: host.cell for host in placed}
        named = [(host.cell, host.agent) for host in placed]
        self._agents.renumber(named)
        agents, slots = self._agents.number, self._columns.slots
        self._agent_at = numbered(positions, [agents(agent) for agent in named], source.size)
        keys = [slots.get((host.cell, host.uuid), NOBODY) for host in placed]
        self._slot_at = numbered(positions, keys, source.size)
        before, listened = self._appeared, self._listening.seconds
        new = [host.uuid for host, slot in zip(placed, keys, strict=True) if slot == NOBODY]
        self._appeared = {root: before.get(root, listened) for root in new}
        self._appeared_at = np.zeros(source.size)
        self._appeared_at[self._placed] = [self._appeared.get(host.uuid, 0.0) for host in placed]
        self._source, self._layout, self._judged = source, source.layout, None

    def _tidy(self, now: float) -> None:
        self._past(now)
        self._agents.tidy()
        listened = self._listening.seconds
        for cell in list(self._hosts):
            while hosts := self._hosts.get(cell):
                root, host = next(iter(hosts.items()))
                if listened - host.received <= host.remembered:
                    break
                self._drop(cell, root)
        self._drop_slots(now)
        if self._agents.crowded:
            self._agents.renumber(())
            self._layout = None

    def _drop_slots(self, now: float) -> None:
        """If there are many array indices, free the indices of hosts without a report, a stored record,
        recent builds and failed builds.
        """
        columns = self._columns
        if len(columns.slots) <= 2 * self._count + 1024:
            return
        weight = self._weight(now)
        for key, slot in list(columns.slots.items()):
            cell, root = key
            failures = columns.failures[slot] / weight
            known = root in self._hosts.get(cell, ()) or key in self._records
            if not known and not columns.recent[slot] and failures < FORGIVEN:
                columns.drop(key)
        columns.new = [key for key in columns.new if key in columns.slots]
        self._layout = None


# Section: stores the health of hosts for the next scheduler that starts, and answers queries about it.
#
# Several schedulers write changes to the same rows. When a host sends a heartbeat again, a scheduler deletes
# the host's row if it has read or written this row. A scheduler that starts deletes rows that a stopped
# scheduler left.


PAGE = 1000  # rows in one transaction


class HostRecords:
    """Stores the health of hosts that this scheduler found, and reads what other schedulers stored."""

    def __init__(self, book: HostBook, source: CandidateSource, database: Database, clock: Clock) -> None:
        self._book = book
        self._source = source
        self._database = database
        self._clock = clock
        self._stored: dict[HostKey, HostHealth] = {}

    async def load(self) -> None:
        """Read the health of hosts that schedulers stored; to be called before the first request."""
        after, more = ("", ""), True
        while more:
            async with self._database.read() as tx:
                found = await page(tx, after, PAGE)
            self._stored.update(((health.cell, health.root), health) for health in found)
            more = len(found) == PAGE
            after = (found[-1].cell, found[-1].root) if found else after
        self._book.restore(self._stored.values())

    async def store(self) -> None:
        now = self._health()
        stored, recorded = self._stored, {key: health for key, health in now.items() if health.recorded}
        new = {key: is_ for key, is_ in recorded.items() if _condition(stored.get(key)) != _condition(is_)}
        unknown = {key for key, health in now.items() if health.unknown}
        not_up = unknown.union(recorded)
        await self._write(new, [key for key in stored if self._book.has(key) and key not in not_up])

    async def find(self, question: FindHostHealth) -> HostHealthFound:
        health = self._health()
        asked = frozenset(question.roots)
        after = [host for host in health.values() if host.root > question.after]
        found = sorted((host for host in after if not asked or host.root in asked), key=lambda row: row.root)
        return HostHealthFound(
            hosts=tuple(found[: question.limit]),
            more=len(found) > question.limit,
            counts=self._counts(health) if question.counted else {},
            capabilities=tuple(self._book.capabilities(question.roots)) if question.described else (),
        )

    async def measure(self) -> None:
        states = sum(map(Tally, self._counts(self._health()).values()), Tally[str]())
        for state in ("up", "down", "draining", "disabled", "unknown"):
            HOSTS.labels(state).set(states[state])

    def _health(self) -> dict[HostKey, HostHealth]:
        return self._book.health(self._source, self._clock.monotonic(), self._clock.now())

    def _counts(self, health: Mapping[HostKey, HostHealth]) -> dict[str, dict[str, int]]:
        counts: defaultdict[str, dict[str, int]] = defaultdict(Tally)
        for host in self._source.hosts():
            if host.agent:
                counts[host.cell][condition(host.traits, health.get((host.cell, host.uuid)))] += 1
        return counts

    async def prune(self) -> None:
        """Delete the stored health of hosts that placement no longer has."""
        await self._write({}, [key for key in self._stored if not self._book.has(key)])

    async def _write(self, new: Mapping[HostKey, HostHealth], up: list[HostKey]) -> None:
        # Sorted by key, so that two schedulers that write the same rows do not deadlock.
        for some in portions(sorted(new), PAGE):
            async with self._database.write() as tx:
                await _PUT(tx, [(*key, _encode(new[key]).decode()) for key in some])
            self._stored.update((key, new[key]) for key in some)
        for some in portions(sorted(up), PAGE):
            async with self._database.write() as tx:
                await _DROP(tx, some)
            for key in some:
                del self._stored[key]


def _condition(health: HostHealth | None) -> object:
    return health and (health.availability, health.enabled, health.why_disabled, health.forced_down)


_PUT = sql("""
    INSERT INTO host_health (cell, root, health) SELECT n.cell, n.root, n.health
    FROM {n: cell str, root str, health str} WHERE true
    ON CONFLICT (cell, root) DO UPDATE SET health = excluded.health RETURNING root
""")
_DROP = sql("""
    DELETE FROM host_health WHERE (cell, root) IN (SELECT n.cell, n.root FROM {n: cell str, root str})
    RETURNING root
""")
_PAGE = sql("""
    SELECT cell, root, health FROM host_health WHERE (cell, root) > (:cell, :root)
    ORDER BY cell, root LIMIT :most
""")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HostHealth).decode


async def page(tx: Transaction, after: HostKey, limit: int) -> list[HostHealth]:
    rows = await _PAGE(tx, cell=after[0], root=after[1], most=limit)
    return [_decode(row["health"]) for row in rows]


# Reserves the capacity of chosen hosts until their claims are visible.


CLAIM_SECONDS = 15.0  # seconds; answers to claims arrive within this time


class PendingChoice(msgspec.Struct, eq=False, gc=False):
    """A host chosen for an instance, with a claim that placement's index does not show yet."""

    allocations: Allocations
    cell: str
    root: str
    at: float  # time of the choice
    until: float
    open: bool = True
    number: int | None = None  # change number of the claim; None: placement has not answered yet
    source: Id = ""  # the source of the capacity (`Scope.source`)


class PendingChoices:
    """Reserves capacity for chosen hosts until placement's index shows their claims or the claims fail.

    Each choice also counts as a build on its host.
    """

    def __init__(
        self, source: CandidateSource, book: HostBook, clock: Clock, timeout: float = CLAIM_SECONDS
    ) -> None:
        self.timeout = timeout
        self._source = source
        self._book = book
        self._clock = clock
        self._open: deque[PendingChoice] = deque()  # the choice with the earliest time limit is first
        self._confirmed: list[tuple[int, int, PendingChoice]] = []
        self._ties = 0
        self._watchers: list[Callable[[str], None]] = []

    def enter(self, way: Candidate, scope: Scope = PLAIN) -> PendingChoice:
        now = self._clock.monotonic()
        allocations = without(way.allocations, scope.held) if scope.held else way.allocations
        entry = PendingChoice(allocations, way.cell, way.root, now, now + self.timeout, source=scope.source)
        self._book.chose(way.cell, way.root, now)
        self._source.packing.claim(allocations)
        self._open.append(entry)
        return entry

    def confirm(self, entry: PendingChoice, number: int) -> None:
        if number <= self._source.seen:
            self._end(entry)
            return
        self._ties += 1
        entry.number = number
        heappush(self._confirmed, (number, self._ties, entry))

    def confirm_claimed(self, choice: ReserveHost) -> None:
        """Reserve a claimed host, which may be another than the first choice, until its claim is visible."""
        reservation = choice.pick.reservation
        if choice.way is not choice.pick.choices[0]:
            self.release(choice.pick)
            reservation = self.enter(choice.way, choice.pick.scope)
        if isinstance(reservation, PendingChoice):
            self.confirm(reservation, choice.number)

    def watch(self, on_released: Callable[[str], None]) -> None:
        """Register a callback for capacity that was released and that no claim uses; its argument is the root
        of the host.
        """
        self._watchers.append(on_released)

    def release(self, pick: Pick) -> None:
        """Release the reservation of a chosen host permanently: other requests may use its capacity."""
        self.drop(pick.reservation)
        self._report(pick.root)

    def _report(self, root: str) -> None:
        for on_released in self._watchers:
            on_released(root)

    def drop(self, reservation: object) -> None:
        """Release the reservation of a choice after its claim failed or was not sent."""
        if isinstance(reservation, PendingChoice) and reservation.open:
            self._book.unchose(reservation.cell, reservation.root, reservation.at)
            self._withdraw(reservation)

    def expire(self) -> None:
        """Release reservations if the index shows their claims, or if their time limit has passed."""
        now, confirmed, seen = self._clock.monotonic(), self._confirmed, self._source.seen
        while confirmed and confirmed[0][0] <= seen:
            self._end(heappop(confirmed)[2])
        while self._open and (not self._open[0].open or self._open[0].until <= now):
            self._end(self._open.popleft())

    def _end(self, entry: PendingChoice) -> None:
        """Release the capacity reserved for a choice, which may wake requests that wait for this host."""
        if entry.open:
            self._withdraw(entry)
            self._report(entry.root)

    def _withdraw(self, entry: PendingChoice) -> None:
        entry.open = False
        self._source.packing.release(entry.allocations)

    @property
    def unsettled(self) -> list[PendingChoice]:
        return [entry for entry in self._open if entry.open and entry.number is None]

    def drawn_from(self, source: Id) -> list[PendingChoice]:
        return [entry for entry in self.unsettled if entry.source == source]


LEAST_REQUESTS = 0.01  # of a shape, counted as of now; with less it is forgotten


class DemandRecords:
    """Stores the usual shapes of requests, which the schedulers of a region count together."""

    def __init__(self, demand: DemandCounts, database: Database, clock: Clock) -> None:
        self._demand = demand
        self._database = database
        self._clock = clock

    async def store(self) -> None:
        """Add what this scheduler has counted to the stored counts, and read them."""
        counted = self._demand.taken()
        try:
            async with self._database.write() as tx:
                await stored_demand.add(tx, counted)
                await stored_demand.forget(tx, LEAST_REQUESTS * weight_at(self._clock.now()))
                found = await stored_demand.find(tx)
        except BaseException:
            self._demand.put_back(counted)
            raise
        self._demand.replace(found)


class KnownHosts:
    """The index, the reports, the choices whose claims the index does not show yet, and the schedulers that
    share the hosts.
    """

    def __init__(
        self, source: CandidateSource, clock: Clock, grace: float, cells: Collection[str] | None
    ) -> None:
        self.source = source
        self.clock = clock
        self.book = HostBook(clock.monotonic(), grace)
        self.pending = PendingChoices(source, self.book, clock)
        self.roster = Roster(clock)
        self.map = HostMap(source, cells)
        self.demand = DemandCounts()

    def now(self) -> tuple[HostsNow, Bools]:
        """Return the reported state of all hosts, and a mask of the hosts that have an agent."""
        now = self.clock.monotonic()
        self.pending.expire()
        self.map.update()
        self.map.share(self.roster.live, self.roster.name)
        return self.book.snapshot(self.source, now, self.demand.usual()), self.map.served
