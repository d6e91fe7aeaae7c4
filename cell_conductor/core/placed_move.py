"""How a move begins, or ends at once where there is nothing to move; and what is heard when it is over."""

from msgspec.structs import replace

from bus.claims import Choice, ClaimRequested, ConsumerClaim, ReleaseRequested
from bus.messages import DestroyOrdered
from bus.moves import SHELVED, MoveEnd, MovePlaced, MoveReported, MoveSteered, MoveTold
from cell_conductor.core import build as say
from cell_conductor.core import leftovers
from cell_conductor.core.build import Build, Effects, Leftover
from cell_conductor.core.events import Event, MoveImpossible
from cell_conductor.core.limits import AttemptLimits
from cell_conductor.core.move import BUILT, KEPT, BuildMove, ended, never_begun, without_record
from cell_conductor.core.move_orders import ended_again
from cell_conductor.core.phases import Stepped, close, deleting, enter, trimmed, way_back

UNKNOWN = "this cell does not know the build: what it began with is undone"
DELETED = "the instance was deleted"


def placed_by(event: Event) -> MovePlaced | None:
    if isinstance(event, MoveImpossible):
        return event.placed
    return event if isinstance(event, MovePlaced) else None


def put_off(build: Build | None, placed: MovePlaced) -> str:
    """Why this cannot be judged yet; empty: it can. What holds no place of its own need not wait."""
    if build is None or (build.move is not None and build.move.id == placed.move):
        return ""
    if build.moving is not None and placed.kind not in ("shelve", "rebuild"):
        return f"its build is in the move {build.moving.id}"
    return f"its build is {build.status}" if build.status in ("building", "swapping") else ""


def begun(build: Build, placed: MovePlaced, now: float, limits: AttemptLimits, why: str = "") -> Stepped:
    """A build that is in no other move is to move. `why`: it cannot, here."""
    if build.move is not None and build.move.id == placed.move:
        own = (say.destroy(build),) if build.status == "deleting" else ()
        return build, (*own, *ended_again(build))
    wants = "shelved" if placed.kind == "unshelve" else "active"
    if build.status == wants:
        last = () if build.move is None else (ended(build.move),)  # should that have got lost
        build, said = _begin(build, placed, now, limits, why)
        return build, (*last, *said)
    if placed.kind not in KEPT or build.placed is None:
        return _never(build, placed, now)
    if build.status == "deleting":
        build, _ = _begin(build, placed, now, limits, "")
        return deleting(build, None, now, limits, DELETED) if build.moving else (build, ())
    # Nothing holds the destination by now; what keeps the source is given back when its guest is gone.
    left = Leftover(placed.attempt, build.at, now + limits.cleanup_timeout)
    return _never(leftovers.left_at(build, left), placed, now)


def _never(build: Build, placed: MovePlaced, now: float) -> Stepped:
    end: MoveEnd = "deleted" if build.status in ("deleting", "deleted") else "error"
    why = DELETED if end == "deleted" else f"the instance is {build.status}"
    build = replace(build, move=_after(build.move, never_begun(placed, end, why, now)))
    return build, ended_again(build)


def _after(last: BuildMove | None, move: BuildMove) -> BuildMove:
    """Its numbers go on where those of the last one ended."""
    if last is None:
        return move
    return replace(move, step=last.step, highest=max(last.highest, move.highest))


