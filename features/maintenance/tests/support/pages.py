"""The page about maintenance, for tests of all pages of the control room."""

from typing import Any

from features.maintenance.messages import EDIT_MAINTENANCE, MAINTENANCE
from features.maintenance.pages import DONE
from tests.support.ids import uid

WINDOW = "00000000-0000-4000-8000-000000000001"
FIELDS = {"hosts": uid(1, "a"), "begin": "+30d", "end": "+31d"}
PAGES = {"maintenance": "/maintenance"}
VALUES: dict[str, str] = {}
FORMS = {
    "/maintenance": [("/maintenance", "maintain", {"act": act, "window": WINDOW, **FIELDS}) for act in DONE]
}
ANSWERED = (MAINTENANCE, EDIT_MAINTENANCE)


def workers() -> list[Any]:
    return []
