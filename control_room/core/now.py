"""The first page: the state of the cloud in figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control_room.core.agent_heartbeats import AgentHeartbeat
from control_room.core.alarms import ProcessReply
from control_room.core.charts import Chart, chart
from control_room.core.windows import TICK, BuildHistory, Tick, percentiles, summed
from control_room.core.words import duration, several

SHARES = (0.5, 0.95, 0.99)
_MINUTE = 12  # ticks
_POINT = 6  # ticks that a point of the latencies is computed from
_SCHEDULER_LATE = 15.0  # seconds without a heartbeat


@dataclass(frozen=True, kw_only=True)
class CellNow:
    name: str
    enabled: bool
    hosts: int
    instances: int
    building: int | None  # None: its conductor does not answer
    agents: int
    late: int
    closed: str  # hosts that are not up, by state
    problem: str


@dataclass(frozen=True, kw_only=True)
class WorkerNow:
    name: str
    state: str  # good, warn, bad
    text: str


@dataclass(frozen=True)
class TenMinutes:
    """Figures of the complete ticks; they stay until the next tick is complete."""

    number: int
    whole: Tick
    minute: Tick
    speed: Chart
    latency: Chart


def ten_minutes(history: BuildHistory, now: float, known: TenMinutes | None) -> TenMinutes:
    if known is not None and known.number == int(now // TICK) - 1:
        return known
    ticks = history.ticks(now)
    return TenMinutes(ticks[-1].number, summed(ticks), summed(ticks[-_MINUTE:]), *charts(ticks))


def charts(ticks: Sequence[Tick]) -> tuple[Chart, Chart]:
    """Return charts of builds that ended a second, and of their durations. Each point of the durations covers
    half a minute, so that few builds do not make it jump.
    """
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
    return speed, latency


def workers(
    replies: Sequence[ProcessReply],
    schedulers: Mapping[str, float],
    agents: Sequence[AgentHeartbeat],
    now: float,
) -> list[WorkerNow]:
    rows = [
        WorkerNow(
            name=reply.name,
            state="bad" if reply.problem else "warn" if reply.seconds > 2 else "good",
            text=reply.problem or f"answers in {duration(reply.seconds)}",
        )
        for reply in replies
    ]
    for name, lag in schedulers.items():
        state = "good" if lag < _SCHEDULER_LATE else "bad"
        rows.append(
            WorkerNow(name=f"scheduler {name}", state=state, text=f"last heartbeat {duration(lag)} ago")
        )
    if agents:
        late = sum(agent.late(now) for agent in agents)
        heartbeats = f"heartbeats of {several(late, 'agent')} are late" if late else "all heartbeats in time"
        oldest = duration(max(agent.lag(now) for agent in agents))
        text = f"{heartbeats}, the oldest {oldest} ago"
        rows.append(WorkerNow(name=several(len(agents), "agent"), state="bad" if late else "good", text=text))
    return rows
