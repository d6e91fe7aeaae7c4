"""Resource providers: list, create, show, update, delete; and what of each is read the same way."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import UNSET

from bus.resources import (
    ChangeProvider,
    DropProvider,
    Edit,
    Edited,
    EditResult,
    FindProviders,
    MakeProvider,
    Provider,
)
from bus.vocabulary import Missing, Taken
from placement_worker.http import bodies, queries, schemas
from placement_worker.http.api_call import ApiAnswer, ApiCall, nothing, said
from placement_worker.http.errors import DUPLICATE_NAME, bad_request, conflict
from placement_worker.http.name_check import check_query
from placement_worker.http.refusals import no_provider, refused
from placement_worker.http.validation import at
from placement_worker.placement import Placement

Part = Literal["inventories", "traits", "aggregates"]
EditOne = Callable[[Edit], Awaitable[EditResult]]


async def provider_of(placement: Placement, id_: str, *parts: Part) -> Provider:
    """Return this provider with the requested parts, or raise 404."""
    answer = await placement.lookups.providers(FindProviders(ids=(id_,), parts=parts))
    if not answer.providers:
        raise no_provider(id_)
    return answer.providers[0]


class ProviderHandlers:
    def __init__(self, placement: Placement, edit: EditOne) -> None:
        self.placement = placement
        self._edit = edit

    async def list_all(self, call: ApiCall) -> ApiAnswer:
        wanted = queries.providers(call.query, call.minor)
        await check_query(
            self.placement, wanted.classes, wanted.traits, 'Invalid trait(s) in "required" parameter: '
        )
        answer = await self.placement.lookups.providers(wanted.query)
        return said(
            {
                "resource_providers": [
                    bodies.provider(provider, call.minor, call.mount) for provider in answer.providers
                ]
            },
            max((provider.updated for provider in answer.providers), default=0.0),
        )

    async def create(self, call: ApiCall) -> ApiAnswer:
        body = await call.json(at(call.minor, schemas.POST_PROVIDER))
        given, name = body.get("uuid"), body["name"]
        id_ = str(uuid.UUID(given)) if given else self.placement.clock.uuid()
        doing = f'Unable to create resource provider "{name}", {id_}'
        if not name:
            raise bad_request(f"{doing}: Object action create failed because: name is required")
        edit = MakeProvider(provider=id_, name=name, parent=body.get("parent_provider_uuid"))
        result = await self._edit(edit)
        if not isinstance(result, Edited) or result.provider is None:
            raise refused(result, doing)
        there = call.location(f"/resource_providers/{id_}")
        if call.minor < 20:
            return nothing(201, location=there)
        one = result.provider
        return said(bodies.provider(one, call.minor, call.mount), one.updated, headers={"location": there})

    async def show(self, call: ApiCall) -> ApiAnswer:
        one = await provider_of(self.placement, call.path["uuid"])
        return said(bodies.provider(one, call.minor, call.mount), one.updated)

    async def update(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        body = await call.json(at(call.minor, schemas.PUT_PROVIDER))
        edit = ChangeProvider(
            provider=id_,
            name=body["name"],
            parent=body.get("parent_provider_uuid", UNSET),
            anywhere=call.minor >= 37,
        )
        match await self._edit(edit):
            case Edited(provider=Provider() as one):
                return said(bodies.provider(one, call.minor, call.mount), one.updated)
            case Taken(value=value):
                raise conflict(f"Conflicting resource provider {value} already exists.", DUPLICATE_NAME)
            case result:
                raise refused(result, f"Unable to save resource provider {id_}")

    async def delete(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        match await self._edit(DropProvider(provider=id_)):
            case Edited():
                return nothing()
            case Missing():
                raise no_provider(id_, " for delete")
            case result:
                raise refused(result)
