"""Inventories of providers and their usages."""

from bus.reports import Inventory
from bus.resources import AddInventory, DropInventory, Edit, Edited, Provider, SetInventories, SetInventory
from bus.vocabulary import InUse, Missing
from placement_worker.http import bodies, schemas
from placement_worker.http.api_call import ApiAnswer, ApiCall, nothing, said
from placement_worker.http.errors import CONCURRENT_UPDATE, bad_request, conflict, not_found
from placement_worker.http.providers import EditOne, provider_of
from placement_worker.http.refusals import no_class, no_inventory, refused
from placement_worker.placement import Placement

EMPTY_CAPACITY_SINCE = 26  # all of an inventory may be reserved


class Inventories:
    def __init__(self, placement: Placement, edit: EditOne) -> None:
        self.placement = placement
        self._edit = edit

    async def list_all(self, call: ApiCall) -> ApiAnswer:
        one = await provider_of(self.placement, call.path["uuid"], "inventories")
        return said(bodies.inventories(one), one.updated, dated=bool(one.inventories))

    async def usages(self, call: ApiCall) -> ApiAnswer:
        one = await provider_of(self.placement, call.path["uuid"], "inventories")
        return said(bodies.usages_of(one), one.updated)

    async def show(self, call: ApiCall) -> ApiAnswer:
        one = await provider_of(self.placement, call.path["uuid"], "inventories")
        name = call.path["resource_class"]
        if name not in one.inventories:
            raise no_inventory(name, one.id)
        return said(bodies.inventory_of(one, name), one.updated)

    async def replace(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        body = await call.json(schemas.PUT_INVENTORIES)
        doing = f"Unable to update inventory for resource provider {id_}"
        inventories = bodies.inventories_from(body["inventories"])
        for name, stock in inventories.items():
            _check(name, stock, id_, doing, call.minor)
        edit = SetInventories(
            provider=id_,
            inventories=inventories,
            generation=bodies.generation(body["resource_provider_generation"]),
        )
        one = await self._edited(edit, doing)
        return said(bodies.inventories(one), one.updated, dated=bool(one.inventories))

    async def add(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        body = await call.json(schemas.POST_INVENTORY)
        doing = f"Unable to create inventory for resource provider {id_}"
        name, stock = body["resource_class"], bodies.inventory_from(body)
        _check(name, stock, id_, doing, call.minor)
        one = await self._edited(AddInventory(provider=id_, resource_class=name, inventory=stock), doing)
        there = call.location(f"/resource_providers/{id_}/inventories/{name}")
        return said(bodies.inventory_of(one, name), one.updated, status=201, headers={"location": there})

    async def change(self, call: ApiCall) -> ApiAnswer:
        id_, name = call.path["uuid"], call.path["resource_class"]
        body = await call.json(schemas.PUT_INVENTORY)
        doing = f"Unable to update inventory for resource provider {id_}"
        stock = bodies.inventory_from(body)
        _check(name, stock, id_, doing, call.minor)
        edit = SetInventory(
            provider=id_,
            resource_class=name,
            inventory=stock,
            generation=bodies.generation(body["resource_provider_generation"]),
        )
        one = await self._edited(edit, doing)
        return said(bodies.inventory_of(one, name), one.updated)

    async def delete(self, call: ApiCall) -> ApiAnswer:
        id_, name = call.path["uuid"], call.path["resource_class"]
        match await self._edit(DropInventory(provider=id_, resource_class=name)):
            case Edited():
                return nothing()
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

    async def delete_all(self, call: ApiCall) -> ApiAnswer:
        id_ = call.path["uuid"]
        await self._edited(SetInventories(provider=id_, inventories={}), conflicts="")
        return nothing()

    async def _edited(self, edit: Edit, doing: str = "", conflicts: str = "update conflict: ") -> Provider:
        """Return the provider after this edit, or raise why the edit is impossible."""
        match await self._edit(edit):
            case Edited(provider=Provider() as one):
                return one
            case Missing(what="resource class", names=names) if isinstance(edit, SetInventory):
                raise not_found(no_class(", ".join(names)))
            case Missing(what="resource class", names=names) if isinstance(edit, SetInventories):
                raise bad_request(
                    f"Unknown resource class in inventory for resource provider {edit.provider}:"
                    f" {no_class(', '.join(names))}"
                )
            case Missing(what="inventory", names=names, provider=provider):
                raise bad_request(
                    f"No inventory record with resource class for resource provider {provider}:"
                    f" No inventory of class {names[0]} found."
                )
            case result:
                raise refused(result, doing, conflicts)


def _check(name: str, stock: Inventory, provider: str, doing: str, minor: int) -> None:
    """Check that the inventory has capacity; since 1.26 all of it may be reserved."""
    may_be_empty = minor >= EMPTY_CAPACITY_SINCE
    if stock.capacity > 0 or (may_be_empty and stock.capacity == 0):
        return
    limit = "greater than total" if may_be_empty else "greater than or equal to total"
    raise bad_request(
        f"{doing}: Invalid inventory for '{name}' on resource provider '{provider}'."
        f" The reserved value is {limit}."
    )
