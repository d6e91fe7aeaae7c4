"""Builders for tests of moves in a cell: placed moves, agents' reports, and effects in short form."""

from typing import Any, Literal

from bus.claims import ClaimRequested, ReleaseRequested, holder_consumer
from bus.messages import BuildOrdered, DestroyOrdered
from bus.moves import (
    SHELVED,
    MoveEnded,
    MoveKind,
    MoveOrdered,
    MovePhase,
    MovePlaced,
    MoveProgress,
    MoveReported,
    MoveSteered,
    Steering,
)
from bus.requests import BuildSpec, Flavor
from bus.vocabulary import Message
from tests.support.conductor_builders import CELL, a_selection, attempt_fields
from tests.support.ids import uid

MoveOutcome = Literal["done", "failed", "progress", "overdue"]
LARGE = BuildSpec(flavor=Flavor(name="large", vcpus=2))


def a_move(
    kind: MoveKind = "migrate",
    build: int = 1,
    *,
    number: int = 1,
    hosts: tuple[int, ...] = (5, 6),
    attempt: int = 1,
    generation: int | None = 2,
    **what: Any,
) -> MovePlaced:
    """From host0 to host5, with host6 to fall back on; what stays where it is has no host."""
    selections = tuple(a_selection(host) for host in hosts)
    stays = kind in ("shelve", "rebuild")
    return MovePlaced(
        move=uid(number, "d"),
        build=uid(build, "b"),
        kind=kind,
        cell=CELL,
        attempt=0 if kind == "unshelve" else attempt,
        generation=1 if stays else generation,
        chosen=None if kind == "shelve" else selections[0],
        alternates=() if stays else selections[1:],
        spec=what.pop("spec", LARGE),
        **what,
    )


def a_move_report(order: MoveOrdered, outcome: MoveOutcome, **more: Any) -> MoveReported:
    moved = {name: getattr(order, name) for name in ("move", "phase", "step")}
    return MoveReported(**attempt_fields(order), **moved, outcome=outcome, **more)


def a_report_of(
    placed: MovePlaced, phase: MovePhase, step: int, outcome: MoveOutcome, **more: Any
) -> MoveReported:
    here = placed.chosen or a_selection(0)
    return MoveReported(
        move=placed.move, build=placed.build, phase=phase, step=step, attempt=2, cell=placed.cell,
        agent=here.agent, root=here.root, host=here.host, outcome=outcome, **more,
    )  # fmt: skip


def a_steering(placed: MovePlaced, to: Steering, reply_to: str = "") -> MoveSteered:
    return MoveSteered(move=placed.move, build=placed.build, cell=placed.cell, to=to, reply_to=reply_to)


def in_short(effect: Message) -> str:
    """An effect of a build that may move, for people to read."""
    match effect:
        case MoveOrdered():
            was = f" (was {effect.was})" if effect.was else ""
            force = " by force" if effect.force else ""
            return f"{effect.phase} {effect.attempt}{was} at {effect.host}{force}"
        case MoveProgress():
            return f"told {effect.phase}{f': {effect.refused}' if effect.refused else ''}"
        case MoveEnded():
            return f"ended {effect.end}{f' at {effect.host}' if effect.host else ''}"
        case BuildOrdered():
            return f"build {effect.attempt} at {effect.host}"
        case DestroyOrdered():
            above = f" above {effect.above}" if effect.above else ""
            return f"destroy {effect.attempt} at {effect.host}{above}"
        case ClaimRequested():
            (claim,) = effect.claims
            to = f"swap {claim.generation} to {len(claim.choices)}"
            if claim.take_over:
                to = f"back {claim.generation} to {_kept(claim.take_over, claim.consumer)}"
            return to + (f" keeping {_kept(claim.keep, claim.consumer)}" if claim.keep else "")
        case ReleaseRequested() if effect.fenced:
            retired = {"": "", SHELVED: " as shelved"}.get(effect.retire, " for good")
            kept = f" keeping {_kept(effect.keep, effect.consumer)}" if effect.keep else ""
            return f"release {effect.generation}{retired}{kept}"
        case ReleaseRequested():
            return f"free {_kept(effect.consumer, uid(1, 'b'))}"
        case _:
            return (
                getattr(effect, "outcome", None) or getattr(effect, "status", None) or type(effect).__name__
            )


def _kept(consumer: str | None, build: str) -> int:
    return next(attempt for attempt in range(1, 20) if holder_consumer(build, attempt) == consumer)
