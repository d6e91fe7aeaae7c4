"""The assignment of free nodes to agents: few changes, and equal shares."""

from collections import Counter

import pytest

from features.shared_nodes.core.ring import dealt
from tests.support.ids import uid

NODES = [uid(number, "c") for number in range(1000)]


def among(agents: str, owners: dict[str, str] | None = None) -> dict[str, str]:
    return dealt(owners or dict.fromkeys(NODES, ""), agents)


def loads(owners: dict[str, str]) -> Counter[str]:
    return Counter(owners.values())


@pytest.mark.parametrize("nodes", [1, 4, 29, 99, 1000])
def test_only_the_nodes_of_a_removed_agent_move(nodes: int) -> None:
    before = among("abcde", dict.fromkeys(NODES[:nodes], ""))
    for gone in "abcde":
        after = among("abcde".replace(gone, ""), before)
        assert {node for node in before if before[node] != after[node]} == {
            node for node in before if before[node] == gone
        }


def test_few_nodes_are_dealt_as_well_as_can_be() -> None:
    three = dict.fromkeys(NODES[:3], "")
    assert max(loads(among("ab", three)).values()) == 2
    assert max(loads(among("abcde", three)).values()) == 1
    assert dealt(three, []) == three


def test_deleted_nodes_lead_to_a_new_balance() -> None:
    before = among("ab")
    left = {node: agent for node, agent in before.items() if agent == "a"} | {
        node: agent for node, agent in list(before.items())[:100] if agent == "b"
    }
    after = among("ab", left)
    assert abs(loads(after)["a"] - loads(after)["b"]) <= len(left) * 0.06
