"""Computes the control room's home page: figures about the cloud, heartbeats and alarms."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from bus.messages import HostReported
from control_room.core.builds import TICK, BuildHistory, Tick, percentiles, summed
from control_room.kit.charts import Chart, chart
from control_room.kit.replies import Replies
from control_room.kit.words import duration, listed, several

K = TypeVar("K")
V = TypeVar("V")


EXPIRY = 3600.0  # seconds without a heartbeat until a sender is removed


MOST = 20_000  # agents, and schedulers, at most


LATE = 3.0  # periods without a heartbeat after which an agent is late


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHeartbeat:
    """The last heartbeat of an agent."""

    cell: str
    agent: str
    at: float
    period: float
    hosts: int
    instances: int

    def lag(self, now: float) -> float:
        """Return the seconds since the agent's last heartbeat."""
        return max(0.0, now - self.at)

    def late(self, now: float) -> bool:
        """Return whether the next heartbeat is overdue."""
        return self.lag(now) > LATE * max(self.period, 1.0)


class Heartbeats:
    """Stores the last heartbeat of each agent and each scheduler."""

    def __init__(self) -> None:
        self._agents: OrderedDict[tuple[str, str], AgentHeartbeat] = OrderedDict()
        self._schedulers: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, report: HostReported, now: float) -> None:
        heartbeat = AgentHeartbeat(
            cell=report.cell,
            agent=report.agent,
            at=now,
            period=report.period,
            hosts=len(report.hosts),
            instances=sum(host.instances for host in report.hosts),
        )
        _keep_latest(self._agents, (report.cell, report.agent), heartbeat)

    def add_scheduler(self, name: str, now: float, waits: int = 0) -> bool:
        """Store a scheduler's heartbeat; return True if its number of waiting requests has changed."""
        before = self._schedulers.get(name)
        _keep_latest(self._schedulers, name, (now, waits))
        return before is None or before[1] != waits

    def agents(self, now: float) -> Sequence[AgentHeartbeat]:
        """Return the agents' last heartbeats, sorted by cell and name; omit heartbeats older than an hour."""
        while self._agents and now - next(iter(self._agents.values())).at > EXPIRY:
            self._agents.popitem(last=False)
        return [self._agents[key] for key in sorted(self._agents)]

    def schedulers(self, now: float) -> dict[str, float]:
        """Return a mapping of each scheduler's name to the seconds since its last heartbeat."""
        while self._schedulers and now - next(iter(self._schedulers.values()))[0] > EXPIRY:
            self._schedulers.popitem(last=False)
        return {name: max(0.0, now - at) for name, (at, _) in sorted(self._schedulers.items())}


def _keep_latest(heartbeats: OrderedDict[K, V], key: K, heartbeat: V) -> None:
    heartbeats[key] = heartbeat
    heartbeats.move_to_end(key)
    while len(heartbeats) > MOST:
        heartbeats.popitem(last=False)


_MANY = 0.1  # share of failed builds from which there is an alarm


_FEW = 5  # with fewer ended builds there is no alarm


_SLOW = 2.0  # seconds; a slower answer is an alarm


@dataclass(frozen=True, slots=True)
class Alarm:
    """A problem that the first page shows."""

    level: Literal["bad", "warn"]
    text: str


