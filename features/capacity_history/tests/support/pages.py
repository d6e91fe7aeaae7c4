"""The page about the capacity over time, for tests of all pages of the control room."""

from typing import Any

PAGES = {"capacity-history": "/capacity"}
VALUES: dict[str, str] = {}
PARAMETERS = {"/capacity": ("since", "zone")}
STREAMS = ("/capacity",)


def workers() -> list[Any]:
    return []
