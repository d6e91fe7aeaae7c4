"""Capacity in thought: what fits, what hosts added or taken away change, and what is in pieces."""

import dataclasses
import random
import tracemalloc
from functools import cache

import pytest

from bus.host_health import DISABLED, HELD
from control_room.kit import HostStock, KnownHost
from features.capacity_plans.core.packing import PlanStopped
from features.capacity_plans.core.plan_form import InvalidPlan, parse_plan
from features.capacity_plans.core.planning import PlanAnswer, planned


def a_host(
    number: int, *, closed: bool = False, zone: str = "z1", traits: str = "", **free: int
) -> KnownHost:
    """`free` of ten times as much of each class; of a class with a tail (VCPU_1) another provider's."""
    stocks = tuple(
        HostStock(resource_class=name.rpartition("_of")[0] or name, free=amount, capacity=10 * abs(amount))
        for name, amount in free.items()
    )
    return KnownHost(
        root=f"r{number}",
        name=f"h{number}",
        cell="c1",
        zone=zone,
        closed=closed,
        traits=frozenset(traits.split()),
        stocks=stocks,
    )


def plan(
    hosts: list[KnownHost], *mix: str, add: str = "", without: str = "", zone: str = "", cell: str = ""
) -> PlanAnswer:
    return planned(hosts, parse_plan(mix, add.split(), without.split(), zone, cell))