def alarms(
    replies: Replies,
    agents: Sequence[AgentHeartbeat],
    minute: Tick,
    disabled_cells: Sequence[str],
    rescued: int,
    now: float,
) -> Iterator[Alarm]:
    """Yield the problems that an operator should solve. `minute`: counts of builds in the last minute;
    `rescued`: the number of requests for which only a scheduler's periodic retry found a host.
    """
    for reply in replies:
        if reply.problem:
            yield Alarm("bad", f"{reply.source} does not answer: {reply.problem}")
    late = [agent for agent in agents if agent.late(now)]
    if late:
        oldest = max(agent.lag(now) for agent in late)
        hosts = several(sum(agent.hosts for agent in late), "host")
        names = listed([agent.agent for agent in late])
        text = f"no heartbeat in time of {several(len(late), 'agent')} with {hosts}"
        yield Alarm("bad", f"{text} ({names}; the oldest {duration(oldest)} ago)")
    total = sum(minute.ends.values())
    for status, outcome in (("error", "ended in error"), ("no host", "found no host")):
        number = minute.ends[status]
        if total >= _FEW and number / total >= _MANY:
            share = f"{number / total:.0%} of the builds that ended in the last minute {outcome}"
            yield Alarm("bad" if number / total >= 0.5 else "warn", f"{share} ({number:,} of {total:,})")
    for reply in replies:
        if not reply.problem and reply.seconds > _SLOW:
            yield Alarm("warn", f"{reply.source} took {duration(reply.seconds)} to answer")
    if disabled_cells:
        noun, verb = ("cell", "is") if len(disabled_cells) == 1 else ("cells", "are")
        text = f"{noun} {listed(disabled_cells)} {verb} disabled: no new builds are placed there"
        yield Alarm("warn", text)
    if rescued:
        requests = several(rescued, "request")
        text = f"{requests} got a host only by the periodic sweep: no event reported the free capacity"
        yield Alarm("warn", text)


SHARES = (0.5, 0.95, 0.99)


_MINUTE = 12  # periods


_POINT = 6  # periods for one point of the latency chart


_SCHEDULER_LATE = 15.0  # seconds without a heartbeat after which a scheduler is late


@dataclass(frozen=True)
class WorkerNow:
    """A worker with its state on the first page."""

    name: str
    state: str  # good, warn, bad
    text: str


@dataclass(frozen=True)
class TenMinutes:
    """The counts and charts of builds in the last ten minutes, computed again every five seconds."""

    number: int
    whole: Tick
    minute: Tick
    speed: Chart
    latency: Chart


def ten_minutes(history: BuildHistory, now: float, known: TenMinutes | None) -> TenMinutes:
    """Return the figures of the last ten minutes; computed once a tick."""
    if known is not None and known.number == int(now // TICK) - 1:
        return known
    ticks = history.ticks(now)
    speed = chart(
        [
            ("active", [tick.ends["active"] / TICK for tick in ticks]),
            ("failed", [(tick.ends["error"] + tick.ends["no host"]) / TICK for tick in ticks]),
        ],
        least=1.0,
    )
    spans = [ticks[max(0, end - _POINT) : end] for end in range(1, len(ticks) + 1)]
    points = [percentiles(summed(span).durations, SHARES) for span in spans]
    names = ("p50", "p95", "p99")
    latency = chart([(name, [point[place] for point in points]) for place, name in enumerate(names)])
    return TenMinutes(ticks[-1].number, summed(ticks), summed(ticks[-_MINUTE:]), speed, latency)


def workers(
    replies: Replies, schedulers: Mapping[str, float], agents: Sequence[AgentHeartbeat], now: float
) -> list[WorkerNow]:
    """Return the workers with their states, from the replies to queries and from heartbeats."""
    rows = []
    for reply in replies:
        state = "bad" if reply.problem else "warn" if reply.seconds > _SLOW else "good"
        text = reply.problem or f"answers in {duration(reply.seconds)}"
        rows.append(WorkerNow(reply.source, state, text))
    for name, lag in schedulers.items():
        state = "good" if lag < _SCHEDULER_LATE else "bad"
        rows.append(WorkerNow(f"scheduler {name}", state, f"last heartbeat {duration(lag)} ago"))
    if agents:
        late = sum(agent.late(now) for agent in agents)
        heartbeats = f"heartbeats of {several(late, 'agent')} are late" if late else "all heartbeats in time"
        oldest = duration(max(agent.lag(now) for agent in agents))
        text = f"{heartbeats}, the oldest {oldest} ago"
        rows.append(WorkerNow(several(len(agents), "agent"), "bad" if late else "good", text))
    return rows
