"""State machine of a move between two cells, as pure functions.

    leaving ── ready ──→ arriving ── arrived ──→ done
       │                    ├────── back ─────→ back      the source is claimed again for the instance
       ├── failed ──────────┼─────────────────→ back
       └── deleted ─────────┴────── deleted ──→ deleted

Each transition between cells is decided once. If a cell repeats a report, the scheduler publishes the
messages of this transition again, because a scheduler may have stopped before it published them. A report
from the wrong cell changes nothing.
"""

from typing import Literal

from msgspec import structs

from bus.claims import ReleaseRequested
from bus.messages import BuildDeleteRequested, BuildPlaced
from bus.vocabulary import Value
from features.moves import messages as moves
from features.moves.core.start import MoveStart

HandoverState = Literal["leaving", "arriving", "done", "back", "deleted"]
DECIDED: tuple[HandoverState, ...] = ("done", "back", "deleted")


class Handover(Value, frozen=True, kw_only=True):
    """The state of a move between two cells. Immutable: each report makes a new one."""

    placed: moves.MovePlaced  # the order to the destination cell; `out_of` is the source cell
    state: HandoverState = "leaving"
    by: moves.HandoverReported | None = None
    generation: int | None = None  # in state `back`: the consumer's generation after the new claim
    problem: str = ""  # in state `back`: why the source's resources could not be claimed again


# What must be done before the state changes: claim the source's resources again for the build, retire a build
# that was deleted before it left, or wait until its cell has released the build and repeats the report.
Action = Literal["take back", "end build", "retry"]

_LEAVING = ("ready", "failed", "deleted", "delete")
_ARRIVING = ("arrived", "back", "deleted", "delete")

Outgoing = moves.MovePlaced | moves.HandoverProgress | BuildDeleteRequested


def handover(start: MoveStart, placed: moves.MovePlaced, booted: BuildPlaced) -> Handover:
    """Return a move to another cell at its beginning."""
    return Handover(placed=structs.replace(placed, out_of=start.cell, booted=booted))


def judged(order: Handover, report: moves.HandoverReported) -> Handover | Action | None:
    """Return a move's next state after a cell's report, or the action to execute before the state can change.
    Return None if the report contradicts the present state.
    """
    leaving = report.half == "leaving"
    if report.cell != (order.placed.out_of if leaving else order.placed.cell):
        return None
    if report.outcome not in (_LEAVING if leaving else _ARRIVING):
        return None
    if not leaving and order.state == "leaving":  # the destination cell has received no order yet
        return None
    match report.outcome, order.state:
        case "delete", _:
            waits = order.state in ("leaving", "arriving") and owner(order) == report.cell
            return "retry" if waits else order
        case "ready", "leaving":
            placed = structs.replace(order.placed, above=report.above, steps=report.steps)
            return structs.replace(order, placed=placed, state="arriving")
        case ("failed", "leaving") | ("back", "arriving"):
            return "take back"
        case "deleted", "leaving":
            return "end build"
        case "arrived", "arriving":
            return structs.replace(order, state="done", by=report)
        case "deleted", "arriving" if not leaving:
            return structs.replace(order, state="deleted", by=report)
        case _:
            return order


def owner(order: Handover) -> str:
    """Return the cell that owns the instance: the old one until the new cell has accepted it."""
    return order.placed.cell if order.state in ("arriving", "done") else order.placed.out_of


def messages_of(order: Handover, report: moves.HandoverReported | None = None) -> tuple[Outgoing, ...]:
    """Return what to publish for the present state of a move between cells, in reply to a cell's `report`."""
    if report is not None and report.outcome == "delete":
        delete = BuildDeleteRequested(build=order.placed.build, cell=owner(order), reply_to=report.reply_to)
        return (delete,) if order.state not in ("back", "deleted") else (_progress(order), delete)
    return (order.placed,) if order.state == "arriving" else (_progress(order),)


def begins(order: Handover) -> tuple[moves.HandoverProgress, ...]:
    """Return the message by which the source cell begins a move; empty if the build has left that cell."""
    return (_progress(order),) if order.state == "leaving" else ()


def _progress(order: Handover) -> moves.HandoverProgress:
    placed, by = order.placed, order.by
    progress = moves.HandoverProgress(
        move=placed.move,
        build=placed.build,
        kind=placed.kind,
        cell=placed.out_of,
        to_cell=placed.cell,
        say="leave" if order.state == "leaving" else order.state,  # type: ignore[arg-type]
        attempt=placed.attempt,
        host=placed.chosen.host if placed.chosen is not None else "",
        spec=placed.spec,
        decision=placed.decision,
        reply_to=placed.reply_to,
    )
    if by is None:
        return progress
    reported = {name: getattr(by, name) for name in ("above", "steps", "end", "cause", "phases", "attempts")}
    return structs.replace(progress, generation=order.generation, problem=order.problem, **reported)


def release_of(order: Handover, *, deleted: bool) -> ReleaseRequested:
    """Return the request to release all allocations of a build, and to record that it is deleted or, after
    the failed move of a shelved instance, that it is shelved.
    """
    return ReleaseRequested(
        consumer=order.placed.build,
        generation="any",
        retire="deleted" if deleted else moves.SHELVED,
        revivable=not deleted,
        cell="" if deleted else order.placed.out_of,  # the source cell may end a build that is shelved again
    )


def no_consumer(order: Handover) -> moves.HandoverReported:
    """Return a report that the move failed, because a cell has no conductor for moves between cells."""
    placed = order.placed
    leaves = order.state == "leaving"
    cell = placed.out_of if leaves else placed.cell
    return moves.HandoverReported(
        move=placed.move,
        build=placed.build,
        cell=cell,
        half="leaving" if leaves else "arriving",
        outcome="failed" if leaves else "back",
        above=placed.above,
        steps=placed.steps,
        cause=f"cell {cell!r}: no conductor accepts moves between cells there",
    )
