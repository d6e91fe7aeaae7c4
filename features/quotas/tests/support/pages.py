"""The page about projects, for tests of all pages of the control room."""

from typing import Any

PAGES = {
    "projects": "/projects",
    "project": "/projects?project=web",
    "project-instances": "/projects/instances?project=web",
}
VALUES: dict[str, str] = {}
FORMS = {
    "/projects": [
        ("/projects", "quota", {"act": "set", "project": "p1", "limits": "VCPU=4"}),
        ("/projects", "quota", {"act": "unset", "project": "p1"}),
    ]
}


def workers() -> list[Any]:
    return []
