"""The page of what-if questions, for tests of all pages of the control room."""

from typing import Any

PAGES = {
    "what-if": "/what-if?vcpus=4&memory_mb=4096&count=3&zone=nowhere",
    "build-today": "/builds/{build}?then=now",
}
VALUES: dict[str, str] = {}
PARAMETERS = {
    "/what-if": ("vcpus", "count", "at_least", "resources", "traits", "specs", "zone", "host", "avoid")
}
KNOWN = {"/what-if": {"vcpus": "1"}}


def workers() -> list[Any]:
    return []
