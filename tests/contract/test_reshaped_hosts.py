"""A host with guests changes its driver from flat to NUMA in one commit.

Placement, agents and conductors agree before and after.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from bus.messages import BuildEnded
from bus.requests import Flavor
from bus.vocabulary import Allocations
from compute_sim.core.drivers import NumaDriver
from compute_sim.machines import Hardware, Machine, SimHost, fleet
from tests.support.buses import Connect
from tests.support.driver_cloud import DriverCloud, a_driver_cloud
from tests.support.midway import every_commit
from tests.support.waiting import until

__all__ = ["every_commit"]

NUMA = NumaDriver(vcpus=40, vcpu_ratio=1.0, pcpus=0, memory_mb=4096, reserved_mb=0, pages={}, disk_gb=500)
SMALL = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)


def hosts(*drivers: object, count: int = 2, vcpus: int = 80) -> Sequence[SimHost]:
    machine = Machine(drivers)  # type: ignore[arg-type]
    hardware = Hardware(vcpus=vcpus, vcpu_ratio=1.0, memory_mb=8704, disk_gb=500, machines=(machine,))
    (agent,) = fleet(1, count, hardware=hardware)
    return agent.hosts


FLAT, CELLS = hosts(), hosts(NUMA)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a PostgreSQL database if the bus is RabbitMQ, else of an SQLite database."""
    if request.node.callspec.params["connect"] == "local":
        return f"sqlite+aiosqlite:///{tmp_path}/"
    return str(request.getfixturevalue("database_url"))


async def active(cloud: DriverCloud, *flavors: Flavor) -> list[str]:
    ends = await cloud.booted(*flavors)
    wrong = [end for end in ends if not isinstance(end, BuildEnded) or end.status != "active"]
    assert not wrong, wrong
    return [end.build for end in ends if isinstance(end, BuildEnded)]


async def all_know(cloud: DriverCloud, builds: Sequence[str]) -> bool:
    held = await cloud.all_held(*builds)
    books = [cloud.guest(build).allocations for build in builds]
    counted = [cloud.disk.devices.held[build, cloud.guest(build).attempt] for build in builds]
    return held == books == counted == await cloud.selected(*builds)


async def in_cells(cloud: DriverCloud) -> bool:
    """Return whether no root provider has processors any more."""
    found = await cloud.providers()
    return len(found) == 3 * len(cloud.hosts) and not any(
        "VCPU" in one.inventories for one in found.values() if one.parent is None
    )


def sums(held: Allocations) -> dict[str, int]:
    found: dict[str, int] = {}
    for resources in held.values():
        for name, amount in resources.items():
            found[name] = found.get(name, 0) + amount
    return found


SMALL_FIGURES = {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}


async def test_an_agent_killed_during_a_reshape_learns_the_result(
    connect: Connect, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "agent.guests"
    async with a_driver_cloud(connect, url, FLAT[:1], file=file) as cloud:
        builds = await active(cloud, SMALL, SMALL)
        await cloud.agent.stop()
        await cloud.agent.start(CELLS[:1])
        await until(lambda: in_cells(cloud), "the tree has cells")
        await cloud.agent.kill()
        assert [sums(cloud.guest(build).allocations) for build in builds] == [SMALL_FIGURES] * 2
        for _ in range(2):  # the second time after a restart, from its file
            await cloud.agent.start()
            await until(lambda: all_know(cloud, builds), "all know")
            await cloud.agent.stop()
        await cloud.agent.start()
        assert all(len(cloud.guest(build).allocations) == 2 for build in builds)
        for build in builds:
            await cloud.delete(build)
        assert cloud.disk.devices.held == {}
        assert not any(any(provider.used.values()) for provider in (await cloud.providers()).values())


@pytest.mark.parametrize("connect", ["local"], indirect=True)
async def test_guests_that_do_not_fit_numa_cells_delay_the_reshape(
    connect: Connect, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent continues to build with its flat tree, and repeats its report."""
    monkeypatch.setattr("compute_sim.reporting.FIRST_GAP", 0.2)
    tight = hosts(
        NumaDriver(cells=2, vcpus=2, vcpu_ratio=1.0, pcpus=0, memory_mb=4096, pages={}, disk_gb=500), count=1
    )
    large = replace(SMALL, vcpus=5)
    async with a_driver_cloud(connect, url, FLAT[:1]) as cloud:
        (big,) = await active(cloud, large)
        small = await active(cloud, SMALL)
        await cloud.agent.stop()
        await cloud.agent.start(tight)

        async def refused() -> bool:
            letters = [letter.reason async for letter in cloud.bus.transport.each_dead_letter()]
            return any("reshape: " in reason and "fits nowhere" in reason for reason in letters)

        await until(refused, "the report is a dead letter")
        held = await cloud.held(big)
        assert set(held) == {FLAT[0].root}
        small += await active(cloud, SMALL)  # claimed of the flat tree, and built
        await cloud.delete(big)
        await until(lambda: in_cells(cloud), "the tree has cells", 30.0)
        await until(lambda: all_know(cloud, small), "all know")
