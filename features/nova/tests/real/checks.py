"""Checks of a Nova region when no request is under way."""

import asyncio
import json
import os
import re
import sys
from collections import Counter

from deploy.nova import NovaRegion
from deploy.nova_client import wait_until

SECONDS = 120.0  # for what takes a second on an idle machine
_SPAWNED = re.compile(r"\[instance: ([0-9a-f-]{36})\] Took \S+ seconds to spawn")


async def check_allocations(region: NovaRegion) -> None:
    """Every server holds its flavor's resources on its host, and no other consumer holds anything.

    Nova releases the resources of a former host after a server is usable on its new one, so wait for it.
    """
    found: dict[str, object] = {}

    async def is_right() -> bool:
        expected: dict[str, dict[str, object]] = {name: {} for name in region.hosts}
        for server in await region.nova.servers():
            if host := server["OS-EXT-SRV-ATTR:host"]:
                flavor = server["flavor"]
                expected[host][server["id"]] = {
                    "VCPU": flavor["vcpus"], "MEMORY_MB": flavor["ram"], "DISK_GB": flavor["disk"],
                }  # fmt: skip
        found.update(expected=expected, allocations=await region.allocations())
        return found["expected"] == found["allocations"]

    try:
        await wait_until(is_right, "the allocations are those of the servers", SECONDS)
    except AssertionError as wrong:
        raise AssertionError(f"{wrong}: {found}") from None


def spawns(region: NovaRegion) -> Counter[str]:
    """Return how many times nova-compute processes have started each server, according to their logs."""
    logs = [path.read_text(errors="replace") for name, path in region.logs().items() if name in region.hosts]
    return Counter(server for log in logs for server in _SPAWNED.findall(log))


async def audit(database_url: str) -> dict[str, object]:
    """Return what `berth audit check` reports about placement's database."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "berth", "audit", "check", "--placement-only", "--settled", "--json",
        "--database", database_url, stdout=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    output, _ = await process.communicate()
    return dict(json.loads(output))
