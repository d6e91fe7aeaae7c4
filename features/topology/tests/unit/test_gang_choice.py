"""Hosts for gangs, and for instances that are packed into a domain or spread over domains."""

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit import BadSetting, boot_request, options_named, sense_of
from bus.messages import BuildRequested
from features.groups.constraints import DomainConstraints
from features.topology.messages import topology_of
from features.topology.tests.support.topology_clouds import (
    LabelledHost,
    SmallCloud,
    a_cloud,
    a_gang,
    a_host,
    asked_by,
    order_of,
    some_gang,
)
from scheduler_worker.extension import Chosen, Order
from tests.support.ranking_builders import Hall

SEEDS = 1000


def choose(cloud: SmallCloud, request: BuildRequested) -> tuple[Order, Chosen, Hall]:
    hall = cloud.hall()
    order = order_of(hall, request, cloud.members)
    (chosen,) = hall.choosing().choose([order])
    return order, chosen, hall


def placed_by(order: Order, chosen: Chosen) -> dict[str, str]:
    return {instance: pick.root for instance, pick in zip(order.instances, chosen.picks, strict=False)}


@pytest.mark.parametrize(
    "part", [0, 1, 2, *(pytest.param(part, marks=pytest.mark.soak) for part in range(3, 10))]
)
def test_a_gang_gets_hosts_exactly_if_an_exhaustive_search_finds_some(part: int) -> None:
    feasible = 0
    for seed in range(part * SEEDS // 10, (part + 1) * SEEDS // 10):
        chance = Random(seed)
        cloud, request = a_cloud(chance), some_gang(chance)
        if not cloud.keeps(topology_of(request.parts), {}):  # its members are apart already
            cloud.members.clear()
        order, chosen, hall = choose(cloud, request)
        asked = asked_by(request)
        expected = cloud.fits(asked, topology_of(request.parts))
        assert (chosen.short is None) == expected, seed
        if expected:
            placed = placed_by(order, chosen)
            assert placed.keys() == set(request.instances), seed
            assert cloud.keeps(topology_of(request.parts), placed), seed
            assert not cloud.oversold(asked, placed), seed
            feasible += 1
        else:
            assert chosen.short is not None
            assert not hall.pending.unsettled, seed
            assert chosen.short is not None
            assert chosen.short.code in ("topology", "room", "class"), (seed, chosen.short.code)
    assert SEEDS // 10 * 0.2 < feasible < SEEDS // 10 * 0.9


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in range(1, 4))])
def test_each_alternate_keeps_the_constraints_in_place_of_its_instance(part: int) -> None:
    seen = 0
    for seed in range(part * 100, (part + 1) * 100):
        chance = Random(seed)
        cloud, request = a_cloud(chance), some_gang(chance)
        if not cloud.keeps(topology_of(request.parts), {}):
            cloud.members.clear()
        order, chosen, _ = choose(cloud, request)
        placed = placed_by(order, chosen)
        for instance, pick in zip(order.instances, chosen.picks, strict=False):
            for way in pick.alternates:
                seen += 1
                moved = {**placed, instance: way.root}
                assert way.root != placed[instance]
                assert cloud.keeps(topology_of(request.parts), moved), seed
                assert not cloud.oversold(asked_by(request), moved), seed
    assert seen


def rack(name: str, *rooms: int, first: int = 0) -> list[LabelledHost]:
    return [a_host(first + number, vcpus, 64, rack=name) for number, vcpus in enumerate(rooms)]


def test_the_tightest_domain_that_fits_all_instances_is_chosen() -> None:
    cloud = SmallCloud([*rack("r1", 8, 8, 8), *rack("r2", 2, 2, first=10), *rack("r3", 1, 2, first=20)])
    order, chosen, _ = choose(cloud, a_gang(1, DomainConstraints(pack="rack"), (4, 1, 1)))
    racks = {cloud.by_root()[root].label("rack") for root in placed_by(order, chosen).values()}
    assert racks == {"r2"}


def test_the_reason_names_the_best_domain() -> None:
    cloud = SmallCloud([*rack("r1", 1, 1), *rack("r7", 1, 1, 1, first=10)])
    _, chosen, _ = choose(cloud, a_gang(1, DomainConstraints(pack="rack"), (4, 1, 1)))
    assert chosen.short is not None
    assert chosen.short.code == "topology"
    assert chosen.short.removals[-1].constraint == "rack: best domain r7 fits 3 of 4 instances"


def test_hosts_without_a_label_are_not_chosen_for_a_required_constraint() -> None:
    cloud = SmallCloud([a_host(1), *rack("r1", 1, first=2)])
    _, chosen, _ = choose(cloud, a_gang(1, DomainConstraints(pack="rack"), (2, 1, 1)))
    assert chosen.short is not None
    unlabelled = [near.lacks for near in chosen.short.nearest]
    assert "it has no label of level rack" in unlabelled


def test_preferred_packing_uses_few_domains_if_no_domain_fits_all() -> None:
    cloud = SmallCloud([*rack("r1", 1), *rack("r2", 1, 1, 1, first=10), *rack("r3", 1, first=20)])
    topology = DomainConstraints(pack="rack", pack_strength="preferred")
    order, chosen, _ = choose(cloud, a_gang(1, topology, (4, 1, 1)))
    racks = sorted(cloud.by_root()[root].label("rack") for root in placed_by(order, chosen).values())
    assert racks.count("r2") == 3


def test_a_choice_that_a_greedy_search_misses_is_found() -> None:
    """Each host fits one instance of either role; a role that both hosts fit must leave one of them."""
    cloud = SmallCloud([a_host(0, 4, 9, rack="r1"), a_host(1, 4, 6, rack="r1")])
    request = a_gang(1, DomainConstraints(pack="rack"), (2, 1, 3), (1, 3, 6))
    order, chosen, _ = choose(cloud, request)
    assert cloud.fits(asked_by(request), topology_of(request.parts))
    assert len(placed_by(order, chosen)) == 3


def test_at_least_accepts_the_domain_that_fits_most() -> None:
    cloud = SmallCloud([*rack("r1", 1, 1), *rack("r7", 1, 1, 1, first=10)])
    request = a_gang(1, DomainConstraints(pack="rack"), (4, 1, 1))
    _, chosen, _ = choose(cloud, replace(request, at_least=2))
    assert len(chosen.picks) == 3
    assert chosen.short is not None


@pytest.mark.parametrize(
    "more", [{"or_else": ("vcpus=1",)}, {"at_least": 1}], ids=["other flavors", "a part of the gang"]
)
def test_roles_with_alternatives_are_refused_before_they_are_published(more: dict[str, Any]) -> None:
    request = boot_request(options_named(role=("ps:1", "worker:2"), **more))
    with pytest.raises(BadSetting, match=f"{next(iter(more))}: not possible with roles"):
        sense_of(request)
