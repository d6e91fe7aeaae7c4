"""Sentences about problems that an operator should solve, the worst first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from control_room.core.agent_heartbeats import AgentHeartbeat
from control_room.core.windows import Tick
from control_room.core.words import duration, listed, several

_MANY = 0.1  # of the builds that end
_FEW = 5  # fewer ends than this are not judged
_SLOW = 2.0  # seconds for an answer


@dataclass(frozen=True, slots=True)
class Alarm:
    level: Literal["bad", "warn"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReply:
    """A process that was queried: the time that its answer took, or why there was none."""

    name: str
    seconds: float = 0.0
    problem: str = ""


def alarms(
    replies: Sequence[ProcessReply],
    agents: Sequence[AgentHeartbeat],
    minute: Tick,
    disabled_cells: Sequence[str],
    rescued: int,
    now: float,
) -> list[Alarm]:
    """Return the alarms. `minute` counts the ends of about the last minute."""
    return [*_silent(replies, agents, now), *_ends(minute), *_warnings(replies, disabled_cells, rescued)]


def _silent(replies: Sequence[ProcessReply], agents: Sequence[AgentHeartbeat], now: float) -> Iterator[Alarm]:
    for reply in replies:
        if reply.problem:
            yield Alarm("bad", f"{reply.name} does not answer: {reply.problem}")
    late = [agent for agent in agents if agent.late(now)]
    if late:
        oldest = max(agent.lag(now) for agent in late)
        hosts = several(sum(agent.hosts for agent in late), "host")
        names = listed([agent.agent for agent in late])
        text = f"no heartbeat in time of {several(len(late), 'agent')} with {hosts}"
        yield Alarm("bad", f"{text} ({names}; the oldest {duration(oldest)} ago)")


def _ends(minute: Tick) -> Iterator[Alarm]:
    total = sum(minute.ends.values())
    if total < _FEW:
        return
    for status, outcome in (("error", "ended in error"), ("no host", "found no host")):
        number = minute.ends[status]
        if number / total >= _MANY:
            share = f"{number / total:.0%} of the builds that ended in the last minute {outcome}"
            yield Alarm("bad" if number / total >= 0.5 else "warn", f"{share} ({number:,} of {total:,})")


def _warnings(
    replies: Sequence[ProcessReply], disabled_cells: Sequence[str], rescued: int
) -> Iterator[Alarm]:
    for reply in replies:
        if not reply.problem and reply.seconds > _SLOW:
            yield Alarm("warn", f"{reply.name} took {duration(reply.seconds)} to answer")
    if disabled_cells:
        noun, verb = ("cell", "is") if len(disabled_cells) == 1 else ("cells", "are")
        yield Alarm(
            "warn", f"{noun} {listed(disabled_cells)} {verb} disabled: no new builds are placed there"
        )
    if rescued:
        requests = several(rescued, "request")
        yield Alarm(
            "warn", f"{requests} got a host only by the periodic sweep: no event reported the free capacity"
        )
