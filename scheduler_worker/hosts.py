"""What the hosts say of themselves, and which of them are heard of at all."""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from bus.messages import HostReported
from bus.vocabulary import HostState

GRACE = 30.0  # how long it is listened before those who were never heard are held to be down
LEAST_SILENCE = 10.0  # nobody is down for being silent this long, however short its period
PERIODS = 3  # nor for missing fewer reports than this
RECENT = 1.0  # how long a build of ours counts on top of what the host reports
FORGOTTEN_PERIODS = 60  # who has missed so many reports is forgotten, after ten minutes at the least
LEAST_REMEMBERED = 600.0
MOST_HOSTS = 250_000  # the ones reported longest ago are forgotten beyond this; so with agents
TIDY_SECONDS = 10.0


class Listening:
    """How long it was listened, in seconds: what was not heard while our own ears were away is no verdict.

    A stretch in which nothing at all was heard may be our own fault, and it cannot be known. It counts as no
    longer than it takes until the next report was due.
    """

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self.due = LEAST_SILENCE  # the shortest period of all who are heard
        self._last = now

    def heard(self, now: float) -> None:
        """Something was: a report, a request, an answer."""
        self.seconds += min(max(now - self._last, 0.0), self.due)
        self._last = now

    def deaf_until(self, now: float) -> None:
        """Whatever has been since then does not count."""
        self._last = now


@dataclass(slots=True)
class _Agent:
    heard: float  # when, by the seconds that it was listened
    at: float  # when, by the clock
    period: float
    sequence: int
    run: str
    life: int = 0  # counts its restarts
    silence: float = field(init=False)  # how long it may be silent

    def __post_init__(self) -> None:
        self.reports_every(self.period)

    def reports_every(self, period: float) -> None:
        self.period = period
        self.silence = max(PERIODS * period, LEAST_SILENCE)

    @property
    def remembered(self) -> float:
        return max(FORGOTTEN_PERIODS * self.period, LEAST_REMEMBERED)


@dataclass(frozen=True, slots=True)
class HeardHost:
    """A host as it was last reported."""

    state: HostState
    agent: str
    cell: str
    said: tuple[int, int]  # the agent's life and sequence: which report is the newer
    heard: float
    remembered: float


class HostBook:
    """One page per host, written by host.reported. Nobody is called down before he could have been heard.

    All times are those of a clock that never goes back.
    """

    def __init__(self, now: float, grace: float = GRACE) -> None:
        self.grace = grace
        self._listening = Listening(now)
        self._opened = 0.0  # by the seconds that it was listened
        self._agents: OrderedDict[str, _Agent] = OrderedDict()  # the one heard last comes last
        self._hosts: OrderedDict[str, HeardHost] = OrderedDict()
        self._cells: Counter[str] = Counter()
        self._zones: Counter[str] = Counter()
        self._tidied = now
        self._recent: dict[str, int] = {}
        self._choices: deque[tuple[float, str]] = deque()

    def opened(self, now: float) -> None:
        """From now on reports are listened to."""
        self._listening.deaf_until(now)
        self._opened = self._listening.seconds

    def listened(self, now: float) -> None:
        """Our ears work: something else than a report came in."""
        self._listening.heard(now)
        if now - self._tidied > TIDY_SECONDS:
            self._tidied = now
            self._tidy()

    def hear(self, report: HostReported, now: float) -> None:
        """Take a report in; one that is older than what is known changes nothing."""
        self.listened(now)
        agent = self._heard_of(report, now)
        said = (agent.life, report.sequence)
        for state in report.hosts:
            known = self._hosts.get(state.root)
            if known is None or known.agent != report.agent or said > known.said:
                self._put(HeardHost(state, report.agent, report.cell, said, agent.heard, agent.remembered))
        while len(self._hosts) > MOST_HOSTS:
            self._drop(next(iter(self._hosts)))
        while len(self._agents) > MOST_HOSTS:
            self._agents.popitem(last=False)

    @property
    def cells(self) -> set[str]:
        """Those in which somebody is heard."""
        return set(self._cells)

    @property
    def zones(self) -> set[str]:
        return set(self._zones)

    def __len__(self) -> int:
        return len(self._hosts)

    def state(self, root: str) -> HostState | None:
        known = self._hosts.get(root)
        return None if known is None else known.state

    def down(self, agent: str, now: float) -> str:
        """Why the hosts of this agent are held to be down; empty when they are not."""
        known, listened = self._agents.get(agent), self._listening.seconds
        if known is None:
            if listened - self._opened < self.grace:
                return ""
            return f"down: nothing is heard of its agent {agent}"
        if listened - known.heard <= known.silence:
            return ""
        return f"down: nothing heard of its agent {agent} for {now - known.at:.0f} s"

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

    def _heard_of(self, report: HostReported, now: float) -> _Agent:
        """Its agent, heard just now unless this is an older report.

        A new run counts from the beginning. Agents that do not say which run they are may do so, too, when
        they were silent for so long that they must have been away.
        """
        name, listened = report.agent, self._listening.seconds
        agent = self._agents.get(name)
        if agent is None:
            agent = self._agents[name] = _Agent(listened, now, report.period, report.sequence, report.run)
        elif report.run != agent.run or (
            report.sequence < agent.sequence and listened - agent.heard > agent.silence
        ):
            agent.run, agent.life, agent.sequence = report.run, agent.life + 1, report.sequence
        elif report.sequence <= agent.sequence:
            return agent
        agent.heard, agent.at = listened, now
        agent.sequence = report.sequence
        agent.reports_every(report.period)
        self._listening.due = max(min(self._listening.due, report.period), 1.0)
        self._agents.move_to_end(name)
        return agent

    def _put(self, host: HeardHost) -> None:
        root = host.state.root
        self._drop(root)
        self._hosts[root] = host
        self._cells[host.cell] += 1
        if host.state.zone:
            self._zones[host.state.zone] += 1

    def _drop(self, root: str) -> None:
        host = self._hosts.pop(root, None)
        if host is None:
            return
        for counted, name in ((self._cells, host.cell), (self._zones, host.state.zone)):
            counted[name] -= 1
            if counted[name] <= 0:
                del counted[name]

    def _tidy(self) -> None:
        """Forget who was not heard for very long, and see anew how soon the next report is due."""
        listened = self._listening.seconds
        while self._agents:
            name, agent = next(iter(self._agents.items()))
            if listened - agent.heard <= agent.remembered:
                break
            del self._agents[name]
        while self._hosts:
            root, host = next(iter(self._hosts.items()))
            if listened - host.heard <= host.remembered:
                break
            self._drop(root)
        periods = [one.period for one in self._agents.values() if listened - one.heard <= one.silence]
        self._listening.due = max(min(periods, default=LEAST_SILENCE), 1.0)
