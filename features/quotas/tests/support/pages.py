"""The page about projects, for tests of all pages of the control room."""

from typing import Any

from features.quotas.edits import set_quota
from features.quotas.messages import DEFAULT, EDIT_QUOTA, QUOTAS, UNLIMITED

PAGES = {"projects": "/projects", "project": "/projects?project=web"}
VALUES: dict[str, str] = {}
FORMS = {
    "/projects": [
        ("/projects", "quota", {"act": "set", "project": "p1", "limits": "VCPU=4"}),
        ("/projects", "quota", {"act": "unset", "project": "p1"}),
    ]
}

ANSWERED = (EDIT_QUOTA, QUOTAS)  # queries
PARAMETERS = {"/projects": ("project", "after", "done")}
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


async def fill(berth: Any) -> None:
    """Boot instances of a project, limit the project to less than it uses, and let its requests wait."""
    await berth.boot(3, project="web")
    await set_quota(berth.bus, DEFAULT, {"instances": 1000, "VCPU": 4000, "DISK_GB": 50_000})
    await set_quota(berth.bus, "web", {"instances": 2, "VCPU": 4, "server_group_members": 10})
    await set_quota(berth.bus, "batch-without-instances", {"CUSTOM_BAREMETAL": 2, "VCPU": UNLIMITED})
    for _ in range(2):
        await berth.boot_later(project="web")
