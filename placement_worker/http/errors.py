"""Errors in the Placement API's formats (JSON, HTML or text), and the error for each refusal of placement."""

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from http import HTTPStatus

import msgspec

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
from bus.clock import Clock
from bus.names import FindNames, NameKind, NameResult, Standard
from bus.requests import ResourceGroup
from bus.resources import EditResult, HasChildren, Stale, Tangled
from bus.vocabulary import Contended, InUse, Missing, Taken
from placement_worker.worker import Placement

UNDEFINED = "placement.undefined_code"
CONCURRENT_UPDATE = "placement.concurrent_update"
INVENTORY_IN_USE = "placement.inventory.inuse"
DUPLICATE_NAME = "placement.duplicate_name"
PROVIDER_IN_USE = "placement.resource_provider.inuse"
HAS_CHILDREN = "placement.resource_provider.cannot_delete_parent"
PROVIDER_NOT_FOUND = "placement.resource_provider.not_found"
DUPLICATE_KEY = "placement.query.duplicate_key"
BAD_VALUE = "placement.query.bad_value"
MISSING_VALUE = "placement.query.missing_value"

# HTTP status → first sentence of all its error texts, as in OpenStack's Placement API.
_GENERAL = {
    400: "The server could not comply with the request since it is either malformed or otherwise incorrect.",
    401: (
        "This server could not verify that you are authorized to access the document you requested.  Either"
        " you supplied the wrong credentials (e.g., bad password), or your browser does not understand how to"
        " supply the credentials required."
    ),
    403: "Access was denied to this resource.",
    404: "The resource could not be found.",
    405: "The method is not allowed for this resource.",
    406: "The resource could not be generated that was acceptable to your browser (content of type {accept}.",
    408: "The server has waited too long for the request to be sent by the client.",
    409: "There was a conflict when trying to complete your request.",
    410: "This resource is no longer available.",
    413: "The body of your request was too large for this server.",
    414: "The request URI was too long for this server.",
    415: "The request media type is not supported by this server.",
    429: "There are too many requests of this user in progress.",
    431: "The request header fields were too large.",
    500: "The server has either erred or is incapable of performing the requested operation.",
    503: "The server is currently unavailable. Please try again at a later time.",
}
_LONGEST = 4000  # characters of an error text, which may quote a large body

JSON, HTML, TEXT = "application/json", "text/html", "text/plain"
_OFFERS = (JSON, HTML)


class Problem(Exception):
    """The refusal of an API request: HTTP status, reason, and error code for clients."""

    def __init__(
        self,
        status: int,
        why: str = "",
        code: str = UNDEFINED,
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
        general: str = "",
    ) -> None:
        super().__init__(why)
        self.status = status
        self.why = " ".join(why[:_LONGEST].split("\n"))
        self.code = code
        self.headers = dict(headers or {})
        self.more = dict(more or {})  # additional fields of a JSON error
        self._general = general or _GENERAL.get(status, self.title)

    @property
    def title(self) -> str:
        return HTTPStatus(self.status).phrase

    def rendered(self, accept: str, request_id: str, minor: int) -> tuple[str, bytes]:
        """Return the content type and the body of the response that refuses the HTTP request."""
        title = self.title
        general = self._general.replace("{accept}", accept)
        kind = best(accept) or TEXT
        if kind == HTML:
            paragraph = f"{html.escape(general)}<br /><br />\n{html.escape(self.why)}\n"
            page = (
                f"<html>\n <head>\n  <title>{self.status} {title}</title>\n </head>\n <body>\n"
                f"  <h1>{self.status} {title}</h1>\n  {paragraph} </body>\n</html>\n"
            )
            return f"{HTML}; charset=UTF-8", page.encode(errors="replace")
        if kind == TEXT:
            text = f"{self.status} {title}\n\n{general}\n\n{self.why}\n"
            return f"{TEXT}; charset=UTF-8", text.encode(errors="replace")
        detail = f"{general}\n\n {self.why}"
        error: dict[str, object] = {"status": self.status, "title": title, "detail": detail}
        if minor >= 23:
            error["code"] = self.code
        return JSON, msgspec.json.encode({"errors": [error | {"request_id": request_id} | self.more]})


