"""Physical GPUs that are cut into virtual ones: a provider for each type a GPU can be cut into.

A GPU runs one type at a time. The types of a GPU with several exclude each other by a trait: placement
refuses a claim of one while another is in use.
"""

import msgspec

from bus.reports import EXCLUDES_SIBLINGS, Inventory
from bus.vocabulary import Count
from compute_sim.core.drivers.driver import DriverOptions, InUse, beside_cell
from compute_sim.core.drivers.sriov import as_trait
from compute_sim.core.provider_tree import ProviderTree, TreeMistake


class PhysicalGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: str
    types: dict[str, Count]  # type: how many of them it can be cut into
    cell: int = 0
    traits: tuple[str, ...] = ()  # of each of its types


_TWO = (
    PhysicalGpu(device="gpu0", types={"nvidia-35": 16, "nvidia-37": 4}),
    PhysicalGpu(device="gpu1", types={"nvidia-35": 16}, cell=1),
)


class VgpuDriver(DriverOptions, frozen=True, kw_only=True):
    gpus: tuple[PhysicalGpu, ...] = _TWO

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        for gpu in self.gpus:
            at = f"{tree.name}: vgpu.{gpu.device}.types"
            if not gpu.types or min(gpu.types.values()) < 1:
                raise TreeMistake(f"{at}: one type at least, and one of each at least")
            if len({as_trait(type_) for type_ in gpu.types}) < len(gpu.types):
                raise TreeMistake(f"{at}: two that read alike in a trait")
            card = tree.add(f"{tree.name}_{gpu.device}", beside_cell(tree, gpu.cell, f"vgpu.{gpu.device}"))
            exclusive = (EXCLUDES_SIBLINGS,) if len(gpu.types) > 1 else ()
            for type_, total in gpu.types.items():
                one = tree.add(f"{card}_{type_}", card)
                tree.give(one, VGPU=Inventory(total=total, max_unit=total))
                tree.mark(one, f"CUSTOM_{as_trait(type_)}", *gpu.traits, *exclusive)
