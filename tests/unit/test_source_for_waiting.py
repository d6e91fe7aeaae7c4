"""The candidate source for waiting requests: hosts with more free capacity, and hosts that could ever fit."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from bus.replication import ProviderChange
from placement_worker.core.index import Index
from placement_worker.core.trees import Tree
from placement_worker.source import IndexedSource
from tests.support.ids import uid
from tests.support.provider_trees import SHARES, a_query, a_world, an_index, state, tree
from tests.unit.test_source import Remembered, offered, source_of

WORLDS, QUERIES = 60, 5


def emptied(world: Sequence[Tree]) -> list[Tree]:
    return [
        replace(tree, providers=tuple(replace(p, used=dict.fromkeys(p.used, 0)) for p in tree.providers))
        for tree in world
    ]


def test_an_empty_search_finds_what_would_fit_if_nobody_used_anything() -> None:
    chance, more = Random(4), 0
    for _ in range(WORLDS):
        world = a_world(chance)
        source, empty = source_of(world), source_of(emptied(world))
        for _ in range(QUERIES):
            query = a_query(chance, world)
            found = offered(source.search(query, empty=True), query)
            assert found == offered(empty.search(query), query)
            more += len(found) > len(offered(source.search(query), query))
    assert more > 3


def test_free_amounts_of_a_root_ignore_reservations() -> None:
    world = [
        tree(state(1, None, {"VCPU": 8}, {"VCPU": 3}), state(2, 1, {"VCPU": 4, "DISK_GB": 9})),
        tree(state(3, None, {"VCPU": 2})),
    ]
    source = source_of(world)
    source.reserve({uid(3, "a"): {"VCPU": 2}})
    assert source.free(uid(1, "a")) == {"VCPU": 9, "DISK_GB": 9}
    assert source.free(uid(3, "a")) == {"VCPU": 2}
    assert source.free(uid(2, "a")) == {}  # no root
    assert [source.having("VCPU", amount) for amount in (2, 5, 6)] == [3, 1, 0]


def test_sharing_providers_are_known_with_their_amounts() -> None:
    pool = state(5, 4, {"DISK_GB": 9}, traits=(SHARES,), aggregates=(1, 2))
    source = source_of([tree(state(4), pool), tree(state(6, None, {"VCPU": 1}))])
    assert source.sharing == {uid(4, "a"): {"DISK_GB"}}


ROOT, CHILD = uid(1, "a"), uid(2, "a")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 3}), False),  # more is used
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 2}), False),
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 1}), True),
        (ProviderChange(CHILD, ROOT, 2, {}), True),
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 3, "DISK_GB": 0}), True),
        (ProviderChange(CHILD, ROOT, 2, {"VCPU": 3}, reshaped=True), True),
    ],
)
def test_only_where_there_is_more_or_something_else_is_told(change: ProviderChange, told: bool) -> None:
    used = {"VCPU": 2, "DISK_GB": 1} if "DISK_GB" in change.used else {"VCPU": 2}
    world = tree(state(1), state(2, 1, dict.fromkeys(used, 4), used))
    memory = Remembered(an_index([world]))
    source, heard = IndexedSource(memory), list[str]()
    source.watch_for_more(lambda roots, aggregates: heard.extend(roots))
    memory.watchers[0]((), ())
    for number in (2, 3):  # the second time nothing is new
        tell(memory, number, change)
    assert heard == ([ROOT] if told else [])
    memory.index = Index()
    memory.watchers[0]((ROOT,), ())  # read all anew
    assert heard[-1] == ROOT


def tell(memory: Remembered, number: int, change: ProviderChange) -> None:
    if number == 3:
        change = ProviderChange(CHILD, ROOT, 2, dict(memory.index.rows[CHILD].used))
    roots = memory.index.accept(number, (change,))
    memory.watchers[0](tuple(roots), ())
