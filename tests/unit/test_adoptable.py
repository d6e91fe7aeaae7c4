"""Adoption of instances of another system: permitted ones, and their flavor."""

from typing import Any

import pytest
from msgspec.structs import replace

from berth.operations.adoptable import NOBODY, SHARES, OldServer, flavor_of, judge
from bus.resources import Consumer, Provider
from bus.vocabulary import Allocations
from scheduler_worker import RequestOptions, alternatives_of
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

A, B, CHILD, POOL = (uid(number, "a") for number in range(1, 5))
WHO = uid(9)


def a_host(id_: str, **given: Any) -> Provider:
    told = {"root": id_, "cell": "c1", "agent": "agent-1", "host": f"host-{id_[-1]}", **given}
    return Provider(id=id_, name=id_, parent=None, generation=1, **told)


TREES = {
    A: a_host(A),
    B: a_host(B),
    CHILD: a_host(CHILD, root=A, host="host-1"),
    POOL: a_host(POOL, cell="", agent="", host="", traits=(SHARES,)),
}
CAME_OVER = Consumer(
    id=WHO, generation=4, project="p", user="u", type="INSTANCE", client=True,
    allocations={A: {"VCPU": 2, "MEMORY_MB": 512}},
)  # fmt: skip


def why(consumer: Consumer = CAME_OVER, server: OldServer | None = None, **given: Any) -> str:
    judged = judge(consumer, {**TREES, **given.pop("trees", {})}, server, named=given.pop("named", False),
                   **given)  # fmt: skip
    assert (judged.request is None) == bool(judged.why)
    return judged.why


def test_one_on_one_host_is_adopted_as_it_is() -> None:
    request = judge(CAME_OVER, TREES, None, named=False).request
    assert request is not None
    chosen, spec = request.chosen, request.spec
    assert (request.build, request.cell, request.generation) == (WHO, "c1", 4)
    assert (chosen.root, chosen.host, chosen.agent) == (A, "host-1", "agent-1")
    assert chosen.choice.allocations == CAME_OVER.allocations
    assert (spec.project, spec.user, spec.flavor.vcpus, spec.flavor.memory_mb) == ("p", "u", 2, 512)


def test_what_placement_does_not_know_comes_from_the_file() -> None:
    nobodys = replace(CAME_OVER, project=NOBODY, user=NOBODY)
    server = OldServer(name="web", host="host-1", flavor="m1.small", project="p9", user="u9",
                       figures={"vcpus": 2, "memory_mb": 512})  # fmt: skip
    request = judge(nobodys, TREES, server, named=False).request
    assert request is not None
    spec = request.spec
    assert (spec.name, spec.flavor.name, spec.project, spec.user) == ("web", "m1.small", "p9", "u9")


@pytest.mark.parametrize(
    "held", [{A: {"VCPU": 1}, CHILD: {"VGPU": 1}}, {CHILD: {"VGPU": 1}, POOL: {"DISK_GB": 5}}]
)
def test_a_tree_with_its_pools_is_one_host(held: Allocations) -> None:
    assert why(replace(CAME_OVER, allocations=held)) == ""


@pytest.mark.parametrize(
    ("consumer", "given", "says"),
    [
        ({"allocations": {A: {"VCPU": 1}, B: {"VCPU": 1}}}, {}, "of 2 hosts (host-1, host-2)"),
        ({"allocations": {POOL: {"DISK_GB": 1}}}, {}, "holds nothing of a host, only of pools"),
        ({"allocations": {uid(8, "a"): {"VCPU": 1}}}, {}, "it has gone meanwhile"),
        ({"client": False}, {}, "berth itself claimed for it last"),
        ({"type": "MIGRATION"}, {}, "its type is MIGRATION"),
        ({"type": "MIGRATION"}, {"named": True}, "its type is MIGRATION"),
        ({"type": None}, {}, "it has no type"),
        ({}, {"trees": {A: a_host(A, cell="")}}, "is of no cell: `berth provider reset"),
        ({}, {"trees": {A: a_host(A, agent="")}}, "no agent of cell c1 has reported its host"),
        ({}, {"trees": {A: a_host(A, gone=True)}}, "is gone, its agent says"),
        ({}, {"foreign": ["agent-1"]}, "agent-1, which is none of berth's"),
        ({}, {"server": OldServer(host="host-2")}, "the file has it on host-2, placement on host-1"),
        ({}, {"server": OldServer(project="x")}, "the file gives it to project x, placement to p"),
        ({}, {"server": OldServer(figures={"vcpus": 3})}, "the file gives it 3 vcpus, placement 2 VCPU"),
    ],
)
def test_what_is_not_certain_is_listed_with_why(
    consumer: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    assert says in why(replace(CAME_OVER, **consumer), **given)


@pytest.mark.parametrize("given", [{"named": True}, {"server": OldServer(name="web")}])
def test_one_without_a_type_is_an_instance_if_somebody_says_so(given: dict[str, Any]) -> None:
    assert why(replace(CAME_OVER, type=None), **given) == ""


# Its flavor asks for just what it holds


@pytest.mark.parametrize(
    "held",
    [
        {A: {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}},
        {A: {"MEMORY_MB": 512, "PCPU": 4}, POOL: {"DISK_GB": 5}},
        {A: {"VCPU": 1, "MEMORY_MB": 64}, CHILD: {"VGPU": 1}},
        {A: {"VCPU": 1, "MEMORY_MB": 64, "SRIOV_NET_VF": 1}, CHILD: {"SRIOV_NET_VF": 2}},
        {A: {"VCPU": 2, "MEMORY_MB": 512}, CHILD: {"VCPU": 2, "MEMORY_MB": 512}},
        {A: {"CUSTOM_BAREMETAL_GOLD": 1}},
    ],
)
def test_its_flavor_asks_for_what_it_holds_of_each_provider(held: Allocations) -> None:
    flavor = flavor_of(held, OldServer(extra_specs={"resources:VGPU": "9", "hw:boot_menu": "true"}))
    assert flavor.extra_specs["hw:boot_menu"] == "true"
    (alternative,) = alternatives_of(a_request(flavor=flavor), RequestOptions(), lambda host: ())
    asked = sorted(
        (name, amount) for group in alternative.question.groups for name, amount in group.resources.items()
    )
    assert asked == sorted((name, amount) for each in held.values() for name, amount in each.items())
