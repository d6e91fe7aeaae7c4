"""Runs a private region of OpenStack Nova: Keystone, Placement, Nova with hosts without a hypervisor,
RabbitMQ and a database, all on free loopback ports.

    async with running_nova(NovaOptions(hosts=10)) as region:
        server = await region.nova.boot()
        await region.nova.active(server)

Glance and Neutron are stand-ins (deploy/stand_ins.py). Nova's programs come from the environment that
`make nova-test` builds, and run through deploy/nova_launcher.py.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from deploy.keystone import KeystoneServer
from deploy.mariadb import MariaDB
from deploy.nova_client import NovaClient, TokenClient, wait_until
from deploy.nova_configuration import API_DATABASE, CELL0, Addresses, HostCapacity, NovaOptions, cell_database
from deploy.nova_databases import MariaNova, PostgresNova, RegionDatabases
from deploy.nova_identity import RegionUsers
from deploy.nova_placements import Foundation, PlacementFactory, berth_placement, openstack_placement
from deploy.nova_processes import Program, find_nova, nova_processes
from deploy.nova_region import START_SECONDS, NovaRegion
from deploy.placement import ROOT, HttpServer, KeystoneUser
from deploy.processes import Server, environment_without, exchange
from deploy.rabbitmq import make_virtual_hosts
from deploy.servers import Postgres, RabbitMQ, free_port, private_directory, start_all, stop_all
from deploy.stand_ins import IMAGE

PLACEMENT_DATABASE = "placement"

__all__ = [
    "HostCapacity",
    "NovaOptions",
    "NovaRegion",
    "berth_placement",
    "find_nova",
    "openstack_placement",
    "running_nova",
]


class StandIns(HttpServer):
    """Runs the stand-ins for Glance and Neutron (deploy/stand_ins.py) as a process."""

    name = "stand-ins"

    def _launch(self) -> None:
        environment = environment_without("BERTH_", "OS_") | {"PYTHONPATH": str(ROOT)}
        self._serve([sys.executable, "-m", "deploy.stand_ins", str(self.port)], environment)


@asynccontextmanager
async def running_nova(
    options: NovaOptions | None = None,
    *,
    placement: PlacementFactory = openstack_placement,
    directory: Path | None = None,
) -> AsyncIterator[NovaRegion]:
    """Run a Nova region until the block ends.

    Configurations, logs and data are in `directory`, by default in a temporary directory that is deleted.
    """
    made = directory or private_directory("berth-nova-")
    try:
        async with AsyncExitStack() as stack:
            yield await _start(stack, made, options or NovaOptions(), placement)
    finally:
        if directory is None:
            await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)


class _Servers:
    """The servers that Nova needs: RabbitMQ, databases, Keystone and the stand-ins."""

    def __init__(self, directory: Path, options: NovaOptions) -> None:
        self._directory = directory
        self.database_names = [API_DATABASE, CELL0, *(cell_database(cell) for cell in options.cells)]
        self.broker = RabbitMQ(directory / "rabbitmq")
        # Each process of Nova opens up to 55 connections to each of its databases.
        self.postgres = Postgres(directory / "postgres", options={"max_connections": "600"})
        self.keystone = KeystoneServer(directory / "keystone", python=find_nova())
        self.stand_ins = StandIns(directory / "stand-ins")
        self.databases: RegionDatabases = PostgresNova(self.postgres)
        self.started: list[Server] = [self.broker, self.postgres, self.keystone, self.stand_ins]
        if options.has_mariadb:
            mariadb = MariaDB(directory / "mariadb", [*self.database_names, PLACEMENT_DATABASE])
            self.started.append(mariadb)
            self.databases = MariaNova(mariadb)

    async def make(self, buses: Mapping[str, str]) -> None:
        """Create the databases, and the virtual hosts of RabbitMQ."""
        making = [
            self.databases.create([*self.database_names, PLACEMENT_DATABASE]),
            asyncio.to_thread(make_virtual_hosts, self.broker, *sorted(set(buses.values()))),
        ]
        if isinstance(self.databases, MariaNova):  # berth's placement uses PostgreSQL
            making.append(PostgresNova(self.postgres).create([PLACEMENT_DATABASE]))
        await asyncio.gather(*making)

    def foundation(self, placement_user: KeystoneUser) -> Foundation:
        return Foundation(
            directory=self._directory,
            keystone=self.keystone,
            placement_user=placement_user,
            rabbitmq=self.broker,
            database_url=f"{self.postgres.url.rpartition('/')[0]}/{PLACEMENT_DATABASE}",
            openstack_database_url=self.databases.url(PLACEMENT_DATABASE),
        )

    def addresses(self, nova_user: KeystoneUser, buses: Mapping[str, str]) -> Addresses:
        return Addresses(
            user=nova_user,
            database_urls={name: self.databases.url(name) for name in self.database_names},
            bus_urls={cell: f"{self.broker.url.rstrip('/')}/{bus}" for cell, bus in buses.items()},
            paste=find_nova().parent.parent / "etc/nova/api-paste.ini",
        )


async def _start(
    stack: AsyncExitStack, directory: Path, options: NovaOptions, placement: PlacementFactory
) -> NovaRegion:
    servers = _Servers(directory, options)
    stack.push_async_callback(asyncio.to_thread, stop_all, *servers.started)
    logs = directory / "nova"
    logs.mkdir(parents=True, exist_ok=True)
    starting = asyncio.to_thread(start_all, *servers.started)
    processes, _ = await asyncio.gather(
        stack.enter_async_context(nova_processes(logs / "launcher.log")), starting
    )

    buses = _buses(directory.name, options)
    await servers.make(buses)
    http = await stack.enter_async_context(TokenClient(servers.keystone.admin))
    identity, port = RegionUsers(http, servers.keystone), free_port()
    users = await identity.make_users()
    await identity.make_endpoints({
        "compute": f"http://127.0.0.1:{port}/v2.1", "image": f"{servers.stand_ins.base_url}/image",
        "network": f"{servers.stand_ins.base_url}/network",
    })  # fmt: skip
    foundation = servers.foundation(users["placement"])
    region = NovaRegion(
        options=options,
        directory=logs,
        foundation=foundation,
        addresses=servers.addresses(users["nova"], buses),
        users=users,
        placement_factory=placement,
        placement_url="",
        api_port=port,
        processes=processes,
        nova=NovaClient(http, f"http://127.0.0.1:{port}/v2.1", image=IMAGE, flavor=""),
    )
    region.placement_url, _ = await asyncio.gather(
        stack.enter_async_context(placement(foundation)), _make_cells(region)
    )
    await _start_services(region)
    return region


def _buses(prefix: str, options: NovaOptions) -> dict[str, str]:
    """Return the name of the RabbitMQ virtual host of each cell, by cell; the key "" stands for the API."""
    return {"": f"{prefix}_nova"} | {cell: f"{prefix}_nova_{cell}" for cell in options.cells}


async def _make_cells(region: NovaRegion) -> None:
    """Create the tables in each database, and register cell0 and the other cells in Nova."""
    await asyncio.gather(
        region.manage("api_db", "sync"),
        region.manage("db", "sync", "--local_cell", cell="cell0"),
        *(region.manage("db", "sync", "--local_cell", cell=cell) for cell in region.options.cells),
    )
    await region.manage("cell_v2", "map_cell0", "--database_connection", region.database_urls[CELL0])
    for cell in region.options.cells:
        await region.manage(
            "cell_v2", "create_cell", "--name", cell,
            "--database_connection", region.database_urls[cell_database(cell)],
            "--transport-url", region.addresses.transport_url(cell),
        )  # fmt: skip


async def _start_services(region: NovaRegion) -> None:
    """Start Nova's conductors, scheduler, API and hosts, and wait until each of them accepts requests."""
    options, processes = region.options, region.processes
    for cell in options.cells:
        await processes.start(region.program(f"conductor-{cell}", "conductor", cell=cell))
    await processes.start(region.program("conductor", "conductor"))
    if options.has_scheduler:
        await processes.start(region.program("scheduler", "scheduler"))
    await processes.start(_api(region))
    for host in options.host_names:
        await region.start_host(host)

    async def does_answer() -> bool:
        processes.check()
        request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        answer = await asyncio.to_thread(exchange, region.api_port, request, 12)
        return answer.endswith((b"200", b"300"))

    await wait_until(does_answer, "the compute API answers", START_SECONDS)
    region.nova.flavor = await region.nova.create_flavor("m1.tiny")
    await region.wait_for_consumers("", ["conductor", *(["scheduler"] if options.has_scheduler else [])])
    await region.wait_for_hosts(*options.host_names)


def _api(region: NovaRegion) -> Program:
    """Return how to start Nova's API under gunicorn. Nova parses the process's arguments, so gunicorn's
    settings are in a file.
    """
    program = region.program("api", "api")
    settings = {
        "wsgi_app": "nova.wsgi.osapi_compute:application", "bind": f"127.0.0.1:{region.api_port}",
        "threads": 8, "keepalive": 60, "loglevel": "warning", "timeout": 120,
        "control_socket_disable": True, "chdir": str(program.directory),
    }  # fmt: skip
    path = program.directory / "gunicorn.conf.py"
    path.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    files = f"{region.addresses.paste};{region.configuration('api')}"
    environment = {"OS_NOVA_CONFIG_FILES": files, "GUNICORN_CMD_ARGS": f"--config {path}"}
    return replace(program, environment=environment)
