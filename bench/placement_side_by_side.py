"""Compares OpenStack Placement and berth with the same requests, one after the other on this machine.

    python -m bench.placement_side_by_side [--only berth|placement] [--seconds S]

Each service gets a separate PostgreSQL; OpenStack Placement runs in two uWSGI processes, berth in one. A
client on loopback queries both: candidates by one client (limit 1000 of flat hosts, 100 of trees; the
median), allocations by 32. Only the measured part goes through the APIs: further hosts are written directly
into OpenStack Placement's tables, because its API takes minutes for them. OpenStack Placement has no bulk
load; in its place, single requests are measured.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table

from bench.figures import figure_table
from bench.http_client import LoopbackClient
from bench.own_servers import own_directory
from bus.clock import monotonic
from deploy.placement import COMPLIANCE, ROOT, BerthPlacement, Kind, OpenStackPlacement
from deploy.servers import Postgres

HEADERS = {"x-auth-token": "admin", "openstack-api-version": "placement 1.39", "accept": "application/json"}
ROOM = {"VCPU": 1000, "MEMORY_MB": 4_000_000, "DISK_GB": 100_000}
ASKED = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
FLAT = "/allocation_candidates?limit=1000&resources=" + ",".join(f"{c}:{n}" for c, n in ASKED.items())
NESTED = (
    "/allocation_candidates?limit=100&group_policy=none&same_subtree=1,2"
    "&resources1=VCPU:1,MEMORY_MB:512&resources2=CUSTOM_VF:1"
)
CLIENTS = 32
FEW, MANY, TREES = 1_000, 10_000, 1_000

# figure → unit, how many times better than OpenStack Placement berth must be, whether larger is better
GOALS: Mapping[str, tuple[str, float, bool]] = {
    f"candidates, {FEW:,} flat hosts": ("ms", 20, False),
    f"candidates, {MANY:,} flat hosts": ("ms", 20, False),
    f"same_subtree, {TREES:,} trees of 7": ("ms", 20, False),
    f"PUT allocations, {CLIENTS} clients": ("/s", 10, True),
    "loading providers one by one": ("/s", 5, True),
    "loading providers in bulk": ("/s", 100, True),
}
FLAT_FEW, FLAT_MANY, SUBTREE, PUTS, ONE_BY_ONE, BULK = GOALS


@dataclass(frozen=True)
class FlatHost:
    """A resource provider to create, with its inventories and, in a tree, its parent."""

    name: str
    parent: str | None = None
    has: Mapping[str, int] = field(default_factory=dict)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


def flat(first: int, count: int) -> list[FlatHost]:
    return [FlatHost(f"host-{number}", None, ROOM) for number in range(first, first + count)]


def trees(count: int) -> list[FlatHost]:
    """Return trees with two NUMA cells each, and two devices in each cell."""
    made: list[FlatHost] = []
    for number in range(count):
        made.append(root := FlatHost(f"node-{number}"))
        for cell in range(2):
            made.append(numa := FlatHost(f"{root.name}-{cell}", root.id, {"VCPU": 64, "MEMORY_MB": 65536}))
            made += (FlatHost(f"{numa.name}-{vf}", numa.id, {"CUSTOM_VF": 8}) for vf in range(2))
    return made


def show(what: str) -> None:
    Console(stderr=True).print(what, style="dim", highlight=False)


class Side:
    """Measures one of the two servers, OpenStack Placement or berth, and stores its figures."""

    def __init__(self, kind: Kind, base: str, database_url: str, seconds: float) -> None:
        self.kind = kind
        self.base = base
        self.database_url = database_url
        self.seconds = seconds
        self.figures: dict[str, float] = {}
        self.client = LoopbackClient(base, HEADERS)

    async def measure_flat(self) -> None:
        hosts = flat(0, FEW)
        self.figures[ONE_BY_ONE] = await self.one_by_one(hosts)
        self.figures[FLAT_FEW] = await self.latency(FLAT, FEW)
        self.figures[PUTS] = await self.puts(hosts)
        await self.fill(flat(FEW, MANY - FEW))
        self.figures[FLAT_MANY] = await self.latency(FLAT, 1000)

    async def measure_trees(self) -> None:
        await self.fill(trees(TREES))
        self.figures[SUBTREE] = await self.latency(NESTED, 100)

    async def measure_bulk(self) -> None:
        if self.kind == "placement":
            self.figures[BULK] = self.figures[ONE_BY_ONE]  # OpenStack Placement has no bulk load
            return
        hosts = flat(0, MANY)
        started = monotonic()
        await self.bulk(hosts)
        self.figures[BULK] = len(hosts) / (monotonic() - started)

    async def one_by_one(self, hosts: Iterable[FlatHost]) -> float:
        """Return how many hosts per second one client creates as a compute service does: provider, then
        inventories.
        """
        started = monotonic()
        made = 0
        for host in hosts:
            body: dict[str, Any] = {"name": host.name, "uuid": host.id}
            await self.client.must("POST", "/resource_providers", body)
            body = {"resource_provider_generation": 0, "inventories": _inventories(host.has)}
            await self.client.must("PUT", f"/resource_providers/{host.id}/inventories", body)
            made += 1
        return made / (monotonic() - started)

    async def latency(self, path: str, expected: int) -> float:
        """Return the median latency, in milliseconds, of requests that are sent one after the other, each
        with the `expected` number of candidates.
        """
        taken: list[float] = []
        body = await self.client.must("GET", path)  # warm-up
        found = len(json.loads(body)["allocation_requests"])
        if found != expected:
            raise SystemExit(f"{self.kind}: {found} candidates instead of {expected}: {path}")
        until = monotonic() + self.seconds
        while len(taken) < 5 or monotonic() < until:
            started = monotonic()
            await self.client.must("GET", path)
            taken.append(1000 * (monotonic() - started))
        return statistics.median(taken)

    async def puts(self, hosts: list[FlatHost]) -> float:
        """Return how many allocations per second are written, each for a new consumer on a random host."""
        chance = random.Random(1)
        made = 0
        stopped = False

        async def put(client: LoopbackClient) -> None:
            nonlocal made
            while not stopped:
                claim = {
                    "allocations": {chance.choice(hosts).id: {"resources": ASKED}},
                    "project_id": "p", "user_id": "u", "consumer_generation": None,
                    "consumer_type": "INSTANCE",
                }  # fmt: skip
                await client.must("PUT", f"/allocations/{uuid.UUID(int=chance.getrandbits(128))}", claim)
                made += 1

        clients = [LoopbackClient(self.base, HEADERS) for _ in range(CLIENTS)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(put(client))
            await asyncio.sleep(min(1.0, self.seconds))  # warm-up
            before, started = made, monotonic()
            await asyncio.sleep(self.seconds)
            rate = (made - before) / (monotonic() - started)
            stopped = True
        for client in clients:
            client.close()
        return rate

    async def fill(self, hosts: list[FlatHost]) -> None:
        """Create the hosts that the measurement needs, as fast as possible; this is not measured."""
        if self.kind == "berth":
            await self.bulk(hosts)
        else:
            await self.client.must("PUT", "/resource_classes/CUSTOM_VF")
            await insert(self.database_url, hosts)

    async def bulk(self, hosts: list[FlatHost]) -> None:
        for at in range(0, len(hosts), 1000):
            body = {"providers": [_load(host) for host in hosts[at : at + 1000]]}
            answered = json.loads(await self.client.must("POST", "/berth/providers", body))
            refused = [result for result in answered["results"] if result["did"] == "refused"]
            if refused:
                raise SystemExit(f"berth refused {len(refused)} providers: {refused[0]}")


def _inventories(has: Mapping[str, int]) -> dict[str, Any]:
    return {class_: {"total": total} for class_, total in has.items()}


def _load(host: FlatHost) -> dict[str, Any]:
    return {"id": host.id, "name": host.name, "parent": host.parent, "inventories": _inventories(host.has)}


async def insert(database_url: str, hosts: list[FlatHost]) -> None:
    """Insert providers and inventories directly into OpenStack Placement's tables."""
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    try:
        classes = dict(await connection.fetch("SELECT name, id FROM resource_classes"))
        first = await connection.fetchval("SELECT coalesce(max(id), 0) + 1 FROM resource_providers")
        ids = {host.id: number for number, host in enumerate(hosts, first)}
        roots: dict[str, int] = {}
        for host in hosts:
            roots[host.id] = roots[host.parent] if host.parent else ids[host.id]
        await connection.copy_records_to_table(
            "resource_providers",
            columns=["id", "uuid", "name", "generation", "root_provider_id", "parent_provider_id"],
            records=[
                (ids[h.id], h.id, h.name, 1, roots[h.id], ids[h.parent] if h.parent else None) for h in hosts
            ],
        )
        await connection.execute(f"SELECT setval('resource_providers_id_seq', {first + len(hosts)})")
        await connection.copy_records_to_table(
            "inventories",
            columns=["resource_provider_id", "resource_class_id", "total", "reserved", "min_unit",
                     "max_unit", "step_size", "allocation_ratio"],
            records=[
                (ids[host.id], classes[class_], total, 0, 1, 2**31 - 1, 1, 1.0)
                for host in hosts
                for class_, total in host.has.items()
            ],
        )  # fmt: skip
        await connection.execute("ANALYZE")
    finally:
        await connection.close()


