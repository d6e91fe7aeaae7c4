"""The index of hosts: pages, removals, changes, and free memory that stays with the process."""

import random
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from bus.candidates import Ints
from bus.codec import encode
from bus.decisions import NearMiss, Removal
from bus.protocol import MAX_MESSAGE_BYTES
from bus.queries import CandidatesFound, FindCandidates
from bus.replication import KnownTrees, ProviderChange
from bus.reports import Inventory
from placement_worker.core.compact_trees import CARRIED, CARRIED_ROOM, ROOM, carried, unpacked
from placement_worker.core.index import Index
from placement_worker.core.row_table import FIRST_ROWS
from placement_worker.core.search import page
from placement_worker.core.trees import ProviderState, Tree
from scheduler_worker.core.host_map import Uints
from scheduler_worker.core.ranking_order import AHEAD, FIRST_PAGE, Frontier
from tests.support.ids import uid
from tests.support.placement_builders import looking_for
from tests.support.provider_trees import state, tree


def a_tree(
    number: int,
    inventories: dict[str, Inventory] | None = None,
    used: dict[str, int] | None = None,
    traits: tuple[str, ...] = (),
    aggregates: tuple[str, ...] = (),
    cell: str = "c1",
    shape: int = 1,
) -> Tree:
    root = uid(number, "a")
    inventories = {"VCPU": Inventory(total=8)} if inventories is None else inventories
    provider = ProviderState(
        number, root, f"host-{number}", None, 1, shape, inventories, used or {}, traits, aggregates
    )
    return Tree(root, f"host-{number}", cell, f"agent-{number}", "", 1, False, (provider,))


def index_of(*trees: Tree) -> Index:
    index = Index()
    for each in trees:
        index.put(each, 1)
    return index


def pages(index: Index, query: FindCandidates, limit: int) -> list[CandidatesFound]:
    query = msgspec.structs.replace(query, limit=limit)
    found = [page(index, query)]
    while found[-1].more is not None:
        assert len(found) < 100
        found.append(page(index, msgspec.structs.replace(query, after=found[-1].more)))
    return found


@pytest.mark.parametrize("limit", [1, 5, 12, 13])
@pytest.mark.parametrize("seed", ["", "a", "bc", "q", "zz"])
def test_pages_go_once_round_from_wherever_they_begin(seed: str, limit: int) -> None:
    index = index_of(*(a_tree(number) for number in range(13)))
    query = FindCandidates(groups=looking_for({"VCPU": 1}).groups, seed=seed)
    hosts = [candidate.host for page in pages(index, query, limit) for candidate in page.candidates]
    begin = int(hosts[0].removeprefix("host-"))
    assert hosts == [f"host-{(begin + step) % 13}" for step in range(13)]


def test_a_change_is_taken_in_once_and_a_hole_is_remembered() -> None:
    index = index_of(a_tree(1))
    root = uid(1, "a")
    index.accept(1, [ProviderChange(root, root, 2, {"VCPU": 1})])
    index.accept(3, [ProviderChange(root, root, 4, {"VCPU": 3})])
    index.accept(3, [ProviderChange(root, root, 4, {"VCPU": 7})])
    assert (index.seen, index.knows(3), index.knows(2)) == (1, True, False)
    assert index.rows[root].free == {"VCPU": 5}
    index.accept(2, [ProviderChange(root, root, 3, {"VCPU": 2})])
    assert index.seen == 3
    assert index.rows[root].free == {"VCPU": 5}


def test_rows_are_used_again_and_the_arrays_grow() -> None:
    many = FIRST_ROWS + 10
    index = index_of(*(a_tree(number, traits=("HW_A",)) for number in range(many)))
    query = looking_for({"VCPU": 1}, required=("HW_A",), limit=5000)
    assert page(index, query).fitting == many
    for number in range(100):
        index.put(replace(a_tree(number), providers=()), 2)
    assert page(index, query).fitting == many - 100
    for number in range(100):
        index.put(a_tree(10_000 + number), 3)
    assert index.high == many
    assert page(index, query).fitting == many - 100
    assert page(index, looking_for({"VCPU": 1})).fitting == many


def test_seeds_begin_at_different_hosts_and_the_same_seed_at_the_same() -> None:
    index = index_of(*(a_tree(number) for number in range(500)))
    query = looking_for({"VCPU": 1}, limit=1)

    def first(seed: str) -> str:
        return page(index, FindCandidates(groups=query.groups, limit=1, seed=seed)).candidates[0].host

    begins = [first(f"seed-{number}") for number in range(50)]
    assert len(set(begins)) > 40
    assert begins == [first(f"seed-{number}") for number in range(50)]


def test_why_nothing_fits() -> None:
    index = index_of(
        a_tree(1, {"VCPU": Inventory(total=8)}, traits=("HW_A",)),
        a_tree(2, {"VCPU": Inventory(total=8)}, {"VCPU": 5}, traits=("HW_A",)),
        a_tree(3, {"VCPU": Inventory(total=64)}, traits=("HW_A",), cell="c2"),
        a_tree(4, {"VCPU": Inventory(total=64)}),
        a_tree(5, {"CUSTOM_GPU": Inventory(total=1)}, traits=("HW_A",)),
        a_tree(6, {"VCPU": Inventory(total=64, max_unit=4)}, traits=("HW_A",)),
    )
    found = page(index, looking_for({"VCPU": 10}, required=("HW_A",), cell="c1"))
    assert found.removals == (
        Removal(constraint="cell c1", removed=1, left=5, about="cell", code="cell", hosts=("host-3",)),
        Removal(constraint="trait HW_A", removed=1, left=4, code="trait", hosts=("host-4",)),
        Removal(
            constraint="VCPU: 10 free", removed=4, left=0, code="class", hosts=("host-1", "host-2", "host-5")
        ),
    )
    assert found.nearest == (
        NearMiss(host="host-3", lacks="cell c1", code="cell"),
        NearMiss(host="host-4", lacks="trait HW_A", code="trait"),
        NearMiss(host="host-1", lacks="2 VCPU: asked 10, free 8", code="class"),
        NearMiss(host="host-6", lacks="a fitting max_unit: asked 10 VCPU, max_unit 4", code="class"),
        NearMiss(host="host-2", lacks="7 VCPU: asked 10, free 3", code="class"),
    )


