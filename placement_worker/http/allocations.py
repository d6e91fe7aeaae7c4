"""Allocations by consumer and by provider, usages of projects, and the reshaper."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from bus.claims import (
    ClaimAnswered,
    Claimed,
    ClaimRequested,
    ClaimResult,
    ConsumerClaim,
    ReleaseAnswered,
    Released,
    ReleaseRequested,
    Retired,
)
from bus.resources import Denied, Edited, FindAllocations, FindProviders, Reshape, SetInventories, Stale
from bus.vocabulary import Missing
from placement_worker.http import bodies, queries, schemas
from placement_worker.http.api_call import ApiAnswer, ApiCall, empty_answer, json_answer, last_change
from placement_worker.http.errors import (
    CONCURRENT_UPDATE,
    PROVIDER_NOT_FOUND,
    Problem,
    bad_request,
    conflict,
    not_found,
)
from placement_worker.http.providers import EditOne
from placement_worker.http.refusals import CONTENDED, denied, no_class, no_provider, refused, unknown
from placement_worker.http.schemas import at, is_uuid, is_uuid_like
from placement_worker.placement import Placement
from placement_worker.transactions import Batched


class AllocationHandlers:
    """The handlers of allocations. Claims and releases that arrive at the same time share transactions."""

    def __init__(
        self,
        placement: Placement,
        edit: EditOne,
        claim: Batched[ClaimRequested, ClaimAnswered],
        release: Batched[ReleaseRequested, ReleaseAnswered],
    ) -> None:
        self.placement = placement
        self._edit = edit
        self._claim_together = claim
        self._release_together = release

    async def of_consumer(self, call: ApiCall) -> ApiAnswer:
        id_ = _consumer(call)
        answer = await self.placement.lookups.allocations(FindAllocations(consumers=(id_,)))
        one = answer.consumers[0] if answer.consumers else None
        answered = bodies.allocations_of_consumer(one, answer.generations, call.minor)
        return json_answer(answered, one.updated if one else 0.0)

    async def of_provider(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        answer = await self.placement.lookups.allocations(FindAllocations(providers=(id_,)))
        if id_ not in answer.generations:
            raise not_found(f"Resource provider '{id_}' not found: {no_provider(id_)}")
        answered = bodies.allocations_of_provider(id_, answer.generations[id_], answer.consumers, call.minor)
        return json_answer(answered, last_change(answer.consumers))

    async def usages(self, call: ApiCall) -> ApiAnswer:
        query, kind = queries.usages(call.query, call.minor)
        found = await self.placement.lookups.usages(query)
        return json_answer(bodies.usages(found.used, found.consumers, kind, call.minor))

    async def put(self, call: ApiCall) -> ApiAnswer:
        body = await call.json(at(call.minor, schemas.PUT_ALLOCATIONS))
        id_ = _consumer(call)
        if not is_uuid(id_):
            raise bad_request(f"Malformed consumer_uuid: {id_}")
        claims = [bodies.claim_from(id_, body, call.minor)]
        await self._take(claims, f"Unable to allocate inventory for consumer {id_}: ")
        return empty_answer()

    async def post(self, call: ApiCall) -> ApiAnswer:
        body = await call.json(at(call.minor, schemas.POST_ALLOCATIONS))
        await self._take(_claims(body, call.minor), "Unable to allocate inventory ")
        return empty_answer()

    async def delete(self, call: ApiCall) -> ApiAnswer:
        id_ = _consumer(call)
        order = ReleaseRequested(consumer=id_, generation=None, fenced=False)
        match (await self._release_together(order)).result:
            case Released(number=0):
                raise not_found(f"No allocations for consumer '{id_}'")
            case Released():
                return empty_answer()
            case Retired(why=why):  # it has ended, and its allocations were released
                raise Problem(404, f"No allocations for consumer '{id_}'", headers={"berth-why": why})
        raise conflict(f"update conflict: {CONTENDED}", CONCURRENT_UPDATE)

    async def reshape(self, call: ApiCall) -> ApiAnswer:
        body = await call.json(at(call.minor, schemas.RESHAPE))
        sets = tuple(
            SetInventories(
                provider=id_,
                inventories=bodies.inventories_from(part["inventories"]),
                generation=bodies.generation_in(part),
            )
            for id_, part in body["inventories"].items()
        )
        claims = _claims(body["allocations"], call.minor)
        match await self._edit(Reshape(inventories=sets, claims=claims)):
            case Edited():
                return empty_answer()
            case Missing(what="provider", names=names):
                raise bad_request(
                    f"Resource provider {names[0]} in inventories not found: {no_provider(names[0])}",
                    PROVIDER_NOT_FOUND,
                )
            case Stale(provider=provider, actual=actual, given=given):
                raise conflict(
                    f"resource provider generation conflict for provider {provider}: actual: {actual},"
                    f" given: {given}",
                    CONCURRENT_UPDATE,
                )
            case Denied(results=results):
                raise await self._denied(results, claims, "malformed reshaper data: ")
            case result:
                raise refused(result, "malformed reshaper data")

    async def _take(self, claims: Sequence[ConsumerClaim], doing: str) -> None:
        results = (await self._claim_together(ClaimRequested(claims=tuple(claims)))).results
        if not all(isinstance(result, Claimed) for result in results):
            raise await self._denied(results, claims, doing)

    async def _denied(
        self, results: Sequence[ClaimResult], claims: Sequence[ConsumerClaim], doing: str
    ) -> Problem:
        """Return the first refusal of several claims by importance: missing objects, generations,
        capacity.
        """
        problem = denied(results, claims)
        named = {
            provider: None for claim in claims for choice in claim.choices for provider in choice.allocations
        }
        if problem.code == CONCURRENT_UPDATE or not named:
            return problem
        there = await self.placement.lookups.providers(FindProviders(ids=tuple(named), parts=()))
        gone = named.keys() - {provider.id for provider in there.providers}
        if gone:
            return bad_request(f"Allocation for resource provider '{min(gone)}' that does not exist.")
        shares = [choice.allocations.values() for claim in claims for choice in claim.choices]
        classes = {name for some in shares for share in some for name in share}
        absent = await unknown(self.placement, "resource class", classes)
        return bad_request(f"{doing}{no_class(', '.join(absent))}") if absent else problem


def _consumer(call: ApiCall) -> str:
    given = call.path["consumer"]
    return str(uuid.UUID(given)) if is_uuid_like(given) else given


def _claims(body: Mapping[str, Any], minor: int) -> tuple[ConsumerClaim, ...]:
    return tuple(bodies.claim_from(id_, one, minor) for id_, one in body.items())
