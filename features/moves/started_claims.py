"""Finds the claims of moves that began at an earlier delivery of their request.

A scheduler can stop after it has claimed a move's destination and before it has published the move's order.
Until the request is delivered again, the cell does not know of the move, and may rebuild, shelve or delete
the instance.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from bus.claims import MIGRATION, Held, holder_consumer
from bus.resources import Consumer, FindAllocations
from bus.vocabulary import Id, portions
from features.moves.core.start import MoveStart
from scheduler_worker.extension import PLACEMENT_ASKED, PlacementQueries

REBUILDS = 16  # earlier attempt numbers of a guest that may have been current when the move was claimed

# the move, with the guest's attempt number at the time of the claim; the claim's allocations or None
StartedClaim = tuple[MoveStart, Held | None]


async def claims_of_started(placement: PlacementQueries, starts: Sequence[MoveStart]) -> list[StartedClaim]:
    """Return a pair for each move that an earlier delivery began: its `MoveStart` with the guest's attempt at
    the time of the claim, and the claim's allocations, or None if they were released or a later move holds
    them.
    """
    names = dict.fromkeys(id_ for start in starts for id_ in (start.asked.build, *_holders(start).values()))
    found: dict[Id, Consumer] = {}
    for some in portions(names, PLACEMENT_ASKED):
        answer = await placement.allocations(FindAllocations(consumers=some))
        found |= {consumer.id: consumer for consumer in answer.consumers}
    return [_claim_of(start, found) for start in starts]


def _holders(start: MoveStart) -> dict[int, Id]:
    """Return the consumers that may hold the allocations of a move's source: attempt → id, newest first. Any
    of these attempts may have been the guest's when the move began.
    """
    attempts: Iterable[int] = range(start.attempt, max(start.attempt - REBUILDS, 0), -1)
    return {attempt: holder_consumer(start.asked.build, attempt) for attempt in attempts}


def _claim_of(start: MoveStart, found: dict[Id, Consumer]) -> StartedClaim:
    build = found.get(start.asked.build)
    held = None if build is None else Held(generation=build.generation, allocations=build.allocations)
    if start.keep is None or start.keep in found:
        return start, held
    # The cell knows this generation, so the present allocations are not those of the move's claim.
    if build is not None and start.generation == build.generation:
        return start, None
    for attempt, holder in _holders(start).items():
        if holder in found and found[holder].type == MIGRATION:
            return replace(start, attempt=attempt), held
    return start, None