def _begin(build: Build, placed: MovePlaced, now: float, limits: AttemptLimits, why: str) -> Stepped:
    build = trimmed(build)
    before = max(build.attempt, placed.attempt, build.move.highest if build.move is not None else 0)
    number = before if placed.kind == "shelve" else before + 1
    move = BuildMove(
        placed=without_record(placed),
        phase="prepare",
        since=now,
        began=now,
        first=before + 1,
        highest=number,
        source=build.at,
        left="" if placed.kind == "unshelve" else build.host.host,
        was=0 if placed.kind == "unshelve" else build.attempt,
        before=build.became,
        host=placed.chosen.host if placed.chosen is not None else "",
    )
    move = _after(build.move, move)
    if placed.kind in ("shelve", "rebuild"):
        if why:
            build = replace(build, move=replace(move, phase="send"), status="moving")
            return close(build, "error", why, now, "active")
        if placed.kind == "shelve":
            return enter(replace(build, move=move), "send", now, limits)
        build = replace(build, move=move, attempt=number, became=placed.spec, started=now)
        return enter(build, "rebuild", now, limits)
    assert placed.chosen is not None, f"move {placed.move} is placed nowhere"
    build = replace(
        build,
        move=move,
        moved=(*build.moved, placed.chosen, *placed.alternates),
        at=len(build.hosts),
        attempt=number,
        generation=placed.generation,
        became=placed.spec,
        started=now,
    )
    if placed.kind in KEPT and placed.attempt != move.was:
        why = why or "the instance was changed meanwhile: it is another attempt by now"
    if why:
        return way_back(build, "error", why, now, limits)
    return enter(build, "build" if placed.kind in BUILT else "prepare", now, limits)


# What is heard of a move that is over, or of none


def placed_of_unknown(placed: MovePlaced, now: float) -> Effects:
    return (ended(never_begun(placed, "error", UNKNOWN, now)),)


def refused_meanwhile(build: Build, placed: MovePlaced, now: float) -> Effects:
    """It holds no place, and its build is in another move."""
    assert build.moving is not None
    return (ended(never_begun(placed, "error", f"the instance is in the move {build.moving.id}", now)),)


def steered_late(build: Build | None, event: MoveSteered) -> Effects:
    if build is not None and build.move is not None and build.move.id == event.move:
        return ended_again(build)
    why = "the instance is in no such move"
    return (
        MoveTold(
            move=event.move,
            build=event.build,
            cell=event.cell,
            phase="",
            refused=why,
            reply_to=event.reply_to,
        ),
    )


def unknown(build: Build | None) -> bool:
    """Nothing was ever placed here by that name."""
    return build is None or build.placed is None


def undone_unknown(placed: MovePlaced) -> ClaimRequested | ReleaseRequested | None:
    """What is asked of placement when the build is unknown: nothing was ordered, so the destination is free,
    and what was kept goes back. None: nothing was claimed."""
    if placed.kind == "unshelve":
        return ReleaseRequested(consumer=placed.build, generation=placed.generation, retire=SHELVED)
    if placed.kind not in KEPT:
        return None
    claim = ConsumerClaim(
        consumer=placed.build,
        generation=placed.generation,
        choices=(Choice(allocations={}),),
        project=placed.spec.project,
        user=placed.spec.user,
        take_over=say.keeper(placed.build, placed.attempt),
    )
    return ClaimRequested(claims=(claim,))


def heard_late(build: Build, report: MoveReported) -> Stepped:
    """Of a move that is over, or of none. A rebuild that was given up may have failed since: what was there
    before runs on."""
    move = build.move
    failed = move is not None and (report.move, report.phase, report.step, report.outcome) == (
        move.id,
        "rebuild",
        move.step,
        "failed",
    )
    said = of_another_move(build, report)
    if move is not None and failed and build.status == "active" and build.attempt == report.attempt:
        build = replace(build, attempt=move.was, became=move.before)
    return build, said


def of_another_move(build: Build, report: MoveReported) -> Effects:
    """Stale: what led to its end is said again, and what is nobody's any more is destroyed."""
    if build.moving is None and build.move is not None and report.move == build.move.id:
        if report.outcome == "progress":
            return ()
        again = ended_again(build)
    else:
        again = ()
    nobodys = build.status in ("deleting", "deleted", "error", "shelved") and report.attempt <= build.attempt
    left = any(one.attempt == report.attempt and not one.gone for one in build.leftovers)
    if report.outcome == "overdue" or not nobodys or left:
        return again
    gone = DestroyOrdered(
        build=build.id,
        attempt=report.attempt,
        cell=build.cell,
        agent=report.agent,
        root=report.root,
        host=report.host,
    )
    return (gone, *again)
