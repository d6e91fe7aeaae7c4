"""Resource classes and traits: list, make, show, rename, drop."""

import re

from bus.names import (
    DropName,
    FindNames,
    MakeName,
    NameEdit,
    NameEdited,
    NameEditRequested,
    NameKind,
    NameResult,
    RenameName,
    Standard,
)
from bus.vocabulary import InUse, Missing, Taken
from placement_worker.http import queries, schemas
from placement_worker.http.api_call import ApiAnswer, ApiCall, nothing, said
from placement_worker.http.errors import bad_request, conflict, not_found
from placement_worker.http.refusals import no_class, no_traits, refused
from placement_worker.placement import Placement

_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]+")
LONGEST = 255


class ClassAndTraitHandlers:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    # Resource classes

    async def classes(self, call: ApiCall) -> ApiAnswer:
        found = (await self.placement.classes_and_traits.find(FindNames(kind="resource class"))).names
        told = {"resource_classes": [_class(named.name, call) for named in found]}
        return said(told, max((named.updated for named in found), default=0.0))

    async def show_class(self, call: ApiCall) -> ApiAnswer:
        name = call.path["name"]
        found = (
            await self.placement.classes_and_traits.find(FindNames(kind="resource class", names=(name,)))
        ).names
        if not found:
            raise not_found(no_class(name))
        return said(_class(name, call), found[0].updated)

    async def create_class(self, call: ApiCall) -> ApiAnswer:
        name = (await call.json(schemas.NAME_CLASS))["name"]
        match await self._edit("resource class", MakeName(name=name)):
            case NameEdited(made=True):
                return nothing(201, location=call.location(f"/resource_classes/{name}"))
            case NameEdited() | Taken():
                raise conflict(f"Conflicting resource class already exists: {name}")
            case result:
                raise refused(result)

    async def ensure_class(self, call: ApiCall) -> ApiAnswer:
        name = call.path["name"]
        if wrong := schemas.NAME_CLASS.complaint({"name": name}):
            raise bad_request(f"JSON does not validate: {wrong}")
        match await self._edit("resource class", MakeName(name=name)):
            case NameEdited(made=made):
                status = 201 if made else 204
                return nothing(status, location=call.location(f"/resource_classes/{name}"))
            case result:
                raise refused(result)

    async def rename_class(self, call: ApiCall) -> ApiAnswer:
        name, to = call.path["name"], (await call.json(schemas.NAME_CLASS))["name"]
        match await self._edit("resource class", RenameName(name=name, to=to)):
            case NameEdited(named=named):
                return said(_class(to, call), named.updated if named else 0.0)
            case Standard():
                raise bad_request(f"Cannot update standard resource class {name}")
            case Missing():
                raise not_found(no_class(name))
            case result:
                raise refused(result)

    async def drop_class(self, call: ApiCall) -> ApiAnswer:
        name, doing = call.path["name"], "Error in delete resource class"
        match await self._edit("resource class", DropName(name=name)):
            case NameEdited():
                return nothing()
            case Standard():
                raise bad_request(f"{doing}: Cannot delete standard resource class {name}.")
            case Missing():
                raise not_found(no_class(name))
            case InUse():
                raise conflict(f"{doing}: Cannot delete resource class {name}. Class is in use in inventory.")
            case result:
                raise refused(result)

    # Traits

    async def traits(self, call: ApiCall) -> ApiAnswer:
        wanted = queries.traits(call.query)
        found = (await self.placement.classes_and_traits.find(wanted)).names
        return said(
            {"traits": [named.name for named in found]}, max((named.updated for named in found), default=0.0)
        )

    async def show_trait(self, call: ApiCall) -> ApiAnswer:
        name = call.path["name"]
        found = (await self.placement.classes_and_traits.find(FindNames(kind="trait", names=(name,)))).names
        if not found:
            raise not_found(no_traits([name]))
        return ApiAnswer(204, updated=found[0].updated)

    async def ensure_trait(self, call: ApiCall) -> ApiAnswer:
        name = call.path["name"]
        if not _TRAIT.fullmatch(name) or len(name) > LONGEST:
            raise bad_request(
                f"The trait is invalid. A valid trait must be no longer than {LONGEST} characters, start with"
                ' the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
            )
        match await self._edit("trait", MakeName(name=name)):
            case NameEdited(named=named, made=made):
                there = {"location": call.location(f"/traits/{name}")}
                return ApiAnswer(201 if made else 204, updated=named.updated if named else 0.0, headers=there)
            case result:
                raise refused(result)

    async def drop_trait(self, call: ApiCall) -> ApiAnswer:
        name = call.path["name"]
        match await self._edit("trait", DropName(name=name)):
            case NameEdited():
                return nothing()
            case Standard():
                raise bad_request(f"Cannot delete standard trait {name}.")
            case Missing():
                raise not_found(no_traits([name]))
            case InUse():
                raise conflict(f"The trait {name} is in use by a resource provider.")
            case result:
                raise refused(result)

    async def _edit(self, kind: NameKind, edit: NameEdit) -> NameResult:
        return (await self.placement.classes_and_traits.edit(NameEditRequested(kind=kind, edit=edit))).result


def _class(name: str, call: ApiCall) -> dict[str, object]:
    here = f"{call.mount}/resource_classes/{name}"
    return {"name": name, "links": [{"rel": "self", "href": here}]}
