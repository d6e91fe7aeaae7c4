"""The page about projects, for tests of all pages of the control room."""

from typing import Any

from features.quotas.messages import EDIT_QUOTA, QUOTAS

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

ANSWERED = (EDIT_QUOTA, QUOTAS)  # queries
PARAMETERS = {"/projects": ("project", "after", "done"), "/projects/instances": ("project", "after")}
STREAMS = ("/projects",)
FORM_FIELDS = {
    "/projects": {
        "act": {},
        "project": {"act": "set", "limits": "VCPU=4"},
        "limits": {"act": "set", "project": "p"},
        "resources": {"act": "unset", "project": "p"},
    }
}


def workers() -> list[Any]:
    return []
