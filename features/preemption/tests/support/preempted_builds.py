"""Builds of a cell that preempt instances, and their victims, for tests."""

from msgspec.structs import replace

from bus.claims import Retired, holder_consumer
from bus.messages import AgentReported
from bus.parts import PlacedParts
from bus.vocabulary import Message
from cell_conductor.extension import AttemptLimits, Build, Event, builds, events
from features.preemption.messages import Vacating, Victim, Victims
from features.waiting.messages import PlacedPriority
from tests.support.conductor_builders import CELL, a_placed, step
from tests.support.ids import uid

HIGH, LOW, LOWER = (uid(number, "b") for number in (1, 2, 3))
LIMITS = AttemptLimits()


def a_victim(build: str, **fields: object) -> Victim:
    given = {"generation": 1, "attempt": 1, "holder": holder_consumer(build, 1)} | fields
    return Victim(build=build, **given)  # type: ignore[arg-type]


def after(build: Build | None, *events: Event, now: float = 0.0) -> tuple[Build, tuple[Message, ...]]:
    effects: tuple[Message, ...] = ()
    for event in events:
        build, effects = step(build, event, now, LIMITS)
    assert build is not None
    return build, effects


def preempting(*victims: str) -> tuple[Build, tuple[Message, ...]]:
    replaced = Victims(preempts=tuple(a_victim(build, grace=5.0) for build in victims))
    placed = replace(a_placed(1), parts=PlacedParts(replaced, PlacedPriority(priority=7)))
    return after(None, placed)


def vacate(build: str = LOW, *, requeue: bool = False, by: str = HIGH) -> Vacating:
    fields = {"attempt": 1, "priority": 7, "grace": 5.0, "requeue": requeue}
    return Vacating(build=build, other=by, cell=CELL, say="vacate", **fields)  # type: ignore[arg-type]


def vacated(victim: str, by: str = HIGH) -> Vacating:
    return Vacating(build=by, other=victim, cell=CELL, say="vacated")


def an_active(number: int = 2) -> Build:
    built, _ = after(None, a_placed(number))
    return after(built, AgentReported(**builds.attempt_fields(built), outcome="built"))[0]


def leaving(*, requeue: bool = False) -> tuple[Build, tuple[Message, ...]]:
    """A victim whose agent has destroyed the guest, after placement's answers."""
    victim, _ = after(an_active(), vacate(requeue=requeue))
    gone = AgentReported(**builds.attempt_fields(victim), outcome="destroyed")
    retired = events.ReleaseAnswer("deleting", Retired(why="preempted"))
    return after(victim, gone, retired)
