"""Sentences about problems that an operator should solve, the worst first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from control_room.core.agent_heartbeats import AgentHeard
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
class Questioned:
    """A process that was asked: the time that its answer took, or why there was none."""

    name: str
    seconds: float = 0.0
    problem: str = ""


def alarms(
    asked: Sequence[Questioned],
    agents: Sequence[AgentHeard],
    lately: Tick,
    disabled_cells: Sequence[str],
    rescued: int,
    now: float,
) -> list[Alarm]:
    """Return the alarms. `lately` counts the ends of about the last minute."""
    return [*_silent(asked, agents, now), *_ends(lately), *_of_note(asked, disabled_cells, rescued)]


def _silent(asked: Sequence[Questioned], agents: Sequence[AgentHeard], now: float) -> Iterator[Alarm]:
    for questioned in asked:
        if questioned.problem:
            yield Alarm("bad", f"{questioned.name} does not answer: {questioned.problem}")
    late = [agent for agent in agents if agent.late(now)]
    if late:
        longest = max(late, key=lambda one: one.lag(now))
        hosts = several(sum(agent.hosts for agent in late), "host")
        who = f"{several(len(late), 'agent')} with {hosts} {'was' if len(late) == 1 else 'were'}"
        yield Alarm(
            "bad",
            f"{who} not heard in time"
            f" ({listed([one.agent for one in late])}; the longest silence is {duration(longest.lag(now))})",
        )


def _ends(lately: Tick) -> Iterator[Alarm]:
    total = sum(lately.ends.values())
    if total < _FEW:
        return
    for status, what in (("error", "ended in error"), ("no host", "found no host")):
        number = lately.ends[status]
        if number / total >= _MANY:
            share = f"{number / total:.0%} of the builds that ended in the last minute {what}"
            yield Alarm("bad" if number / total >= 0.5 else "warn", f"{share} ({number:,} of {total:,})")


def _of_note(asked: Sequence[Questioned], disabled_cells: Sequence[str], rescued: int) -> Iterator[Alarm]:
    for questioned in asked:
        if not questioned.problem and questioned.seconds > _SLOW:
            yield Alarm("warn", f"{questioned.name} took {duration(questioned.seconds)} to answer")
    if disabled_cells:
        noun, verb = ("cell", "is") if len(disabled_cells) == 1 else ("cells", "are")
        yield Alarm("warn", f"{noun} {listed(disabled_cells)} {verb} disabled: nothing new is placed there")
    if rescued:
        yield Alarm(
            "warn",
            f"{several(rescued, 'request')} got a host only by the slow sweep: no change told of the room",
        )
