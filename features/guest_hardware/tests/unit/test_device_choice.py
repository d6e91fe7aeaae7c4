"""The choice among the allocation candidates of one host: used devices are filled first."""

from collections.abc import Mapping

import pytest

from berth.kit.testing import add_filters
from bus.queries import Candidate, FindCandidates
from bus.requests import ResourceGroup
from features.guest_hardware.filters import fullness
from placement_worker.extension import ProviderState
from placement_worker.testing import IndexedSource
from scheduler_worker.extension import ChoicePolicy
from scheduler_worker.testing import best_first
from tests.support.ids import uid
from tests.support.index_source import Remembered
from tests.support.provider_trees import an_index, state, tree

add_filters()
NAMES = {uid(number, "a"): f"p{number}" for number in range(20)}


def query(*groups: Mapping[str, int]) -> FindCandidates:
    return FindCandidates(
        groups=tuple(ResourceGroup(suffix=f"_{n}", resources=dict(asks)) for n, asks in enumerate(groups)),
        limit=100,
    )


def source_of(*children: ProviderState) -> IndexedSource:
    root = state(0, inventories={"DISK_GB": 100})
    return IndexedSource(Remembered(an_index([tree(root, *children)])))


def candidates(source: IndexedSource, asked: FindCandidates) -> list[str]:
    """Return the providers of each candidate of the only host, the best candidate first."""
    found = source.search(asked)
    ways = tuple(found.ways(found.positions.item(0), 16))
    return [
        " ".join(NAMES[id_] for id_ in way.allocations)
        for way in best_first(ways, ChoicePolicy().of_candidates)
    ]


def port(number: int, used: int, vfs: int = 8) -> ProviderState:
    return state(number, 0, {"SRIOV_NET_VF": vfs}, {"SRIOV_NET_VF": used})


VF = query({"SRIOV_NET_VF": 1})


@pytest.mark.parametrize(
    ("ports", "best"),
    [
        ((port(1, 0), port(2, 3), port(3, 0)), "p2"),  # an unused port stays whole
        ((port(1, 1), port(2, 7), port(3, 4)), "p2"),  # the fullest that has a free function
        ((port(1, 0), port(2, 8), port(3, 1)), "p3"),  # a full port cannot serve it
        ((port(1, 0), port(2, 0)), "p1"),  # equally good: by id
        ((port(1, 0, vfs=8), port(2, 1, vfs=64)), "p2"),  # used, though most of it is free
        ((port(1, 0, vfs=64), port(2, 0, vfs=8)), "p2"),  # the smaller one of two unused
    ],
)
def test_a_virtual_function_is_taken_from_the_fullest_used_port(
    ports: tuple[ProviderState, ...], best: str
) -> None:
    assert candidates(source_of(*ports), VF)[0] == best


def test_a_candidate_without_amounts_by_provider_is_neutral() -> None:
    candidate = Candidate(uid(0, "a"), "h", "c", "a", "", {uid(0, "a"): {"VCPU": 1}}, {})
    assert fullness(candidate, 1.0, 0.5) == 0.0
    assert best_first((candidate,), ChoicePolicy().of_candidates) == (candidate,)
