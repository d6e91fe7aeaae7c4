"""Errors in the API's format: JSON, HTML or plain text, as the client accepts."""

import html
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import msgspec

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

# The sentences every refusal of a status begins with, as clients have known them for long.
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
    431: "The request header fields were too large.",
    500: "The server has either erred or is incapable of performing the requested operation.",
    503: "The server is currently unavailable. Please try again at a later time.",
}
_LONGEST = 4000  # characters of one message: a refused body may be large

JSON, HTML, TEXT = "application/json", "text/html", "text/plain"
_OFFERS = (JSON, HTML)


class Problem(Exception):
    """A refusal of an API request: status, reason, and the error code for clients."""

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
        """Return the content type and the body of the refusal."""
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
    return accept in ("", "*/*", JSON) or _quality(accept, JSON) > 0


def best(accept: str) -> str | None:
    """Return the preferred type, JSON or HTML; JSON if both are equal; None if neither is accepted."""
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
