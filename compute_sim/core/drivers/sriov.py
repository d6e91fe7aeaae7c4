"""Network cards that can be shared: physical functions (PFs), each with virtual ones (VFs), or taken whole.

A PF is a provider with as many units of SRIOV_NET_VF as it has VFs. Whoever wants one VF asks for one unit;
whoever wants the PF itself asks for all of them at once, and says with the trait CUSTOM_PF_WITH_<n>_VFS that
he means one that has no more. So the one excludes the other by arithmetic, in the claim itself.
"""

import msgspec

from bus.reports import Inventory
from bus.vocabulary import Count
from compute_sim.core.drivers.driver import DriverOptions, InUse, beside_cell
from compute_sim.core.provider_tree import ProviderTree, TreeMistake

VF = "SRIOV_NET_VF"


class PhysicalFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A port of a card."""

    device: str
    vfs: Count = 8
    network: str = ""  # the physical network it is plugged into
    cell: int = 0  # the NUMA cell it is near
    traits: tuple[str, ...] = ()


_TWO = (
    PhysicalFunction(device="ens1f0", network="physnet1"),
    PhysicalFunction(device="ens2f0", network="physnet2", cell=1),
)


class SriovDriver(DriverOptions, frozen=True, kw_only=True):
    functions: tuple[PhysicalFunction, ...] = _TWO

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        for one in self.functions:
            if one.vfs < 1:
                raise TreeMistake(f"{tree.name}: sriov.{one.device}.vfs: {one.vfs}; one at least")
            pf = tree.add(f"{tree.name}_{one.device}", beside_cell(tree, one.cell, f"sriov.{one.device}"))
            tree.give(pf, **{VF: Inventory(total=one.vfs, max_unit=one.vfs)})
            tree.mark(pf, "HW_NIC_SRIOV", with_vfs(one.vfs), *one.traits)
            if one.network:
                tree.mark(pf, f"CUSTOM_PHYSNET_{as_trait(one.network)}")


def with_vfs(count: int) -> str:
    """The trait of a PF with so many VFs: who asks for all of them under it, asks for the PF."""
    return f"CUSTOM_PF_WITH_{count}_VFS"


def as_trait(word: str) -> str:
    """`nvidia-35` as a trait has it: NVIDIA_35."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in word.upper())
