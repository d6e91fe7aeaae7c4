"""Processor time of a request whose token Keystone has confirmed recently, compared with noauth2.

    python -m features.keystone.bench.token_checks [--requests N] [--rounds N]

Two placement processes answer the same requests, in alternating blocks within one run: one with noauth2, one
that checks tokens at a real Keystone (from the environment of `make compliance`). All tokens are confirmed
before a block is measured. Processor time is compared, because it depends less on the load of the machine
than rates do.
"""

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench.figures import figure_table
from bench.http_client import LoopbackClient
from bench.own_servers import own_directory
from bench.placement_side_by_side import ASKED, HEADERS, Side, flat
from bench.processes import processor_seconds
from deploy.keystone import KeystoneServer
from deploy.nova_client import TokenClient
from deploy.placement import ApiAccess, BerthPlacement, KeystoneUser

_TRIES = 12  # of a request while Keystone is too busy to answer within ten seconds
GOAL = 1.10  # times the processor time of noauth2, at most
CLIENTS = 8
TOKENS = 2  # number of tokens; each client uses one
HOSTS = 200
_RESOURCES = ",".join(f"{name}:{amount}" for name, amount in ASKED.items())
PATHS = {
    "GET /resource_providers, 1 provider": "/resource_providers?name=host-7",
    "GET /allocation_candidates, limit 10": f"/allocation_candidates?limit=10&resources={_RESOURCES}",
}


@dataclass
class MeasuredServer:
    """A placement process, its clients, and the processor time per request of each block, by path."""

    server: BerthPlacement
    clients: Sequence[LoopbackClient]
    milliseconds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PATHS})

    async def block(self, name: str, requests: int) -> None:
        """Send a block of requests, and record what they cost the server."""
        pid = self.server.pid
        assert pid is not None
        for client in self.clients[:TOKENS]:  # one after the other: Keystone may be slow
            await _confirmed(client, PATHS[name])
        before = processor_seconds(pid)
        await self.send(PATHS[name], requests)
        self.milliseconds[name].append(1000 * (processor_seconds(pid) - before) / requests)

    async def send(self, path: str, requests: int) -> None:
        async def some(client: LoopbackClient) -> None:
            for _ in range(requests // len(self.clients)):
                await client.must("GET", path)

        async with asyncio.TaskGroup() as group:
            for client in self.clients:
                group.create_task(some(client))


async def _confirmed(client: LoopbackClient, path: str) -> None:
    """Send requests until one succeeds: then placement accepts the client's token for a minute without asking
    Keystone.
    """
    for _ in range(_TRIES):
        status, _body = await client.request("GET", path)
        if status != 503:
            break
    await client.must("GET", path)


async def issued_token(user: KeystoneUser) -> str:
    async with TokenClient(user) as client:
        return await client.token()


async def measured(servers: Sequence[MeasuredServer], requests: int, rounds: int) -> None:
    for measuring in servers:
        url = measuring.server.base_url
        loading = Side("berth", url, "", 1.0)
        loading.client.close()
        loading.client = measuring.clients[0]
        await loading.bulk(flat(0, HOSTS))
        for name in PATHS:
            await measuring.block(name, requests)  # warm-up
            measuring.milliseconds[name].clear()
    for turn in range(rounds):
        for name in PATHS:
            for measuring in servers if turn % 2 else reversed(servers):
                await measuring.block(name, requests)


def servers_in(directory: Path, stack: ExitStack) -> tuple[MeasuredServer, MeasuredServer]:
    """Start a Keystone and two placement processes; return the process with noauth2, and the process that
    checks tokens at Keystone.
    """
    keystone = stack.enter_context(KeystoneServer(directory / "keystone"))
    tokens = [asyncio.run(issued_token(keystone.admin)) for _ in range(TOKENS)] * (CLIENTS // TOKENS)
    found = []
    for name, access, texts in (
        ("noauth2", ApiAccess(), ["admin"] * CLIENTS),
        ("keystone", ApiAccess(keystone=keystone.admin), tokens),
    ):
        database = f"sqlite+aiosqlite:///{directory / name}.sqlite"
        server = stack.enter_context(BerthPlacement(directory / name, database, access))
        clients = [LoopbackClient(server.base_url, HEADERS | {"x-auth-token": text}) for text in texts]
        for client in clients:
            stack.callback(client.close)
        found.append(MeasuredServer(server, clients))
    return found[0], found[1]


def report(noauth: MeasuredServer, keystone: MeasuredServer) -> Table:
    title = "Processor time per request in ms, as median and mean of blocks"
    table = figure_table(title, "", "noauth2", "Keystone", "median ratio", "mean ratio", "goal", "")
    for name in PATHS:
        former, latter = noauth.milliseconds[name], keystone.milliseconds[name]
        median = statistics.median(b / a for a, b in zip(former, latter, strict=True))
        mean = sum(latter) / sum(former)
        shown = [
            f"{statistics.median(values):.4f} / {statistics.mean(values):.4f}" for values in (former, latter)
        ]
        verdict = "met" if mean <= GOAL else "missed"
        table.add_row(name, *shown, f"{median:.3f}", f"{mean:.3f}", f"{GOAL:g}", verdict)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1000, help="of a block")
    parser.add_argument("--rounds", type=int, default=12, help="blocks of each server and path")
    given = parser.parse_args()
    with own_directory() as directory, ExitStack() as stack:
        servers = servers_in(directory, stack)
        uvloop.run(measured(servers, given.requests, given.rounds))
        Console(width=140).print(report(*servers))


if __name__ == "__main__":
    main()
