"""Physical GPUs that are cut into virtual ones: a provider for each type a GPU can be cut into.

A GPU is cut into one type at a time. Where it offers one, that is exact. Where it offers several, the first
guest decides: the other types are closed at once, and what was claimed of them meanwhile is refused here. No
choice of units could make placement refuse it: if m of one type fit and n of another, so do half of each.
"""

import msgspec

from bus.reports import Inventory
from bus.vocabulary import Count
from compute_sim.core.drivers.driver import DriverOptions, InUse, beside_cell
from compute_sim.core.drivers.sriov import as_trait
from compute_sim.core.provider_tree import ProviderTree, TreeMistake, child_id


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

    @property
    def follows_use(self) -> bool:
        return any(len(gpu.types) > 1 for gpu in self.gpus)

    def update_provider_tree(self, tree: ProviderTree, in_use: InUse) -> None:
        for gpu in self.gpus:
            at = f"{tree.name}: vgpu.{gpu.device}.types"
            if not gpu.types or min(gpu.types.values()) < 1:
                raise TreeMistake(f"{at}: one type at least, and one of each at least")
            if len({as_trait(type_) for type_ in gpu.types}) < len(gpu.types):
                raise TreeMistake(f"{at}: two that read alike in a trait")
            card = tree.add(f"{tree.name}_{gpu.device}", beside_cell(tree, gpu.cell, f"vgpu.{gpu.device}"))
            names = {type_: f"{card}_{type_}" for type_ in gpu.types}
            cut = {type_ for type_, name in names.items() if in_use(child_id(tree.root, name)).get("VGPU")}
            for type_, total in gpu.types.items():
                one = tree.add(names[type_], card)
                closed = total if cut and type_ not in cut else 0
                tree.give(one, VGPU=Inventory(total=total, reserved=closed, max_unit=total))
                tree.mark(one, f"CUSTOM_{as_trait(type_)}", *gpu.traits)
