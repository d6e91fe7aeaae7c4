"""Devices end to end, on both buses.

Each driver boots instances that need its child providers, the agent receives placement's allocations, and
exclusive resources are never allocated together.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bus.messages import BuildEnded
from bus.reports import Inventory
from bus.requests import Flavor
from compute_sim.core.drivers import (
    DeviceDriver,
    HostDevice,
    NumaDriver,
    PhysicalFunction,
    PhysicalGpu,
    SriovDriver,
    VgpuDriver,
)
from compute_sim.core.provider_config import ProviderConfigDriver, provider_config
from compute_sim.machines import Hardware, Machine, SimHost, fleet
from tests.support.buses import LOCALLY, Connect
from tests.support.driver_cloud import DriverCloud, a_driver_cloud
from tests.support.ids import uid

NUMA = NumaDriver(vcpus=8, pcpus=4, memory_mb=8192, pages={"2MB": 512, "1GB": 4})
CARDS = SriovDriver(
    functions=(
        PhysicalFunction(device="p0", vfs=4, network="left"),
        PhysicalFunction(device="p1", vfs=4, network="right", cell=1),
    )
)
GPUS = VgpuDriver(gpus=(PhysicalGpu(device="g0", types={"small": 4, "large": 2}),))
FPGA = DeviceDriver(
    devices=(HostDevice(device="f0", resource_class="FPGA", cell=1, traits=("CUSTOM_ARRIA",)),)
)
ADDED = ProviderConfigDriver(
    provider_config(
        {
            "meta": {"schema_version": "1.0"},
            "providers": [
                {
                    "identification": {"uuid": "$COMPUTE_NODE"},
                    "inventories": {"additional": [{"CUSTOM_DONGLE": {"total": 2}}]},
                    "traits": {"additional": ["CUSTOM_RACK"]},
                },
                {"identification": {"name": "cell1-host00001_f0"}, "traits": {"additional": ["CUSTOM_FAST"]}},
            ],
        }
    )
)


def hosts(*drivers: Any, count: int = 1) -> Sequence[SimHost]:
    (agent,) = fleet(1, count, hardware=Hardware(vcpus=64, machines=(Machine(drivers),)))
    return agent.hosts


def flavor(vcpus: int = 1, memory_mb: int = 64, disk_gb: int = 1, **specs: str) -> Flavor:
    keys = {name.replace("__", ":"): value for name, value in specs.items()}
    return Flavor(name="f", vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb, extra_specs=keys)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a PostgreSQL database if the bus is RabbitMQ, else of an SQLite database."""
    if request.node.callspec.params["connect"] == "local":
        return f"sqlite+aiosqlite:///{tmp_path}/"
    return str(request.getfixturevalue("database_url"))


EVERYTHING = hosts(NUMA, CARDS, GPUS, FPGA, ADDED)
H = EVERYTHING[0].host


@pytest.fixture
async def cloud(connect: Connect, url: str) -> AsyncIterator[DriverCloud]:
    async with a_driver_cloud(connect, url, EVERYTHING) as cloud:
        yield cloud


