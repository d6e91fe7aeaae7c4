"""Routes for resource providers with their inventories, usages, aggregates and traits."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET
from msgspec.structs import asdict

from bus import resources
from bus.reports import Inventory
from bus.vocabulary import MAX_INT, InUse, Missing, Taken
from placement_worker.http import errors, queries, schemas
from placement_worker.http.api_call import ApiAnswer, ApiCall, empty_answer, json_answer, last_change
from placement_worker.http.schemas import Json, at

Part = Literal["inventories", "traits", "aggregates"]

_LINKS = (("inventories", 0), ("usages", 0), ("aggregates", 1), ("traits", 6), ("allocations", 11))
_NEVER = -1  # a generation that no provider has


async def provider_of(call: ApiCall, *parts: Part) -> resources.Provider:
    """Return the provider that the HTTP request's URL names, read with the given parts (such as its
    inventories); raise the API error 404 if it does not exist."""
    id_ = call.path["uuid"]
    answer = await call.placement.lookups.providers(resources.FindProviders(ids=(id_,), parts=parts))
    if not answer.providers:
        raise errors.no_provider(id_)
    return answer.providers[0]


def _provider(provider: resources.Provider, call: ApiCall) -> Json:
    url = f"{call.mount}/resource_providers/{provider.id}"
    links = [{"rel": "self", "href": url}]
    links += [{"rel": rel, "href": f"{url}/{rel}"} for rel, since in _LINKS if since <= call.minor]
    answer: Json = {
        "uuid": provider.id,
        "name": provider.name,
        "generation": provider.generation,
        "links": links,
    }
    if call.minor >= 14:
        answer |= {"parent_provider_uuid": provider.parent, "root_provider_uuid": provider.root}
    return answer


async def list_all(call: ApiCall) -> ApiAnswer:
    query = queries.providers(call.query, call.minor)
    groups = () if query.like is None else (query.like,)
    await errors.check_query(call.placement, groups, doing='Invalid trait(s) in "required" parameter: ')
    providers = (await call.placement.lookups.providers(query)).providers
    listed = [_provider(provider, call) for provider in providers]
    return json_answer({"resource_providers": listed}, last_change(providers))


async def create(call: ApiCall) -> ApiAnswer:
    body = await call.json(at(call.minor, schemas.POST_PROVIDER))
    given, name = body.get("uuid"), body["name"]
    id_ = str(uuid.UUID(given)) if given else call.placement.clock.uuid()
    doing = f'Unable to create resource provider "{name}", {id_}'
    if not name:
        raise errors.bad_request(f"{doing}: Object action create failed because: name is required")
    edit = resources.MakeProvider(provider=id_, name=name, parent=body.get("parent_provider_uuid"))
    result = await call.edit(edit)
    if not isinstance(result, resources.Edited) or result.provider is None:
        raise errors.refused(result, doing)
    location = call.location(f"/resource_providers/{id_}")
    if call.minor < 20:
        return empty_answer(201, location=location)
    provider = _provider(result.provider, call)
    return json_answer(provider, result.provider.updated, headers={"location": location})


async def show(call: ApiCall) -> ApiAnswer:
    provider = await provider_of(call)
    return json_answer(_provider(provider, call), provider.updated)


async def update(call: ApiCall) -> ApiAnswer:
    id_ = call.path["uuid"]
    body = await call.json(at(call.minor, schemas.PUT_PROVIDER))
    edit = resources.ChangeProvider(
        provider=id_,
        name=body["name"],
        parent=body.get("parent_provider_uuid", UNSET),
        anywhere=call.minor >= 37,
    )
    match await call.edit(edit):
        case resources.Edited(provider=resources.Provider() as provider):
            return json_answer(_provider(provider, call), provider.updated)
        case Taken(value=value):
            raise errors.conflict(
                f"Conflicting resource provider {value} already exists.", errors.DUPLICATE_NAME
            )
        case result:
            raise errors.refused(result, f"Unable to save resource provider {id_}")


async def delete(call: ApiCall) -> ApiAnswer:
    id_ = call.path["uuid"]
    match await call.edit(resources.DropProvider(provider=id_)):
        case resources.Edited():
            return empty_answer()
        case Missing():
            raise errors.no_provider(id_, " for delete")
        case result:
            raise errors.refused(result)


async def inventories(call: ApiCall) -> ApiAnswer:
    return _inventories(await provider_of(call, "inventories"))


async def usages(call: ApiCall) -> ApiAnswer:
    provider = await provider_of(call, "inventories")
    used = {name: provider.used.get(name, 0) for name in provider.inventories}
    answer = {"resource_provider_generation": provider.generation, "usages": used}
    return json_answer(answer, provider.updated)


async def inventory(call: ApiCall) -> ApiAnswer:
    provider, name = await provider_of(call, "inventories"), call.path["resource_class"]
    if name not in provider.inventories:
        raise errors.no_inventory(name, provider.id)
    return _part(provider, **asdict(provider.inventories[name]))


async def set_inventories(call: ApiCall) -> ApiAnswer:
    body = await call.json(schemas.PUT_INVENTORIES)
    stocks = _checked(call, body["inventories"], "update")
    edit = resources.SetInventories(
        provider=call.path["uuid"], inventories=stocks, generation=generation_in(body)
    )
    return _inventories(await _edited(call, edit, "update"))


async def add_inventory(call: ApiCall) -> ApiAnswer:
    body = await call.json(schemas.POST_INVENTORY)
    id_, name = call.path["uuid"], body["resource_class"]
    stock = _checked(call, {name: body}, "create")[name]
    provider = await _edited(
        call, resources.AddInventory(provider=id_, resource_class=name, inventory=stock), "create"
    )
    answer = _part(provider, **asdict(provider.inventories[name]))
    answer.status = 201
    answer.headers["location"] = call.location(f"/resource_providers/{id_}/inventories/{name}")
    return answer


async def set_inventory(call: ApiCall) -> ApiAnswer:
    body, name = await call.json(schemas.PUT_INVENTORY), call.path["resource_class"]
    stock = _checked(call, {name: body}, "update")[name]
    edit = resources.SetInventory(
        provider=call.path["uuid"], resource_class=name, inventory=stock, generation=generation_in(body)
    )
    provider = await _edited(call, edit, "update")
    return _part(provider, **asdict(provider.inventories[name]))


async def delete_inventory(call: ApiCall) -> ApiAnswer:
    id_, name = call.path["uuid"], call.path["resource_class"]
    match await call.edit(resources.DropInventory(provider=id_, resource_class=name)):
        case resources.Edited():
            return empty_answer()
        case Missing(what="inventory"):
            raise errors.not_found(f"No inventory of class {name} found for delete")
        case Missing(what="resource class"):
            raise errors.not_found(f"No inventory of class {name} found for delete: {errors.no_class(name)}")
        case InUse():  # with another error code than if all inventories are deleted
            why = f"Inventory for '{name}' on resource provider '{id_}' in use."
            raise errors.conflict(
                f"Unable to delete inventory of class {name}: {why}", errors.CONCURRENT_UPDATE
            )
        case result:
            raise errors.refused(result, conflicts=f"Unable to delete inventory of class {name}: ")


async def delete_inventories(call: ApiCall) -> ApiAnswer:
    await _edited(call, resources.SetInventories(provider=call.path["uuid"], inventories={}), conflicts="")
    return empty_answer()


async def aggregates(call: ApiCall) -> ApiAnswer:
    provider = await provider_of(call, "aggregates")
    return _aggregates(provider, provider.aggregates, call)


async def set_aggregates(call: ApiCall) -> ApiAnswer:
    body = await call.json(at(call.minor, schemas.PUT_AGGREGATES))
    generation, listed = None, body
    if call.minor >= 19:
        generation, listed = generation_in(body), body["aggregates"]
    edit = resources.SetAggregates(
        provider=call.path["uuid"], aggregates=tuple(listed), generation=generation
    )
    return _aggregates(await _edited(call, edit), listed, call)  # in the order of the request


async def traits(call: ApiCall) -> ApiAnswer:
    return _traits(await provider_of(call, "traits"))


async def set_traits(call: ApiCall) -> ApiAnswer:
    body = await call.json(schemas.PUT_TRAITS)
    traits = tuple(dict.fromkeys(body["traits"]))
    edit = resources.SetTraits(provider=call.path["uuid"], traits=traits, generation=generation_in(body))
    return _traits(await _edited(call, edit))


async def delete_traits(call: ApiCall) -> ApiAnswer:
    await _edited(call, resources.SetTraits(provider=call.path["uuid"], traits=()))
    return empty_answer()


async def _edited(
    call: ApiCall, edit: resources.Edit, verb: str = "", conflicts: str = "update conflict: "
) -> resources.Provider:
    """Apply an edit, and return the provider after it; raise the API's error if the edit is refused. `verb`
    and `conflicts` are used in the error text.
    """
    match await call.edit(edit), edit:
        case resources.Edited(provider=resources.Provider() as provider), _:
            return provider
        case Missing(what="resource class", names=names), resources.SetInventory():
            raise errors.not_found(errors.no_class(", ".join(names)))
        case Missing(what="resource class", names=names), resources.SetInventories(provider=id_):
            why = errors.no_class(", ".join(names))
            raise errors.bad_request(
                f"Unknown resource class in inventory for resource provider {id_}: {why}"
            )
        case Missing(what="inventory", names=names, provider=id_), _:
            raise errors.bad_request(
                f"No inventory record with resource class for resource provider {id_}:"
                f" No inventory of class {names[0]} found."
            )
        case Missing(what="trait", names=names), _:
            raise errors.bad_request(f"No such trait {', '.join(names)}")
        case resources.Stale(), resources.SetAggregates() | resources.SetTraits():
            raise errors.conflict(
                "Resource provider's generation already changed. Please update the generation and try again.",
                errors.CONCURRENT_UPDATE,
            )
        case result, _:
            raise errors.refused(result, _doing(call, verb) if verb else "", conflicts)


def _doing(call: ApiCall, verb: str) -> str:
    return f"Unable to {verb} inventory for resource provider {call.path['uuid']}"


def _checked(call: ApiCall, stocks: Mapping[str, Json], verb: str) -> resources.Inventories:
    """Return the inventories in an HTTP request's body; raise the API error 400 if the reserved amount of an
    inventory is too high. `verb` is used in the error text.
    """
    found = inventories_from(stocks)
    least, limit = (0, "greater than total") if call.minor >= 26 else (1, "greater than or equal to total")
    for name, stock in found.items():
        if stock.capacity < least:
            raise errors.bad_request(
                f"{_doing(call, verb)}: Invalid inventory for '{name}' on resource provider"
                f" '{call.path['uuid']}'. The reserved value is {limit}."
            )
    return found


def generation_in(body: Json, key: str = "resource_provider_generation") -> int:
    """Return the generation in the field `key` of an HTTP request's body; a number such as 1.0 is converted
    to an integer.
    """
    return int(body[key]) if 0 <= body[key] < 2**62 else _NEVER


def inventories_from(stocks: Mapping[str, Json]) -> resources.Inventories:
    """Return the inventories in a body, with the defaults of the Placement API."""
    return {
        name: Inventory(
            total=int(stock["total"]),
            reserved=int(stock.get("reserved", 0)),
            min_unit=int(stock.get("min_unit", 1)),
            max_unit=int(stock.get("max_unit", MAX_INT)),
            step_size=int(stock.get("step_size", 1)),
            allocation_ratio=float(stock.get("allocation_ratio", 1.0)),
        )
        for name, stock in stocks.items()
    }


def _inventories(provider: resources.Provider) -> ApiAnswer:
    stocks = {name: asdict(inventory) for name, inventory in provider.inventories.items()}
    answer = {"resource_provider_generation": provider.generation, "inventories": stocks}
    return json_answer(answer, provider.updated, dated=bool(stocks))


def _traits(provider: resources.Provider) -> ApiAnswer:
    return _part(provider, traits=provider.traits)


def _aggregates(provider: resources.Provider, listed: Sequence[str], call: ApiCall) -> ApiAnswer:
    if call.minor < 19:
        return json_answer({"aggregates": listed}, provider.updated)
    return _part(provider, aggregates=listed)


def _part(provider: resources.Provider, **part: Any) -> ApiAnswer:
    """Return a part of a provider as an HTTP response, with the provider's generation."""
    return json_answer(part | {"resource_provider_generation": provider.generation}, provider.updated)
