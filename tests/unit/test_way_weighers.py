"""Weighers of allocation candidates: a host counts as much as its best candidate, which is chosen with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from bus.aggregates import Aggregate
from bus.candidates import ALIKE, FreeProvider
from bus.messages import BuildRequested
from bus.queries import Candidate, FindCandidates
from bus.requests import Flavor, ResourceGroup
from placement_worker import IndexedSource
from placement_worker.core.trees import Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.policy import BadChoice
from scheduler_worker.core.ranking import MOST_CORRECTED
from scheduler_worker.core.rule import Alternative, View, Weigher
from scheduler_worker.core.scores import replay
from tests.support.ids import uid
from tests.support.index_source import FilledMemory
from tests.support.provider_trees import AGGREGATES, an_index, state, tree
from tests.support.ranking_builders import Hall, take
from tests.support.scheduler_builders import a_request

CARD = "CUSTOM_CARD"
OF_CARD = Flavor(name="f", vcpus=1, extra_specs={f"resources1:{CARD}": "2"})


@dataclass(frozen=True)
class LeastLeft:
    """Prefers the card that has least left. `estimate` is the value that each host is expected to have."""

    highest: Any

    def of(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> Sequence[float]:
        free = {each.uuid: each.free.get(CARD, 0) for each in tree}
        return [-float(sum(free[card] for card, of in way.allocations.items() if CARD in of)) for way in ways]


def least_left(estimate: float | Sequence[float]) -> Weigher:
    def of_ways(view: View, alternative: Alternative) -> LeastLeft:
        return LeastLeft(np.full(len(view.positions()), estimate))

    return Weigher("least_left", lambda view, alternative: 0.0, 1.0, of_ways=of_ways)


def host(number: int, *cards: int, aggregates: Sequence[int] = ()) -> Tree:
    """Return a host with cards of ten units, of which the given ones are free."""
    root = 10 * number
    children = [
        state(root + nth, root, {CARD: 10}, {CARD: 10 - free}) for nth, free in enumerate(cards, start=1)
    ]
    return tree(state(root, None, {"VCPU": 8}, aggregates=aggregates), *children)


def hall_of(
    *hosts: Tree,
    estimate: float | Sequence[float] = 0.0,
    multiplier: float = 1.0,
    aggregates: Sequence[Aggregate] = (),
) -> Hall:
    policy = ChoicePolicy.from_names(
        weighers={"mine:least_left": multiplier, "build_failure": 6.0},
        custom={"mine:least_left": lambda: least_left(estimate)},
    )
    index = an_index(hosts)
    index.aggregate_facts.update({aggregate.id: aggregate for aggregate in aggregates})
    return Hall(IndexedSource(FilledMemory(index)), policy)


def request() -> BuildRequested:
    return a_request(flavor=OF_CARD)


def card_of(candidate: Candidate) -> str:
    (card,) = [provider for provider, of in candidate.allocations.items() if CARD in of]
    return card


@pytest.mark.parametrize("estimate", [0.0, -2.0, -20.0, (-5.0, -6.0, -4.0)])
def test_the_best_candidate_of_all_hosts_is_chosen(estimate: float | Sequence[float]) -> None:
    hall = hall_of(host(1, 10, 5), host(2, 10, 3), host(3, 4, 10), estimate=estimate)
    pick = hall.rank(request()).take(several=3)
    assert pick is not None
    assert card_of(pick.choices[0]) == uid(22, "a")
    repeated = replay(uid(1), pick.record).host
    assert repeated is not None and repeated.root == pick.root


def test_estimates_that_are_much_too_high_do_not_let_all_hosts_be_examined() -> None:
    hall = hall_of(*(host(number, 10) for number in range(1, 400)), estimate=1e6)
    ranking = hall.rank(request())
    [weighed] = ranking.found.way_values
    examined: list[str] = []
    of = weighed.of
    weighed.of = lambda tree, ways: examined.append(tree[0].uuid) or of(tree, ways)  # type: ignore[func-returns-value, method-assign]
    take(ranking)
    assert len(set(examined)) <= MOST_CORRECTED + 1


def test_later_choices_count_the_earlier_ones() -> None:
    ranking = hall_of(host(1, 10, 5), host(2, 10, 7)).rank(request())
    cards = [card_of(take(ranking).choices[0]) for _ in range(5)]
    assert cards == [uid(12, "a")] * 2 + [uid(22, "a")] * 3


def test_a_decision_is_recorded_with_the_value_of_the_candidate_and_can_be_repeated() -> None:
    pick = take(hall_of(host(1, 10, 5), host(2, 10, 3)).rank(request()))
    assert pick.scores == {"least_left": 0.25, "total": 0.25}  # 1 / (1 + 3)
    repeated = replay(uid(1), pick.record).host
    assert repeated is not None and repeated.root == pick.root


def distinct(free: Sequence[int], groups: Mapping[str, int]) -> list[int]:
    """Return the kinds of cards in the candidates of a host: the free amounts of each."""
    source = IndexedSource(FilledMemory(an_index([host(1, *free)])))
    asked = [ResourceGroup(resources={"VCPU": 1})]
    asked += [ResourceGroup(suffix=name, resources={CARD: amount}) for name, amount in groups.items()]
    found = source.search(FindCandidates(groups=tuple(asked), limit=1000))
    ways = found.ways(found.positions.item(0), 1000, distinct=True)
    of_card = {uid(10 + nth, "a"): amount for nth, amount in enumerate(free, start=1)}
    return sorted(of_card[card_of(way)] for way in ways)


def test_of_candidates_that_differ_by_equal_providers_only_some_are_found() -> None:
    free = [10] * (ALIKE + 3) + [5, 5]
    assert distinct(free, {"_a": 2}) == [5, 5] + [10] * ALIKE


def test_providers_to_avoid_are_replaced_by_others_that_are_alike() -> None:
    ranking = hall_of(host(1, *[10] * (ALIKE + 2))).rank(request())
    found = ranking.found
    refused = [card_of(way) for way in found.ways(0, 100)]
    assert len(refused) == ALIKE
    assert {card_of(way) for way in found.ways(0, 100, avoid=refused)}.isdisjoint(refused)
    assert len(found.ways(0, 100, avoid=refused)) == 2


def test_the_best_candidate_counts_1_and_a_failed_build_more_than_any_candidate() -> None:
    hall = hall_of(host(1, 4), host(2, 10))
    assert card_of(take(hall.rank(request())).choices[0]) == uid(11, "a")
    hall.book.failed("c1", uid(10, "a"), 0.0)
    pick = take(hall.rank(request()))
    assert card_of(pick.choices[0]) == uid(21, "a")
    assert pick.scores == {"build_failure": 2.0, "least_left": 0.090909, "total": 2.090909}


def test_an_aggregate_sets_the_multiplier_of_its_hosts() -> None:
    aggregate = Aggregate(id=AGGREGATES[1], metadata={"least_left_weight_multiplier": "1"})
    hosts = host(2, 2, 10), host(1, 10, 3, aggregates=(1,))
    pick = hall_of(*hosts, multiplier=0.0, aggregates=[aggregate]).rank(request()).take()
    assert pick is not None
    assert card_of(pick.choices[0]) == uid(12, "a"), "the other host counts 0, and so would its first card"


def test_a_weigher_of_candidates_has_no_negative_multiplier() -> None:
    with pytest.raises(BadChoice, match="at least 0"):
        hall_of(host(1, 10), multiplier=-1.0)