NEEDS: dict[str, tuple[Flavor, dict[str, dict[str, int]], dict[str, tuple[str, ...]]]] = {
    "two cells, pinned, on large pages": (
        flavor(0, 0, resources_numa0__PCPU="2", resources_numa0__CUSTOM_MEMORY_PAGES_1GB="1",
               resources_numa1__PCPU="2", resources_numa1__CUSTOM_MEMORY_PAGES_1GB="1",
               group_policy="isolate"),
        {
            H: {"DISK_GB": 1},
            f"{H}_numa0": {"PCPU": 2, "CUSTOM_MEMORY_PAGES_1GB": 1},
            f"{H}_numa1": {"PCPU": 2, "CUSTOM_MEMORY_PAGES_1GB": 1},
        },
        {"_numa0": (f"{H}_numa0", f"{H}_numa1"), "_numa1": (f"{H}_numa0", f"{H}_numa1")},
    ),
    "a VF of one network": (
        flavor(resources1__SRIOV_NET_VF="1", trait1__CUSTOM_PHYSNET_RIGHT="required"),
        {f"{H}_p1": {"SRIOV_NET_VF": 1}},
        {"1": (f"{H}_p1",)},
    ),
    "a whole PF": (
        flavor(resources1__SRIOV_NET_VF="4", trait1__CUSTOM_PF_WITH_4_VFS="required"),
        {},
        {"1": (f"{H}_p0", f"{H}_p1")},
    ),
    "a VGPU of a type": (
        flavor(resources1__VGPU="1", trait1__CUSTOM_LARGE="required"),
        {f"{H}_g0_large": {"VGPU": 1}},
        {"1": (f"{H}_g0_large",)},
    ),
    "an accelerator near the guest's processors": (
        flavor(resources_a__VCPU="1", resources_a__MEMORY_MB="64", resources_d__FPGA="1",
               trait_d__CUSTOM_FAST="required", resources__VCPU="0", same_subtree="_a,_d"),
        {f"{H}_numa1": {"VCPU": 1, "MEMORY_MB": 64}, f"{H}_f0": {"FPGA": 1}},
        {"_a": (f"{H}_numa1",), "_d": (f"{H}_f0",)},
    ),
    "what the operator's file adds": (
        flavor(resources__CUSTOM_DONGLE="2", trait__CUSTOM_RACK="required"),
        {H: {"DISK_GB": 1, "CUSTOM_DONGLE": 2}},
        {},
    ),
}  # fmt: skip


async def test_each_driver_boots_flavors_for_its_child_providers(cloud: DriverCloud) -> None:
    ends = await cloud.booted(*(asked for asked, _, _ in NEEDS.values()))
    names = await cloud.name_of()
    for (what, (_, takes, served)), end in zip(NEEDS.items(), ends, strict=True):
        assert isinstance(end, BuildEnded) and end.status == "active", (what, end)
        held, guest = await cloud.held(end.build), cloud.guest(end.build)
        assert guest.allocations == held, what
        taken = {names[id_]: amounts for id_, amounts in held.items()}
        assert taken.items() >= takes.items(), what
        assert {id_ for serving in guest.mappings.values() for id_ in serving} <= held.keys(), what
        for suffix, among in served.items():
            (serving,) = guest.mappings[suffix]
            assert names[serving] in among, what
    for end in ends:
        assert isinstance(end, BuildEnded)
        await cloud.delete(end.build)
        assert await cloud.held(end.build) == {}
    assert cloud.disk.devices.held == {}


@LOCALLY
async def test_addresses_of_a_routed_networks_segment_are_given_once_and_to_its_hosts_alone(
    connect: Connect, url: str
) -> None:
    left, right = uid(1, "f"), uid(2, "f")
    one, two = hosts(count=2)
    async with a_driver_cloud(connect, url, [in_aggregate(one, left), in_aggregate(two, right)]) as cloud:
        pools = {
            await cloud.pool("left", {"IPV4_ADDRESS": Inventory(total=4, reserved=1)}, left): one.root,
            await cloud.pool("right", {"IPV4_ADDRESS": Inventory(total=2)}, right): two.root,
        }
        ends = await cloud.booted(*[flavor(resources_ip__IPV4_ADDRESS="1")] * 9)
        given = Counter[str]()
        for end in ends:
            if isinstance(end, BuildEnded) and end.status == "active":
                held = await cloud.held(end.build)
                (pool,) = cloud.guest(end.build).mappings["_ip"]
                assert held[pool] == {"IPV4_ADDRESS": 1}
                assert pools[pool] == end.root
                given[pool] += 1
        assert sorted(given.values()) == [2, 3]


def in_aggregate(host: SimHost, aggregate: str) -> SimHost:
    return replace(host, aggregates=(aggregate,))
