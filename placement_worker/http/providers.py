"""Resource providers with their inventories, usages, aggregates and traits."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import UNSET

from bus.reports import Inventory
from bus.resources import (
    AddInventory,
    ChangeProvider,
    DropInventory,
    DropProvider,
    Edit,
    Edited,
    EditResult,
    FindProviders,
    MakeProvider,
    Provider,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
    Stale,
)
from bus.vocabulary import InUse, Missing, Taken
from placement_worker.http import bodies, queries, schemas
from placement_worker.http.api_call import ApiAnswer, ApiCall, empty_answer, json_answer, last_change
from placement_worker.http.bodies import generation_in
from placement_worker.http.errors import CONCURRENT_UPDATE, DUPLICATE_NAME, bad_request, conflict, not_found
from placement_worker.http.refusals import check_query, no_class, no_inventory, no_provider, refused
from placement_worker.http.schemas import at
from placement_worker.placement import Placement

Part = Literal["inventories", "traits", "aggregates"]
EditOne = Callable[[Edit], Awaitable[EditResult]]


async def provider_of(placement: Placement, id_: str, *parts: Part) -> Provider:
    """Return the provider of this id with the requested parts, or raise 404."""
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
        providers = (await self.placement.lookups.providers(wanted.query)).providers
        listed = [bodies.provider(provider, call.minor, call.mount) for provider in providers]
        return json_answer({"resource_providers": listed}, last_change(providers))

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
        location = call.location(f"/resource_providers/{id_}")
        if call.minor < 20:
            return empty_answer(201, location=location)
        provider = bodies.provider(result.provider, call.minor, call.mount)
        return json_answer(provider, result.provider.updated, headers={"location": location})

    async def show(self, call: ApiCall) -> ApiAnswer:
        provider = await self._read(call)
        return json_answer(bodies.provider(provider, call.minor, call.mount), provider.updated)

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
            case Edited(provider=Provider() as provider):
                return json_answer(bodies.provider(provider, call.minor, call.mount), provider.updated)
            case Taken(value=value):
                raise conflict(f"Conflicting resource provider {value} already exists.", DUPLICATE_NAME)
            case result:
                raise refused(result, f"Unable to save resource provider {id_}")

    async def delete(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        match await self._edit(DropProvider(provider=id_)):
            case Edited():
                return empty_answer()
            case Missing():
                raise no_provider(id_, " for delete")
            case result:
                raise refused(result)

    async def _read(self, call: ApiCall, *parts: Part) -> Provider:
        return await provider_of(self.placement, call.path["uuid"], *parts)

    async def inventories(self, call: ApiCall) -> ApiAnswer:
        return _inventories(await self._read(call, "inventories"))

    async def usages(self, call: ApiCall) -> ApiAnswer:
        provider = await self._read(call, "inventories")
        return json_answer(bodies.usages_of(provider), provider.updated)

    async def inventory(self, call: ApiCall) -> ApiAnswer:
        provider, name = await self._read(call, "inventories"), call.path["resource_class"]
        if name not in provider.inventories:
            raise no_inventory(name, provider.id)
        return json_answer(bodies.inventory_of(provider, name), provider.updated)

    async def set_inventories(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        body = await call.json(schemas.PUT_INVENTORIES)
        doing = f"Unable to update inventory for resource provider {id_}"
        inventories = bodies.inventories_from(body["inventories"])
        for name, inventory in inventories.items():
            _check(name, inventory, id_, doing, call.minor)
        edit = SetInventories(provider=id_, inventories=inventories, generation=generation_in(body))
        return _inventories(await self._set_inventories(edit, doing))

    async def add_inventory(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        body = await call.json(schemas.POST_INVENTORY)
        doing = f"Unable to create inventory for resource provider {id_}"
        name, inventory = body["resource_class"], bodies.inventory_from(body)
        _check(name, inventory, id_, doing, call.minor)
        edit = AddInventory(provider=id_, resource_class=name, inventory=inventory)
        provider = await self._set_inventories(edit, doing)
        headers = {"location": call.location(f"/resource_providers/{id_}/inventories/{name}")}
        return json_answer(bodies.inventory_of(provider, name), provider.updated, status=201, headers=headers)

    async def set_inventory(self, call: ApiCall) -> ApiAnswer:
        id_, name = call.path["uuid"], call.path["resource_class"]
        body = await call.json(schemas.PUT_INVENTORY)
        doing = f"Unable to update inventory for resource provider {id_}"
        inventory, generation = bodies.inventory_from(body), generation_in(body)
        _check(name, inventory, id_, doing, call.minor)
        edit = SetInventory(provider=id_, resource_class=name, inventory=inventory, generation=generation)
        provider = await self._set_inventories(edit, doing)
        return json_answer(bodies.inventory_of(provider, name), provider.updated)

    async def delete_inventory(self, call: ApiCall) -> ApiAnswer:
        id_, name = call.path["uuid"], call.path["resource_class"]
        match await self._edit(DropInventory(provider=id_, resource_class=name)):
            case Edited():
                return empty_answer()
            case Missing(what="inventory"):
                raise not_found(f"No inventory of class {name} found for delete")
            case Missing(what="resource class"):
                raise not_found(f"No inventory of class {name} found for delete: {no_class(name)}")
            case InUse():  # the API has another code here than for all inventories together
                raise conflict(
                    f"Unable to delete inventory of class {name}:"
                    f" Inventory for '{name}' on resource provider '{id_}' in use.",
                    CONCURRENT_UPDATE,
                )
            case result:
                raise refused(result, conflicts=f"Unable to delete inventory of class {name}: ")

    async def delete_inventories(self, call: ApiCall) -> ApiAnswer:
        await self._set_inventories(SetInventories(provider=call.path["uuid"], inventories={}), conflicts="")
        return empty_answer()

    async def _set_inventories(
        self, edit: Edit, doing: str = "", conflicts: str = "update conflict: "
    ) -> Provider:
        match await self._edit(edit):
            case Edited(provider=Provider() as provider):
                return provider
            case Missing(what="resource class", names=names) if isinstance(edit, SetInventory):
                raise not_found(no_class(", ".join(names)))
            case Missing(what="resource class", names=names) if isinstance(edit, SetInventories):
                raise bad_request(
                    f"Unknown resource class in inventory for resource provider {edit.provider}:"
                    f" {no_class(', '.join(names))}"
                )
            case Missing(what="inventory", names=names, provider=id_):
                raise bad_request(
                    f"No inventory record with resource class for resource provider {id_}:"
                    f" No inventory of class {names[0]} found."
                )
            case result:
                raise refused(result, doing, conflicts)

    async def aggregates(self, call: ApiCall) -> ApiAnswer:
        provider = await self._read(call, "aggregates")
        return json_answer(bodies.aggregates_of(provider, call.minor), provider.updated)

    async def set_aggregates(self, call: ApiCall) -> ApiAnswer:
        body = await call.json(at(call.minor, schemas.PUT_AGGREGATES))
        generation, listed = None, body
        if call.minor >= 19:
            generation, listed = generation_in(body), body["aggregates"]
        edit = SetAggregates(provider=call.path["uuid"], aggregates=tuple(listed), generation=generation)
        provider = await self._set_contents(edit)
        in_clients_order = bodies.aggregates_of(provider, call.minor) | {"aggregates": listed}
        return json_answer(in_clients_order, provider.updated)

    async def traits(self, call: ApiCall) -> ApiAnswer:
        provider = await self._read(call, "traits")
        return json_answer(bodies.traits_of(provider), provider.updated)

    async def set_traits(self, call: ApiCall) -> ApiAnswer:
        body = await call.json(schemas.PUT_TRAITS)
        traits = tuple(dict.fromkeys(body["traits"]))
        edit = SetTraits(provider=call.path["uuid"], traits=traits, generation=generation_in(body))
        provider = await self._set_contents(edit)
        return json_answer(bodies.traits_of(provider), provider.updated)

    async def delete_traits(self, call: ApiCall) -> ApiAnswer:
        await self._set_contents(SetTraits(provider=call.path["uuid"], traits=()))
        return empty_answer()

    async def _set_contents(self, edit: SetAggregates | SetTraits) -> Provider:
        match await self._edit(edit):
            case Edited(provider=Provider() as provider):
                return provider
            case Stale():
                raise conflict(
                    "Resource provider's generation already changed."
                    " Please update the generation and try again.",
                    CONCURRENT_UPDATE,
                )
            case Missing(what="trait", names=names):
                raise bad_request(f"No such trait {', '.join(names)}")
            case result:
                raise refused(result)


def _inventories(provider: Provider) -> ApiAnswer:
    return json_answer(bodies.inventories(provider), provider.updated, dated=bool(provider.inventories))


def _check(name: str, inventory: Inventory, provider: str, doing: str, minor: int) -> None:
    may_be_empty = minor >= 26
    if inventory.capacity > 0 or (may_be_empty and inventory.capacity == 0):
        return
    limit = "greater than total" if may_be_empty else "greater than or equal to total"
    raise bad_request(
        f"{doing}: Invalid inventory for '{name}' on resource provider '{provider}'."
        f" The reserved value is {limit}."
    )
