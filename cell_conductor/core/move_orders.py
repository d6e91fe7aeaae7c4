"""Orders, questions and messages of a move. They depend only on the stored phase, so they can be repeated."""

from bus.build_orders import sent_allocations
from bus.claims import Choice, ClaimRequested, ConsumerClaim, ReleaseRequested
from bus.moves import SHELVED, MoveOrdered, MovePhase, MoveReported
from bus.vocabulary import Message
from cell_conductor.core import build as say
from cell_conductor.core import leftovers
from cell_conductor.core.build import Build, Effects, Leftover
from cell_conductor.core.move import BUILT, BuildMove, end_told, half_told, told


def open_move(build: Build) -> BuildMove:
    assert build.moving is not None, f"{build.id} is in no move"
    return build.moving


def waited_for(build: Build) -> Effects:
    """Return the messages whose result the phase waits for."""
    move = open_move(build)
    match move.phase:
        case "prepare" | "send" | "start" | "resume" | "rebuild":
            return (_ordered(build, move, move.phase),)
        case "build":
            return (say.order(build),)
        case "undo":
            return tuple(say.destroy_left(build, left) for left in pending(build))
        case "destroy":
            return (say.destroy(build),)
        case "verify":
            return ()
        case "swap" | "back" | "release":
            return (question(build),)
        case "away" | "recall":
            return (half_told(move),)


def reminder(build: Build) -> MoveReported:
    """Return the conductor's reminder to itself, like `build.overdue`, for no particular phase."""
    move = open_move(build)
    return MoveReported(
        move=move.id,
        build=build.id,
        phase="prepare",
        step=max(move.step, 1),
        attempt=build.attempt,
        cell=build.cell,
        agent=build.host.agent,
        root=build.host.root,
        host=build.host.host,
        outcome="overdue",
    )


def how_it_stands(build: Build, refused: str = "", reply_to: str | None = None) -> Message:
    assert build.move is not None
    return told(build.move, refused, reply_to)


def ended_again(build: Build) -> Effects:
    """Return the end of the last move, and orders for leftovers."""
    assert build.move is not None
    return (*leftovers.undone(build), *end_told(build.move))


def pending(build: Build) -> list[Leftover]:
    """Return leftovers at destinations that may run: they must be destroyed before the source runs again.

    A destination that was only prepared has never run it; a destination that was building may run it.
    """
    move = open_move(build)
    first = move.first if move.kind in BUILT else build.attempt
    return [left for left in build.leftovers if left.attempt >= first and not left.gone]


def question(build: Build) -> ClaimRequested | ReleaseRequested:
    """Return the question to placement: the next destination, the source, or the release of a surviving
    build.
    """
    move = open_move(build)
    if move.phase == "swap":
        return say.question(build)
    keep = say.kept_by(build)
    if move.phase == "release":
        return ReleaseRequested(
            consumer=build.id, generation=build.generation, keep=keep, retire=SHELVED
        )  # its boot, if redelivered, must not be placed again
    source = build.hosts[move.source].choice.allocations
    claim = ConsumerClaim(
        consumer=build.id,
        generation=build.generation,
        choices=(Choice(allocations=source if move.afresh else {}),),
        project=build.spec.project,
        user=build.spec.user,
        keep=keep,
        take_over=None if move.afresh else say.holder_consumer(build.id, move.placed.attempt),
    )
    return ClaimRequested(claims=(claim,))


def _ordered(build: Build, move: BuildMove, phase: MovePhase) -> MoveOrdered:
    sends = phase == "send"
    here = build.hosts[move.source] if sends else build.host
    spec = (move.before or build.as_placed.spec) if sends else build.spec
    if move.kind in ("shelve", "rebuild") or move.kind in BUILT:
        peer = ""
    else:
        peer = move.left if phase in ("prepare", "start") else move.host
    return MoveOrdered(
        move=move.id,
        build=build.id,
        kind=move.kind,
        phase=phase,
        step=move.step,
        attempt=move.was if sends else build.attempt,
        was=move.was if phase in ("resume", "rebuild") else 0,
        cell=build.cell,
        agent=here.agent,
        root=here.root,
        host=here.host,
        peer=peer,
        force=sends and move.forced,
        spec=spec,
        allocations=sent_allocations(here.root, spec, here.choice.allocations),
        mappings=here.mappings,
    )
