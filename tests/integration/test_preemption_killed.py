"""kill -9 of scheduler, placement, conductor and agents while builds preempt instances, on real services.

For every deleted instance a build becomes active, and the audit finds nothing left over.
"""

import asyncio
import signal
from collections import defaultdict
from random import Random

import pytest

from berth.operations.audit import audit
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.preemption import FindPreemptions, PriorityClass, PriorityEdited, PriorityEditRequested, SetPriority
from bus.requests import Flavor
from tests.support.berth_processes import Running, running
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

HALF = Flavor(name="half of a host", vcpus=1, memory_mb=60_000, disk_gb=1)
LOW, HIGH = 1, 7
HOSTS = 6


class _Client:
    """Boots instances and collects their ends."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.clock = bus, Clock()
        self.ended: dict[str, BuildEnded] = {}
        self.unplaceable: set[str] = set()

    def on_unplaceable(self, message: BuildUnplaceable) -> None:
        self.unplaceable.update(message.instances)

    async def boot(self, count: int, priority: int) -> list[str]:
        builds = [self.clock.uuid() for _ in range(count)]
        requests = [
            BuildRequested(request=build, instances=(build,), flavor=HALF, priority=priority, wait="1h")
            for build in builds
        ]
        await self.bus.publish(*requests)
        return builds

    async def all_active(self, builds: list[str], what: str) -> None:
        await until(lambda: {*builds} <= self.ended.keys() | self.unplaceable, what, 240.0)
        assert not self.unplaceable
        assert {self.ended[build].status for build in builds} == {"active"}


@pytest.mark.parametrize(
    ("layout", "kills"),
    [
        ("separate", 3),
        pytest.param("separate", 12, marks=pytest.mark.soak),
        pytest.param("compact", 12, marks=pytest.mark.soak),
    ],
)
async def test_every_victim_makes_way_for_a_build_despite_kills(
    layout: str, kills: int, amqp_url: str, database_url: str, bus_name: str
) -> None:
    settings = Settings().having(
        amqp_url=amqp_url, database_url=database_url, exchange=bus_name, cells=("c1",), hosts=HOSTS,
        build_timeout=60.0, build_time="constant:0.3", layout=layout,
    )  # fmt: skip
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        client = _Client(berth.bus)
        ends = await berth.bus.listen(topics.BUILD_ENDED.at())
        none = await berth.bus.listen(topics.BUILD_UNPLACEABLE.at())
        listening = [
            group.create_task(receive_all(ends, lambda end: client.ended.setdefault(end.build, end))),
            group.create_task(receive_all(none, client.on_unplaceable)),
        ]
        await _set_class(berth.bus)
        low = await client.boot(2 * HOSTS, LOW)
        await client.all_active(low, "the hosts are full")
        high = await client.boot(HOSTS + 2, HIGH)
        await _kill(berth, Random(31), kills)
        await client.all_active(high, "all builds of high priority run")
        found = (await berth.bus.asker(topics.PREEMPTIONS)(FindPreemptions(victims=tuple(low)))).preemptions
        victims = defaultdict(set)
        for each in found:
            victims[each.by].add(each.victim.build)
        assert victims.keys() == {*high} and all(len(some) == 1 for some in victims.values())
        await until(lambda: _is_clean(berth), "clean", 120.0, picture=lambda: audit(settings, settled=True))
        counted = (await audit(settings, settled=True)).builds
        assert counted.get("active") == 2 * HOSTS, counted
        for task in listening:
            task.cancel()


async def _set_class(bus: Bus) -> None:
    edit = SetPriority(priority=PriorityClass(name="high", value=HIGH, preempts=True))
    answer = await bus.asker(topics.EDIT_PRIORITY)(PriorityEditRequested(edit=edit))
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
