"""The page about preemption, for tests of all pages of the control room."""

from typing import Any

PAGES = {"preemptions": "/preemptions"}
VALUES: dict[str, str] = {}
PARAMETERS = {"/preemptions": ("x",)}
STREAMS = ("/preemptions",)


def workers() -> list[Any]:
    return []