ALONE: dict[str, tuple[list[KnownHost], str, int, int]] = {  # hosts, flavor, fit, would in one piece
    "nobody": ([], "VCPU:1", 0, 0),
    "the scarcest class counts": ([a_host(1, VCPU=8, MEMORY_MB=1000)], "VCPU:2,MEMORY_MB:400", 2, 2),
    "host by host": ([a_host(1, VCPU=3), a_host(2, VCPU=3)], "VCPU:2", 2, 3),
    "a piece for each is in none": ([a_host(n, VCPU=3) for n in range(4)], "VCPU:4", 0, 3),
    "of one provider, not of two together": ([a_host(1, VCPU=3, VCPU_of2=3)], "VCPU:2", 2, 3),
    "classes of different providers": ([a_host(1, VCPU=4, MEMORY_MB=2)], "VCPU:1,MEMORY_MB:1", 2, 2),
    "closed hosts have none": ([a_host(1, VCPU=4, closed=True)], "VCPU:1", 0, 0),
    "a trait is required": ([a_host(1, VCPU=4), a_host(2, VCPU=2, traits="A B")], "VCPU:1,A", 2, 2),
    "a trait is forbidden": ([a_host(1, VCPU=4), a_host(2, VCPU=2, traits="A B")], "VCPU:1,!A", 4, 4),
    "more is held than there is": ([a_host(1, VCPU=-4), a_host(2, VCPU=2)], "VCPU:1", 2, 2),
    "a class that nobody has": ([a_host(1, VCPU=4)], "VCPU:1,CUSTOM_GPU:1", 0, 0),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_flavor_by_itself(name: str) -> None:
    hosts, flavor, fit, in_sum = ALONE[name]
    (room,) = plan(hosts, flavor).now.flavors
    assert (room.fits, room.in_sum, room.lost) == (fit, in_sum, in_sum - fit)


WIDE_OPEN = KnownHost(
    root="r1",
    name="h1",
    traits=frozenset("A"),
    stocks=(HostStock(resource_class="VCPU", free=4, capacity=4),),
)
MIXES: dict[str, tuple[list[KnownHost], tuple[str, ...], int, int]] = {
    "of one flavor": ([a_host(1, VCPU=8)], ("2xVCPU:1",), 4, 4),
    "together on one host": ([a_host(1, VCPU=8)], ("VCPU:3", "VCPU:1"), 2, 2),
    "the large one goes where nothing else would": ([a_host(1, VCPU=8), a_host(2, VCPU=1), a_host(3, VCPU=1)],
        ("2xVCPU:1", "VCPU:8"), 1, 1),
    "in sum, but in no one host": ([a_host(n, VCPU=3) for n in range(4)], ("VCPU:4", "VCPU:1"), 0, 2),
    "each needs what the other leaves": ([a_host(n, VCPU=9, MEMORY_MB=9) for n in range(2)],
        ("VCPU:8,MEMORY_MB:1", "VCPU:1,MEMORY_MB:8"), 2, 2),
    "whole mixes on each host, where the large ones would crowd": (
        [a_host(n, VCPU=6, MEMORY_MB=6) for n in range(2)],
        ("VCPU:2,MEMORY_MB:1", "VCPU:1,MEMORY_MB:2"),
        4,
        4,
    ),
    "who may go anywhere leaves what is wide open": ([WIDE_OPEN, a_host(2, VCPU=4)], ("VCPU:2", "VCPU:2,A"),
        2, 2),
    "by traits they never meet": ([a_host(1, VCPU=4, traits="A"), a_host(2, VCPU=6)],
        ("VCPU:2,A", "VCPU:2,!A"), 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXES)
def test_a_mix(name: str) -> None:
    hosts, mix, fit, in_sum = MIXES[name]
    side = plan(hosts, *mix).now
    assert (side.mixes, side.mixes_in_sum, side.lost) == (fit, in_sum, in_sum - fit)


def test_the_reported_number_fits_and_one_more_rarely_does() -> None:
    chance = random.Random(7)
    reply = possible = 0
    for _ in range(40):
        capacities = [(chance.randint(2, 11), chance.randint(2, 11)) for _ in range(chance.randint(1, 3))]
        mix = [(chance.randint(1, 2), chance.randint(1, 3), chance.randint(1, 3)) for _ in "ab"]
        hosts = [a_host(n, VCPU=cpu, MEMORY_MB=memory) for n, (cpu, memory) in enumerate(capacities)]
        side = plan(hosts, *(f"{parts}xVCPU:{cpu},MEMORY_MB:{memory}" for parts, cpu, memory in mix)).now
        best = 0
        while _can_hold(tuple(sorted(capacities)), tuple(sorted(mix * (best + 1)))):
            best += 1
        assert side.mixes <= best <= side.mixes_in_sum
        reply, possible = reply + side.mixes, possible + best
        taken = [side.mixes * sum(one[0] * one[place] for one in mix) for place in (1, 2)]
        assert [over.free for over in side.left] == [
            sum(room[place] for room in capacities) - taken[place] for place in (0, 1)
        ]
    assert reply >= 0.95 * possible > 20


def _can_hold(capacities: tuple[tuple[int, int], ...], wanted: tuple[tuple[int, int, int], ...]) -> bool:
    items = [(cpu, memory) for parts, cpu, memory in wanted for _ in range(parts)]
    return _fit(capacities, tuple(sorted(items, reverse=True)))


@cache
def _fit(capacities: tuple[tuple[int, int], ...], items: tuple[tuple[int, int], ...]) -> bool:
    if not items:
        return True
    cpu, memory = items[0]
    return any(
        _fit(tuple(sorted((*capacities[:at], (has - cpu, had - memory), *capacities[at + 1 :]))), items[1:])
        for at, (has, had) in enumerate(capacities)
        if has >= cpu and had >= memory
    )


# In thought

HALL = [a_host(1, VCPU=4, traits=f"A {DISABLED} {HELD}X", closed=True), a_host(2, VCPU=4, zone="z2")]


@pytest.mark.parametrize(
    ("add", "without", "place", "now", "then"),
    [
        ("", "", {}, 4, None),
        ("2xVCPU:6", "", {}, 4, 16),
        ("3xlike:h1", "", {}, 4, 124),  # empty and open, whatever h1 is
        ("1xlike:r2", "h2", {}, 4, 40),
        ("", "h*", {}, 4, 0),
        ("", "r2", {}, 4, 0),
        ("VCPU:6,zone=z1", "", {"zone": "z2"}, 4, 4),
        ("VCPU:6", "", {"zone": "z2"}, 4, 10),  # wherever the plan is
        ("VCPU:6", "", {"zone": "z9"}, 0, 6),
        ("1xlike:h2", "", {"cell": "c2"}, 0, 0),
    ],
)
def test_hosts_added_and_taken_away(
    add: str, without: str, place: dict[str, str], now: int, then: int | None
) -> None:
    answer = plan(HALL, "VCPU:1", add=add, without=without, **place)
    assert answer.now.flavors[0].fits == now
    assert (answer.then.flavors[0].fits if answer.then else None) == then


def test_a_planned_host_copies_traits_except_disabling_ones() -> None:
    answer = plan(HALL, "VCPU:1,A", f"VCPU:1,!{DISABLED},!{HELD}X", add="1xlike:h1")
    assert answer.then is not None and [flavor.fits for flavor in answer.then.flavors] == [40, 44]
    assert (answer.now.hosts, answer.now.closed, answer.then.hosts, answer.added) == (1, 1, 2, 1)


def test_allocations_on_removed_hosts_are_reported() -> None:
    answer = plan(HALL, "VCPU:1", without="h1 h2")
    assert (answer.taken, answer.homeless) == (("h1", "h2"), (("VCPU", 72),))


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ({"mix": []}, "enter at least one flavor"),
        ({"mix": ["VCPU"]}, "'VCPU': a flavor is CLASS:AMOUNT"),
        ({"mix": ["VCPU:0"]}, "'VCPU:0': the amount is a whole number from 1 to"),
        ({"mix": ["vcpu:1"]}, "'vcpu:1': CLASS:AMOUNT or a trait"),
        ({"mix": ["0xVCPU:1"]}, "the number before x is from 1 to 10,000"),
        ({"mix": ["10001xVCPU:1"]}, "the number before x is from 1 to 10,000"),
        ({"mix": ["VCPU:2147483648"]}, "from 1 to 2,147,483,647"),
        ({"mix": ["VCPU:" + "9" * 3000]}, "from 1 to 2,147,483,647"),
        ({"mix": ["VCPU:1," + "A," * 50]}, "50 classes and traits at most"),
        ({"mix": ["A" * 4001]}, "a line has 4,000 characters at most"),
        ({"mix": ["A"] * 20_000}, "8 flavors at most"),
        ({"add": ["20000xVCPU:1", "VCPU:1"]}, "a plan adds 20,000 hosts at most"),
        ({"add": ["VCPU:1"] * 21}, "20 kinds of hosts at most"),
        ({"without": ["h1"] * 60}, "50 names or patterns"),
        ({"without": ["h" * 256]}, "a name 255"),
        ({"mix": ["VCPU:1,zone=z"]}, "a flavor is"),
        ({"mix": ["VCPU:1"] * 9}, "8 flavors at most"),
        ({"add": ["10xlike:"]}, "like which host?"),
        ({"add": ["10xA"]}, "hosts are 10xlike:HOST"),
        ({"add": ["999999xVCPU:1"]}, "the number before x is from 1 to 20,000"),
        ({"add": ["1xlike:nobody"]}, "there is no host 'nobody' to be like"),
        ({"without": ["nobody*", "h1"]}, "there is no host 'nobody*' to take away"),
    ],
)
def test_invalid_plans_are_refused(reply: dict[str, list[str]], problem: str) -> None:
    with pytest.raises(InvalidPlan) as bad:
        planned(
            HALL, parse_plan(reply.get("mix", ["VCPU:1"]), reply.get("add", ()), reply.get("without", ()))
        )
    assert any(problem in arg for arg in bad.value.args)


def test_one_host_with_many_providers_costs_only_its_own_time() -> None:
    many = dataclasses.replace(
        a_host(1), stocks=tuple(HostStock(resource_class="VCPU", free=3, capacity=3) for _ in range(9999))
    )
    hosts = [many, *(a_host(number, VCPU=2) for number in range(2, 3000))]
    tracemalloc.start()
    try:
        answer = plan(hosts, "VCPU:2", "VCPU:1", add="20000xVCPU:1")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with pytest.raises(InvalidPlan, match="400,000 inventories"):
        plan(hosts, "VCPU:2", add="20000xlike:h1")
    assert answer.now.flavors[0].fits == 9999 + 2998
    assert most < 50 << 20


def test_a_plan_that_is_stopped_ends() -> None:
    polls = iter([False, False, True])
    with pytest.raises(PlanStopped):
        planned([a_host(1, VCPU=2)], parse_plan(["VCPU:1", "VCPU:2"], [], []), lambda: next(polls))
