"""A requested move until it begins, is refused or waits, as a pure step: state and event → next state.

A move begins with one claim under its id or, without a claim, by retiring that id: so it begins once, with
any number of schedulers and deliveries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from bus.claims import Held, Released, Retired
from bus.moves import BEGUN, HandoverProgress, MovePlaced, MoveRefused, MoveRequested
from bus.vocabulary import MAX_CAUSE
from scheduler_worker.core.events import BegunBefore, ComeAgain, DeadLetterRequest, End, Park, SayAll, SayMove
from scheduler_worker.core.move_start import Barred, MoveStart, refused
from scheduler_worker.core.order import CANCELLED, DELETED

MoveMessages = Sequence[MovePlaced | MoveRefused | HandoverProgress]
MoveEnd = MoveMessages | ComeAgain | DeadLetterRequest


@dataclass(frozen=True, slots=True)
class SeenThrough:
    """The cell of the build has begun or completed this move."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """The state of the build is unknown now; `barred` is the refusal if that lasts."""

    barred: Barred
    start: MoveStart | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The move is refused; `start` is the state from which it would have begun, if known."""

    barred: Barred
    start: MoveStart | None = None


MoveLook = MoveStart | Stopped | NotYet | SeenThrough
MoveEvent = MoveStart | Stopped | SeenThrough | End | Released | Retired | Held | MoveMessages


class MoveState(msgspec.Struct, frozen=True, gc=False):
    """Replaced at every step, never changed."""

    asked: MoveRequested
    start: MoveStart | None = None
    barred: Barred | None = None  # refused, but not fenced yet
    again: bool = False  # it has begun before
    park: Park | None = None  # no host has free capacity now, and the move may wait for some
    end: MoveEnd | None = None

    @property
    def begins(self) -> bool:
        return self.end is None and self.barred is None and not self.again


def step(state: MoveState, event: MoveEvent) -> MoveState:
    """Return the state after a lookup, a choice of hosts, placement's answer to a fence, or an end."""
    match event:
        case MoveStart():
            return replace(state, start=event)
        case Stopped(barred=barred, start=start):
            return replace(state, barred=barred, start=start or state.start)
        case SeenThrough() | SayAll():
            return replace(state, end=())
        case SayMove(message=message):
            return replace(state, end=(message,))
        case Park():
            return replace(state, park=event)
        case BegunBefore():
            return replace(state, again=True)
        case Retired(why=why) if why == BEGUN:
            return replace(state, again=True)
        case Retired(why=why):
            code = "cancelled" if why in (CANCELLED, DELETED) else ""
            if state.barred is not None and state.barred.why[:MAX_CAUSE] == why:
                code = state.barred.code
            return replace(state, end=(refused(state.asked, why, code),))
        case Released() if state.barred is not None:
            return replace(state, end=(refused(state.asked, state.barred.why, state.barred.code),))
        case Released() if state.start is not None:  # it needs no destination, and has begun now
            return replace(state, end=(state.start.stays(),))
        case Held():
            why = "move: it is the id of somebody who holds something himself"
            return replace(state, end=(refused(state.asked, why, "unreadable"),))
        case _:
            return replace(state, end=event)
