"""Starts the Placement API of a Nova region: OpenStack Placement or berth."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.keystone import REGION, KeystoneServer
from deploy.nova_processes import find_nova
from deploy.placement import ROOT, ApiAccess, BerthPlacement, HttpServer, KeystoneUser, OpenStackPlacement
from deploy.processes import ServerFailed, environment_without
from deploy.servers import RabbitMQ


@dataclass(frozen=True, kw_only=True)
class Foundation:
    """The servers that run before Nova and its Placement: Keystone, RabbitMQ and databases."""

    directory: Path
    keystone: KeystoneServer
    placement_user: KeystoneUser  # checks tokens of clients
    rabbitmq: RabbitMQ
    database_url: str  # of an empty PostgreSQL database, for SQLAlchemy's asyncpg
    openstack_database_url: str  # of an empty database for OpenStack Placement, in PostgreSQL or MariaDB


# Yields the URL of a running Placement API, which is then in the catalogue.
PlacementFactory = Callable[[Foundation], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def openstack_placement(foundation: Foundation) -> AsyncIterator[str]:
    """Run OpenStack Placement on the region's database, register it in the catalogue, and yield its URL."""
    access = ApiAccess(keystone=foundation.placement_user)
    directory, url = foundation.directory / "placement", foundation.openstack_database_url
    async with serving(OpenStackPlacement(directory, url, access, python=find_nova())) as server:
        await register(foundation.keystone.admin, server.base_url)
        yield server.base_url


@asynccontextmanager
async def berth_placement(foundation: Foundation) -> AsyncIterator[str]:
    """Run `berth run placement` on the region's database, register it in the catalogue, and yield its URL."""
    access = ApiAccess(keystone=foundation.placement_user)
    server = BerthPlacement(foundation.directory / "berth", foundation.database_url, access)
    async with serving(server):
        await register(foundation.keystone.admin, server.base_url)
        yield server.base_url


@asynccontextmanager
async def serving(server: HttpServer) -> AsyncIterator[HttpServer]:
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.stop)


async def register(admin: KeystoneUser, url: str) -> None:
    """Register the Placement API's URL in the catalogue with `berth openstack register`."""
    command = (
        sys.executable, "-m", "berth", "openstack", "register", "--region", REGION, "--url", url, "--apply",
    )  # fmt: skip
    environment = environment_without("OS_", "BERTH_")
    environment |= {f"OS_{name.upper()}": value for name, value in admin.options.items()}
    process = await asyncio.create_subprocess_exec(
        *command, env=environment | {"PYTHONPATH": str(ROOT)}, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    if process.returncode:
        raise ServerFailed(f"berth openstack register: {output.decode()}")
