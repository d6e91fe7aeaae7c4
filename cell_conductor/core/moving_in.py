"""The half of a move between cells in the destination cell: takes the build in and continues as within a
cell.

The build belongs to this cell from here on. No guest runs here yet; the guest elsewhere is stopped or dead.
On the way back the build holds nothing and does not belong to this cell any more; the scheduler claims its
old resources again in the source cell.
"""

from msgspec.structs import replace

from bus.messages import AgentReported, BuildDeleteRequested, BuildPlaced
from bus.moves import HandoverReported, MovePlaced
from cell_conductor.core import build as say
from cell_conductor.core.build import Build, Effects
from cell_conductor.core.events import AttemptLimits, CleanedUp, Event
from cell_conductor.core.leftovers import leftover_released
from cell_conductor.core.move import BUILT, BuildMove, without_record
from cell_conductor.core.moving_out import DELETED, deleted_elsewhere
from cell_conductor.core.phases import Stepped, deleting, enter, repeated_move_end, trimmed


def arrives(build: Build | None, placed: MovePlaced, now: float, limits: AttemptLimits) -> Stepped | None:
    """Take the build in. Return None if the message does not describe the build."""
    if build is not None and build.move is not None and build.move.id == placed.move:
        own = (say.destroy(build),) if build.status == "deleting" else ()
        return build, (*own, *repeated_move_end(build))
    if placed.booted is None or placed.chosen is None:
        return None
    if build is None:
        return _begin(_new(placed), placed, 0, now, limits)
    if build.status == "deleted" and build.placed is None:
        made = replace(_new(placed), version=build.version, replies=build.replies)
        taken, _ = _begin(made, placed, 0, now, limits)
        return deleting(taken, None, now, limits, DELETED)
    if build.status != "moved":
        return build, (_not_taken(build, placed),)
    build = trimmed(build)
    at = len(build.hosts)
    build = replace(build, moved=(*build.moved, placed.chosen, *placed.alternates))
    return _begin(build, placed, at, now, limits)


def _new(placed: MovePlaced) -> Build:
    boot = placed.booted
    assert boot is not None and placed.chosen is not None
    as_placed = BuildPlaced(
        build=placed.build,
        request=boot.request,
        cell=placed.cell,
        chosen=placed.chosen,
        generation=placed.generation or 0,
        alternates=placed.alternates,
        spec=placed.spec,
        decision=boot.decision,
        reply_to=boot.reply_to,
    )
    return Build(id=placed.build, cell=placed.cell, status="moving", placed=as_placed, end="active")


def _begin(build: Build, placed: MovePlaced, at: int, now: float, limits: AttemptLimits) -> Stepped:
    last = build.move
    known = (placed.above, placed.attempt, build.attempt, last.highest if last is not None else 0)
    number = max(known) + 1
    move = BuildMove(
        placed=without_record(placed),
        phase="prepare",
        since=now,
        began=now,
        step=max(placed.steps, last.step if last is not None else 0),
        first=number,
        highest=number,
        source=at,
        left=f"cell {placed.out_of}",
        half="arriving",
    )
    build = replace(
        build, move=move, at=at, attempt=number, generation=placed.generation, became=placed.spec, started=now
    )
    return enter(build, "build" if placed.kind in BUILT else "prepare", now, limits)


def _not_taken(build: Build, placed: MovePlaced) -> HandoverReported:
    return HandoverReported(
        move=placed.move,
        build=placed.build,
        cell=placed.cell,
        half="arriving",
        outcome="back",
        above=build.attempt,
        cause=f"the instance is {build.status} there already",
    )


def event_of_moved(build: Build, event: Event) -> Stepped:
    move = build.move
    assert move is not None, f"{build.id} has moved, by no move"
    match event:
        case BuildPlaced():
            return build, say.repeated_end(build)
        case BuildDeleteRequested():
            return build, (deleted_elsewhere(move, event),)
        case AgentReported(outcome="built" | "failed" | "progress"):  # no message waits for it any more
            return build, _destroyed(build)
        case CleanedUp():
            return leftover_released(build, event), ()
        case _:
            return build, ()


def _destroyed(build: Build) -> Effects:
    left = next((leftover for leftover in build.leftovers if leftover.attempt == build.attempt), None)
    return (say.destroy(build) if left is None else say.destroy_left(build, left),)
