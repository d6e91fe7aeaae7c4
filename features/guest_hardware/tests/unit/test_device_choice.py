"""The choice among the allocation candidates of one host: used NUMA cells and devices are filled first."""

from collections.abc import Mapping
from math import comb

import pytest
from msgspec.structs import replace

from berth.features import add_filters
from bus.queries import Candidate, FindCandidates
from bus.requests import ResourceGroup
from features.guest_hardware.filters import devices, fullness
from placement_worker.core.trees import ProviderState
from placement_worker.memory import IndexedSource
from scheduler_worker.core.fitting import best_first
from scheduler_worker.core.policy import ChoicePolicy
from tests.support.ids import uid
from tests.support.provider_trees import an_index, state, tree
from tests.unit.test_source import Remembered

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


def candidates(source: IndexedSource, asked: FindCandidates, policy: ChoicePolicy | None = None) -> list[str]:
    """Return the providers of each candidate of the only host, the best candidate first."""
    found = source.search(asked)
    ways = tuple(found.ways(found.positions.item(0), 16))
    return [
        " ".join(NAMES[id_] for id_ in way.allocations)
        for way in best_first(ways, (policy or ChoicePolicy()).of_candidates)
    ]


def port(number: int, used: int, vfs: int = 8) -> ProviderState:
    return state(number, 0, {"SRIOV_NET_VF": vfs}, {"SRIOV_NET_VF": used})


def numa(number: int, vcpus: int, memory: int) -> ProviderState:
    return state(number, 0, {"VCPU": 16, "MEMORY_MB": 64}, {"VCPU": vcpus, "MEMORY_MB": memory})


VF = query({"SRIOV_NET_VF": 1})


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("asked", [2, 3, 6])
def test_the_candidates_of_a_host_are_no_permutations_of_equal_groups(asked: int, isolated: bool) -> None:
    source = source_of(*(port(number, 0) for number in range(1, 9)))
    question = query(*[{"SRIOV_NET_VF": 1}] * asked)
    search = source.search(replace(question, group_policy="isolate") if isolated else question)
    different = comb(8, asked) if isolated else comb(7 + asked, asked)
    host = search.positions.item(0)
    for most in (16, 2048):
        ways = search.ways(host, most)
        totals = {
            tuple(sorted(NAMES[id_] + str(way.allocations[id_]) for id_ in way.allocations)) for way in ways
        }
        assert len(ways) == len(totals) == min(most, different)


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


@pytest.mark.parametrize(
    ("cells", "asked", "best"),
    [
        ((numa(1, 0, 0), numa(2, 8, 32)), query({"VCPU": 4, "MEMORY_MB": 8}), "p2"),
        ((numa(1, 4, 8), numa(2, 8, 32)), query({"VCPU": 4, "MEMORY_MB": 8}), "p2"),
        ((numa(1, 4, 8), numa(2, 14, 32)), query({"VCPU": 4, "MEMORY_MB": 8}), "p1"),
        # two NUMA cells of a guest share a used one rather than take an unused one
        ((numa(1, 0, 0), numa(2, 4, 8)), query({"VCPU": 2}, {"VCPU": 2}), "p2"),
    ],
)
def test_a_half_used_numa_cell_is_filled_first(
    cells: tuple[ProviderState, ...], asked: FindCandidates, best: str
) -> None:
    assert candidates(source_of(*cells), asked)[0] == best


def test_the_best_candidate_is_found_among_more_than_are_examined() -> None:
    gpus = [state(n, 0, {"VGPU": 16}, {"VGPU": 15 if n == 18 else 0}) for n in range(1, 20)]
    assert candidates(source_of(*gpus), query({"VGPU": 1}))[0] == "p18"
    best = candidates(source_of(*gpus), query({"VGPU": 1}, {"VGPU": 1}))[0]
    assert "p18" in best.split()


def test_what_a_scheduler_has_reserved_counts_as_used() -> None:
    source = source_of(port(1, 0), port(2, 0))
    source.packing.claim({uid(2, "a"): {"SRIOV_NET_VF": 1}})
    assert candidates(source, VF)[0] == "p2"


def test_a_negative_multiplier_spreads_and_0_keeps_the_order_of_the_search() -> None:
    source = source_of(port(1, 0), port(2, 3), port(3, 0))
    spread = ChoicePolicy.from_names(weighers={"devices": -1.0})
    assert candidates(source, VF, spread)[0] in ("p1", "p3")
    assert ChoicePolicy.from_names(weighers={"devices": 0.0}).of_candidates == []


def test_the_options_weigh_unused_providers_against_the_share_left() -> None:
    source = source_of(port(1, 0, vfs=1), port(2, 1, vfs=64))
    assert candidates(source, VF)[0] == "p2"
    assert (
        candidates(source, VF, ChoicePolicy((), (devices(unused=0.1),)))[0] == "p1"
    )  # nothing is left there


def test_equal_candidates_have_one_order_in_every_scheduler() -> None:
    ports = [port(n, 2) for n in range(1, 6)]
    assert candidates(source_of(*ports), VF) == candidates(source_of(*reversed(ports)), VF)


def test_a_candidate_without_amounts_by_provider_is_neutral() -> None:
    candidate = Candidate(uid(0, "a"), "h", "c", "a", "", {uid(0, "a"): {"VCPU": 1}}, {})
    assert fullness(candidate, 1.0, 0.5) == 0.0
    assert best_first((candidate,), ChoicePolicy().of_candidates) == (candidate,)
