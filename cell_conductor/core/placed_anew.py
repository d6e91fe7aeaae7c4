"""Applies placement's answers to a move: another destination, the source, or the release."""

from msgspec.structs import replace

from bus.claims import (
    Claimed,
    ClaimResult,
    Held,
    NothingHeld,
    OutsideCell,
    Refused,
    ReleaseResult,
    Retired,
)
from bus.moves import SHELVED
from bus.refused_edits import Contended
from cell_conductor.core import build as say
from cell_conductor.core.answers import turned_down
from cell_conductor.core.build import Build, Leftover
from cell_conductor.core.leftovers import left_at
from cell_conductor.core.limits import AttemptLimits
from cell_conductor.core.move import BUILT
from cell_conductor.core.move_orders import open_move, question
from cell_conductor.core.phases import Stepped, close, enter, returned, way_back
from cell_conductor.core.reshaped import holding, position_of


def answered(
    build: Build, result: ClaimResult | None, now: float, limits: AttemptLimits, why: str = ""
) -> Stepped:
    """Apply the answer to a claim of the next destination or the source; without an answer, placement refused
    to judge.
    """
    if open_move(build).phase == "swap":
        return _swapped(build, result, now, limits, why)
    return _taken_over(build, result, now, limits, why)


def _swapped(
    build: Build, result: ClaimResult | None, now: float, limits: AttemptLimits, why: str
) -> Stepped:
    move = open_move(build)
    match result:
        case Claimed(choice=choice, refused=refused):
            attempts = (*move.attempts, *turned_down(build.spares[:choice], refused, now))
            build = replace(build, move=replace(move, attempts=attempts))
            return _next_host(build, build.at + 1 + choice, result.generation, now, limits)
        case Held():
            position = position_of(build, result)
            if position is not None:
                build = holding(build, position, result.allocations)
                if position > build.at:  # the claim had succeeded before a crash
                    return _next_host(build, position, result.generation, now, limits)
            build = replace(build, generation=result.generation if result.allocations else None)
            if position is not None:
                return build, (question(build),)
            why = "its claim was changed by somebody else"
        case Refused(refusals=refusals):
            attempts = (*move.attempts, *turned_down(build.spares, refusals, now))
            build = replace(build, move=replace(move, attempts=attempts))
            why = "every alternate was refused"
        case Retired():
            why = f"its claim has ended ({result.why})"
        case Contended():
            return build, (question(build),)
    return way_back(build, "error", why, now, limits)


def _next_host(build: Build, at: int, generation: int, now: float, limits: AttemptLimits) -> Stepped:
    move = open_move(build)
    left_behind = say.destroy(build, above=move.was)
    number = move.highest + 1
    move = replace(move, highest=number)
    build = replace(build, at=at, attempt=number, generation=generation, started=now, move=move)
    return enter(build, "build" if move.kind in BUILT else "prepare", now, limits, left_behind)


def _taken_over(
    build: Build, result: ClaimResult | None, now: float, limits: AttemptLimits, why: str
) -> Stepped:
    move = open_move(build)
    match result:
        case Claimed():
            return returned(replace(build, generation=result.generation), now, limits)
        case Held():
            return _held(build, result, now, limits)
        case Refused(refusals=refusals):
            if not move.afresh and any(isinstance(refusal, NothingHeld) for refusal in refusals):
                build = replace(build, move=replace(move, afresh=True))
                return build, (question(build),)
            return returned(build, now, limits, "; ".join(map(str, refusals)) or "it was refused")
        case Retired():
            return returned(build, now, limits, f"its claim has ended ({result.why})")
        case Contended():
            return build, (question(build),)
    return returned(build, now, limits, why)


def _held(build: Build, held: Held, now: float, limits: AttemptLimits) -> Stepped:
    """Handle another generation in placement: an earlier claim had succeeded, or another client changed
    it.
    """
    move = open_move(build)
    source, here = build.hosts[move.source], build.host
    build = replace(build, generation=held.generation if held.allocations else None)
    same = source.choice.allocations == held.allocations != here.choice.allocations
    if same or (source.root in held.roots and here.root not in held.roots):
        return returned(holding(build, move.source, held.allocations), now, limits)
    position = position_of(build, held)
    if position is not None and position > build.at:  # a swap that was asked for when the way back began
        number = move.highest + 1
        build = replace(build, at=position, attempt=number, move=replace(move, highest=number))
    return build, (question(build),)


def released(build: Build, result: ReleaseResult, now: float, limits: AttemptLimits) -> Stepped:
    """End the move after the release: the build is shelved, or shelved again."""
    move = open_move(build)
    problem = ""
    match result:
        case Held():  # release it, whichever claim changed it
            if move.kind == "shelve" and result.allocations not in ({}, build.host.choice.allocations):
                # Another move has begun, and holds the resources of the guest that was destroyed here
                build = left_at(build, Leftover(move.was, build.at, now, gone=True))
            build = replace(build, generation=result.generation if result.allocations else None)
            return build, (question(build),)
        case Contended():
            return build, (question(build),)
        case Retired(why=why) if why == SHELVED:  # asked before
            pass
        case OutsideCell(why=why) | Retired(why=why):
            problem = f"placement does not take back what it holds: {why}"
    if not isinstance(result, OutsideCell):
        build = replace(build, generation=None)
    if move.half == "arriving":
        build = replace(build, move=replace(move, silent=True))
        return close(
            build, move.goal or "error", "; ".join(filter(None, (move.cause, problem))), now, "moved"
        )
    if move.kind == "unshelve":
        build = replace(build, became=move.before)
    end = move.goal or ("error" if problem else "done")
    return close(build, end, "; ".join(filter(None, (move.cause, problem))), now, "shelved")
