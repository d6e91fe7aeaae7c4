"""Compares what Nova asks of Placement for a boot, at OpenStack Placement and at berth, in the same run.

    python -m bench.peers [--hosts 1000] [--clients 1,8] [--seconds 10]

A boot is GET /allocation_candidates with Nova's limit, a random one of the returned candidates, and PUT
/allocations; refused claims are repeated. Both servers have the same hosts, a database of the same
PostgreSQL, and one process. Rounds alternate. Processor time is that of server and PostgreSQL, a boot.
"""

import argparse
import asyncio
import json
import random
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvloop
from rich.console import Console
from rich.table import Table

from bench.http_client import LoopbackClient
from bench.own_servers import own_directory
from bench.processes import family, processor_seconds
from berth.loadtest import MIX, mixed
from bus.clock import monotonic
from bus.requests import Flavor
from deploy.placement import BerthPlacement, HttpServer, OpenStackPlacement
from deploy.servers import Postgres

_HEADERS = {"x-auth-token": "admin", "openstack-api-version": "placement 1.36", "accept": "application/json"}
_LIMIT = 1000  # candidates in an answer: Nova's default of [scheduler] max_placement_results
_AT_ONCE = 16  # requests at a time while the hosts are created
_CAPACITY = {
    "VCPU": {"total": 64, "allocation_ratio": 16.0},
    "MEMORY_MB": {"total": 1_048_576},
    "DISK_GB": {"total": 8000},
}


Job = Callable[[LoopbackClient], Coroutine[Any, Any, None]]


@dataclass
class PeerRound:
    """The boots, refused claims and times of one server in one round."""

    boots: int = 0
    refused: int = 0  # claims that were repeated
    seconds: float = 0.0
    processor: float = 0.0  # seconds

    def add(self, other: "PeerRound") -> None:
        self.boots, self.refused = self.boots + other.boots, self.refused + other.refused
        self.seconds, self.processor = self.seconds + other.seconds, self.processor + other.processor


class Peer:
    """A server of the Placement API under measurement, and the PostgreSQL that it uses."""

    def __init__(self, name: str, server: HttpServer, postgres: Postgres) -> None:
        self.name = name
        self._server = server
        self._postgres = postgres
        self._chance = random.Random(1)

    async def load(self, hosts: int) -> None:
        """Create hosts with the requests of a compute service."""
        numbers = iter(range(hosts))

        async def create(client: LoopbackClient) -> None:
            for number in numbers:
                host = str(uuid.UUID(int=number + 1))
                await client.must("POST", "/resource_providers", {"name": f"host-{number}", "uuid": host})
                body = {"resource_provider_generation": 0, "inventories": _CAPACITY}
                await client.must("PUT", f"/resource_providers/{host}/inventories", body)

        await self._run([create] * _AT_ONCE)

    async def boots(self, clients: int, seconds: float) -> PeerRound:
        """Return what some clients, each with one boot at a time, did in these seconds."""
        done, flavors, until = PeerRound(), mixed(MIX), monotonic() + seconds

        async def boot(client: LoopbackClient) -> None:
            while monotonic() < until:
                done.refused += await self._boot(client, self._chance.choice(flavors))
                done.boots += 1

        before, began = self._processor(), monotonic()
        await self._run([boot] * clients)
        done.seconds, done.processor = monotonic() - began, self._processor() - before
        return done

    async def _boot(self, client: LoopbackClient, flavor: Flavor) -> int:
        """Boot one instance; return how many claims were refused."""
        asked = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
        resources = ",".join(f"{name}:{amount}" for name, amount in asked.items())
        query = urlencode({"resources": resources, "limit": _LIMIT})
        found = json.loads(await client.must("GET", f"/allocation_candidates?{query}"))
        consumer = uuid.UUID(int=self._chance.getrandbits(128))
        for refused, candidate in enumerate(self._chance.sample(found["allocation_requests"], 10)):
            claim = {
                "allocations": candidate["allocations"], "project_id": "p", "user_id": "u",
                "consumer_generation": None,
            }  # fmt: skip
            status, answer = await client.request("PUT", f"/allocations/{consumer}", claim)
            if status < 300:
                return refused
            if status != 409:
                raise SystemExit(f"{self.name}: {status} {answer[:300].decode(errors='replace')}")
        raise SystemExit(f"{self.name}: ten candidates were refused, one after the other")

    async def _run(self, jobs: Sequence[Job]) -> None:
        clients = [LoopbackClient(self._server.base_url, _HEADERS) for _ in jobs]
        async with asyncio.TaskGroup() as group:
            for job, client in zip(jobs, clients, strict=True):
                group.create_task(job(client))
        for client in clients:
            client.close()

    def _processor(self) -> float:
        pids = [pid for each in (self._server, self._postgres) for pid in family(each.pid or 0)]
        return sum(processor_seconds(pid) for pid in pids)


@contextmanager
def peers(directory: Path, hosts: int) -> Iterator[list[Peer]]:
    """Run both servers with these hosts."""
    for name in ("db-openstack", "db-berth", "openstack", "berth"):
        (directory / name).mkdir()
    with Postgres(directory / "db-openstack") as theirs, Postgres(directory / "db-berth") as ours:
        with (
            OpenStackPlacement(directory / "openstack", theirs.url) as openstack,
            BerthPlacement(directory / "berth", ours.url) as berth,
        ):
            found = [Peer("OpenStack Placement", openstack, theirs), Peer("berth", berth, ours)]
            for peer in found:
                uvloop.run(peer.load(hosts))
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--clients", default="1,8", help="boots at a time")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    titles = "boots at a time", "server", "boots/s", "processor a boot", "refused claims"
    table = Table(*titles, title=f"{arguments.hosts} hosts")
    with own_directory() as directory, peers(directory, arguments.hosts) as both:
        for clients in map(int, arguments.clients.split(",")):
            total = {peer.name: PeerRound() for peer in both}
            for peer in both:
                uvloop.run(peer.boots(clients, 2.0))  # warm-up
            for _ in range(arguments.rounds):
                for peer in both:
                    total[peer.name].add(uvloop.run(peer.boots(clients, arguments.seconds)))
            for name, done in total.items():
                speed, cost = done.boots / done.seconds, 1000 * done.processor / done.boots
                table.add_row(str(clients), name, f"{speed:.1f}", f"{cost:.2f} ms", str(done.refused))
    Console().print(table)


if __name__ == "__main__":
    main()
