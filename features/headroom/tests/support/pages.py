"""The page about headroom, for tests of all pages of the control room."""

from typing import Any

PAGES = {"headroom": "/headroom"}
VALUES: dict[str, str] = {}
FORMS = {
    "/headroom": [
        ("/headroom", "reserve", {"act": "set", "levels": "rack"}),
        ("/headroom", "reserve", {"act": "unset"}),
    ]
}
PARAMETERS = {"/headroom": ("done",)}
STREAMS = ("/headroom",)
FORM_FIELDS = {"/headroom": {"act": {}, "levels": {"act": "set"}}}


def workers() -> list[Any]:
    return []
