"""Compares a repeated request for a move with the first request of its id (`bus/repetitions.py` does so for
builds). A repetition with other content is refused (`MoveConflict`), and does not change the first move.
"""

from functools import cache
from hashlib import blake2b

from msgspec.structs import replace

from bus import parts
from bus.repetitions import NO_CELL, differing, in_words, is_other, scheme_of
from bus.vocabulary import Id, cause_of
from features.moves.messages import MoveConflict, MovePlaced, MoveRequested, MoveStands

# Fields that a repetition may have with other values. `cell` and `source` say where the instance is, which
# the first move may have changed.
DELIVERY = frozenset({"cell", "source", "reply_to", "strict", "unknown_fields"})

_encode = parts.encoder(order="deterministic").encode
_scheme = cache(lambda: scheme_of(kind=MoveRequested))


def content_of(asked: MoveRequested) -> str:
    """Return the digest of the content of a move request."""
    content = replace(asked, cell="", source="", reply_to="", strict=False, unknown_fields=())
    return f"{_scheme()}{blake2b(_encode(content), digest_size=8).hexdigest()}"


def conflict_with_request(first: MoveRequested, again: MoveRequested) -> MoveConflict | None:
    """Return the refusal of the request `again` if the first request of its id has other content."""
    if not (fields := differing(first, again, DELIVERY)):
        return None
    return _refusal(again.move, again.build, in_words(fields), fields, again.reply_to)


def conflict_with_record(first: MoveStands | MovePlaced, again: MoveRequested) -> MoveConflict | None:
    """Like `conflict_with_request`, for a move of which a digest is recorded."""
    return _of_digests(first, first.content, again, content_of(again))


def conflict_of_orders(first: MovePlaced, again: MovePlaced, cell: str = NO_CELL) -> MoveConflict | None:
    """Like `conflict_with_request`, for the scheduler's orders of both requests."""
    return _of_digests(first, first.content, again, again.content, cell)


def _of_digests(
    first: MoveStands | MovePlaced,
    content: str,
    again: MoveRequested | MovePlaced,
    other: str,
    cell: str = NO_CELL,
) -> MoveConflict | None:
    if not is_other(content, other):
        return None
    fields = tuple([name for name in ("build", "kind") if getattr(first, name) != getattr(again, name)])
    digests = f"digests {other} and {content}"
    why = f"{in_words(fields)}; {digests}" if fields else digests
    return _refusal(again.move, again.build, why, fields, again.reply_to, cell)


def _refusal(
    move: Id, build: Id, why: str, fields: tuple[str, ...], reply_to: str, cell: str = NO_CELL
) -> MoveConflict:
    reason = cause_of(f"the id {move} is in use by a move with other content: {why}")
    return MoveConflict(move=move, build=build, cell=cell, reason=reason, fields=fields, reply_to=reply_to)
