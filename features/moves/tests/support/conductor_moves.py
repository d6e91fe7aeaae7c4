"""Builders for tests of moves in a cell: orders, reports and answers, and the effects of a build in short."""

from typing import Any, Literal

from bus.claims import ClaimResult
from bus.requests import BuildSpec, Flavor
from bus.vocabulary import Message
from cell_conductor.extension import BuildParts, events
from features.moves.core.phases import BuildMove, MovePart, Phase
from features.moves.messages import (
    MoveEnded,
    MoveKind,
    MoveOrdered,
    MovePhase,
    MovePlaced,
    MoveProgress,
    MoveReported,
)
from tests.support.conductor_builders import CELL, a_selection
from tests.support.conductor_builders import in_short as build_in_short
from tests.support.ids import uid

MoveOutcome = Literal["done", "failed", "progress", "overdue"]
LARGE = BuildSpec(flavor=Flavor(name="large", vcpus=2))


def a_move(
    kind: MoveKind = "migrate", build: int = 1, *, number: int = 1, hosts: tuple[int, ...] = (5, 6),
    attempt: int = 1, generation: int | None = 2, **what: Any,
) -> MovePlaced:  # fmt: skip
    """Return a move from host0 to host5 with the alternate host6; a shelve or rebuild has no alternate."""
    selections = tuple(a_selection(host) for host in hosts)
    stays = kind in ("shelve", "rebuild")
    return MovePlaced(
        move=uid(number, "d"), build=uid(build, "b"), kind=kind, cell=CELL,
        attempt=0 if kind == "unshelve" else attempt, generation=1 if stays else generation,
        chosen=selections[0] if selections and kind != "shelve" else None,
        alternates=() if stays else selections[1:],
        **{"spec": LARGE, **what},
    )  # fmt: skip


def an_answer_in(
    phase: Phase, attempt: int, result: ClaimResult | str, *, afresh: bool = False
) -> events.SwapAnswered:
    """Return placement's answer to a claim of a move in this phase."""
    move = BuildMove(placed=a_move(), phase=phase, since=0.0, began=0.0, afresh=afresh)
    return events.SwapAnswered(attempt, result, BuildParts(MovePart(move)))


def a_move_report(order: MoveOrdered, outcome: MoveOutcome, **more: Any) -> MoveReported:
    return MoveReported(**order.phase_fields(), outcome=outcome, **more)


def a_report_of(
    placed: MovePlaced, phase: MovePhase, step: int, outcome: MoveOutcome, **more: Any
) -> MoveReported:
    here = placed.chosen or a_selection(0)
    return MoveReported(
        move=placed.move, build=placed.build, phase=phase, step=step, attempt=2, cell=placed.cell,
        agent=here.agent, root=here.root, host=here.host, outcome=outcome, **more,
    )  # fmt: skip


def in_short(effect: Message) -> str:
    """Return an effect of a build or move in short, for tables."""
    match effect:
        case MoveOrdered():
            was = f" (was {effect.was})" if effect.was else ""
            force = " by force" if effect.force else ""
            return f"{effect.phase} {effect.attempt}{was} at {effect.host}{force}"
        case MoveProgress():
            return f"progress {effect.phase}{f': {effect.refused}' if effect.refused else ''}"
        case MoveEnded():
            return f"ended {effect.end}{f' at {effect.host}' if effect.host else ''}"
        case _:
            return build_in_short(effect)
