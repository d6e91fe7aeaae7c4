"""Accelerators and other devices, each a provider: an FPGA, a whole GPU, a dongle."""

import msgspec

from bus.reports import Inventory
from bus.vocabulary import Count
from compute_sim.core.drivers.driver import DriverOptions, InUse, beside_cell
from compute_sim.core.provider_tree import ProviderTree


class HostDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: str
    resource_class: str
    total: Count = 1
    traits: tuple[str, ...] = ()
    cell: int = 0


_TWO = (
    HostDevice(device="fpga0", resource_class="FPGA", traits=("CUSTOM_FPGA_ARRIA10",)),
    HostDevice(device="pgpu0", resource_class="CUSTOM_PCI_10DE_20B0", traits=("CUSTOM_HBM",), cell=1),
)


class DeviceDriver(DriverOptions, frozen=True, kw_only=True):
    devices: tuple[HostDevice, ...] = _TWO

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        for device in self.devices:
            name = tree.add(
                f"{tree.name}_{device.device}", beside_cell(tree, device.cell, f"devices.{device.device}")
            )
            tree.give(
                name, **{device.resource_class: Inventory(total=device.total, max_unit=max(device.total, 1))}
            )
            tree.mark(name, *device.traits)
