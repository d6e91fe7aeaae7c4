"""Steers a move: confirm, revert, abort, or force its copy to end."""

from msgspec.structs import replace

from bus.moves import MoveSteered
from cell_conductor.core import leftovers
from cell_conductor.core.build import Build
from cell_conductor.core.limits import AttemptLimits
from cell_conductor.core.move_orders import how_it_stands, open_move, waited_for
from cell_conductor.core.phases import Stepped, arrived, enter, over, way_back

GOES_BACK = "it is on its way back already"
AS_ASKED = {"revert": "reverted", "abort": "aborted"}


def steered(build: Build, event: MoveSteered, now: float, limits: AttemptLimits) -> Stepped:
    """Apply the request, or refuse it with the reason."""
    move = open_move(build)
    if event.move != move.id:
        return _refused(build, event, f"the instance is in another move, {move.id}")
    if move.goal and AS_ASKED.get(event.to) == move.goal:  # asked before
        return build, (how_it_stands(build, reply_to=event.reply_to), *waited_for(build))
    if move.goal:
        return _refused(build, event, GOES_BACK)
    match event.to, move.phase:
        case "confirm", "verify":
            return arrived(over(build, "done", "confirmed", now), now, limits)
        case "revert", "verify":
            build = over(build, "given up", "reverted", now)
            build = leftovers.leave_behind(build, now, limits.cleanup_timeout, above=move.was)
            build = replace(build, move=replace(open_move(build), may_run=True))
            return way_back(build, "reverted", "", now, limits)
        case "abort", "prepare" | "send" | "build" | "swap" | "undo":
            if move.phase != "swap":
                build = over(build, "given up", "aborted", now)
            if move.phase in ("prepare", "build") or (move.phase == "send" and move.kind != "shelve"):
                build = leftovers.leave_behind(build, now, limits.cleanup_timeout, above=move.was)
            return way_back(build, "aborted", "", now, limits)
        case "force", "send" if move.kind == "live":
            build = replace(build, move=replace(move, forced=True))
            return enter(build, "send", now, limits)
    return _refused(build, event, _why_not(event, move.phase))


def _why_not(event: MoveSteered, phase: str) -> str:
    match event.to:
        case "confirm":
            return f"it does not wait to be confirmed: {phase}"
        case "revert":
            return f"it does not wait to be reverted: {phase}"
        case "abort":
            return f"it is too late for that: {phase}"
        case _:
            return f"only the copying of a live migration ends sooner: {phase}"


def _refused(build: Build, event: MoveSteered, why: str) -> Stepped:
    told = how_it_stands(build, refused=why, reply_to=event.reply_to)
    return build, (replace(told, move=event.move),)
