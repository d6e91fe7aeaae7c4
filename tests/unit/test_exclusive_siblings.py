"""Candidates of providers that exclude their siblings, with usage and reservations."""

from bus.replication import ProviderChange
from bus.reports import EXCLUDES_SIBLINGS, Inventory
from placement_worker.core.index import Index
from placement_worker.core.reservations import ReservedAmounts, ReservedSnapshot
from placement_worker.core.search import at_once, page_steps
from placement_worker.core.snapshot import Snapshot
from placement_worker.core.trees import ProviderState, Tree
from tests.support.ids import uid
from tests.support.placement_builders import looking_for

ROOT, CARD, SMALL, LARGE = uid(1, "a"), uid(2, "a"), uid(3, "a"), uid(4, "a")


def a_card() -> Index:
    index = Index()
    types = ((3, SMALL, "CUSTOM_SMALL"), (4, LARGE, "CUSTOM_LARGE"))
    providers = (
        ProviderState(1, ROOT, "h", None, 1, 1, {}, {}, (), ()),
        ProviderState(2, CARD, "card", ROOT, 1, 1, {}, {}, (), ()),
        *(
            ProviderState(
                id_, uuid, trait, CARD, 1, 1, {"VGPU": Inventory(total=4)}, {}, (EXCLUDES_SIBLINGS, trait), ()
            )
            for id_, uuid, trait in types
        ),
    )
    index.put(Tree(ROOT, "h", "c1", "a1", "", 1, False, providers), 1)
    return index


def offered(index: Index, snapshot: Snapshot | None = None) -> set[str]:
    """Return the providers that candidates name, over both types."""
    found: set[str] = set()
    for trait in ("CUSTOM_SMALL", "CUSTOM_LARGE"):
        query = looking_for({"VGPU": 1}, required=(trait,))
        for candidate in at_once(page_steps(snapshot or Snapshot(index), query)).candidates:
            found.update(candidate.allocations)
    return found


def test_a_type_in_use_removes_the_other_until_it_is_released() -> None:
    index = a_card()
    assert offered(index) == {SMALL, LARGE}
    assert not index.use(ProviderChange(SMALL, ROOT, 2, {"VGPU": 1}), 2)
    assert offered(index) == {SMALL}
    assert index.use(ProviderChange(SMALL, ROOT, 3, {"VGPU": 0}), 3)
    assert offered(index) == {SMALL, LARGE}


def test_a_reserved_type_removes_the_other() -> None:
    index, reserved_amounts = a_card(), ReservedAmounts()
    reserved_amounts.add({LARGE: {"VGPU": 1}})
    assert offered(index, ReservedSnapshot(index, reserved_amounts)) == {LARGE}
    reserved_amounts.withdraw({LARGE: {"VGPU": 1}})
    assert offered(index, ReservedSnapshot(index, reserved_amounts)) == {SMALL, LARGE}
