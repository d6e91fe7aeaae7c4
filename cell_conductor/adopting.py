"""Adoption of instances that existed before berth: their allocations are read and stored as builds."""

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from bus.claims import Claimed, ClaimRequested, ClaimResult, Held, Refused
from bus.errors import AnswerRefused, Retry, Unavailable
from bus.guests import BuildAdoptRequested
from bus.worker import Outcome
from cell_conductor import store
from cell_conductor.builds import Builds
from cell_conductor.core.adopting import checked_allocations, claim_of, has_allocations, refusal_reason
from cell_conductor.core.build import Build
from cell_conductor.core.events import Adoption

log = logging.getLogger(__name__)


class Adoptions:
    """The adoption of existing instances in one cell."""

    def __init__(self, builds: Builds) -> None:
        self._builds = builds

    async def adopt_many(self, requests: Sequence[BuildAdoptRequested]) -> Sequence[Outcome]:
        """Return one outcome for each request; a second request for the same build is retried."""
        first = {request.build: position for position, request in reversed(list(enumerate(requests)))}
        outcomes: list[Outcome] = [Retry(0.5, "the same build is being adopted")] * len(requests)
        async with self._builds.database.read() as tx:
            known = await store.load(tx, first)
        try:
            adoptions = await self._judged([requests[position] for position in first.values()], known)
        except Unavailable as away:
            return [Retry(1.0, f"placement is away: {away}")] * len(requests)
        fates = await self._builds.apply([(adoption.asked.build, adoption) for adoption in adoptions])
        for adoption in adoptions:
            if adoption.held is not None and adoption.asked.build not in known:
                log.info("build %s was there on %s, and is adopted", *_named(adoption))
            elif adoption.held is not None:
                held = (adoption.held.generation, adoption.held.allocations)
                log.info(
                    "build %s on %s: placement holds for it, by generation %d: %s", *_named(adoption), *held
                )
        for position, fate in zip(first.values(), fates, strict=True):
            outcomes[position] = fate
        return outcomes

    async def _judged(
        self, requests: Sequence[BuildAdoptRequested], known: Mapping[str, Build]
    ) -> list[Adoption]:
        adoptions = {
            request.build: Adoption(request, why=refusal_reason(known.get(request.build), request))
            for request in requests
        }
        asking = [
            request
            for request in requests
            if not adoptions[request.build].why
            and not has_allocations(
                known.get(request.build), request.generation, request.chosen.choice.allocations
            )
        ]
        seen: list[tuple[BuildAdoptRequested, Held]] = []
        answers = await self._ask([claim_of(request) for request in asking])
        for request, answer in zip(asking, answers, strict=True):
            build = known.get(request.build)
            held = answer if isinstance(answer, str) else checked_allocations(build, request, answer)
            if isinstance(held, str):
                adoptions[request.build] = Adoption(request, why=held)
            elif has_allocations(build, held.generation, held.allocations):
                adoptions[request.build] = Adoption(request, held)
            else:
                seen.append((request, held))
        answers = await self._ask([claim_of(request, held) for request, held in seen])
        for (request, held), answer in zip(seen, answers, strict=True):
            match answer:
                case Claimed(generation=generation):
                    adoption = Adoption(request, replace(held, generation=generation))
                case Refused():  # its allocation breaks a current rule; it holds it all the same
                    adoption = Adoption(request, held)
                case _:
                    adoption = Adoption(request, why="others claim for it meanwhile: look again")
            adoptions[request.build] = adoption
        return list(adoptions.values())

    async def _ask(self, questions: Sequence[ClaimRequested]) -> Sequence[ClaimResult | str]:
        """Return placement's answers about the instances' allocations, or why placement cannot answer."""
        if not questions:
            return []
        try:
            return [answer.results[0] for answer in await self._builds.claim_many(questions)]
        except AnswerRefused as refused:
            if len(questions) == 1:
                return [f"placement refused to judge it: {refused}"]
            # find out which question was refused
            return [(await self._ask([question]))[0] for question in questions]


def _named(adoption: Adoption) -> tuple[str, str]:
    return adoption.asked.build, adoption.asked.chosen.host
