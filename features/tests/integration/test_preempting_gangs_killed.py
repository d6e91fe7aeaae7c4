"""kill -9 of scheduler, placement, conductor and agents while builds and gangs preempt instances, on real
services.

For every deleted instance a build becomes active, and the audit finds nothing left over.
"""

import asyncio
import dataclasses
import signal
from collections import defaultdict
from collections.abc import Sequence
from random import Random

import asyncpg
import pytest

from berth.kit import BootOptions, Settings, boot_request, options_named
from berth.kit.testing import audit
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from features.preemption.messages import (
    EDIT_PRIORITY,
    PREEMPTIONS,
    FindPreemptions,
    PriorityClass,
    PriorityEdited,
    PriorityEditRequested,
    SetPriority,
)
from features.topology.boot_options import TopologyOptions
from features.waiting.boot_options import PriorityOptions
from tests.support.berth_processes import Running, running
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

LOW, HIGH = 1, 7
HOSTS = 6  # in two racks; each host has space for two instances
HALF = options_named(memory_mb=60_000)
# three roles, each of which needs the place of one instance
_ROLES = ("ps:1,memory_mb=60000", "worker:1,memory_mb=50000", "evaluator:1,memory_mb=40000")
GANG = BootOptions(more=(TopologyOptions(role=_ROLES, pack="rack", spread="host"),))
_HOLDING = """
    SELECT DISTINCT c.uuid FROM placement.consumers c JOIN placement.allocations a ON a.consumer_id = c.id
"""
_PREEMPTORS = "SELECT DISTINCT preemptor FROM placement.preemptions"
_OVERFULL = """
    SELECT p.uuid FROM placement.inventories i JOIN placement.resource_providers p
    ON p.id = i.resource_provider_id WHERE i.used > (i.total - i.reserved) * i.allocation_ratio
"""


class _Client:
    """Boots instances and collects their ends."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.requests: list[BuildRequested] = []
        self.ended: dict[str, BuildEnded] = {}
        self.unplaceable: set[str] = set()

    def on_ended(self, end: BuildEnded) -> None:
        known = self.ended.setdefault(end.build, end)
        assert (known.status, known.host) == (end.status, end.host), "a build ended twice"

    def on_unplaceable(self, message: BuildUnplaceable) -> None:
        self.unplaceable.update(message.instances)

    async def boot(self, options: BootOptions, count: int, priority: int) -> list[str]:
        """Publish this many requests; return the ids of all their builds."""
        more = (*options.more, PriorityOptions(priority=priority))
        waits = dataclasses.replace(options, wait="1h", more=more)
        new = [boot_request(waits) for _ in range(count)]
        self.requests += new
        await self.bus.publish(*new)
        return [build for request in new for build in request.instances]

    async def all_active(self, builds: list[str], what: str) -> None:
        await until(lambda: {*builds} <= self.ended.keys() | self.unplaceable, what, 240.0)
        assert not self.unplaceable
        assert {self.ended[build].status for build in builds} == {"active"}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("layout", "options", "count", "kills"),
    [
        pytest.param("separate", GANG, 4, 3, id="gangs"),
        *(
            pytest.param(layout, options, count, 12, id=f"{what}-{layout}")
            for what, options, count in (("builds", HALF, HOSTS + 2), ("gangs", GANG, 4))
            for layout in ("separate", "compact")
        ),
    ],
)
async def test_every_victim_makes_way_for_a_build_despite_kills(
    layout: str, options: BootOptions, count: int, kills: int, servers: Settings, database_url: str
) -> None:
    settings = servers.having(
        simulator={"hosts": HOSTS, "build_time": "constant:0.3", "labels": {"rack": HOSTS // 2}},
        build_timeout=60.0,
        layout=layout,
    )
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        client = _Client(berth.bus)
        ends = await berth.bus.listen(topics.BUILD_ENDED.at())
        none = await berth.bus.listen(topics.BUILD_UNPLACEABLE.at())
        background = [
            group.create_task(receive_all(ends, client.on_ended)),
            group.create_task(receive_all(none, client.on_unplaceable)),
        ]
        await _set_class(berth.bus)
        low = await client.boot(HALF, 2 * HOSTS, LOW)
        await client.all_active(low, "the hosts are full")
        background.append(group.create_task(_check_repeatedly(database_url, client.requests)))
        high = await client.boot(options, count, HIGH)
        await _kill(berth, Random(31), kills)
        await client.all_active(high, "all builds of high priority run")
        found = (await berth.bus.asker(PREEMPTIONS)(FindPreemptions(victims=tuple(low)))).preemptions
        victims = defaultdict(set)
        for each in found:
            victims[each.by].add(each.victim.build)
        assert victims.keys() == {*high} and all(len(some) == 1 for some in victims.values())
        await until(lambda: _is_clean(berth), "clean", 120.0, picture=lambda: audit(settings, settled=True))
        counted = (await audit(settings, settled=True)).builds
        assert counted.get("active") == 2 * HOSTS, counted
        for task in background:
            task.cancel()


async def _check_repeatedly(database_url: str, requests: Sequence[BuildRequested]) -> None:
    """Check the committed allocations again and again: no request is partial, no victim was deleted for a
    build without a host, and no host is overfull.
    """
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    try:
        while True:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                holders = {str(uuid) for (uuid,) in await connection.fetch(_HOLDING)}
                preemptors = {str(uuid) for (uuid,) in await connection.fetch(_PREEMPTORS)}
                overfull = await connection.fetch(_OVERFULL)
            assert preemptors <= holders and not overfull, (preemptors - holders, overfull)
            partial = [
                placed
                for request in requests
                if (placed := len(holders.intersection(request.instances))) not in (0, len(request.instances))
            ]
            assert not partial
            await asyncio.sleep(0.02)
    finally:
        await connection.close()


async def _set_class(bus: Bus) -> None:
    edit = SetPriority(priority=PriorityClass(name="high", value=HIGH, preempts=True))
    answer = await bus.asker(EDIT_PRIORITY)(PriorityEditRequested(edit=edit))
    assert isinstance(answer.result, PriorityEdited)


async def _kill(berth: Running, chance: Random, kills: int) -> None:
    roles = sorted(child.name for child in berth.supervisor.children)
    killed = [role for role in roles if role.startswith(("scheduler", "placement", "conductor", "compute"))]
    for _ in range(kills):
        await asyncio.sleep(chance.uniform(0.05, 0.6))
        await berth.signal(chance.choice(killed), signal.SIGKILL)


async def _is_clean(berth: Running) -> bool:
    found = await audit(berth.settings, settled=True)
    return found.clean and set(found.types) <= {"INSTANCE"}
