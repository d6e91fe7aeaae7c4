"""Controls moves from one cell to another: receives reports of both cells, and sends both their next steps.

Each decision is stored before it is published, and published again for a repeated report.
"""

import logging
from collections.abc import Collection, Iterable, Sequence

from msgspec import structs

from bus import parts
from bus.claims import Claimed, ClaimRequested, Held, NothingHeld, Refused, Released, Retired
from bus.clock import Clock
from bus.errors import Retry
from bus.sql.database import Database
from bus.sql.statement import Transaction, deletes_oldest, sql
from bus.vocabulary import Id, Message
from bus.worker import Outcome
from features.moves.core.handover import (
    DECIDED,
    Handover,
    Outgoing,
    judged,
    messages_of,
    no_consumer,
    release_of,
)
from features.moves.core.start import undoing
from features.moves.messages import HandoverProgress, HandoverReported, MovePlaced
from scheduler_worker.extension import Ending, PlacementQueries

log = logging.getLogger(__name__)

SOON = 0.5
REPEAT_SECONDS = 60.0
TRIES = 4  # attempts of a claim while other clients change the consumer
PAGE = 500


class Handovers:
    """Stores the state of all moves between cells in the schedulers' database."""

    def __init__(self, database: Database, placement: PlacementQueries, ending: Ending, clock: Clock) -> None:
        self._database = database
        self._placement = placement
        self._ending = ending
        self._clock = clock

    async def store(self, orders: Sequence[Handover]) -> dict[Id, Handover]:
        """Store new moves between cells, and return the stored states of all `orders` by id, new or not."""
        async with self._database.write() as tx:
            await add(tx, orders, self._clock.now())
        return await self.known([order.placed.move for order in orders])

    async def known(self, moves: Collection[Id]) -> dict[Id, Handover]:
        """Return the moves between cells with these ids."""
        async with self._database.read() as tx:
            return await load(tx, moves)

    async def handle_many(self, reports: Sequence[HandoverReported]) -> Sequence[Outcome]:
        """Handle reports of cells one after the other; a report that must be repeated does not affect the
        others.
        """
        outcomes: list[Outcome] = []
        for report in reports:
            try:
                outcomes.append(await self.handle(report))
            except Retry as later:
                outcomes.append(later)
        return outcomes

    async def handle(self, report: HandoverReported) -> Sequence[Outgoing]:
        """Store the progress that a cell reports, and return the orders that follow for either cell."""
        order = (await self.known([report.move])).get(report.move)
        if order is None:
            _warn(report, "is unknown")
            return ()
        return await self._advance(order, report)

    async def _advance(self, order: Handover, report: HandoverReported) -> Sequence[Outgoing]:
        match judged(order, report):
            case None:
                _warn(report, f"is {order.state}: the other cell reports that")
                return ()
            case "retry":
                raise Retry(after=SOON, why="it has not confirmed the release yet")
            case "take back":
                generation, problem = await self._restore_source(order, report)
                after = structs.replace(order, state="back", by=report)
                after = structs.replace(after, generation=generation, problem=problem)
            case "end build":
                match (await self._placement.release(release_of(order, deleted=True))).result:
                    case Released() | Retired():
                        after = structs.replace(order, state="deleted", by=report)
                    case _:
                        raise Retry(after=SOON, why=f"the claim of {report.build} is contended")
            case Handover() as after:
                pass
        if after is not order:
            async with self._database.write() as tx:
                if not await change(tx, order, after, self._clock.now()):
                    raise Retry(after=SOON, why=f"the order of move {report.move} is being changed")
        return messages_of(after, report)

    async def _restore_source(self, order: Handover, by: HandoverReported) -> tuple[int | None, str]:
        """Claim the source host again for the build of a failed move. Return the build's generation as a
        consumer (None if it has no allocations) and an error text (empty on success)."""
        build, generation = order.placed.build, order.placed.generation if by.half == "leaving" else None
        for _ in range(TRIES):
            if not order.placed.attempt:  # the moved instance was shelved: there is no source to claim
                again = await self._placement.release(release_of(order, deleted=False))
                if isinstance(again.result, Released | Retired):
                    return None, ""
                break
            claim = undoing(order.placed, generation)
            [answer] = await self._placement.claim_many([ClaimRequested(claims=(claim,))])
            match answer.results[0]:
                case Claimed(generation=claimed):
                    return claimed, ""
                case Held(generation=held, allocations=allocations):
                    generation = held if allocations else None
                case Retired(why=why):  # an earlier call claimed the source, or the build has ended
                    allocation = (await self._ending.held([build])).get(build)
                    if allocation is None:
                        return None, f"its claim has ended ({why})"
                    return allocation.generation, ""
                case Refused(refusals=refusals):
                    why = "; ".join(map(str, refusals)) or "it was refused"
                    nothing_held = any(isinstance(refusal, NothingHeld) for refusal in refusals)
                    allocation = (await self._ending.held([build])).get(build) if nothing_held else None
                    return None if allocation is None else allocation.generation, why
                case _:
                    break
        raise Retry(after=SOON, why=f"the claim of {build} is contended")

    async def on_unroutable(self, message: Message) -> Sequence[Outgoing]:
        """Raise `Retry` for a message about a move to a cell that has no conductor. After a time limit, fail
        the move, and return the messages to publish."""
        if not isinstance(message, MovePlaced | HandoverProgress):
            return ()
        self._ending.wait_for_consumer(message.move, message.cell)
        order = (await self.known([message.move])).get(message.move)
        if order is None or order.state != ("arriving" if isinstance(message, MovePlaced) else "leaving"):
            return ()  # the cell's next report publishes the message again
        return await self._advance(order, no_consumer(order))

    async def repeat_handovers(self) -> Sequence[HandoverProgress]:
        """Return messages to publish again: source cells have not confirmed them for REPEAT_SECONDS."""
        now = self._clock.now()
        async with self._database.write() as tx:
            orders = await unpublished(tx, now - REPEAT_SECONDS, now, PAGE)
        every = [message for order in orders for message in messages_of(order)]
        return [message for message in every if isinstance(message, HandoverProgress)]

    async def prune(self, keep: float) -> None:
        """Delete the records of moves between cells that ended more than `keep` seconds ago."""
        await self._database.delete_old(prune, self._clock.now() - keep, PAGE)


