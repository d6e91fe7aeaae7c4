"""Provider trees without a database, in memory for edits."""

from typing import Any

from bus.reports import Inventory
from placement_worker.core.trees import KnownNames, ProviderState, Tree, WorkingTrees

KNOWN = KnownNames(
    {"VCPU": 0, "MEMORY_MB": 1, "DISK_GB": 2, "CUSTOM_GPU": 10_000}, {"HW_A": 1, "HW_B": 2, "CUSTOM_GOLD": 3}
)
EIGHT = Inventory(total=8)
STOCK = {"VCPU": EIGHT, "DISK_GB": Inventory(total=100)}


def a_provider_state(uuid: str, parent: str | None = None, taken: int = 0, **given: Any) -> ProviderState:
    fields: dict[str, Any] = {
        "id": ord(uuid[0]),
        "uuid": uuid,
        "name": f"{uuid}'s name",
        "parent": parent,
        "generation": 5,
        "shape": 7,
        "inventories": STOCK,
        "used": {"VCPU": taken, "DISK_GB": 0},
        "traits": ("HW_A",),
        "aggregates": ("x",),
    }
    return ProviderState(**(fields | given))


def a_forest(*trees: tuple[ProviderState, ...], number: int = 40) -> WorkingTrees:
    read = {tree[0].uuid: Tree(tree[0].uuid, providers=tree) for tree in trees}
    names = {provider.name: provider.uuid for tree in trees for provider in tree}
    return WorkingTrees(read, names, {provider.uuid for tree in trees for provider in tree}, number)


def small() -> WorkingTrees:
    """Two trees: a above b above c, some of c in use; and d alone."""
    return a_forest(
        (a_provider_state("a"), a_provider_state("b", "a"), a_provider_state("c", "b", taken=3)),
        (a_provider_state("d"),),
    )
