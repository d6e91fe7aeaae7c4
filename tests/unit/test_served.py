"""Assignment of providers to groups, derived from allocations after a killed scheduler."""

import pytest

from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.resources import Provider
from bus.vocabulary import Allocations
from scheduler_worker.core.held_claim import mappings_of
from tests.support.ids import uid

ROOT, CELL0, CELL1, LEFT, RIGHT = (uid(number, "c") for number in range(5))


def a_held_provider(id_: str, parent: str | None = ROOT, *traits: str) -> Provider:
    return Provider(id=id_, name=id_, parent=parent, root=ROOT, generation=1, traits=traits)


PROVIDERS = {
    provider.id: provider
    for provider in (
        a_held_provider(ROOT, None),
        a_held_provider(CELL0),
        a_held_provider(CELL1),
        a_held_provider(LEFT, CELL0, "CUSTOM_LEFT"),
        a_held_provider(RIGHT, CELL1, "CUSTOM_RIGHT"),
    )
}


def a_group(suffix: str, *traits: str, forbidden: tuple[str, ...] = (), **resources: int) -> ResourceGroup:
    return ResourceGroup(suffix=suffix, resources=resources, required=traits, forbidden=forbidden)


VF = {"SRIOV_NET_VF": 1}
CASES: dict[str, tuple[FindCandidates, Allocations, dict[str, tuple[str, ...]]]] = {
    "no groups": (FindCandidates(groups=(a_group("", VCPU=1),)), {CELL0: {"VCPU": 1}}, {}),
    "all of the root": (
        FindCandidates(groups=(a_group("", DISK_GB=1), a_group("_a", VCPU=1))),
        {ROOT: {"VCPU": 1, "DISK_GB": 1}},
        {},
    ),
    "a group of its own and the rest": (
        FindCandidates(groups=(a_group("", VCPU=1, DISK_GB=1), a_group("1", SRIOV_NET_VF=1))),
        {ROOT: {"DISK_GB": 1}, CELL0: {"VCPU": 1}, LEFT: VF},
        {"": (ROOT, CELL0), "1": (LEFT,)},
    ),
    "told apart by traits": (
        FindCandidates(groups=(a_group("1", "CUSTOM_RIGHT", SRIOV_NET_VF=1), a_group("2", SRIOV_NET_VF=1))),
        {LEFT: VF, RIGHT: VF},
        {"1": (RIGHT,), "2": (LEFT,)},
    ),
    "told apart by forbidden traits": (
        FindCandidates(groups=(
            a_group("1", forbidden=("CUSTOM_LEFT",), SRIOV_NET_VF=1), a_group("2", SRIOV_NET_VF=1),
        )),
        {LEFT: VF, RIGHT: VF},
        {"1": (RIGHT,), "2": (LEFT,)},
    ),
    "told apart by amounts": (
        FindCandidates(groups=(a_group("1", PCPU=1), a_group("2", PCPU=3))),
        {CELL0: {"PCPU": 3}, CELL1: {"PCPU": 1}},
        {"1": (CELL1,), "2": (CELL0,)},
    ),
    "two of one provider": (
        FindCandidates(groups=(a_group("1", SRIOV_NET_VF=1), a_group("2", SRIOV_NET_VF=1))),
        {LEFT: {"SRIOV_NET_VF": 2}},
        {"1": (LEFT,), "2": (LEFT,)},
    ),
    "told apart by the tree": (
        FindCandidates(
            groups=(
                a_group("_n0", "CUSTOM_RIGHT", SRIOV_NET_VF=1),
                a_group("_c0", VCPU=1),
                a_group("_c1", VCPU=1),
            ),
            same_subtree=(("_n0", "_c0"),),
        ),
        {RIGHT: VF, CELL0: {"VCPU": 1}, CELL1: {"VCPU": 1}},
        {"_n0": (RIGHT,), "_c0": (CELL1,), "_c1": (CELL0,)},
    ),
    "isolated": (
        FindCandidates(groups=tuple(a_group(one, VCPU=1) for one in ("1", "2", "")), isolated=("1", "2")),
        {CELL0: {"VCPU": 2}, CELL1: {"VCPU": 1}},
        {"": (CELL0,), "1": (CELL0,), "2": (CELL1,)},
    ),
    "what no group asked for": (
        FindCandidates(groups=(a_group("1", VCPU=1),)), {CELL0: {"VCPU": 1, "PCPU": 1}}, {},
    ),
    "less than a group asked for": (
        FindCandidates(groups=(a_group("1", VCPU=2),)), {CELL0: {"VCPU": 1}, CELL1: {"VCPU": 1}}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("question, held, served", CASES.values(), ids=CASES.keys())
def test_providers_of_each_group(
    question: FindCandidates, held: Allocations, served: dict[str, tuple[str, ...]]
) -> None:
    assert mappings_of(held, question, PROVIDERS, ROOT) == served


def test_the_search_for_an_assignment_is_bounded() -> None:
    many = FindCandidates(groups=tuple(a_group(f"_{n}", VCPU=1) for n in range(40)))
    cells = {uid(n, "d"): {"VCPU": 1} for n in range(39)} | {ROOT: {"PCPU": 1}}
    known = {id_: a_held_provider(id_) for id_ in cells}
    assert mappings_of(cells, many, known, ROOT) == {}
