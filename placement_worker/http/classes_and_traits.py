"""Resource classes and traits: list, create, show, rename, delete."""

import re

from bus.names import (
    DropName,
    FindNames,
    MakeName,
    Named,
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
from placement_worker.http.api_call import ApiAnswer, ApiCall, empty_answer, json_answer, last_change
from placement_worker.http.errors import (
    Problem,
    bad_request,
    conflict,
    no_class,
    no_traits,
    not_found,
    refused,
)

_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]+")
LONGEST = 255


# Why a name cannot be deleted: a standard name, a name in use.
_NOT_DELETED = {
    "resource class": (
        "Error in delete resource class: Cannot delete standard resource class {}.",
        "Error in delete resource class: Cannot delete resource class {}. Class is in use in inventory.",
    ),
    "trait": ("Cannot delete standard trait {}.", "The trait {} is in use by a resource provider."),
}


async def classes(call: ApiCall) -> ApiAnswer:
    found = (await call.placement.classes_and_traits.find(FindNames(kind="resource class"))).names
    listed = [_class(named.name, call) for named in found]
    return json_answer({"resource_classes": listed}, last_change(found))


async def show_class(call: ApiCall) -> ApiAnswer:
    named = await _find(call, "resource class")
    return json_answer(_class(named.name, call), named.updated)


async def create_class(call: ApiCall) -> ApiAnswer:
    name = (await call.json(schemas.NAME_CLASS))["name"]
    match await _edit(call, "resource class", MakeName(name=name)):
        case NameEdited(made=True):
            return empty_answer(201, location=call.location(f"/resource_classes/{name}"))
        case NameEdited() | Taken():
            raise conflict(f"Conflicting resource class already exists: {name}")
        case result:
            raise refused(result)


async def ensure_class(call: ApiCall) -> ApiAnswer:
    name = call.path["name"]
    if wrong := schemas.NAME_CLASS.complaint({"name": name}):
        raise bad_request(f"JSON does not validate: {wrong}")
    match await _edit(call, "resource class", MakeName(name=name)):
        case NameEdited(made=made):
            status = 201 if made else 204
            return empty_answer(status, location=call.location(f"/resource_classes/{name}"))
        case result:
            raise refused(result)


async def rename_class(call: ApiCall) -> ApiAnswer:
    name, to = call.path["name"], (await call.json(schemas.NAME_CLASS))["name"]
    match await _edit(call, "resource class", RenameName(name=name, to=to)):
        case NameEdited(named=named):
            return json_answer(_class(to, call), named.updated if named else 0.0)
        case Standard():
            raise bad_request(f"Cannot update standard resource class {name}")
        case Missing():
            raise _missing("resource class", name)
        case result:
            raise refused(result)


async def traits(call: ApiCall) -> ApiAnswer:
    found = (await call.placement.classes_and_traits.find(queries.traits(call.query))).names
    return json_answer({"traits": [named.name for named in found]}, last_change(found))


async def show_trait(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(204, updated=(await _find(call, "trait")).updated)


async def ensure_trait(call: ApiCall) -> ApiAnswer:
    name = call.path["name"]
    if not _TRAIT.fullmatch(name) or len(name) > LONGEST:
        raise bad_request(
            f"The trait is invalid. A valid trait must be no longer than {LONGEST} characters, start with"
            ' the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
        )
    match await _edit(call, "trait", MakeName(name=name)):
        case NameEdited(named=named, made=made):
            headers = {"location": call.location(f"/traits/{name}")}
            updated = named.updated if named else 0.0
            return ApiAnswer(201 if made else 204, updated=updated, headers=headers)
        case result:
            raise refused(result)


async def _find(call: ApiCall, kind: NameKind) -> Named:
    name = call.path["name"]
    found = (await call.placement.classes_and_traits.find(FindNames(kind=kind, names=(name,)))).names
    if not found:
        raise _missing(kind, name)
    return found[0]


async def delete(kind: NameKind, call: ApiCall) -> ApiAnswer:
    (standard, in_use), name = _NOT_DELETED[kind], call.path["name"]
    match await _edit(call, kind, DropName(name=name)):
        case NameEdited():
            return empty_answer()
        case Standard():
            raise bad_request(standard.format(name))
        case Missing():
            raise _missing(kind, name)
        case InUse():
            raise conflict(in_use.format(name))
        case result:
            raise refused(result)


async def _edit(call: ApiCall, kind: NameKind, edit: NameEdit) -> NameResult:
    return (await call.placement.classes_and_traits.edit(NameEditRequested(kind=kind, edit=edit))).result


def _missing(kind: NameKind, name: str) -> Problem:
    return not_found(no_class(name) if kind == "resource class" else no_traits([name]))


def _class(name: str, call: ApiCall) -> dict[str, object]:
    here = f"{call.mount}/resource_classes/{name}"
    return {"name": name, "links": [{"rel": "self", "href": here}]}
