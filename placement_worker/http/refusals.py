"""Translates refusals of placement to statuses, codes and messages of the API; checks that names exist."""

from collections.abc import Collection, Sequence

from bus.claims import (
    Claimed,
    ClaimResult,
    ConsumerClaim,
    Full,
    Held,
    NoSuchProvider,
    Refusal,
    Refused,
    Retired,
)
from bus.names import FindNames, NameKind, NameResult, Standard
from bus.resources import EditResult, HasChildren, Stale, Tangled
from bus.vocabulary import Contended, InUse, Missing, Taken
from placement_worker.http.errors import (
    CONCURRENT_UPDATE,
    DUPLICATE_NAME,
    HAS_CHILDREN,
    INVENTORY_IN_USE,
    PROVIDER_IN_USE,
    Problem,
    bad_request,
    conflict,
    not_found,
)
from placement_worker.placement import Placement

CONTENDED = "Another thread concurrently updated the data. Please retry your update"  # lost a race too often

_TANGLED = {
    "itself": (
        "create failed because: parent provider UUID cannot be same as UUID. Please set parent provider UUID"
        " to None if there is no parent."
    ),
    "loop": "update failed because: creating loop in the provider tree is not allowed.",
    "re-parenting": "update failed because: re-parenting a provider is not currently allowed.",
    "un-parenting": "update failed because: un-parenting a provider is not currently allowed.",
}


def no_provider(uuid: str, why: str = "") -> Problem:
    return not_found(f"No resource provider with uuid {uuid} found{why}")


def no_class(name: str) -> str:
    return f"No such resource class {name}."


def no_inventory(resource_class: str, provider: str) -> Problem:
    return not_found(f"No inventory of class {resource_class} for {provider}")


def no_traits(names: Sequence[str]) -> str:
    return f"No such trait(s): {', '.join(sorted(names))}."


def refused(
    result: EditResult | NameResult, doing: str = "", conflicts: str = "update conflict: "
) -> Problem:
    """Return the HTTP refusal for the reason why an edit was refused. `doing` and `conflicts` are the
    prefixes of the API's messages.
    """
    doing = f"{doing}: " if doing else ""
    match result:
        case Missing(what="provider", names=names):
            return no_provider(names[0])
        case Missing(what="parent"):
            why = "Object action create failed because: parent provider UUID does not exist."
            return bad_request(doing + why)
        case Missing(what="resource class", names=names):
            return bad_request(doing + no_class(", ".join(names)))
        case Missing(what="trait", names=names):
            return bad_request(doing + no_traits(names))
        case Missing(names=names, provider=provider):
            return no_inventory(names[0], provider)
        case Stale():
            return conflict("resource provider generation conflict", CONCURRENT_UPDATE)
        case Taken(what="inventory"):
            return conflict(f"Update conflict: it has {result.value} already", CONCURRENT_UPDATE)
        case Taken(what="resource class"):
            return conflict(f"Resource class already exists: {result.value}")
        case Taken():
            kind = "uuid" if result.what == "id" else "name"
            why = f"Conflicting resource provider {kind}: {result.value} already exists."
            return conflict(why, DUPLICATE_NAME)
        case InUse(classes=()):
            why = f"Unable to delete resource provider {result.what}: Resource provider has allocations."
            return conflict(why, PROVIDER_IN_USE)
        case InUse():
            held = ", ".join(result.classes)
            why = f"{conflicts}Inventory for '{held}' on resource provider '{result.what}' in use."
            return conflict(why, INVENTORY_IN_USE)
        case HasChildren():
            why = f"Unable to delete parent resource provider {result.provider}"
            return conflict(f"{why}: It has child resource providers.", HAS_CHILDREN)
        case Tangled():
            return bad_request(f"{doing}Object action {_TANGLED[result.why]}")
        case Standard():
            return bad_request(f"{doing}{result.name} is a standard name")
        case Contended():
            return conflict(conflicts + CONTENDED, CONCURRENT_UPDATE)
        case _:
            raise TypeError(f"{result} is no refusal")


def denied(results: Sequence[ClaimResult], claims: Sequence[ConsumerClaim]) -> Problem:
    """Return the first refusal among claims that succeed or fail together."""
    judged = [
        (result, claim)
        for result, claim in zip(results, claims, strict=True)
        if not isinstance(result, Claimed) and result != Refused(refusals=())
    ]
    for result, claim in judged:  # a generation counts before room
        if isinstance(result, Held):
            return conflict(
                f"consumer generation conflict - expected {result.generation or 'null'} but got"
                f" {claim.generation}",
                CONCURRENT_UPDATE,
            )
    for result, claim in judged:
        match result:
            case Retired(why=why):
                return conflict(f"Consumer {claim.consumer} has ended and can hold nothing again: {why}")
            case Refused(refusals=refusals):
                return _insufficient_capacity(refusals[0])
    return conflict(
        f"Inventory and/or allocations changed while attempting to allocate: {CONTENDED}", CONCURRENT_UPDATE
    )


def _insufficient_capacity(refusal: Refusal) -> Problem:
    figures = ""
    match refusal:
        case NoSuchProvider(provider=provider):
            return bad_request(f"Allocation for resource provider '{provider}' that does not exist.")
        case Full(limit="inventory"):
            why = (
                f"Inventory for '{refusal.resource_class}' on resource provider '{refusal.provider}' invalid."
            )
        case Full(limit=""):
            why = (
                f"Unable to create allocation for '{refusal.resource_class}' on resource provider"
                f" '{refusal.provider}'. The requested amount would exceed the capacity."
            )
            figures = f"asked {refusal.asked}, free {refusal.free}"
        case Full():
            why = (
                f"Unable to create allocation for '{refusal.resource_class}' on resource provider"
                f" '{refusal.provider}'. The requested amount would violate inventory constraints."
            )
            figures = f"{refusal.asked} breaks its {refusal.limit}"
        case _:
            return conflict(str(refusal), CONCURRENT_UPDATE)
    headers = {"berth-why": figures} if figures else None
    return Problem(409, f"Unable to allocate inventory: {why}", headers=headers)


async def unknown(placement: Placement, kind: NameKind, names: Collection[str]) -> list[str]:
    """Return the unknown names among these resource classes or traits."""
    missing = [name for name in names if not placement.book.known(kind, name)]
    if missing:
        answer = await placement.classes_and_traits.find(FindNames(kind=kind, names=tuple(missing)))
        there = {named.name for named in answer.names}
        missing = [name for name in missing if name not in there]
    return sorted(missing)


async def check_query(
    placement: Placement, classes: Collection[str], traits: Collection[str], doing: str = ""
) -> None:
    """Refuse a query that names a resource class, trait or aggregate that does not exist."""
    if absent := await unknown(placement, "resource class", classes):
        raise bad_request(f"Invalid resource class in resources parameter: {no_class(', '.join(absent))}")
    if absent := await unknown(placement, "trait", traits):
        raise bad_request(doing + no_traits(absent))
