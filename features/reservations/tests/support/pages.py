"""The page about reservations, for tests of all pages of the control room."""

from typing import Any

from tests.support.ids import uid

PAGES = {"reservations": "/reservations"}
VALUES: dict[str, str] = {}
FORMS = {
    "/reservations": [
        ("/reservations", "reserve", {"act": "create", "name": "r", "project": "p1", "vcpus": "1"}),
        ("/reservations", "reserve", {"act": "delete", "reservation": uid(4)}),
    ]
}


def workers() -> list[Any]:
    return []
