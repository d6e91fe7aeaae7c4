"""The agents that report, and since when the scheduler listens: which agent is silent."""

from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bus.candidates import Ints
from bus.host_health import NO_HEARTBEAT
from bus.messages import HostReported
from scheduler_worker.core.host_map import NEVER, Numbers

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
        """Do not count the time until now as silence of agents, because nothing could be received."""
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
        """Return the seconds without a heartbeat after which the agent counts as down."""
        return max(PERIODS * self.period, LEAST_SILENCE)

    @property
    def remembered(self) -> float:
        """Return the seconds without a heartbeat after which the agent is forgotten."""
        return max(FORGOTTEN_PERIODS * self.period, LEAST_REMEMBERED)


@dataclass(frozen=True, slots=True)
class Silence:
    """The reason why the hosts of an agent count as down, and the time of the agent's last heartbeat."""

    why: str
    at: float | None = None  # the last heartbeat, by the monotonic clock

    def sentence(self, now: float) -> str:
        """Return why a host is down, for explanations."""
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
        """Return why the agent is down; None if it is not, or if it had no time to report since the start."""
        known = self._known.get(key)
        if known is None:
            return None if self.early else Silence(f"{NO_HEARTBEAT} {key[1]}")
        if self._listening.seconds - known.received <= known.silence:
            return None
        return Silence(f"{NO_HEARTBEAT} {key[1]}", known.at)

    def down(self, key: AgentKey, now: float) -> str:
        """Return why the agent is down as a sentence; "" if it is not."""
        silence = self.silence_of(key)
        return "" if silence is None else silence.sentence(now)

    def known(self, key: AgentKey) -> ReportedAgent | None:
        """Return what the agent has reported; None if it is unknown."""
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
