"""Handles requests to adopt instances that existed before berth."""

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from bus.claims import Claimed, Held, Refused
from bus.errors import Retry, Unavailable
from bus.worker import Outcome
from cell_conductor.extension import Build, CellBuilds
from features.adoption.core.adoption import (
    Adoption,
    checked_allocations,
    claim_of,
    has_allocations,
    refusal_reason,
)
from features.adoption.messages import BuildAdoptRequested

log = logging.getLogger(__name__)


class Adoptions:
    """Handles the adoptions of one cell."""

    def __init__(self, builds: CellBuilds) -> None:
        self.builds = builds

    async def adopt_many(self, requests: Sequence[BuildAdoptRequested]) -> Sequence[Outcome]:
        """Adopt instances that existed before berth; return a result for each. If a batch has several
        requests for one build, all but the first are retried.
        """
        first = {request.build: position for position, request in reversed(list(enumerate(requests)))}
        outcomes: list[Outcome] = [Retry(0.5, "the same build is being adopted")] * len(requests)
        known = await self.builds.load(first)
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
