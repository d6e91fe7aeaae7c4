"""Loads hosts into a placement worker over HTTP, and measures claims there."""

import asyncio
import json
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.http_client import LoopbackClient
from bus.clock import monotonic

_HEADERS = {"x-auth-token": "admin", "openstack-api-version": "placement 1.39", "accept": "application/json"}
_ASKED = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
CLIENTS = 32


@dataclass(frozen=True)
class FlatHost:
    """A resource provider to create, with its inventories."""

    name: str
    has: Mapping[str, int]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class MeasuredPlacement:
    """A placement worker's HTTP server under measurement."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url
        self.client = LoopbackClient(base_url, _HEADERS)

    async def load(self, hosts: Sequence[FlatHost]) -> None:
        """Create the hosts, a thousand in a request."""
        for at in range(0, len(hosts), 1000):
            body = {"providers": [_provider(host) for host in hosts[at : at + 1000]]}
            answered = json.loads(await self.client.must("POST", "/berth/providers", body))
            refused = [result for result in answered["results"] if result["did"] == "refused"]
            if refused:
                raise SystemExit(f"berth refused {len(refused)} providers: {refused[0]}")

    async def puts(self, hosts: Sequence[FlatHost], seconds: float) -> float:
        """Return how many allocations per second are written, each for a new consumer on a random host."""
        chance = random.Random(1)
        made = 0
        stopped = False

        async def put(client: LoopbackClient) -> None:
            nonlocal made
            while not stopped:
                claim = {
                    "allocations": {chance.choice(hosts).id: {"resources": _ASKED}},
                    "project_id": "p", "user_id": "u", "consumer_generation": None,
                    "consumer_type": "INSTANCE",
                }  # fmt: skip
                await client.must("PUT", f"/allocations/{uuid.UUID(int=chance.getrandbits(128))}", claim)
                made += 1

        clients = [LoopbackClient(self._base_url, _HEADERS) for _ in range(CLIENTS)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(put(client))
            await asyncio.sleep(min(1.0, seconds))  # warm-up
            before, started = made, monotonic()
            await asyncio.sleep(seconds)
            rate = (made - before) / (monotonic() - started)
            stopped = True
        for client in clients:
            client.close()
        return rate


def _provider(host: FlatHost) -> dict[str, Any]:
    inventories = {class_: {"total": total} for class_, total in host.has.items()}
    return {"id": host.id, "name": host.name, "parent": None, "inventories": inventories}
