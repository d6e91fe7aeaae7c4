"""Packed trees equal the originals; only few and small ones are part of change messages."""

from dataclasses import replace

import msgspec
import pytest

from bus.replication import KnownTrees
from placement_worker.core.compact_trees import CARRIED, CARRIED_ROOM, ROOM, carried, unpacked
from placement_worker.core.trees import Tree
from tests.support.provider_trees import state, tree


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
