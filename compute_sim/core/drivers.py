"""Drivers of hosts' hardware: each adds one type of hardware, such as NUMA cells, to the provider tree."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from bus.host_health import DISABLED
from bus.reports import EXCLUDES_SIBLINGS, Inventory
from bus.vocabulary import Count, Ratio
from compute_sim.core.provider_tree import ProviderTree, TreeMistake, TreeProvider


class Driver(Protocol):
    """The interface of a hardware driver, which adds one type of hardware to a host's provider tree."""

    def update_provider_tree(self, tree: ProviderTree) -> None:
        """Add all hardware of one type to a host's provider tree, to which the host's earlier drivers have
        added their hardware.
        """
        ...


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the built-in hardware drivers; its fields are options, which operators set in a TOML file
    of machine types.
    """


def cell_named(tree: ProviderTree, number: int) -> str:
    """Return the name of the provider of a NUMA cell."""
    return f"{tree.name}_numa{number}"


def device_parent(tree: ProviderTree, number: int, device: str) -> str:
    """Return the name of a device's parent provider: NUMA cell `number`, or the root if the host has no NUMA
    cells. `device`: the device's name in the error about a missing cell.
    """
    if cell_named(tree, 0) not in tree:
        return tree.name
    if cell_named(tree, number) not in tree:
        raise TreeMistake(f"{tree.name}: {device}.cell: there is no NUMA cell {number}")
    return cell_named(tree, number)


@dataclass(frozen=True)
class FlatDriver:
    """Adds fixed inventories, traits and aggregates to a host's root provider."""

    inventory: Mapping[str, Inventory] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()

    def update_provider_tree(self, tree: ProviderTree) -> None:
        tree.give(tree.name, **self.inventory)
        tree.mark(tree.name, *self.traits)
        tree.gather(tree.name, *self.aggregates)


_UNITS = ("KB", "MB", "GB")


class NumaDriver(DriverOptions, frozen=True, kw_only=True):
    """Adds NUMA cells with processors, memory and huge pages; adds a disk and traits to the root provider.

    Options of processors, memory and huge pages are amounts per NUMA cell.
    """

    cells: Annotated[int, Meta(le=64)] = 2
    vcpus: Count = 12  # shared processors
    vcpu_ratio: Ratio = 4.0
    pcpus: Count = 4  # dedicated processors
    memory_mb: Count = 49_152  # in pages of the default size
    reserved_mb: Count = 512  # reserved for the host
    pages: dict[str, Count] = msgspec.field(default_factory=lambda: {"2MB": 4096, "1GB": 8})
    disk_gb: Count = 2000
    traits: tuple[str, ...] = ("COMPUTE_NODE", "HW_CPU_HYPERTHREADING")  # of the root

    def update_provider_tree(self, tree: ProviderTree) -> None:
        if self.cells < 1:
            raise TreeMistake(f"{tree.name}: numa.cells: {self.cells}; a host has at least one")
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


VF = "SRIOV_NET_VF"


class PhysicalFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A port of a simulated network card, which is an SR-IOV physical function."""

    device: str
    vfs: Count = 8
    network: str = ""  # the physical network of the port
    cell: int = 0  # the nearest NUMA cell
    traits: tuple[str, ...] = ()


_NETWORK_CARDS = (
    PhysicalFunction(device="ens1f0", network="physnet1"),
    PhysicalFunction(device="ens2f0", network="physnet2", cell=1),
)


class SriovDriver(DriverOptions, frozen=True, kw_only=True):
    """Adds network cards with SR-IOV: a guest uses a whole physical function (PF) or a virtual function (VF).

    A PF is a provider with one unit of SRIOV_NET_VF for each VF. A request for the whole PF requests all
    units and requires the trait CUSTOM_PF_WITH_<n>_VFS. So no claim can mix both uses of a PF.
    """

    functions: tuple[PhysicalFunction, ...] = _NETWORK_CARDS

    def update_provider_tree(self, tree: ProviderTree) -> None:
        for function in self.functions:
            if function.vfs < 1:
                raise TreeMistake(f"{tree.name}: sriov.{function.device}.vfs: {function.vfs}; one at least")
            parent = device_parent(tree, function.cell, f"sriov.{function.device}")
            pf = tree.add(f"{tree.name}_{function.device}", parent)
            tree.give(pf, **{VF: Inventory(total=function.vfs, max_unit=function.vfs)})
            tree.mark(pf, "HW_NIC_SRIOV", f"CUSTOM_PF_WITH_{function.vfs}_VFS", *function.traits)
            if function.network:
                tree.mark(pf, f"CUSTOM_PHYSNET_{as_trait(function.network)}")


def as_trait(text: str) -> str:
    """Convert a text to the form of a trait name: `nvidia-35` becomes NVIDIA_35."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in text.upper())


class PhysicalGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU that can be divided into virtual GPUs of one of several types."""

    device: str
    types: dict[str, Count]  # type of virtual GPU → the number into which the GPU can be divided
    cell: int = 0
    traits: tuple[str, ...] = ()  # of each type's provider


_GPUS = (
    PhysicalGpu(device="gpu0", types={"nvidia-35": 16, "nvidia-37": 4}),
    PhysicalGpu(device="gpu1", types={"nvidia-35": 16}, cell=1),
)


class VgpuDriver(DriverOptions, frozen=True, kw_only=True):
    """Adds physical GPUs, each with a provider for each type of virtual GPU that it can be divided into.

    A GPU runs one type at a time: the types' providers have a trait that makes placement refuse claims of
    one of them while another is in use.
    """

    gpus: tuple[PhysicalGpu, ...] = _GPUS

    def update_provider_tree(self, tree: ProviderTree) -> None:
        for gpu in self.gpus:
            at = f"{tree.name}: vgpu.{gpu.device}.types"
            if not gpu.types or min(gpu.types.values()) < 1:
                raise TreeMistake(f"{at}: one type at least, and one of each at least")
            if len({as_trait(type_) for type_ in gpu.types}) < len(gpu.types):
                raise TreeMistake(f"{at}: two that read alike in a trait")
            card = tree.add(f"{tree.name}_{gpu.device}", device_parent(tree, gpu.cell, f"vgpu.{gpu.device}"))
            exclusive = (EXCLUDES_SIBLINGS,) if len(gpu.types) > 1 else ()
            for type_, total in gpu.types.items():
                name = tree.add(f"{card}_{type_}", card)
                tree.give(name, VGPU=Inventory(total=total, max_unit=total))
                tree.mark(name, f"CUSTOM_{as_trait(type_)}", *gpu.traits, *exclusive)


class HostDevice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device of a host with a resource class of its own."""

    device: str
    resource_class: str
    total: Count = 1
    traits: tuple[str, ...] = ()
    cell: int = 0


_DEVICES = (
    HostDevice(device="fpga0", resource_class="FPGA", traits=("CUSTOM_FPGA_ARRIA10",)),
    HostDevice(device="pgpu0", resource_class="CUSTOM_PCI_10DE_20B0", traits=("CUSTOM_HBM",), cell=1),
)


class DeviceDriver(DriverOptions, frozen=True, kw_only=True):
    """Adds accelerators and other devices, each as a provider: an FPGA, a whole GPU or a dongle."""

    devices: tuple[HostDevice, ...] = _DEVICES

    def update_provider_tree(self, tree: ProviderTree) -> None:
        for device in self.devices:
            parent = device_parent(tree, device.cell, f"devices.{device.device}")
            name = tree.add(f"{tree.name}_{device.device}", parent)
            inventory = Inventory(total=device.total, max_unit=max(device.total, 1))
            tree.give(name, **{device.resource_class: inventory})
            tree.mark(name, *device.traits)


def build_tree(
    root: str,
    host: str,
    drivers: Sequence[Driver],
    stored: Sequence[TreeProvider] = (),
    *,
    disabled: bool = False,
) -> ProviderTree:
    """Return a host's provider tree: hardware from the host's drivers, and the resource classes, traits and
    aggregates that operators added in placement (`stored`). `disabled`: add the trait that closes the host.
    """
    tree = ProviderTree(root, host, stored)
    for driver in drivers:
        driver.update_provider_tree(tree)
    if disabled:
        tree.mark(host, DISABLED)
    return tree
