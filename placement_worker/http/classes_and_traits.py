"""Routes that list, create, show, rename and delete resource classes and traits."""

import re

from bus import names
from bus.vocabulary import InUse, Missing, Taken
from placement_worker.http import errors, queries, schemas
from placement_worker.http.api_call import ApiAnswer, ApiCall, empty_answer, json_answer, last_change

_TRAIT = re.compile(r"CUSTOM_[A-Z0-9_]+")
LONGEST = 255


# Error texts for a name that cannot be deleted: if it is a standard name, and if it is in use.
_NOT_DELETED = {
    "resource class": (
        "Error in delete resource class: Cannot delete standard resource class {}.",
        "Error in delete resource class: Cannot delete resource class {}. Class is in use in inventory.",
    ),
    "trait": ("Cannot delete standard trait {}.", "The trait {} is in use by a resource provider."),
}


async def classes(call: ApiCall) -> ApiAnswer:
    found = (await call.placement.classes_and_traits.find(names.FindNames(kind="resource class"))).names
    listed = [_class(named.name, call) for named in found]
    return json_answer({"resource_classes": listed}, last_change(found))


async def show_class(call: ApiCall) -> ApiAnswer:
    named = await _find(call, "resource class")
    return json_answer(_class(named.name, call), named.updated)


async def create_class(call: ApiCall) -> ApiAnswer:
    name = (await call.json(schemas.NAME_CLASS))["name"]
    match await _edit(call, "resource class", names.MakeName(name=name)):
        case names.NameEdited(made=True):
            return empty_answer(201, location=call.location(f"/resource_classes/{name}"))
        case names.NameEdited() | Taken():
            raise errors.conflict(f"Conflicting resource class already exists: {name}")
        case result:
            raise errors.refused(result)


async def ensure_class(call: ApiCall) -> ApiAnswer:
    """Answer PUT /resource_classes/NAME: create the class unless it exists."""
    name = call.path["name"]
    if wrong := schemas.NAME_CLASS.complaint({"name": name}):
        raise errors.bad_request(f"JSON does not validate: {wrong}")
    match await _edit(call, "resource class", names.MakeName(name=name)):
        case names.NameEdited(made=made):
            status = 201 if made else 204
            return empty_answer(status, location=call.location(f"/resource_classes/{name}"))
        case result:
            raise errors.refused(result)


async def rename_class(call: ApiCall) -> ApiAnswer:
    """Answer PUT /resource_classes/NAME of versions before 1.7: rename a class."""
    name, to = call.path["name"], (await call.json(schemas.NAME_CLASS))["name"]
    match await _edit(call, "resource class", names.RenameName(name=name, to=to)):
        case names.NameEdited(named=named):
            return json_answer(_class(to, call), named.updated if named else 0.0)
        case names.Standard():
            raise errors.bad_request(f"Cannot update standard resource class {name}")
        case Missing():
            raise _missing("resource class", name)
        case result:
            raise errors.refused(result)


async def traits(call: ApiCall) -> ApiAnswer:
    found = (await call.placement.classes_and_traits.find(queries.traits(call.query))).names
    return json_answer({"traits": [named.name for named in found]}, last_change(found))


async def show_trait(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(204, updated=(await _find(call, "trait")).updated)


async def ensure_trait(call: ApiCall) -> ApiAnswer:
    """Answer PUT /traits/NAME: create the trait unless it exists."""
    name = call.path["name"]
    if not _TRAIT.fullmatch(name) or len(name) > LONGEST:
        raise errors.bad_request(
            f"The trait is invalid. A valid trait must be no longer than {LONGEST} characters, start with"
            ' the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
        )
    match await _edit(call, "trait", names.MakeName(name=name)):
        case names.NameEdited(named=named, made=made):
            headers = {"location": call.location(f"/traits/{name}")}
            updated = named.updated if named else 0.0
            return ApiAnswer(201 if made else 204, updated=updated, headers=headers)
        case result:
            raise errors.refused(result)


async def _find(call: ApiCall, kind: names.NameKind) -> names.Named:
    name = call.path["name"]
    found = (await call.placement.classes_and_traits.find(names.FindNames(kind=kind, names=(name,)))).names
    if not found:
        raise _missing(kind, name)
    return found[0]


async def delete(kind: names.NameKind, call: ApiCall) -> ApiAnswer:
    """Answer DELETE of a class or trait; refused if it is a standard one or in use."""
    (standard, in_use), name = _NOT_DELETED[kind], call.path["name"]
    match await _edit(call, kind, names.DropName(name=name)):
        case names.NameEdited():
            return empty_answer()
        case names.Standard():
            raise errors.bad_request(standard.format(name))
        case Missing():
            raise _missing(kind, name)
        case InUse():
            raise errors.conflict(in_use.format(name))
        case result:
            raise errors.refused(result)


async def _edit(call: ApiCall, kind: names.NameKind, edit: names.NameEdit) -> names.NameResult:
    return (
        await call.placement.classes_and_traits.edit(names.NameEditRequested(kind=kind, edit=edit))
    ).result


def _missing(kind: names.NameKind, name: str) -> errors.Problem:
    return errors.not_found(errors.no_class(name) if kind == "resource class" else errors.no_traits([name]))


def _class(name: str, call: ApiCall) -> dict[str, object]:
    url = f"{call.mount}/resource_classes/{name}"
    return {"name": name, "links": [{"rel": "self", "href": url}]}
