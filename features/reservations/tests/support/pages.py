"""The page about reservations, for tests of all pages of the control room."""

from typing import Any

from features.reservations.messages import EDIT_RESERVATION, FILL_RESERVATION, RESERVATIONS
from tests.support.ids import uid

PAGES = {"reservations": "/reservations"}
VALUES: dict[str, str] = {}
FORMS = {
    "/reservations": [
        ("/reservations", "reserve", {"act": "create", "name": "r", "project": "p1", "vcpus": "1"}),
        ("/reservations", "reserve", {"act": "delete", "reservation": uid(4)}),
    ]
}
ANSWERED = (EDIT_RESERVATION, RESERVATIONS, FILL_RESERVATION)
PARAMETERS = {"/reservations": ("project", "skip", "done", "name", "made")}
STREAMS = ("/reservations",)
FORM_FIELDS: dict[str, dict[str, dict[str, str]]] = {
    "/reservations": {
        "act": {},
        "project": {"act": "create", "name": "r"},
        **{
            name: {"act": "create", "name": "r"}
            for name in ("name", "count", "vcpus", "begin", "host", "extra_spec")
        },
        "reservation": {"act": "delete"},
    }
}


def workers() -> list[Any]:
    return []
