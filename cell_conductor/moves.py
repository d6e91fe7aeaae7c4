"""Handles messages about moves, and about adoptions of instances that existed before berth."""

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from bus.claims import Claimed, ClaimRequested, Held, Refused
from bus.errors import Retry, Unavailable
from bus.guests import BuildAdoptRequested
from bus.moves import FindMoves, HandoverProgress, MovePlaced, MovesFound
from bus.vocabulary import Contended
from bus.worker import Outcome
from cell_conductor import move_store, store
from cell_conductor.applying import MOVE_LATER
from cell_conductor.builds import Builds
from cell_conductor.core.answers import checked_allocations, claim_of, has_allocations, refusal_reason
from cell_conductor.core.build import Build
from cell_conductor.core.events import Adoption, Event, MoveImpossible
from cell_conductor.core.placed_move import undone_unknown

log = logging.getLogger(__name__)

METAL = "an instance on bare metal does not move: its node is all of it"


class CellMoves:
    """Handles the moves and adoptions of one cell."""

    def __init__(self, builds: Builds) -> None:
        self.builds = builds
        self.database = builds.database

    async def place_many(self, placed: Sequence[MovePlaced]) -> Sequence[Outcome]:
        """Begin the moves that the scheduler placed. Return the messages for each; for a move that has ended
        already, its last messages again.
        """
        async with self.database.read() as tx:
            known = await store.load(tx, {move.build for move in placed})
            ever = {build.id for build in known.values() if build.placed is not None}
            strange = [move for move in placed if not move.out_of and move.build not in ever]
            ended = await move_store.ended(tx, {move.move for move in strange})
        roots = {build.id: build.host.root for build in known.values() if build.placed is not None}
        owned = await self.builds.ring.owned(roots.values()) if roots else set()
        metal = {id_ for id_, root in roots.items() if root in owned}
        undone = [move for move in strange if move.move not in ended]
        later = {move.move: retry for move in undone if (retry := await self._undo(move)) is not None}
        events: list[tuple[str, Event]] = [
            (move.build, MoveImpossible(move, METAL) if move.build in metal else move)
            for move in placed
            if move.move not in later
        ]
        outcomes = iter(await self.builds.apply(events))
        return [later.get(move.move) or next(outcomes) for move in placed]

    async def hand_over_many(self, orders: Sequence[HandoverProgress]) -> Sequence[Outcome]:
        async with self.database.read() as tx:
            known = await store.load(tx, {order.build for order in orders})
        later = {
            id_: Retry(MOVE_LATER, f"its build is {build.status}")
            for id_, build in known.items()
            if build.status in ("building", "swapping")
        }
        outcomes = iter(await self.builds.apply([(o.build, o) for o in orders if o.build not in later]))
        return [later.get(order.build) or next(outcomes) for order in orders]

    async def find(self, question: FindMoves) -> MovesFound:
        async with self.database.read() as tx:
            return await move_store.page(tx, question)

    async def _undo(self, placed: MovePlaced) -> Retry | None:
        question = undone_unknown(placed)
        result: object = None
        try:
            if isinstance(question, ClaimRequested):
                result = (await self.builds.placement.claim_many([question]))[0].results[0]
            elif question is not None:
                result = (await self.builds.placement.release_many([question]))[0].result
        except Unavailable as away:
            return Retry(1.0, f"placement is away: {away}")
        return Retry(0.5, "placement is contended") if isinstance(result, Contended) else None

    async def adopt_many(self, requests: Sequence[BuildAdoptRequested]) -> Sequence[Outcome]:
        """Adopt instances that existed before berth; return a result for each. If a batch has several
        requests for one build, all but the first are retried.
        """
        first = {request.build: position for position, request in reversed(list(enumerate(requests)))}
        outcomes: list[Outcome] = [Retry(0.5, "the same build is being adopted")] * len(requests)
        async with self.database.read() as tx:
            known = await store.load(tx, first)
        try:
            adoptions = await self._judged([requests[position] for position in first.values()], known)
        except Unavailable as away:
            return [Retry(1.0, f"placement is away: {away}")] * len(requests)
        fates = await self.builds.apply([(adoption.asked.build, adoption) for adoption in adoptions])
        for adoption in adoptions:
            if (held := adoption.held) is not None:
                what = (adoption.asked.build, adoption.asked.chosen.host, held.generation, held.allocations)
                log.info("build %s on %s: by placement's generation %d it holds %s", *what)
        for position, fate in zip(first.values(), fates, strict=True):
            outcomes[position] = fate
        return outcomes

    async def _judged(
        self, asked: Sequence[BuildAdoptRequested], known: Mapping[str, Build]
    ) -> list[Adoption]:
        adoptions = {
            request.build: Adoption(request, why=refusal_reason(known.get(request.build), request))
            for request in asked
        }
        asking = [
            request
            for request in asked
            if not adoptions[request.build].why
            and not has_allocations(
                known.get(request.build), request.generation, request.chosen.choice.allocations
            )
        ]
        seen: list[tuple[BuildAdoptRequested, Held]] = []
        answers = await self.builds.placement.claim_each([claim_of(request) for request in asking])
        for request, answer in zip(asking, answers, strict=True):
            build = known.get(request.build)
            held = checked_allocations(build, request, answer)
            if isinstance(held, str):
                adoptions[request.build] = Adoption(request, why=held)
            elif has_allocations(build, held.generation, held.allocations):
                adoptions[request.build] = Adoption(request, held)
            else:
                seen.append((request, held))
        answers = await self.builds.placement.claim_each([claim_of(request, held) for request, held in seen])
        for (request, held), answer in zip(seen, answers, strict=True):
            match answer:
                case Claimed(generation=generation):
                    adoption = Adoption(request, replace(held, generation=generation))
                case Refused():  # the allocations exceed a lowered limit, but the instance holds them
                    adoption = Adoption(request, held)
                case _:
                    adoption = Adoption(
                        request, why="other processes claim for it at the same time: try again"
                    )
            adoptions[request.build] = adoption
        return list(adoptions.values())
