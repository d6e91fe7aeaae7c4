"""Network cards with SR-IOV: a physical function (PF) can be split into virtual functions (VFs) or used
whole.

A PF is a provider with one unit of SRIOV_NET_VF for each VF. A request for one VF asks for one unit. A
request for the whole PF asks for all units, with the trait CUSTOM_PF_WITH_<n>_VFS to select a PF of exactly
that size. So the claim itself excludes using a PF both ways.
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
    network: str = ""  # the physical network of the port
    cell: int = 0  # the nearest NUMA cell
    traits: tuple[str, ...] = ()


_TWO = (
    PhysicalFunction(device="ens1f0", network="physnet1"),
    PhysicalFunction(device="ens2f0", network="physnet2", cell=1),
)


class SriovDriver(DriverOptions, frozen=True, kw_only=True):
    functions: tuple[PhysicalFunction, ...] = _TWO

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        for function in self.functions:
            if function.vfs < 1:
                raise TreeMistake(f"{tree.name}: sriov.{function.device}.vfs: {function.vfs}; one at least")
            pf = tree.add(
                f"{tree.name}_{function.device}", beside_cell(tree, function.cell, f"sriov.{function.device}")
            )
            tree.give(pf, **{VF: Inventory(total=function.vfs, max_unit=function.vfs)})
            tree.mark(pf, "HW_NIC_SRIOV", with_vfs(function.vfs), *function.traits)
            if function.network:
                tree.mark(pf, f"CUSTOM_PHYSNET_{as_trait(function.network)}")


def with_vfs(count: int) -> str:
    """Return the trait of a PF with so many VFs; a request for the whole PF requires it."""
    return f"CUSTOM_PF_WITH_{count}_VFS"


def as_trait(word: str) -> str:
    """Return a word in the form of a trait: NVIDIA_35 for `nvidia-35`."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in word.upper())
