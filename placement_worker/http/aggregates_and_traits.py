"""Aggregates and traits of providers."""

from bus.resources import Edited, EditResult, Provider, SetAggregates, SetTraits, Stale
from bus.vocabulary import Missing
from placement_worker.http import bodies, schemas
from placement_worker.http.api_call import ApiAnswer, ApiCall, nothing, said
from placement_worker.http.errors import CONCURRENT_UPDATE, bad_request, conflict
from placement_worker.http.providers import EditOne, provider_of
from placement_worker.http.refusals import refused
from placement_worker.http.validation import at
from placement_worker.placement import Placement

GENERATION_SINCE = 19  # aggregates have a generation


class Contents:
    def __init__(self, placement: Placement, edit: EditOne) -> None:
        self.placement = placement
        self._edit = edit

    async def aggregates(self, call: ApiCall) -> ApiAnswer:
        one = await provider_of(self.placement, call.path["uuid"], "aggregates")
        return said(bodies.aggregates_of(one, call.minor), one.updated)

    async def set_aggregates(self, call: ApiCall) -> ApiAnswer:
        body = await call.json(at(call.minor, schemas.PUT_AGGREGATES))
        generation = None
        if call.minor >= GENERATION_SINCE:
            generation = bodies.generation(body["resource_provider_generation"])
            body = body["aggregates"]
        edit = SetAggregates(provider=call.path["uuid"], aggregates=tuple(body), generation=generation)
        one = _edited(await self._edit(edit))
        told = bodies.aggregates_of(one, call.minor) | {"aggregates": body}  # in the client's order
        return said(told, one.updated)

    async def traits(self, call: ApiCall) -> ApiAnswer:
        one = await provider_of(self.placement, call.path["uuid"], "traits")
        return said(bodies.traits_of(one), one.updated)

    async def set_traits(self, call: ApiCall) -> ApiAnswer:
        body = await call.json(schemas.PUT_TRAITS)
        id_, traits = call.path["uuid"], tuple(dict.fromkeys(body["traits"]))
        seen = bodies.generation(body["resource_provider_generation"])
        one = _edited(await self._edit(SetTraits(provider=id_, traits=traits, generation=seen)))
        return said(bodies.traits_of(one), one.updated)

    async def drop_traits(self, call: ApiCall) -> ApiAnswer:
        _edited(await self._edit(SetTraits(provider=call.path["uuid"], traits=())))
        return nothing()


def _edited(result: EditResult) -> Provider:
    match result:
        case Edited(provider=Provider() as one):
            return one
        case Stale():
            raise conflict(
                "Resource provider's generation already changed. Please update the generation and try again.",
                CONCURRENT_UPDATE,
            )
        case Missing(what="trait", names=names):
            raise bad_request(f"No such trait {', '.join(names)}")
    raise refused(result)
