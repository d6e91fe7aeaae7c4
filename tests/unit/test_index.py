"""The index finds the same candidates as a plain search, with reasons if there are none."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.codec import encode
from bus.decisions import NearMiss, Removal
from bus.protocol import MAX_MESSAGE_BYTES
from bus.queries import CandidatesFound, FindCandidates
from bus.replication import ProviderChange
from bus.reports import Inventory
from bus.requests import ResourceGroup
from placement_worker.core.index import FIRST_ROWS, Index
from placement_worker.core.search import page
from placement_worker.core.trees import ProviderState, Tree
from tests.support.ids import uid
from tests.support.placement_builders import looking_for

CLASSES = ("VCPU", "MEMORY_MB", "CUSTOM_GPU")
TRAITS = ("HW_A", "HW_B", "CUSTOM_C")
AGGREGATES = (uid(1, "e"), uid(2, "e"))
CELLS = ("c1", "c2")


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
    for tree in trees:
        index.put(tree, 1)
    return index


def fits(tree: Tree, query: FindCandidates) -> bool:
    """The few lines that are obviously right."""
    (host,), (group,) = tree.providers, query.groups
    return (
        query.cell in ("", tree.cell)
        and set(group.required) <= set(host.traits)
        and not set(group.forbidden) & set(host.traits)
        and all(set(choice) & set(host.aggregates) for choice in group.member_of)
        and all(
            name in host.inventories
            and host.used.get(name, 0) + asked <= host.inventories[name].capacity
            and host.inventories[name].min_unit <= asked <= host.inventories[name].max_unit
            and asked % host.inventories[name].step_size == 0
            for name, asked in group.resources.items()
        )
    )


inventories = st.builds(
    lambda total, reserved, ratio, least, most, step: Inventory(
        total=total,
        reserved=min(reserved, total),
        allocation_ratio=ratio,
        min_unit=least,
        max_unit=most,
        step_size=step,
    ),
    st.integers(0, 12),
    st.sampled_from([0, 0, 2, 12]),
    st.sampled_from([1.0, 1.5, 3e38]),
    st.sampled_from([1, 1, 1, 2]),
    st.sampled_from([2**31 - 1, 2**31 - 1, 3]),
    st.sampled_from([1, 1, 1, 3]),
)


@st.composite
def trees(draw: st.DrawFn, number: int) -> Tree:
    stock = draw(st.dictionaries(st.sampled_from(CLASSES), inventories, min_size=1))
    used = {name: draw(st.integers(0, 14)) for name in stock}
    traits = draw(st.sets(st.sampled_from(TRAITS)))
    aggregates = draw(st.sets(st.sampled_from(AGGREGATES)))
    return a_tree(
        number, stock, used, tuple(sorted(traits)), tuple(sorted(aggregates)), draw(st.sampled_from(CELLS))
    )


@st.composite
def fleets(draw: st.DrawFn) -> list[Tree]:
    return [draw(trees(number)) for number in range(draw(st.integers(0, 12)))]


@st.composite
def queries(draw: st.DrawFn) -> FindCandidates:
    asked = draw(st.dictionaries(st.sampled_from((*CLASSES, "CUSTOM_NONE")), st.integers(1, 6), min_size=1))
    some_traits = st.lists(st.sampled_from((*TRAITS, "CUSTOM_NONE")), max_size=2, unique=True).map(tuple)
    some_aggregates = st.lists(st.sampled_from((*AGGREGATES, uid(3, "e"))), min_size=1, unique=True).map(
        tuple
    )
    required = draw(some_traits)
    group = ResourceGroup(
        resources=asked,
        required=required,
        forbidden=tuple(trait for trait in draw(some_traits) if trait not in required),
        member_of=tuple(draw(st.lists(some_aggregates, max_size=2))),
    )
    return FindCandidates(
        groups=(group,), cell=draw(st.sampled_from(("", *CELLS, "c3"))), seed=draw(st.text(max_size=3))
    )


def pages(index: Index, query: FindCandidates, limit: int) -> list[CandidatesFound]:
    found = [page(index, FindCandidates(groups=query.groups, cell=query.cell, seed=query.seed, limit=limit))]
    while found[-1].more is not None:
        assert len(found) < 100
        found.append(
            page(
                index,
                FindCandidates(
                    groups=query.groups, cell=query.cell, seed=query.seed, limit=limit, after=found[-1].more
                ),
            )
        )
    return found


@settings(max_examples=150, deadline=None)
@given(fleets(), queries(), st.integers(1, 5))
def test_pages_offer_each_host_that_fits_exactly_once(
    fleet: list[Tree], query: FindCandidates, limit: int
) -> None:
    index = index_of(*fleet)
    expected = sorted(tree.host for tree in fleet if fits(tree, query))
    found = pages(index, query, limit)
    assert sorted(candidate.host for some in found for candidate in some.candidates) == expected
    for some in found:
        assert some.fitting == len(expected)
        assert some.considered == len(fleet)
        assert len(some.candidates) <= limit
    left = len(fleet)
    for removal in found[0].removals:
        assert removal.removed > 0 and removal.left == left - removal.removed
        left = removal.left
    assert left == len(expected)
    assert bool(found[0].nearest) == (not expected and bool(fleet))


@pytest.mark.parametrize("limit", [1, 5, 12, 13])
@pytest.mark.parametrize("seed", ["", "a", "bc", "q", "zz"])
def test_pages_go_once_round_from_wherever_they_begin(seed: str, limit: int) -> None:
    index = index_of(*(a_tree(number) for number in range(13)))
    query = FindCandidates(groups=looking_for({"VCPU": 1}).groups, seed=seed)
    hosts = [candidate.host for page in pages(index, query, limit) for candidate in page.candidates]
    begin = int(hosts[0].removeprefix("host-"))
    assert hosts == [f"host-{(begin + step) % 13}" for step in range(13)]


changes = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["use", "put", "drop"]), st.integers(0, 9)), max_size=25
)


@settings(max_examples=100, deadline=None)
@given(changes, st.randoms(use_true_random=False))
def test_changes_lead_to_the_same_index_in_whatever_order_they_arrive(
    steps: list[tuple[int, str, int]], chance: object
) -> None:
    stands: dict[int, Tree] = {}
    commits: list[tuple[int, tuple[ProviderChange, ...], dict[str, Tree]]] = []
    for number, (host, step, figure) in enumerate(steps, 1):
        root = uid(host, "a")
        before = stands.get(host)
        if step == "use" and before is not None:
            provider = replace(before.providers[0], used={"VCPU": figure}, generation=number)
            stands[host] = replace(before, providers=(provider,))
            change, shaped = ProviderChange(root, root, number, {"VCPU": figure}), {}
        elif step == "drop" and before is not None:
            del stands[host]
            change = ProviderChange(root, root, number, {}, True, True)
            shaped = {root: replace(before, providers=())}
        else:
            used = before.providers[0].used if before is not None else {"VCPU": 0}
            tree = a_tree(host, {"VCPU": Inventory(total=20 + figure)}, used, shape=number)
            stands[host] = replace(tree, providers=(replace(tree.providers[0], generation=number),))
            change, shaped = ProviderChange(root, root, number, used, True), {root: stands[host]}
        commits.append((number, (change,), shaped))
    straight, shuffled = Index(), Index()
    for commit in commits:
        straight.accept(*commit)
    for at in range(len(commits) - 1):
        if chance.random() < 0.5:  # type: ignore[attr-defined]
            commits[at], commits[at + 1] = commits[at + 1], commits[at]
    for commit in commits:
        shuffled.accept(*commit)
    assert straight.seen == shuffled.seen == len(steps)

    def offered(index: Index) -> dict[str, object]:
        return {
            candidate.root: (candidate.free, candidate.shapes)
            for candidate in page(index, looking_for({"VCPU": 1})).candidates
        }

    fresh = index_of(*stands.values())
    assert offered(straight) == offered(fresh)
    assert offered(shuffled) == offered(fresh)
    assert {uuid: row.free for uuid, row in shuffled.rows.items()} == {
        uuid: row.free for uuid, row in fresh.rows.items()
    }


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


def test_an_answer_stays_small_enough_to_travel() -> None:
    traits = tuple(f"CUSTOM_{number:04d}_{'X' * 60}" for number in range(100))
    index = index_of(*(a_tree(number, traits=traits) for number in range(300)))
    found = pages(index, looking_for({"VCPU": 1}), 256)
    assert sum(len(page.candidates) for page in found) == 300
    assert all(len(page.candidates) < 120 for page in found)


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
            constraint="VCPU: 10 free",
            removed=4,
            left=0,
            code="class",
            hosts=("host-1", "host-2", "host-5"),
        ),
    )
    assert found.nearest == (
        NearMiss(host="host-3", lacks="cell c1", code="cell"),
        NearMiss(host="host-4", lacks="trait HW_A", code="trait"),
        NearMiss(host="host-1", lacks="2 VCPU: asked 10, free 8", code="class"),
        NearMiss(host="host-6", lacks="a fitting max_unit: asked 10 VCPU, max_unit 4", code="class"),
        NearMiss(host="host-2", lacks="7 VCPU: asked 10, free 3", code="class"),
    )


def test_who_wants_metal_is_told_of_nodes_that_are_taken_not_of_hypervisors() -> None:
    node = {"CUSTOM_METAL": Inventory(total=1)}
    index = index_of(
        *(a_tree(number, {"VCPU": Inventory(total=64)}) for number in range(1, 9)),
        *(a_tree(number, node, {"CUSTOM_METAL": 1}) for number in (20, 21)),
    )
    found = page(index, looking_for({"CUSTOM_METAL": 1}))
    assert [miss.host for miss in found.nearest[:2]] == ["host-20", "host-21"]
    assert found.nearest[0].lacks == "1 CUSTOM_METAL: asked 1, free 0"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (looking_for({"CUSTOM_NONE": 1}), "resource class CUSTOM_NONE: nobody has it"),
        (looking_for({"VCPU": 1}, required=("CUSTOM_NONE",)), "trait CUSTOM_NONE: nobody has it"),
        (looking_for({"VCPU": 1}, member_of=((uid(9, "e"),),)), f"aggregate {uid(9, 'e')}"),
        (looking_for({"VCPU": 1}, cell="c9"), "cell c9"),
    ],
)
def test_what_nobody_has_fits_nowhere_and_is_named(query: FindCandidates, says: str) -> None:
    found = page(index_of(a_tree(1)), query)
    (removal,) = found.removals
    assert (removal.constraint, removal.removed, removal.left) == (says, 1, 0)
    assert (found.fitting, found.considered, len(found.nearest)) == (0, 1, 1)


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
