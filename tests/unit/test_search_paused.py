"""A search that is paused while the trees change ends as if nothing had happened."""

from dataclasses import replace
from random import Random

import pytest

from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from placement_worker.core import search as searching
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.search import answer, search_steps
from placement_worker.core.trees import Tree
from tests.support.ids import uid
from tests.support.plain_search import as_way
from tests.support.provider_trees import a_query, a_world, an_index, search, state, tree


@pytest.fixture(autouse=True)
def pauses_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "IN_A_ROW", 1)
    monkeypatch.setattr("placement_worker.core.assignment.BREATH", 2)


def upset(chance: Random, index: Index, world: list[Tree], number: int) -> None:
    """A tree goes, or is another, or loses a provider to another tree; a new one takes the free places."""
    one = chance.choice(world)
    step = chance.random()
    if step < 0.3:
        index.put(replace(one, providers=()), number)
    elif step < 0.6:
        shaped = [replace(each, inventories={}, used={}, shape=number) for each in one.providers]
        index.put(replace(one, providers=tuple(shaped)), number)
    elif step < 0.8 and len(one.providers) > 1:
        moved = replace(one.providers[-1], parent=None, shape=number)
        index.put(tree(moved), number)
        index.put(replace(one, providers=one.providers[:-1]), number)
    else:
        index.put(tree(state(900 + number, None, {"VCPU": 8, "MEMORY_MB": 8, "CUSTOM_VF": 8})), number)


@pytest.mark.parametrize("seed", range(4))
def test_trees_that_change_in_a_pause_are_searched_as_they_were(seed: int) -> None:
    chance = Random(seed)
    paused = 0
    for _ in range(30):
        world = a_world(chance)
        query = a_query(chance, world)
        index, calm = an_index(world), an_index(world)
        expected = search(calm, query)
        snapshot = Snapshot(index)
        steps, number = search_steps(snapshot, query), 10
        try:
            next(steps)
            with snapshot.held():
                while True:
                    paused, number = paused + 1, number + 1
                    upset(chance, index, world, number)
                    next(steps)
        except StopIteration as end:
            found = end.value
        assert [as_way(fit) for fit in found.fits] == [as_way(fit) for fit in expected.fits]
        assert (found.removals, found.nearest) == (expected.removals, expected.nearest)
        assert index.snapshots == []
    assert paused


def wide(children: int) -> Tree:
    return tree(state(0), *(state(position, 0, {"CUSTOM_VF": 4}) for position in range(1, children + 1)))


def test_a_complete_answer_is_not_marked_as_cut() -> None:
    query = FindCandidates(groups=(ResourceGroup(resources={"CUSTOM_VF": 3}),))
    found = answer(search(an_index([wide(3)]), query))
    assert ([candidate.root for candidate in found.candidates], found.cut) == ([uid(0, "a")] * 3, False)
