"""The page about waiting requests, for tests of all pages of the control room."""

from typing import Any

from tests.support.ids import uid

PAGES = {"waiting": "/waiting"}
VALUES: dict[str, str] = {}
FORMS = {"/waiting": [("/waiting", "cancel", {"request": uid(3)})]}
PARAMETERS = {"/waiting": ("project", "after", "ended")}
STREAMS = ("/waiting",)
FORM_FIELDS: dict[str, dict[str, dict[str, str]]] = {"/waiting": {"request": {}}}


def workers() -> list[Any]:
    return []
