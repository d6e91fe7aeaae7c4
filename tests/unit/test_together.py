"""Several that start an affinity group go where there is room for all, though a better host has some."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from bus.groups import ServerGroup
from bus.reports import HostState
from placement_worker import IndexedSource
from placement_worker.core.trees import Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.events import Chosen, NoHost
from scheduler_worker.core.order import Order
from scheduler_worker.core.scale import replay
from tests.support.exact_worlds import FilledMemory
from tests.support.ids import uid
from tests.support.provider_trees import SHARES, state, tree
from tests.support.ranking_builders import Hall, a_hall, free
from tests.support.scheduler_builders import a_request, a_state

AFFINITY = ServerGroup(id=uid(1, "e"), name="g", policy="affinity")
ONE_EACH = [free(number, 9000 + number, vcpus=1) for number in (1, 2, 3)]
TWO = free(4, 2048, vcpus=2)


def an_order(hall: Hall, instances: int, at_least: int = 0, group: ServerGroup | None = AFFINITY) -> Order:
    request = a_request(instances=instances, at_least=at_least)
    alternative = replace(hall.alternative(request), group=group)
    return Order(request=request, alternatives=(alternative,), instances=request.instances, bytes=0)


def chosen(hall: Hall, order: Order) -> list[str]:
    (answer,) = hall.choosing().choose([order])
    return [pick.choices[0].host for pick in answer.picks] if isinstance(answer, Chosen) else []


@pytest.mark.parametrize(
    ("instances", "at_least", "hosts", "expected"),
    [
        (1, 0, [*ONE_EACH, TWO], ["host3"]),
        (2, 0, [*ONE_EACH, TWO], ["host4"] * 2),
        (3, 0, [*ONE_EACH, TWO], []),
        (2, 0, ONE_EACH, []),
        (3, 2, [*ONE_EACH, TWO], ["host4"] * 2),
        (3, 1, [*ONE_EACH, TWO], ["host3"]),
        # the first that has room for enough, not the one with room for most
        (5, 2, [*ONE_EACH, free(5, 3072, vcpus=3), free(6, 2048, vcpus=8)], ["host5"] * 3),
    ],
)  # fmt: skip
def test_the_best_host_that_has_room_for_as_many_as_there_must_be(
    instances: int, at_least: int, hosts: Sequence[object], expected: list[str]
) -> None:
    hall = a_hall(*hosts, policy=ChoicePolicy.from_names(weighers=["ram"]))  # type: ignore[arg-type]
    assert chosen(hall, an_order(hall, instances, at_least)) == expected


def test_an_instance_that_goes_elsewhere_leaves_no_reservation() -> None:
    hall = a_hall(*ONE_EACH, TWO)
    assert chosen(hall, an_order(hall, 3)) == []
    assert hall.pending.unsettled == []
    assert chosen(hall, an_order(hall, 2)) == ["host4"] * 2
    assert [entry.root for entry in hall.pending.unsettled] == [uid(4, "c")] * 2


@pytest.mark.parametrize(
    ("states", "limits", "expected"),
    [
        ([a_state(1, building=7)], {}, ["host2"] * 2),
        ([a_state(1, building=6)], {}, ["host1"] * 2),
        ([a_state(1, instances=49)], {"num_instances": {"max_instances_per_host": 50}}, ["host2"] * 2),
        ([a_state(1, building=7), a_state(2, building=7)], {}, []),
    ],
    ids=["builds one too many", "builds as many as it may", "is to have one too many", "both build too many"],
)
def test_rules_are_checked_for_the_last_instance(
    states: list[HostState], limits: dict[str, dict[str, int]], expected: list[str]
) -> None:
    policy = ChoicePolicy.from_names(weighers=["ram"], options=limits)
    hall = a_hall(free(1, 8192), free(2, 4096), states=states, policy=policy)
    order = an_order(hall, 2)
    (answer,) = hall.choosing().choose([order])
    if isinstance(answer, NoHost):
        assert expected == [] and answer.short.may_pass, "builds end by themselves"
        assert [removal.constraint for removal in answer.short.removals] == ["io_ops"]
        return
    assert [pick.choices[0].host for pick in answer.picks] == expected


def a_world(*trees: Tree) -> Hall:
    memory = FilledMemory()
    for stored in trees:
        memory.index.put(stored, 1)
    return Hall(IndexedSource(memory), ChoicePolicy.from_names(weighers=["ram"]))


def numa(number: int, *cells: float) -> Tree:
    parts = [
        state(number + 1 + position, number, {"VCPU": 8, "MEMORY_MB": int(1024 * ram)})
        for position, ram in enumerate(cells)
    ]
    return tree(state(number, None, {"DISK_GB": 1000}), *parts)


@pytest.mark.parametrize(
    ("instances", "expected"), [(1, "p0"), (2, "p0"), (3, "p10"), (4, "p20"), (5, "p20"), (6, "")]
)
def test_a_tree_has_as_much_room_as_its_parts_have_each(instances: int, expected: str) -> None:
    hall = a_world(numa(0, 1.9, 1.9, 0.9, 0.9), numa(10, 1.5, 1.5, 1.5, 0.7), numa(20, 2, 3))
    assert chosen(hall, an_order(hall, instances)) == [expected] * (instances if expected else 0)


def test_hosts_with_room_for_some_instances_only_are_counted_and_named() -> None:
    pieces = [state(1 + position, 0, {"VCPU": 8, "MEMORY_MB": 1900}) for position in range(3)]
    better = tree(state(0, None, {"DISK_GB": 1000}), *pieces)
    other = tree(state(10, None, {"VCPU": 8, "MEMORY_MB": 4096, "DISK_GB": 1000}))
    hall = a_world(better, other)
    (answer,) = hall.choosing().choose([an_order(hall, 5)])
    assert isinstance(answer, NoHost)
    assert [(removal.code, removal.removed, removal.left) for removal in answer.short.removals] == [
        ("server_group", 1, 1),  # by what it has in all
        ("server_group", 1, 0),
    ]
    assert {(miss.host, miss.lacks) for miss in answer.short.nearest} == {
        ("p0", "room for 3 of 5 that are to be together"),
        ("p10", "no room for 5 of server group g together"),
    }


def test_shared_amounts_count_for_all_instances() -> None:
    def host(number: int, ram: int, pool: int) -> Tree:
        return tree(state(number, None, {"VCPU": 8, "MEMORY_MB": ram}, aggregates=[pool]))

    def a_pool(number: int, disk: int, aggregate: int) -> Tree:
        made = tree(state(number, None, {"DISK_GB": disk}, None, (SHARES,), [aggregate]), cell="")
        return replace(made, agent="")

    hall = a_world(host(0, 8192, 1), host(1, 4096, 2), a_pool(2, 19, 1), a_pool(3, 20, 2))
    assert chosen(hall, an_order(hall, 1)) == ["p0"]
    hall = a_world(host(0, 8192, 1), host(1, 4096, 2), a_pool(2, 19, 1), a_pool(3, 20, 2))
    assert chosen(hall, an_order(hall, 2)) == ["p1"] * 2


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (None, {"host3", "host2"}),
        (ServerGroup(id=uid(1, "e"), name="g", policy="soft-anti-affinity"), {"host3", "host2"}),
        (ServerGroup(id=uid(1, "e"), name="g", policy="anti-affinity"), {"host3", "host2"}),
        (ServerGroup(id=uid(1, "e"), name="g", policy="affinity", members={"m": (uid(4, "c"),)}), {"host4"}),
    ],
    ids=["no group", "soft", "apart", "somebody is there"],
)
def test_only_those_that_start_a_hard_group_look_so_far(
    group: ServerGroup | None, expected: set[str]
) -> None:
    hall = a_hall(*ONE_EACH, free(4, 2048, vcpus=2), policy=ChoicePolicy.from_names(weighers=["ram"]))
    assert set(chosen(hall, an_order(hall, 2, group=group))) == expected


def test_instances_next_to_another_instance_need_not_be_together() -> None:
    hall = a_hall(*ONE_EACH, policy=ChoicePolicy.from_names(weighers=["ram"]))
    order = an_order(hall, 2, group=None)
    alternative = replace(order.alternative, same=frozenset([uid(1, "c"), uid(2, "c")]))
    assert chosen(hall, structs.replace(order, alternatives=(alternative,))) == ["host2", "host1"]


def test_the_record_says_who_was_better_and_had_no_room_for_all_and_comes_to_the_same_host() -> None:
    halves = [state(21 + position, 20, {"VCPU": 8, "MEMORY_MB": 3 * 1024 - 1}) for position in range(2)]
    apart = tree(state(20, None, {"DISK_GB": 1000}), *halves)
    lone = tree(state(30, None, {"VCPU": 8, "MEMORY_MB": 5 * 1024, "DISK_GB": 1000}))
    hall = a_world(apart, lone)
    order = an_order(hall, 5)
    (answer,) = hall.choosing().choose([order])
    assert isinstance(answer, Chosen) and {pick.root for pick in answer.picks} == {lone.root}
    first = answer.picks[0].record
    assert [(host.host, host.refused) for host in first.hosts] == [
        ("p20", "server_group_affinity: room for 4 of 5 that are to be together"),
        ("p30", ""),
    ]
    for instance, pick in zip(order.instances, answer.picks, strict=True):
        found = replay(instance, pick.record).host
        assert found is not None and found.root == pick.root
