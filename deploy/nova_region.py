"""Controls a running Nova region, for tests and benchmarks: its addresses, processes and hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika

from deploy.nova_client import NovaClient, wait_until
from deploy.nova_configuration import Addresses, NovaOptions, node_uuid, sections_of, write
from deploy.nova_placements import Foundation, PlacementFactory
from deploy.nova_processes import NovaProcesses, Program
from deploy.placement import KeystoneUser

START_SECONDS = 180.0
_PROBLEM = re.compile(r" (ERROR|CRITICAL) \S+ \[(None|-)|^Traceback ")
_HARMLESS = "stevedore.extension"  # messages about drivers of caches that are not installed


@dataclass(kw_only=True)
class NovaRegion:
    """A running Nova region, as `running_nova` yields it."""

    options: NovaOptions
    directory: Path
    foundation: Foundation
    addresses: Addresses
    users: Mapping[str, KeystoneUser]  # the users `nova` and `placement`
    placement_factory: PlacementFactory
    placement_url: str
    api_port: int
    processes: NovaProcesses
    nova: NovaClient
    hosts: list[str] = field(default_factory=list)

    @property
    def database_urls(self) -> Mapping[str, str]:
        """Return the URLs of nova_api, nova_cell0, nova_cell1 …"""
        return self.addresses.database_urls

    @property
    def bus_urls(self) -> Mapping[str, str]:
        """Return the AMQP URL of each cell's virtual host; the key "" is for the API and the scheduler."""
        return self.addresses.bus_urls

    def configuration(self, name: str) -> Path:
        """Return the path of the configuration file of a process, such as scheduler or host-001."""
        return self.directory / name / "nova.conf"

    # Processes

    def program(
        self, name: str, kind: str, *, cell: str = "", environment: Mapping[str, str] | None = None
    ) -> Program:
        """Write the configuration file of a process, and return the description to start it with."""
        directory = self.directory / name
        directory.mkdir(parents=True, exist_ok=True)
        is_compute = kind == "compute"
        sections = sections_of(
            name, self.options, self.addresses, directory, cell=cell, is_compute=is_compute
        )
        path = write(directory / "nova.conf", sections)
        arguments = () if kind == "api" else ("--config-file", str(path))
        return Program(
            name=name, program=kind, directory=directory, arguments=arguments, environment=environment or {}
        )

    async def start_host(self, name: str) -> None:
        """Start the nova-compute process of a host, which may be new or stopped."""
        environment = {"SIZED_DRIVER": json.dumps(vars(self.options.capacity))}
        cell = self.options.cell_of(name)
        program = self.program(name, "compute", cell=cell, environment=environment)
        (program.directory / "compute_id").write_text(node_uuid(name))  # needed for a second start
        await self.processes.start(program)
        if name not in self.hosts:
            self.hosts.append(name)

    async def wait_for_hosts(self, *names: str) -> None:
        """Wait until the hosts accept requests, and map new hosts to their cells."""
        by_cell: dict[str, list[str]] = {}
        for name in names:
            by_cell.setdefault(self.options.cell_of(name), []).append(name)
        for cell, hosts in by_cell.items():
            queues = [f"{topic}.{host}" for host in hosts for topic in ("compute", "compute-alt")]
            await self.wait_for_consumers(cell, queues)

        async def are_up() -> bool:
            self.processes.check()
            services = await self.nova.compute_services()
            return all(name in services and services[name]["state"] == "up" for name in names)

        await wait_until(are_up, f"{', '.join(names)} are up", START_SECONDS)
        await self.manage("cell_v2", "discover_hosts")

    async def wait_for_consumers(self, cell: str, queues: Iterable[str]) -> None:
        """Wait until every queue exists and has a consumer."""
        waiting = list(queues)
        async with await aio_pika.connect(self.bus_urls[cell]) as connection:

            async def are_consumed() -> bool:
                self.processes.check()
                while waiting:
                    channel = await connection.channel()
                    try:
                        found = await channel.declare_queue(waiting[0], passive=True)
                        if not found.declaration_result.consumer_count:
                            return False
                    except aio_pika.exceptions.ChannelClosed:
                        return False
                    finally:
                        await channel.close()
                    waiting.pop(0)
                return True

            await wait_until(are_consumed, f"{', '.join(waiting)} have consumers", START_SECONDS)

    async def manage(self, *words: str, cell: str = "") -> str:
        """Run the command nova-manage with these arguments, and return its output."""
        name = f"manage-{cell}" if cell else "manage"
        program = self.program(name, "manage", cell=cell)
        arguments = (*program.arguments, *words)
        return await self.processes.run(
            Program(name=name, program="manage", directory=program.directory, arguments=arguments)
        )

    async def crash_host(self, name: str) -> None:
        """Kill the nova-compute process of a host and force it down, so that its servers can be evacuated."""
        await self.processes.kill(name)
        await self.nova.force_down(name)

    async def revive_host(self, name: str) -> None:
        """Start a crashed host again and wait until it is up; it then deletes its evacuated servers."""
        await self.start_host(name)
        await self.wait_for_consumers(self.options.cell_of(name), [f"compute.{name}"])
        await self.nova.force_down(name, False)
        await self.wait_for_hosts(name)

    # State

    async def allocations(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the amounts that consumers hold in Placement: host → consumer → resource class → amount."""
        found = {}
        for provider in (await self.placement("GET", "/resource_providers"))["resource_providers"]:
            path = f"/resource_providers/{provider['uuid']}/allocations"
            held = (await self.placement("GET", path))["allocations"]
            found[provider["name"]] = {consumer: it["resources"] for consumer, it in held.items()}
        return found

    async def placement(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request to the Placement API as the administrator."""
        headers = {"OpenStack-API-Version": "placement 1.39"}
        answer = await self.nova.http.request(method, f"{self.placement_url}{path}", body, headers)
        return dict(answer.json()) if answer.content else {}

    def logs(self) -> dict[str, Path]:
        return {name: program.log for name, program in self.processes.programs.items()}

    def problems(self) -> list[str]:
        """Return the messages of level ERROR and the first lines of tracebacks in all of Nova's logs."""
        found = []
        for name, path in self.logs().items():
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            found += [f"{name}: {line}" for line in lines if _PROBLEM.search(line) and _HARMLESS not in line]
        return found