@asynccontextmanager
async def side(kind: Kind, directory: Path, seconds: float) -> AsyncIterator[Side]:
    """Run OpenStack Placement or berth with a new PostgreSQL, and yield the object that measures it."""
    with Postgres(directory / "postgres") as postgres:
        home = directory / kind
        made = (
            BerthPlacement(home, postgres.url)
            if kind == "berth"
            else OpenStackPlacement(home, postgres.url, processes=2)
        )
        with made as server:
            measured = Side(kind, server.base_url, postgres.url, seconds)
            try:
                yield measured
            finally:
                measured.client.close()


async def measure(kind: Kind, seconds: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    steps: tuple[tuple[str, Callable[[Side], Any]], ...] = (
        ("flat hosts", Side.measure_flat),
        ("trees", Side.measure_trees),
        ("bulk", Side.measure_bulk),
    )
    for name, step in steps:
        show(f"{kind}: {name} ...")
        with own_directory() as directory:
            async with side(kind, directory, seconds) as measured:
                measured.figures = figures
                started = monotonic()
                await step(measured)
                show(f"{kind}: {name}: {monotonic() - started:.0f} s")
    return figures


def report(theirs: Mapping[str, float], ours: Mapping[str, float]) -> Table:
    title = "OpenStack Placement in two processes, berth in one; PostgreSQL each"
    table = figure_table(title, "", "OpenStack", "berth", "times as good", "goal", "")
    for name, (unit, goal, more) in GOALS.items():
        this, that = theirs.get(name), ours.get(name)
        times = None if this is None or that is None else that / this if more else this / that
        verdict = "" if times is None else "met" if times >= goal else "missed"
        table.add_row(
            name, _figure(this, unit), _figure(that, unit), _figure(times, "×"), f"{goal:g} ×", verdict
        )
    return table


def _figure(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,.1f} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("berth", "placement"))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    given = parser.parse_args()
    if not COMPLIANCE.exists():
        show("making the environment of `make compliance` ...")
        subprocess.run(["make", "-s", ".venv-compliance/.stamp"], cwd=ROOT, check=True)
    figures: dict[Kind, dict[str, float]] = {}
    kinds: tuple[Kind, ...] = ("placement", "berth")
    for kind in kinds:
        figures[kind] = {} if given.only not in (None, kind) else uvloop.run(measure(kind, given.seconds))
    Console(width=120).print(report(figures["placement"], figures["berth"]))


if __name__ == "__main__":
    main()
