"""Ironic and berth as separate processes."""

import asyncio
import io
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from rich.console import Console

from berth import composition
from berth.commands.ironic import diff_command
from berth.commands.run import migrate_all
from berth.configuration import read
from berth.kit.terminal import Cli
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from deploy.servers import Postgres, RabbitMQ
from ironic_sync.api import IronicApi
from ironic_sync.openstack import Access
from tests.support.berth_processes import ROOT, run_berth
from tests.support.forked_commands import start_forked
from tests.support.servers import a_module_database, url_of
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

NODES = 50
SOON = 60.0  # seconds; on a machine that does much else
WORKERS = {
    "placement": ("placement",),
    "scheduler": ("scheduler",),
    "conductor": ("conductor", "--cell", "c1"),
    "metal": ("metal", "--cell", "c1"),
    "ironic": ("ironic",),
}


class IronicSite:
    """Processes that only know each other by their settings, and what their person types."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.settings = read(environment=environment).settings
        strange = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
        self.environment = strange | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"} | environment
        self._processes: dict[str, BaseProcess] = {}

    def start(self, name: str, *arguments: str) -> None:
        self._processes[name] = start_forked(
            arguments or ("run", *WORKERS[name]),
            self.directory,
            self.environment,
            self.directory / f"{name}.log",
        )

    def wait(self, name: str, says: str) -> str:
        deadline = monotonic() + SOON
        while (reply := re.search(says, log := (self.directory / f"{name}.log").read_text())) is None:
            assert monotonic() < deadline and self._processes[name].is_alive(), f"{name}: {log}"
            sleep(0.05)
        return reply[0]

    def end(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join(15)
            process.kill()
            process.join()

    async def berth(self, *words: str) -> str:
        done = await asyncio.to_thread(run_berth, words, self.directory, self.environment, SOON)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def differences(self) -> list[str]:
        reply = io.StringIO()
        code = await diff_command(Cli(self.settings, say=Console(file=reply, soft_wrap=True)))
        *lines, _ = reply.getvalue().splitlines()
        assert (code == 0) == (not lines)
        return lines

    async def agree(self) -> None:
        async def so() -> bool:
            return not await self.differences()

        await until(so, seconds=SOON, picture=self.differences)

    async def claimable(self) -> int:
        question = FindCandidates(groups=(ResourceGroup(resources={"CUSTOM_BAREMETAL": 1}),), limit=1)
        async with Bus(composition.transport(self.settings, "test")) as bus:
            return (await bus.asker(topics.FIND_CANDIDATES)(question)).fitting


@pytest.fixture(scope="module")
def site(
    rabbitmq: RabbitMQ, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[IronicSite]:
    amqp_url = url_of(rabbitmq)
    api_url = f"http://127.0.0.1:{a_port()}"
    with a_module_database(postgres) as database:
        environment = {
            "BERTH_AMQP_URL": amqp_url,
            "BERTH_DATABASE_URL": database,
            "BERTH_EXCHANGE": "end-to-end",
            "BERTH_CELLS": "c1",
            "BERTH_LOG_LEVEL": "info",
            "BERTH_IRONIC_AMQP_URL": amqp_url,
            "BERTH_IRONIC_EXCHANGE": "end-to-end-ironic",
            "BERTH_IRONIC_QUEUE": "end-to-end-ironic-sync",
            "BERTH_IRONIC_API": api_url,
            "BERTH_IRONIC_PAGES_PER_SECOND": "100",
        }
        made = IronicSite(tmp_path_factory.mktemp("site"), environment)
        try:
            asyncio.run(migrate_all(made.settings, Console(quiet=True)))
            made.start(
                "sim", "ironic", "sim", "--nodes", str(NODES), "--http", api_url.removeprefix("http://"),
                "--exchange", "end-to-end-ironic", "--step-time", "constant:0.05",
            )  # fmt: skip
            for name in WORKERS:
                made.start(name)
            made.wait("sim", "Ctrl-C stops it")
            for name in WORKERS:
                made.wait(name, ": serving")
            yield made
        finally:
            made.end()


@pytest.fixture
async def api(site: IronicSite) -> AsyncIterator[IronicApi]:
    """A person's own way to Ironic; every test finds berth in step with it."""
    async with IronicApi(Access(url=site.settings.ironic.connection.api)) as api:
        await site.agree()
        yield api


async def test_a_build_ends_active_on_a_node_which_is_free_again_when_it_is_deleted(
    site: IronicSite, api: IronicApi
) -> None:
    free = await site.claimable()
    booted = json.loads(await site.berth("boot", "--flavor", "metal", "--wait", "--json"))
    assert (booted["status"], booted["cell"]) == ("active", "c1")
    node = await named(api, booted["host"])
    assert (node["provision_state"], node["instance_uuid"]) == ("active", booted["build"])
    await site.agree()
    assert await site.claimable() == free - 1

    await site.berth("delete", booted["build"], "--cell", "c1", "--wait")

    async def free_again() -> bool:
        return await site.claimable() == free

    await until(free_again, seconds=SOON, picture=lambda: named(api, booted["host"]))
    node = await named(api, booted["host"])
    assert (node["provision_state"], node["instance_uuid"]) == ("available", None)


async def named(api: IronicApi, uuid: str) -> dict[str, Any]:
    node = await api.node(uuid)
    assert node is not None
    return node


def a_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
