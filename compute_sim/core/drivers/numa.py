"""A host with NUMA cells: each cell has processors, memory and pages; the root has the disk."""

from typing import Annotated

import msgspec
from msgspec import Meta

from bus.reports import Inventory
from bus.vocabulary import Count, Ratio
from compute_sim.core.drivers.driver import DriverOptions, InUse, cell_named
from compute_sim.core.provider_tree import ProviderTree, TreeMistake

_UNITS = ("KB", "MB", "GB")


class NumaDriver(DriverOptions, frozen=True, kw_only=True):
    """The figures are for one cell, except the disk."""

    cells: Annotated[int, Meta(le=64)] = 2
    vcpus: Count = 12  # shared processors
    vcpu_ratio: Ratio = 4.0
    pcpus: Count = 4  # dedicated processors
    memory_mb: Count = 49_152  # in pages of the default size
    reserved_mb: Count = 512  # reserved for the host
    pages: dict[str, Count] = msgspec.field(default_factory=lambda: {"2MB": 4096, "1GB": 8})
    disk_gb: Count = 2000
    traits: tuple[str, ...] = ("COMPUTE_NODE", "HW_CPU_HYPERTHREADING")  # of the root

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        if self.cells < 1:
            raise TreeMistake(f"{tree.name}: numa.cells: {self.cells}; a host has one at least")
        tree.mark(tree.name, *self.traits)
        if self.disk_gb:
            tree.give(tree.name, DISK_GB=Inventory(total=self.disk_gb, max_unit=self.disk_gb))
        for number in range(self.cells):
            cell = tree.add(cell_named(tree, number))
            tree.mark(cell, "HW_NUMA_ROOT")
            tree.give(cell, **self._of_a_cell(tree.name))

    def _of_a_cell(self, host: str) -> dict[str, Inventory]:
        has = {
            "VCPU": Inventory(total=self.vcpus, max_unit=self.vcpus or 1, allocation_ratio=self.vcpu_ratio),
            "PCPU": Inventory(total=self.pcpus, max_unit=self.pcpus or 1),
            "MEMORY_MB": Inventory(
                total=self.memory_mb, reserved=self.reserved_mb, max_unit=self.memory_mb or 1
            ),
        }
        for size, count in self.pages.items():
            if not (size[-2:] in _UNITS and size[:-2].isdigit()):
                raise TreeMistake(f"{host}: numa.pages: {size!r} is no size, as 2MB or 1GB")
            has[f"CUSTOM_MEMORY_PAGES_{size}"] = Inventory(total=count, max_unit=count or 1)
        return {name: inventory for name, inventory in has.items() if inventory.total}
