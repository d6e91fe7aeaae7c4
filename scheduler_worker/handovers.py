"""Moves from one cell to another: receives the reports of the source cell and the destination cell, decides,
and orders both.

Each decision is stored before it is published, and published again for a repeated report: each cell repeats
its report until it gets an answer.
"""

import logging
from collections.abc import Collection, Sequence

from msgspec import structs

from bus.claims import Claimed, ClaimRequested, Held, NothingHeld, Refused, Released, Retired
from bus.clock import Clock
from bus.errors import Retry
from bus.moves import HandoverProgress, HandoverReported, MovePlaced
from bus.sql.database import Database
from bus.vocabulary import Id, Message
from bus.worker import Outcome
from scheduler_worker.core.move_start import undoing
from scheduler_worker.core.move_state import (
    Handover,
    Outgoing,
    holding_nothing,
    judged,
    messages_of,
    nobody_hears,
)
from scheduler_worker.dependencies import PlacementQueries
from scheduler_worker.releasing import Ending
from scheduler_worker.store import handovers as store

log = logging.getLogger(__name__)

SOON = 0.5
TELL_AGAIN_SECONDS = 60.0
KEEP_SECONDS = 30 * 86400.0
TRIES = 4  # attempts of a claim during concurrent changes
PAGE = 500


class Handovers:
    """The state of all moves between cells, in the schedulers' database."""

    def __init__(self, database: Database, placement: PlacementQueries, ending: Ending, clock: Clock) -> None:
        self._database = database
        self._placement = placement
        self._ending = ending
        self._clock = clock

    async def keep(self, orders: Sequence[Handover]) -> dict[Id, Handover]:
        """Store new moves between cells; an existing one is returned with its present state."""
        async with self._database.write() as tx:
            await store.add(tx, orders, self._clock.now())
        return await self.known([order.placed.move for order in orders])

    async def known(self, moves: Collection[Id]) -> dict[Id, Handover]:
        async with self._database.read() as tx:
            return await store.load(tx, moves)

    async def handle_many(self, reports: Sequence[HandoverReported]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for report in reports:
            try:
                outcomes.append(await self.handle(report))
            except Retry as later:
                outcomes.append(later)
        return outcomes

    async def handle(self, report: HandoverReported) -> Sequence[Outgoing]:
        order = (await self.known([report.move])).get(report.move)
        if order is None:
            log.warning(
                "cell %s says %s of the move %s, of which no order is known",
                *(report.cell, report.outcome, report.move),
            )
            return ()
        return await self._advance(order, report)

    async def _advance(self, order: Handover, report: HandoverReported) -> Sequence[Outgoing]:
        match judged(order, report):
            case None:
                log.warning(
                    "cell %s says %s of the move %s, which is %s: it is not its own to say",
                    *(report.cell, report.outcome, report.move, order.state),
                )
                return ()
            case "retry":
                raise Retry(after=SOON, why="it has not said yet that it let it go")
            case "take back":
                generation, problem = await self._take_back(order, report)
                after = structs.replace(
                    order, state="back", by=report, generation=generation, problem=problem
                )
            case "end build":
                match (await self._placement.release(holding_nothing(order, deleted=True))).result:
                    case Released() | Retired():
                        after = structs.replace(order, state="deleted", by=report)
                    case _:
                        raise Retry(after=SOON, why=f"the claim of {report.build} is contended")
            case Handover() as after:
                pass
        if after is not order:
            async with self._database.write() as tx:
                if not await store.change(tx, order, after, self._clock.now()):
                    raise Retry(after=SOON, why=f"the order of move {report.move} is being changed")
        return messages_of(after, report)

    # What it held before

    async def _take_back(self, order: Handover, by: HandoverReported) -> tuple[int | None, str]:
        """Return the generation of the instance after a claim of its former allocations, or the obstacle."""
        build, generation = order.placed.build, order.placed.generation if by.half == "leaving" else None
        for _ in range(TRIES):
            if not order.placed.attempt:  # it held nothing before
                again = await self._placement.release(holding_nothing(order, deleted=False))
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
                case Retired(why=why):  # it was taken back before, or the build has ended
                    there = (await self._ending.held([build])).get(build)
                    return (None, f"its claim has ended ({why})") if there is None else (there.generation, "")
                case Refused(refusals=refusals):
                    why = "; ".join(map(str, refusals)) or "it was refused"
                    gone = any(isinstance(refusal, NothingHeld) for refusal in refusals)
                    there = (await self._ending.held([build])).get(build) if gone else None
                    return None if there is None else there.generation, why
                case _:
                    break
        raise Retry(after=SOON, why=f"the claim of {build} is contended")

    # Orders without a conductor

    async def unheard(self, said: Message) -> Sequence[Outgoing]:
        """Retry an order to a cell without a conductor for a limited time; then its half has failed."""
        if not isinstance(said, MovePlaced | HandoverProgress):
            return ()
        self._ending.wait_for_ears(said.move, said.cell)
        order = (await self.known([said.move])).get(said.move)
        if order is None or order.state != ("arriving" if isinstance(said, MovePlaced) else "leaving"):
            return ()  # its cell reports again, which publishes it again
        return await self._advance(order, nobody_hears(order))

    # What is done again and again

    async def tell_again(self) -> Sequence[HandoverProgress]:
        """Return the orders to source cells that have not reported about their move yet."""
        now = self._clock.now()
        async with self._database.write() as tx:
            orders = await store.untold(tx, now - TELL_AGAIN_SECONDS, now, PAGE)
        every = [message for order in orders for message in messages_of(order)]
        return [message for message in every if isinstance(message, HandoverProgress)]

    async def prune(self) -> None:
        pruned = PAGE
        while pruned == PAGE:
            async with self._database.write() as tx:
                pruned = await store.prune(tx, self._clock.now() - KEEP_SECONDS, PAGE)