def _warn(by: HandoverReported, why: str) -> None:
    log.warning("cell %s reported %s for the move %s, which %s", by.cell, by.outcome, by.move, why)


_INSERT = sql("""
    INSERT INTO handovers (move, build, state, at, story)
    SELECT n.move, n.build, n.state, :NOW, n.story
    FROM {n: move str, build str, state str, story str} WHERE true
    ON CONFLICT (move) DO NOTHING RETURNING move
""")
_SELECT = sql("SELECT h.move, h.story FROM {n: move str} JOIN handovers h ON h.move = n.move")
_UPDATE = sql("""
    UPDATE handovers SET state = n.state, story = n.story, at = :NOW
    FROM {n: move str, state str, was str, story str}
    WHERE handovers.move = n.move AND handovers.state = n.was RETURNING handovers.move
""")
_UNPUBLISHED = sql("""
    UPDATE handovers SET at = :NOW WHERE move IN (SELECT move FROM handovers
    WHERE state = 'leaving' AND at < :before ORDER BY at LIMIT :most) RETURNING handovers.story
""")
_DECIDED = ", ".join(f"'{state}'" for state in DECIDED)
_PRUNE = deletes_oldest("handovers", "move", where=f"state IN ({_DECIDED})")

_encode = parts.stored_encoder().encode
_decode = parts.stored_decoder(Handover).decode


async def add(tx: Transaction, orders: Iterable[Handover], now: float) -> None:
    """Store new moves between cells; moves that are stored already are not changed."""
    rows = {
        order.placed.move: (order.placed.move, order.placed.build, order.state, _encode(order).decode())
        for order in orders
    }
    if rows:
        await _INSERT(tx, [rows[move] for move in sorted(rows)], now=now)


async def load(tx: Transaction, moves: Collection[Id]) -> dict[Id, Handover]:
    """Read moves between cells by id."""
    return {row["move"]: _decode(row["story"]) for row in await _SELECT(tx, [(move,) for move in moves])}


async def change(tx: Transaction, before: Handover, after: Handover, now: float) -> bool:
    """Store the new state of a move between cells; return False if another process changed it first."""
    row = (before.placed.move, after.state, before.state, _encode(after).decode())
    return bool(await _UPDATE(tx, [row], now=now))


async def unpublished(tx: Transaction, before: float, now: float, limit: int) -> list[Handover]:
    """Return moves between cells that were last published before `before` and not confirmed by the source
    cell; record `now` as their time of publication.
    """
    return [_decode(row["story"]) for row in await _UNPUBLISHED(tx, before=before, now=now, most=limit)]


async def prune(tx: Transaction, before: float, limit: int) -> int:
    """Delete the moves between cells that ended before this time; return how many."""
    return len(await _PRUNE(tx, before=before, most=limit))
