"""The bodies of requests and responses about moves of the REST API."""

from bus.queries import WaitingRequest
from bus.vocabulary import Id, Message, ReplyTo, Value
from features.moves.messages import MoveStands, Steering


class MoveAccepted(Value, frozen=True, kw_only=True):
    """A published request about a move; its results are events."""

    move: Id
    build: Id


class MoveDetails(Value, frozen=True, kw_only=True):
    """A move: the record of its cell, or how it waits for capacity, or `refused` with the reason."""

    move: Id
    build: str  # empty: no cell has a record of the move
    status: str  # the phase in its cell; or requested, waiting, refused
    stands: MoveStands | None = None
    waiting: WaitingRequest | None = None
    reason: str = ""


class SteerRequested(Message, frozen=True, kw_only=True):
    """The body of an order to continue, abort or revert a move."""

    to: Steering
    reply_to: ReplyTo = ""
