"""What the hosts say of themselves, and which of them are heard of at all."""

from collections import deque
from dataclasses import dataclass

from bus.messages import HostReported
from bus.vocabulary import HostState

GRACE = 30.0  # how long a scheduler that hears nobody doubts itself before it doubts the hosts
LEAST_SILENCE = 10.0  # nobody is down for being silent this long, however short its period
PERIODS = 3  # nor for missing fewer reports than this
RECENT = 1.0  # how long a build of ours counts on top of what the host reports


@dataclass(slots=True)
class _Agent:
    heard: float
    period: float
    sequence: int
    life: int = 0  # counts its restarts with a sequence from the beginning

    @property
    def silence(self) -> float:
        """How long it may be silent."""
        return max(PERIODS * self.period, LEAST_SILENCE)


@dataclass(frozen=True, slots=True)
class HeardHost:
    """A host as it was last reported."""

    state: HostState
    agent: str
    cell: str
    said: tuple[int, int]  # the agent's life and sequence: which report is the newer


class HostBook:
    """One page per host, written by host.reported. Nobody is called down before he could have been heard."""

    def __init__(self, now: float, grace: float = GRACE) -> None:
        self.grace = grace
        self.cells: set[str] = set()
        self.zones: set[str] = set()
        self._agents: dict[str, _Agent] = {}
        self._hosts: dict[str, HeardHost] = {}
        self._last = now  # when anybody was heard
        self._innocent_until = now + grace
        self._deaf = True  # nobody was heard yet: the first grace is running
        self._recent: dict[str, int] = {}
        self._choices: deque[tuple[float, str]] = deque()

    def opened(self, now: float) -> None:
        """From now on reports are listened to."""
        self._last, self._deaf = now, True
        self._innocent_until = now + self.grace

    def hear(self, report: HostReported, now: float) -> None:
        """Take a report in; one that is older than what is known changes nothing."""
        if self._silent(now):
            self._innocent_until = now + self.grace
        self._last, self._deaf = now, False
        agent = self._agents.get(report.agent)
        if agent is None:
            agent = self._agents[report.agent] = _Agent(now, report.period, report.sequence)
        elif report.sequence > agent.sequence:
            agent.heard, agent.period, agent.sequence = now, report.period, report.sequence
        elif now - agent.heard > agent.silence:  # back from the dead, and counting from the beginning
            life = agent.life + 1
            agent = self._agents[report.agent] = _Agent(now, report.period, report.sequence, life)
        self.cells.add(report.cell)
        said = (agent.life, report.sequence)
        for state in report.hosts:
            known = self._hosts.get(state.root)
            if known is None or known.agent != report.agent or said > known.said:
                self._hosts[state.root] = HeardHost(state, report.agent, report.cell, said)
                if state.zone:
                    self.zones.add(state.zone)

    def find(self, root: str) -> HeardHost | None:
        return self._hosts.get(root)

    def state(self, root: str) -> HostState | None:
        known = self._hosts.get(root)
        return None if known is None else known.state

    def down(self, agent: str, now: float) -> str:
        """Why the hosts of this agent are held to be down; empty when they are not."""
        if not self._deaf and self._silent(now):
            self._deaf, self._innocent_until = True, now + self.grace
        known = self._agents.get(agent)
        if known is None:
            return "" if now < self._innocent_until else f"down: nothing was ever heard of its agent {agent}"
        silent = now - known.heard
        if silent <= known.silence or now < self._innocent_until:
            return ""
        return f"down: nothing heard of its agent {agent} for {silent:.0f} s"

    def chose(self, root: str, now: float) -> None:
        """We send a build there."""
        self._choices.append((now + RECENT, root))
        self._recent[root] = self._recent.get(root, 0) + 1

    def recent(self, root: str, now: float) -> int:
        """How many builds we sent there that its report may not count yet."""
        choices, recent = self._choices, self._recent
        while choices and choices[0][0] <= now:
            _, past = choices.popleft()
            left = recent[past] - 1
            if left:
                recent[past] = left
            else:
                del recent[past]
        return recent.get(root, 0)

    def _silent(self, now: float) -> bool:
        """Nobody at all was heard for long: it may be our own ears, so all get the grace again, once."""
        return now - self._last > max(LEAST_SILENCE, self.grace)
