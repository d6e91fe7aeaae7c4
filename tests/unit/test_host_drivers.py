"""The provider tree of each driver: one row for each hardware, one for each error."""

from collections.abc import Sequence

import pytest

from bus.reports import Inventory
from compute_sim.core.drivers import (
    DeviceDriver,
    Driver,
    FlatDriver,
    HostDevice,
    NumaDriver,
    PhysicalFunction,
    PhysicalGpu,
    SriovDriver,
    VgpuDriver,
    build_tree,
)
from compute_sim.core.provider_tree import ProviderTree, TreeMistake
from tests.support.ids import uid

ROOT = uid(1, "c")
HAS = {"VCPU": Inventory(total=8, allocation_ratio=4.0), "DISK_GB": Inventory(total=9)}
FLAT = FlatDriver(HAS, ("COMPUTE_NODE",))
BARE = NumaDriver(cells=1, vcpus=1, vcpu_ratio=1, pcpus=0, memory_mb=0, pages={}, disk_gb=0, traits=())
FPGAS = HostDevice(device="f0", resource_class="FPGA", total=2, traits=("CUSTOM_X",))
NUMA = NumaDriver(vcpus=4, pcpus=2, memory_mb=1024, reserved_mb=24, pages={"2MB": 5}, disk_gb=10)
PF = PhysicalFunction(device="p0", vfs=4, network="phys-net.1", cell=1)
GPU = PhysicalGpu(device="g0", types={"nv-1": 4, "nv-2": 2})


def picture(tree: ProviderTree) -> list[str]:
    lines = []
    depth: dict[str | None, int] = {None: -1}
    for provider in tree.providers:
        depth[provider.id] = depth[provider.parent] + 1
        has = [f"{inventory.capacity} {name}" for name, inventory in provider.inventories.items()]
        lines.append(
            " ".join(["  " * depth[provider.id] + provider.name + ":", *has, *sorted(provider.traits)])
        )
    return lines


CELL = "4 SRIOV_NET_VF CUSTOM_PF_WITH_4_VFS CUSTOM_PHYSNET_PHYS_NET_1 HW_NIC_SRIOV"
NUMA_ROOT = "h: 10 DISK_GB COMPUTE_NODE HW_CPU_HYPERTHREADING"
OF_A_CELL = "16 VCPU 2 PCPU 1000 MEMORY_MB 5 CUSTOM_MEMORY_PAGES_2MB HW_NUMA_ROOT"
TREES: dict[str, tuple[Sequence[Driver], list[str]]] = {
    "a flat host": ([FLAT], ["h: 32 VCPU 9 DISK_GB COMPUTE_NODE"]),
    "two NUMA cells": ([NUMA], [NUMA_ROOT, f"  h_numa0: {OF_A_CELL}", f"  h_numa1: {OF_A_CELL}"]),
    "a PF below its NUMA cell": (
        [NUMA, SriovDriver(functions=(PF,))],
        [NUMA_ROOT, f"  h_numa0: {OF_A_CELL}", f"  h_numa1: {OF_A_CELL}", f"    h_p0: {CELL}"],
    ),
    "a PF of a flat host": (
        [FLAT, SriovDriver(functions=(PF,))],
        ["h: 32 VCPU 9 DISK_GB COMPUTE_NODE", f"  h_p0: {CELL}"],
    ),
    "a GPU that can be cut into two types": (
        [FLAT, VgpuDriver(gpus=(GPU,))],
        [
            "h: 32 VCPU 9 DISK_GB COMPUTE_NODE",
            "  h_g0:",
            "    h_g0_nv-1: 4 VGPU CUSTOM_EXCLUDES_SIBLINGS CUSTOM_NV_1",
            "    h_g0_nv-2: 2 VGPU CUSTOM_EXCLUDES_SIBLINGS CUSTOM_NV_2",
        ],
    ),
    "a device of its own": (
        [BARE, DeviceDriver(devices=(FPGAS,))],
        ["h:", "  h_numa0: 1 VCPU HW_NUMA_ROOT", "    h_f0: 2 FPGA CUSTOM_X"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("drivers, lines", TREES.values(), ids=TREES.keys())
def test_the_tree_of_a_host(drivers: Sequence[Driver], lines: list[str]) -> None:
    assert picture(build_tree(ROOT, "h", drivers)) == lines


def test_a_provider_has_the_same_id_every_time_and_parents_come_first() -> None:
    one, other = (build_tree(ROOT, "h", [NUMA, SriovDriver(functions=(PF,))]).report() for _ in range(2))
    assert one == other
    assert len({provider.id for provider in one}) == len(one) == 4
    seen: set[str | None] = {None}
    for provider in one:
        assert provider.parent in seen
        seen.add(provider.id)


def test_a_disabled_host_says_so_on_its_root_alone() -> None:
    tree = build_tree(ROOT, "h", [NUMA], disabled=True)
    assert [provider.name for provider in tree.providers if "COMPUTE_STATUS_DISABLED" in provider.traits] == [
        "h"
    ]


MISTAKES: dict[str, tuple[Sequence[Driver], str]] = {
    "no such cell": (
        [NUMA, SriovDriver(functions=(PhysicalFunction(device="p0", cell=7),))],
        "h: sriov.p0.cell: there is no NUMA cell 7",
    ),
    "a PF without VFs": (
        [FLAT, SriovDriver(functions=(PhysicalFunction(device="p0", vfs=0),))],
        "h: sriov.p0.vfs: 0; one at least",
    ),
    "a GPU without types": (
        [FLAT, VgpuDriver(gpus=(PhysicalGpu(device="g", types={}),))],
        "h: vgpu.g.types: one type at least, and one of each at least",
    ),
    "types that read alike": (
        [FLAT, VgpuDriver(gpus=(PhysicalGpu(device="g", types={"a-b": 1, "a.b": 1}),))],
        "h: vgpu.g.types: two that read alike in a trait",
    ),
    "two devices of a name": (
        [FLAT, SriovDriver(functions=(PF, PF))], "h_p0: there are two providers of this name",
    ),
    "two drivers of one class": ([FLAT, FLAT], "h: inventories.VCPU: two drivers say it"),
    "a class that is none": (
        [FlatDriver({"RAM": Inventory(total=1)})],
        "h: inventories.RAM: no such resource class; those of your own begin with CUSTOM_",
    ),
    "a trait that is none": ([FlatDriver({}, ("FAST",))], "h: traits: no such trait FAST"),
    "nothing at all of a class": ([FlatDriver({"VCPU": Inventory(total=0)})], "h: inventories.VCPU.total: 0"),
    "more reserved than there is": (
        [FlatDriver({"VCPU": Inventory(total=1, reserved=2)})],
        "h: inventories.VCPU.reserved: 2 is not from 0 to the total, 1",
    ),
    "pages of no size": ([NumaDriver(pages={"big": 1})], "h: numa.pages: 'big' is no size, as 2MB or 1GB"),
    "no cells": ([NumaDriver(cells=0)], "h: numa.cells: 0; a host has one at least"),
}  # fmt: skip


@pytest.mark.parametrize("drivers, says", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_said_with_its_provider_and_field(drivers: Sequence[Driver], says: str) -> None:
    with pytest.raises(TreeMistake) as mistake:
        build_tree(ROOT, "h", drivers)
    assert says in str(mistake.value)
