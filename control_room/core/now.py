"""The first page: how it goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from control_room.core.agent_heartbeats import AgentHeard
from control_room.core.alarms import Alarm
from control_room.core.charts import Chart, chart
from control_room.core.latencies import percentiles, together
from control_room.core.windows import TICK, HeardLately, Tick, summed
from control_room.core.words import duration

SHARES = (0.5, 0.95, 0.99)
_LATELY = 12  # ticks: the last minute
_OVER = 6  # ticks that a point of the latencies is worked out of


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
class CauseNow:
    cause: str
    number: int
    share: float  # of the most frequent


@dataclass(frozen=True, kw_only=True)
class WorkerNow:
    name: str
    state: str  # good, warn, bad
    says: str


@dataclass(frozen=True, kw_only=True)
class NowPage:
    rate: float
    in_flight: int | None
    waiting: int | None
    p50: str
    p99: str
    ended: Mapping[str, int]  # in ten minutes, by status
    alarms: Sequence[Alarm]
    cells: Sequence[CellNow]
    speed: Chart
    latency: Chart
    causes: Sequence[CauseNow]
    host_failures: int  # in ten minutes
    workers: Sequence[WorkerNow]
    agents: Sequence[AgentHeard]
    late: int
    now: float


@dataclass(frozen=True)
class TenMinutes:
    """Figures of the complete ticks; they stay until the next tick is complete."""

    number: int
    whole: Tick
    minute: Tick
    speed: Chart
    latency: Chart


def ten_minutes(lately: HeardLately, now: float, known: TenMinutes | None) -> TenMinutes:
    if known is not None and known.number == int(now // TICK) - 1:
        return known
    ticks = lately.ticks(now)
    return TenMinutes(ticks[-1].number, summed(ticks), last_minute(ticks), *charts(ticks))


def charts(ticks: Sequence[Tick]) -> tuple[Chart, Chart]:
    """Ends a second; and durations, each point over half a minute, that few builds do not make it jump."""
    speed = chart(
        [
            ("active", [tick.ends["active"] / TICK for tick in ticks]),
            ("failed", [(tick.ends["error"] + tick.ends["no host"]) / TICK for tick in ticks]),
        ],
        least=1.0,
    )
    over = [ticks[max(0, end - _OVER) : end] for end in range(1, len(ticks) + 1)]
    points = [
        percentiles(together(tick.durations for tick in some if tick.durations), SHARES) for some in over
    ]
    names = ("half", "95 of 100", "99 of 100")
    latency = chart([(name, [point[place] for point in points]) for place, name in enumerate(names)])
    return speed, latency


def last_minute(ticks: Sequence[Tick]) -> Tick:
    return summed(ticks[-_LATELY:])


def p50_and_p99(minute: Tick) -> tuple[str, str]:
    """In words."""
    half, _, most = percentiles(minute.durations, SHARES)
    return duration(half), duration(most)


def causes(whole: Tick, most: int = 8) -> list[CauseNow]:
    found = whole.causes.most_common(most)
    top = found[0][1] if found else 1
    return [CauseNow(cause=cause, number=number, share=number / top) for cause, number in found]
