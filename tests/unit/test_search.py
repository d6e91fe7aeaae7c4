"""The search equals full products in random worlds, also with exclusive siblings."""

from collections import Counter
from random import Random

import msgspec
import pytest

from bus.replication import ProviderChange
from bus.reports import EXCLUDES_SIBLINGS, Inventory
from placement_worker.core import ways as core_ways
from placement_worker.core.index import Index
from placement_worker.core.search import at_once, page_steps, search
from placement_worker.core.snapshot import ReservedAmounts, ReservedSnapshot, Snapshot
from placement_worker.core.trees import ProviderState, Tree
from tests.support.ids import uid
from tests.support.placement_builders import looking_for
from tests.support.plain_search import PlainSearch, way
from tests.support.provider_trees import a_query, a_world, an_index
from tests.support.search_answers import all_pages, as_way, taken

WORLDS, QUERIES = 60, 12  # for each of the seeds below


@pytest.mark.parametrize("wary", [core_ways.WARY, -1], ids=["", "dead ends remembered from the first"])
@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_what_full_products_find(
    seed: int, wary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_ways, "WARY", wary)
    chance = Random(seed)
    fruitful = 0
    for _ in range(WORLDS):
        world = a_world(chance)
        plain, index = PlainSearch(world), an_index(world)
        for _ in range(QUERIES):
            query = a_query(chance, world)
            expected = plain.search(query)
            found = search(index, query)
            assert Counter(map(as_way, found.fits)) == Counter(expected), query
            assert not found.cut
            for fit in found.fits:
                assert [row.uuid for row in fit.rows] == list(fit.allocations)
                assert fit.anchor.parent is None
            fruitful += bool(expected)
    assert fruitful > WORLDS * QUERIES // 5


@pytest.mark.parametrize("seed", range(3))
def test_removals_add_up_to_all_hosts(seed: int) -> None:
    chance = Random(100 + seed)
    for _ in range(WORLDS):
        world = a_world(chance)
        index = an_index(world)
        for _ in range(QUERIES):
            found = search(index, a_query(chance, world))
            left = found.considered
            assert left == len(world)
            for removal in found.removals:
                assert removal.removed > 0 and removal.left == left - removal.removed
                left = removal.left
            assert found.fitting == left
            assert bool(left) == bool(found.fits) != bool(found.nearest)


@pytest.mark.parametrize("seed", range(3))
def test_a_limit_gives_so_many_and_every_host_its_share(seed: int) -> None:
    chance = Random(200 + seed)
    for _ in range(WORLDS):
        world = a_world(chance)
        plain, index = PlainSearch(world), an_index(world)
        for _ in range(QUERIES):
            query = a_query(chance, world, limit=chance.randint(1, 12))
            by_anchor = plain.by_anchor(query)
            at_anchors = Counter(one for ways in by_anchor.values() for one in ways)
            found = search(index, query)
            told = [as_way(fit) for fit in found.fits]
            assert set(told) <= at_anchors.keys()
            assert len(set(told)) == len(told) == min(query.limit, len(at_anchors))
            assert found.cut == (len(at_anchors) > query.limit)
            offered = Counter(fit.anchor.uuid for fit in found.fits)
            for root, ways in by_anchor.items():
                its_own = sum(at_anchors[way] == 1 for way in ways)
                assert offered[root] >= min(its_own, query.limit // len(world))


@pytest.mark.parametrize("seed", range(3))
def test_pages_offer_each_host_once(seed: int) -> None:
    chance = Random(300 + seed)
    for _ in range(WORLDS):
        world = a_world(chance)
        plain, index = PlainSearch(world), an_index(world)
        for _ in range(QUERIES):
            query = a_query(chance, world, limit=chance.randint(2, 5))
            query = msgspec.structs.replace(query, per_host=chance.choice((1, 1, 2)))
            by_anchor = plain.by_anchor(query)
            pages = all_pages(index, query)
            assert all(len(page.candidates) <= query.limit for page in pages)
            found = [candidate for page in pages for candidate in page.candidates]
            times = Counter(candidate.root for candidate in found)
            for candidate in found:
                assert way(taken(candidate.allocations), {})[0] in {
                    amounts for amounts, _ in by_anchor[candidate.root]
                }
                assert candidate.shapes.keys() == candidate.allocations.keys()
                assert bool(candidate.mappings) == any(group.suffix for group in query.groups)
            at_anchors = Counter(one for ways in by_anchor.values() for one in ways)
            for root, ways in by_anchor.items():
                its_own = sum(at_anchors[one] == 1 for one in ways)
                assert min(its_own, query.per_host) <= times[root] <= min(len(ways), query.per_host)
            assert bool(found) == bool(at_anchors)


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
