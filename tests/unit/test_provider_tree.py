"""Differences between a report and placement, without contents from operators."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from bus.reports import Inventory
from bus.resources import Provider
from compute_sim.core.drivers import FlatDriver, NumaDriver, build_tree
from compute_sim.core.provider_tree import ProviderTree, answered, child_id, differences
from tests.support.ids import uid

ROOT, CELL0 = uid(1, "c"), child_id(uid(1, "c"), "h_numa0")
NUMA = NumaDriver(
    cells=1, vcpus=4, vcpu_ratio=1.0, pcpus=0, memory_mb=0, pages={}, disk_gb=9, traits=("COMPUTE_NODE",)
)


def stored_as(tree: ProviderTree) -> dict[str, Provider]:
    return {
        report.name: Provider(
            id=report.id, name=report.name, parent=report.parent, root=tree.root, generation=1,
            inventories=report.inventories, traits=report.traits, aggregates=report.aggregates,
        )
        for report in tree.report()
    }  # fmt: skip


def changed(provider: str, /, **fields: object) -> Callable[[dict[str, Provider]], None]:
    def change(stored: dict[str, Provider]) -> None:
        stored[provider] = replace(stored[provider], **fields)

    return change


def more(id_: str, **fields: object) -> Callable[[dict[str, Provider]], None]:
    def add(stored: dict[str, Provider]) -> None:
        stored[id_] = Provider(id=uid(9, "d"), name=id_, parent=ROOT, root=ROOT, generation=1, **fields)  # type: ignore[arg-type]

    return add


def without(name: str) -> Callable[[dict[str, Provider]], object]:
    return lambda stored: stored.pop(name)


HALF, SHUT = Inventory(total=4, reserved=2, max_unit=4), Inventory(total=4, reserved=4, max_unit=4)
DISK = {"DISK_GB": Inventory(total=9, max_unit=9)}
COMPARED = {
    "just as it was reported": (lambda stored: None, [], []),
    "a provider less": (without("h_numa0"), ["+h_numa0"], ["+h_numa0"]),
    "a class less": (changed("h", inventories={}), ["h: no → 9 DISK_GB"], ["h: no → 9 DISK_GB"]),
    "other figures": (
        changed("h", inventories={"DISK_GB": Inventory(total=8, max_unit=9)}),
        ["h: 8 → 9 DISK_GB"],
        ["h: 8 → 9 DISK_GB"],
    ),
    "a trait less, another more": (
        changed("h", traits=("CUSTOM_A",)),
        ["h: traits +COMPUTE_NODE, -CUSTOM_A"],
        ["h: traits +COMPUTE_NODE, -CUSTOM_A"],
    ),
    "an aggregate more": (
        changed("h", aggregates=(uid(5, "e"),)),
        [f"h: aggregates -{uid(5, 'e')}"],
        [f"h: aggregates -{uid(5, 'e')}"],
    ),
    "another parent": (
        changed("h_numa0", parent=uid(7, "c")),
        ["h_numa0: its name or parent"],
        ["h_numa0: its name or parent"],
    ),
    "what an operator put on it": (
        changed(
            "h",
            inventories={**DISK, "CUSTOM_X": Inventory(total=1)}, kept_classes=("CUSTOM_X",),
            traits=("COMPUTE_NODE", "CUSTOM_T"), kept_traits=("CUSTOM_T",),
            aggregates=(uid(5, "e"),), kept_aggregates=(uid(5, "e"),),
        ),
        [], [],
    ),
    "a trait that both want": (changed("h", kept_traits=("COMPUTE_NODE",)), [], []),
    "an operator's provider": (
        more("op", inventories={"CUSTOM_X": Inventory(total=1)}, kept_classes=("CUSTOM_X",)), [], [],
    ),
    "a provider of before, closed while it is in use": (more("old", inventories={"PCPU": SHUT}), [], []),
    "a provider of before, open": (more("old", inventories={"PCPU": HALF}), ["-old"], ["-old"]),
    "a class of before, closed while it is in use": (
        changed("h", inventories={**DISK, "PCPU": SHUT}), [], [],
    ),
    "more reserved than we say, as where some is withheld": (
        changed("h_numa0", inventories={"VCPU": HALF}), ["h_numa0: 2 → 4 VCPU"], [],
    ),
    "less reserved than we say": (
        changed("h_numa0", inventories={"VCPU": Inventory(total=5, max_unit=4)}),
        ["h_numa0: 5 → 4 VCPU"], ["h_numa0: 5 → 4 VCPU"],
    ),
    "taken in under another name, for another cell has ours": (changed("h", name="h@c1"), [], []),
}  # fmt: skip


@pytest.mark.parametrize("change, at_first, later", COMPARED.values(), ids=COMPARED.keys())
def test_what_is_told_as_different(
    change: Callable[[dict[str, Provider]], None], at_first: list[str], later: list[str]
) -> None:
    stored = stored_as(build_tree(ROOT, "h", [NUMA]))
    change(stored)
    (known,) = answered(stored.values()).values()
    tree = build_tree(ROOT, "h", [NUMA], known)
    assert sorted(differences(known, tree, closed_too=True)) == at_first
    assert sorted(differences(known, tree, closed_too=False)) == later


def test_what_others_put_there_is_seen_and_not_said() -> None:
    stored = stored_as(build_tree(ROOT, "h", [NUMA]))
    changed("h", traits=("COMPUTE_NODE", "CUSTOM_T"), kept_traits=("CUSTOM_T",))(stored)
    more("op", inventories={"CUSTOM_X": Inventory(total=1)}, kept_classes=("CUSTOM_X",))(stored)
    (known,) = answered(stored.values()).values()
    tree = build_tree(ROOT, "h", [NUMA], known)
    assert tree["h"].others.traits == {"CUSTOM_T"}
    assert [provider.name for provider in tree.others] == ["op"]
    assert [(report.name, report.traits) for report in tree.report()] == [
        ("h", ("COMPUTE_NODE",)),
        ("h_numa0", ("HW_NUMA_ROOT",)),
    ]


def test_what_a_driver_says_no_more_is_gone() -> None:
    (known,) = answered(stored_as(build_tree(ROOT, "h", [NUMA])).values()).values()
    flat = build_tree(ROOT, "h", [FlatDriver({"VCPU": Inventory(total=4)})], known)
    assert [report.name for report in flat.report()] == ["h"]
    assert sorted(differences(known, flat, closed_too=True)) == [
        "-h_numa0", "h: 9 → no DISK_GB", "h: no → 4 VCPU", "h: traits -COMPUTE_NODE",
    ]  # fmt: skip
