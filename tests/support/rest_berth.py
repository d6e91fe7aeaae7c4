"""An embedded berth with a REST API, and clients of it with the tokens of several users."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from berth.client import RestClient
from berth.commands.run import ready
from berth.services import EmbeddedBerth, embedded
from berth.settings import Settings
from bus.messages import BuildRequested
from bus.requests import Flavor
from deploy.processes import free_port
from tests.support.request_parts import with_parts

USERS = {
    "olga": ("operators", ["admin"]),
    "ann": ("web", ["member"]),
    "rita": ("web", ["reader"]),
    "bob": ("batch", ["member"]),
}


@dataclass(frozen=True)
class RestBerth:
    url: str
    running: EmbeddedBerth

    def client(self, user: str = "ann", **options: Any) -> RestClient:
        return RestClient(self.url, f"token of {user}", **options)


def a_boot(id_: str, count: int = 1, **fields: Any) -> BuildRequested:
    """Return a request for `count` instances. The first has the request's id, the others derived ids."""
    instances = (id_, *(f"{number:08x}{id_[8:]}" for number in range(1, count)))
    flavor = fields.pop("flavor", Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1))
    return BuildRequested(**with_parts({"request": id_, "instances": instances, "flavor": flavor, **fields}))


def tokens_in(directory: Path) -> str:
    """Write a file with the tokens of all users; return its path."""
    file = directory / "tokens.json"
    tokens = [
        {"token": f"token of {user}", "user": user, "project": project, "roles": roles}
        for user, (project, roles) in USERS.items()
    ]
    file.write_bytes(msgspec.json.encode({"tokens": tokens}))
    return str(file)


@asynccontextmanager
async def a_rest_berth(directory: Path, **given: Any) -> AsyncIterator[RestBerth]:
    settings = Settings().having(
        state_dir=str(directory / "state"),
        cells=("c1", "c2"),
        simulator={"hosts": 4, "build_time": "constant:0.01"},
        rest_http=f"127.0.0.1:{free_port()}",
        placement_auth="tokens",
        placement_tokens=tokens_in(directory),
        **given,
    )
    async with embedded(settings) as running:
        await ready(running.bus, settings)
        yield RestBerth(f"http://{settings.rest.http}", running)
