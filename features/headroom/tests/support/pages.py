"""The page about headroom, for tests of all pages of the control room."""

from typing import Any

from features.headroom.editing import set_headroom
from features.headroom.messages import HEADROOM

PAGES = {"headroom": "/headroom"}
VALUES: dict[str, str] = {}
FORMS = {
    "/headroom": [
        ("/headroom", "reserve", {"act": "set", "levels": "rack"}),
        ("/headroom", "reserve", {"act": "unset"}),
    ]
}
ANSWERED = (HEADROOM,)
PARAMETERS = {"/headroom": ("done",)}
STREAMS = ("/headroom",)
FORM_FIELDS = {"/headroom": {"act": {}, "levels": {"act": "set"}}}


def workers() -> list[Any]:
    return []


async def fill(berth: Any) -> None:
    await set_headroom(berth.bus, ("host", "rack"))
