"""What goes wrong, in the API's form: JSON, HTML or plain text, as the client accepts."""

import html
from collections.abc import Mapping
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

_GENERAL = {
    400: "The request is malformed or otherwise incorrect.",
    401: "Who you are could not be verified.",
    403: "Access was denied to this resource.",
    404: "The resource could not be found.",
    405: "The method is not allowed for this resource.",
    406: "There is nothing here in a form that you accept.",
    409: "There was a conflict when trying to complete your request.",
    413: "The request is larger than is taken here.",
    414: "The address is longer than is taken here.",
    410: "It is not kept any more.",
    415: "The media type of the request is not supported.",
    500: "The server failed; it has noted why.",
    503: "The server cannot answer now; try again.",
}
_LONGEST = 4000  # characters of one message: a refused body may be large

JSON, HTML, TEXT = "application/json", "text/html", "text/plain"
_OFFERS = (JSON, HTML)


class Problem(Exception):
    """A request that is refused: its status, why, and the code clients look at."""

    def __init__(
        self,
        status: int,
        why: str = "",
        code: str = UNDEFINED,
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(why)
        self.status = status
        self.why = " ".join(why[:_LONGEST].split("\n"))
        self.code = code
        self.headers = dict(headers or {})
        self.more = dict(more or {})  # beside the usual in a JSON error

    @property
    def title(self) -> str:
        return HTTPStatus(self.status).phrase

    def rendered(self, accept: str, request_id: str, minor: int) -> tuple[str, bytes]:
        """The content type and the body."""
        title = self.title
        general = _GENERAL.get(self.status, title)
        kind = best(accept) or TEXT
        if kind == HTML:
            page = (
                f"<html>\n <head>\n  <title>{self.status} {title}</title>\n </head>\n <body>\n"
                f"  <h1>{self.status} {title}</h1>\n  {general}<br /><br />\n{html.escape(self.why)}\n"
                " </body>\n</html>\n"
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


def not_found(why: str = "") -> Problem:
    return Problem(404, why)


def conflict(why: str, code: str = UNDEFINED) -> Problem:
    return Problem(409, why, code)


def takes_json(accept: str) -> bool:
    return accept in ("", "*/*", JSON) or _quality(accept, JSON) > 0


def best(accept: str) -> str | None:
    """Which of JSON and HTML the client would rather have, JSON when it is all one; None: neither."""
    if accept in ("", "*/*", JSON):
        return JSON
    liked = max(_OFFERS, key=lambda offer: _quality(accept, offer))
    return liked if _quality(accept, liked) > 0 else None


def _quality(accept: str, offer: str) -> float:
    """How much an Accept header likes this type; what names it best counts."""
    kind = offer.partition("/")[0]
    found: tuple[int, float] = (0, 0.0)
    for part in accept.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        rank = (name == "*/*") + 2 * (name == f"{kind}/*") + 3 * (name == offer)
        if rank > found[0]:
            found = rank, _weight(parameters)
    return found[1]


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