def test_near_misses_of_a_node_request_are_nodes_in_use() -> None:
    node = {"CUSTOM_METAL": Inventory(total=1)}
    index = index_of(
        *(a_tree(number, {"VCPU": Inventory(total=64)}) for number in range(1, 9)),
        *(a_tree(number, node, {"CUSTOM_METAL": 1}) for number in (20, 21)),
    )
    found = page(index, looking_for({"CUSTOM_METAL": 1}))
    assert [miss.host for miss in found.nearest[:2]] == ["host-20", "host-21"]
    assert found.nearest[0].lacks == "1 CUSTOM_METAL: asked 1, free 0"


def test_a_page_fits_a_message_however_long_the_names_are() -> None:
    classes = [f"CUSTOM_{'X' * 240}{number}" for number in range(10)]
    trees = [a_tree(number, {name: Inventory(total=8) for name in classes}) for number in range(300)]
    index = index_of(*(replace(tree, zone="z" * 255, agent="a" * 64) for tree in trees))
    query = looking_for(dict.fromkeys(classes, 1), limit=300)
    seen: list[str] = []
    after: int | None = 0
    while after is not None:
        found = page(index, the_page(query, after))
        assert len(encode(found)) < MAX_MESSAGE_BYTES
        seen += [candidate.root for candidate in found.candidates]
        after = found.more
    assert len(seen) == len(set(seen)) == 300


def the_page(query: FindCandidates, after: int) -> FindCandidates:
    return FindCandidates(groups=query.groups, limit=query.limit, after=after)


MANY = 6 * AHEAD * FIRST_PAGE


@pytest.mark.parametrize("count", [0, 1, FIRST_PAGE, 3 * FIRST_PAGE, MANY])
@pytest.mark.parametrize("levels", [1, 2, 4, 40, 10**9], ids=lambda levels: f"{levels} worths")
def test_all_pages_together_are_the_order(count: int, levels: int) -> None:
    chance = random.Random(f"{count} {levels}")
    worth = np.array([chance.randrange(levels) / 7 for _ in range(2 * count)])
    ties: Uints = np.array(chance.sample(range(10**6), 2 * count), np.uint64)
    among = np.array(sorted(chance.sample(range(2 * count), count)), np.intp)

    def its_ties(indices: Ints) -> Uints:
        return ties[indices]

    frontier, seen, pages = Frontier(worth, among, its_ties), list[int](), list[int]()
    while (page := frontier.page())[0].size:
        assert page[1].tolist() == ties[page[0]].tolist()
        seen += page[0].tolist()
        pages.append(page[0].size)
    assert seen == sorted(among.tolist(), key=lambda index: (-worth[index], ties[index]))
    assert not pages or min(pages[0], count) <= 2 * FIRST_PAGE


ROUNDS = 20
WORK = f"""
import resource, sys
import numpy as np
from berth.services import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def batch():
    arrays = [np.ones(10_000) for _ in range(40)]
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    batch()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // {ROUNDS})
"""


def faults_a_batch(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", WORK, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is glibc's")
def test_freed_memory_stays_with_the_process() -> None:
    assert faults_a_batch("kept") < 100  # of 800 pages


def host(number: int, *, children: int = 0, traits: int = 0) -> Tree:
    """With so many bytes of traits."""
    said = [f"CUSTOM_{index:092}" for index in range(traits // 100)]
    some = [state(100 * number + index, number, {"CUSTOM_VF": 4}) for index in range(1, children + 1)]
    return tree(state(number, None, {"VCPU": 8}, {"VCPU": 2}, said), *some)


def hosts(count: int) -> list[Tree]:
    return [host(number) for number in range(1, count + 1)]


def gone(number: int) -> Tree:
    return replace(host(number), providers=())


def as_told(tree: Tree) -> Tree:
    return replace(tree, providers=tuple(replace(provider, id=0) for provider in tree.providers))


@pytest.mark.parametrize(
    ("trees", "go"),
    [
        pytest.param([], False, id="none"),
        pytest.param([host(1)], True, id="one"),
        pytest.param([host(1), host(2, children=3), host(3)], True, id="some"),
        pytest.param([gone(1), host(2)], True, id="one that is gone"),
        pytest.param([host(1, children=CARRIED - 1)], True, id="as many providers as may go"),
        pytest.param([host(1, children=CARRIED)], False, id="one provider more"),
        pytest.param(hosts(CARRIED), True, id="as many hosts as may go"),
        pytest.param(hosts(CARRIED + 1), False, id="one host more"),
        pytest.param([host(1, traits=CARRIED_ROOM // 2)], True, id="a large one"),
        pytest.param([host(1, traits=CARRIED_ROOM)], False, id="one that is too large"),
        pytest.param([host(1), host(2, traits=ROOM)], False, id="one that no answer would hold, either"),
    ],
)
def test_few_and_small_ones_go_along(trees: list[Tree], go: bool) -> None:
    packed = carried(trees)
    assert (packed is not None) == go
    if packed is not None:
        arrived = msgspec.json.decode(msgspec.json.encode(packed), type=KnownTrees)
        assert [tree for tree, left_out in unpacked(arrived) if not left_out] == list(map(as_told, trees))
