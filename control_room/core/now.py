"""Computes the control room's home page: figures about the cloud, and heartbeats."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bus.messages import HostReported
from control_room.core.builds import TICK, BuildHistory, Tick, percentiles, summed
from control_room.kit.charts import Chart, chart
from control_room.kit.replies import Replies
from control_room.kit.words import duration, several

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


SHARES = (0.5, 0.95, 0.99)


_MINUTE = 12  # periods


_POINT = 6  # periods for one point of the latency chart


@dataclass(frozen=True)
class WorkerNow:
    """A worker with its response time, or the time of its last heartbeat, on the first page."""

    name: str
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
    """Return the workers, from the replies to queries and from heartbeats."""
    rows = []
    for reply in replies:
        text = reply.problem or f"answers in {duration(reply.seconds)}"
        rows.append(WorkerNow(reply.source, text))
    for name, lag in schedulers.items():
        rows.append(WorkerNow(f"scheduler {name}", f"last heartbeat {duration(lag)} ago"))
    if agents:
        oldest = duration(max(agent.lag(now) for agent in agents))
        rows.append(WorkerNow(several(len(agents), "agent"), f"the oldest heartbeat {oldest} ago"))
    return rows
