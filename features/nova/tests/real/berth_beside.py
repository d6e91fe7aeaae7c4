"""A berth in parallel to the Placement and the scheduler of a Nova region, and its commands."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from deploy.nova import NovaRegion
from deploy.nova_client import wait_until
from deploy.nova_configuration import API_DATABASE
from deploy.nova_placements import Foundation, serving
from deploy.nova_scheduling import bus_url
from deploy.placement import ApiAccess, BerthPlacement
from deploy.rabbitmq import make_virtual_hosts
from features.nova.tests.real.checks import SECONDS


def berth_database(foundation: Foundation) -> str:
    return f"{foundation.database_url.rpartition('/')[0]}/berth_placement"


@asynccontextmanager
async def berth_of(region: NovaRegion) -> AsyncIterator["BerthBeside"]:
    """Run berth's Placement with an empty database, in parallel to that of the region."""
    foundation = region.foundation
    await asyncio.to_thread(make_virtual_hosts, foundation.rabbitmq, "berth")
    connection = await asyncpg.connect(foundation.database_url.replace("+asyncpg", ""))
    await connection.execute("CREATE DATABASE berth_placement")
    await connection.close()
    access = ApiAccess(keystone=foundation.placement_user)
    url = berth_database(foundation)
    server = BerthPlacement(foundation.directory / "berth", url, access, bus_url(foundation))
    async with serving(server):
        yield BerthBeside(region, server.base_url)


@dataclass
class BerthBeside:
    """Runs berth's commands with the settings of a take-over and a token of the administrator."""

    region: NovaRegion
    url: str  # of its Placement API

    @property
    def worker_settings(self) -> dict[str, str]:
        return {"database_url": berth_database(self.region.foundation).replace("+asyncpg", "")}

    async def command(self, *words: str) -> str:
        """Run a command of berth and return its output, with errors."""
        user = self.region.users["placement"].options
        known = {name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "OS_"))}
        settings = {
            **{f"OS_{name.upper()}": value for name, value in user.items()},
            "BERTH_PLACEMENT_AUTH": "keystone", "BERTH_PLACEMENT_CLOUD": "envvars",
            "BERTH_AMQP_URL": bus_url(self.region.foundation),
            "BERTH_DATABASE_URL": berth_database(self.region.foundation),
            "BERTH_NOVA_DATABASE_URL": self.region.database_urls[API_DATABASE],
            "BERTH_NOVA_AMQP_URL": self.region.bus_urls[""],
            "BERTH_NOVA_CONF": str(self.region.configuration("scheduler")),
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "berth", *words, env=known | settings,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        return output.decode()

    async def value(self, *words: str) -> dict[str, Any]:
        """Run a command with --json and return the JSON of the last line."""
        output = await self.command(*words, "--json")
        last = output.splitlines()[-1] if output else ""
        assert last.startswith("{"), output
        return dict(json.loads(last))

    async def passes(self, step: str, url: str, *words: str, known: Collection[str] = ()) -> None:
        """Repeat a check, as an operator would on a loaded machine, until it finds only known problems."""
        found: list[dict[str, Any]] = []

        async def is_passed() -> bool:
            found[:] = await self.check(step, url, *words)
            return {finding["about"] for finding in found} <= set(known)

        try:
            await wait_until(is_passed, f"check of {step}", SECONDS)
        except AssertionError as failed:
            raise AssertionError(f"{failed}: {found}") from None

    async def check(self, step: str, url: str, *words: str) -> list[dict[str, Any]]:
        """Return the errors and warnings before a step, except that the user of the databases may write."""
        where = ("--url", url, "--token-file", await self._token_file())
        findings = (await self.value("openstack", "check", "--step", step, *where, *words))["findings"]
        return [
            finding
            for finding in findings
            if finding["level"] != "note" and finding["says"] != "berth's user may write."
        ]

    async def copy(self, source: str, target: str, *words: str) -> str:
        """Copy the contents of one Placement to another, and return the output."""
        token = await self._token_file()
        where = ("--url", source, "--token-file", token, "--to", target, "--to-token-file", token)
        return await self.command("openstack", "import", "placement", *where, *words)

    async def _token_file(self) -> str:
        path = self.region.directory / "token"
        path.write_text(await self.region.nova.http.token())
        return str(path)