def without_token() -> Problem:
    return Problem(401, "A valid token is required.", headers={"www-authenticate": "Token"})


def format_refusal(status: int, why: str, accept: str) -> tuple[Mapping[str, str], bytes]:
    """Return headers and body that refuse a malformed or oversized HTTP request, in the API's format."""
    if "Content-Length" in why:
        why = "content-length header must be an integer"
    id_ = f"req-{Clock().uuid()}"
    kind, body = Problem(status, why).rendered(accept, id_, -1)
    return {"content-type": kind, "x-openstack-request-id": id_}, body


def bad_request(why: str, code: str = UNDEFINED) -> Problem:
    return Problem(400, why, code)


def not_allowed(method: str, why: str = "", allowed: Iterable[str] = ()) -> Problem:
    headers = {"allow": ", ".join(sorted(allowed))} if allowed else None
    return Problem(
        405, why, headers=headers, general=f"The method {method} is not allowed for this resource."
    )


def not_found(why: str = "") -> Problem:
    return Problem(404, why)


def conflict(why: str, code: str = UNDEFINED) -> Problem:
    return Problem(409, why, code)


def takes_json(accept: str) -> bool:
    """Return whether a header Accept permits an answer in JSON."""
    return accept in ("", "*/*", JSON) or _quality(accept, JSON) > 0


def best(accept: str) -> str | None:
    """Return the content type that an Accept header prefers, JSON or HTML; None if it accepts neither."""
    if accept in ("", "*/*", JSON):
        return JSON
    liked = max(_OFFERS, key=lambda offer: _quality(accept, offer))
    return liked if _quality(accept, liked) > 0 else None


def _quality(accept: str, offer: str) -> float:
    kind = offer.partition("/")[0]
    found: tuple[int, float] = (0, 0.0)
    for part in accept.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        rank = (name == "*/*") + 2 * (name == f"{kind}/*") + 3 * (name == offer)
        if rank > found[0]:
            weight = 1.0
            for parameter in parameters:
                key, _, value = parameter.partition("=")
                if key.strip() == "q":
                    try:
                        weight = float(value)
                    except ValueError:
                        weight = 0.0
            found = rank, weight
    return found[1]


# Error text if every attempt of a transaction conflicted with another writer.
CONTENDED = "Another thread concurrently updated the data. Please retry your update"

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
    """Return the API error for a refused edit. Texts of conflicts begin with the prefix `conflicts`, texts of
    invalid edits with the prefix `doing`; some refusals have a fixed text."""
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
    """Return one API error for claims that were refused together; a generation conflict has precedence."""
    judged = [
        (result, claim)
        for result, claim in zip(results, claims, strict=True)
        if not isinstance(result, Claimed) and result != Refused(refusals=())
    ]
    for result, claim in judged:  # generation conflicts have precedence
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
    """Return the given names that do not exist; `kind` says whether they are names of resource classes or of
    traits.
    """
    missing = [name for name in names if not placement.book.known(kind, name)]
    if missing:
        answer = await placement.classes_and_traits.find(FindNames(kind=kind, names=tuple(missing)))
        existing = {named.name for named in answer.names}
        missing = [name for name in missing if name not in existing]
    return sorted(missing)


async def check_query(
    placement: Placement, groups: Iterable[ResourceGroup], root_traits: Iterable[str] = (), doing: str = ""
) -> None:
    """Raise an API error if a query names a resource class or trait that does not exist. The error text about
    a trait begins with `doing`.
    """
    classes, traits = set[str](), {*root_traits}
    for group in groups:
        classes.update(group.resources)
        traits.update(group.required, group.forbidden, *group.required_any)
    if absent := await unknown(placement, "resource class", classes):
        raise bad_request(f"Invalid resource class in resources parameter: {no_class(', '.join(absent))}")
    if absent := await unknown(placement, "trait", traits):
        raise bad_request(doing + no_traits(absent))
