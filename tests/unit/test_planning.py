"""Capacity in thought: what fits, what hosts added or taken away change, and what is in pieces."""

import asyncio
import dataclasses
import itertools
import random
import tracemalloc
from functools import cache
from time import process_time

import pytest
from msgspec.structs import replace

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.host_health import DISABLED, HELD
from bus.protocol import decode, encode
from bus.requests import Flavor, Image
from bus.vocabulary import capacity_of
from control_room.core.hosts import HostStock, KnownHost
from control_room.core.packing import PlanStopped
from control_room.core.plan_form import InvalidPlan, parse_plan
from control_room.core.planning import PlanAnswer, planned, with_quota
from features.groups.messages import ServerGroup
from features.moves.messages import MoveRequested
from features.moves.tests.support.move_builders import BUILD, a_build_that_stands, a_move
from features.moves.tests.unit.test_moves import GROUP, MovingCloud, a_cloud, root, shelved
from features.planning.supposed_moves import WhatIfsOfMoves
from features.quotas.messages import Quota
from features.what_if import questions as what_if
from features.what_if.messages import WhatIf, WhatIfAnswered, WhatIfMoves
from features.what_if.questions import WhatIfs
from placement_worker.core.trees import Tree
from scheduler_worker import help_search
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.index_source import source_of
from tests.support.provider_trees import state, tree
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
from tests.support.schedulers import scheduler_of


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


@pytest.mark.parametrize(
    ("limits", "fits"),
    [({}, 8), ({"max_unit": 1}, 0), ({"min_unit": 3}, 0), ({"step": 4}, 0), ({"step": 2, "min_unit": 2}, 8)],
)
def test_a_provider_gives_only_amounts_that_it_may(limits: dict[str, int], fits: int) -> None:
    stock = HostStock(resource_class="VCPU", free=16, capacity=16, **limits)
    host = KnownHost(root="r", name="h", stocks=(stock,))
    assert plan([host], "VCPU:2").now.flavors[0].fits == fits


def test_leftovers_are_too_small_or_lack_another_class() -> None:
    hosts = [a_host(1, VCPU=7, MEMORY_MB=8), a_host(2, VCPU=8, MEMORY_MB=3)]
    (room,) = plan(hosts, "VCPU:2,MEMORY_MB:2").now.flavors
    cpu, memory = room.classes
    assert (room.fits, room.hosts) == (4, 2)
    assert (cpu.free, cpu.taken, cpu.small, cpu.in_addition, cpu.ends, cpu.largest) == (15, 8, 1, 6, 1, 8)
    assert (memory.free, memory.taken, memory.small, memory.in_addition, memory.ends) == (11, 8, 1, 2, 1)


QUOTAS: dict[str, tuple[dict[str, int], list[int], list[str]]] = {  # limits, what fits, the limits that bind
    "no limit": ({}, [4, 8, 2], ["", "", ""]),
    "unlimited": ({"VCPU": -1}, [4, 8, 2], ["", "", ""]),
    "hosts bind": ({"VCPU": 99, "instances": 99}, [4, 8, 2], ["", "", ""]),
    "a class binds the larger flavor": ({"VCPU": 9}, [3, 6, 1], ["VCPU"] * 3),
    "instances bind": ({"instances": 4}, [2, 2, 0], ["instances"] * 3),
    "the first of two": ({"instances": 9, "VCPU": 7}, [2, 4, 1], ["VCPU"] * 3),
    "used up": ({"VCPU": 2}, [0, 0, 0], ["VCPU"] * 3),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_permits_fewer_than_the_hosts(name: str) -> None:
    limits, fits, binds = QUOTAS[name]
    quota = Quota(project="p", effective=limits, used={"VCPU": 3, "instances": 2})
    mix = parse_plan(["VCPU:2", "2xVCPU:1"], [], [])
    side = with_quota(planned([a_host(1, VCPU=8)], mix, lambda: False), mix, quota).now
    assert [*(flavor.fits for flavor in side.flavors), side.mixes] == fits
    limits_that_bind = [*(flavor.quota for flavor in side.flavors), side.quota]
    assert [bound.resource if bound else "" for bound in limits_that_bind] == binds
    assert side.lost == side.flavors[0].lost == 0  # not lost to fragmentation


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


def test_leftovers_of_a_mix_and_the_missing_amounts() -> None:
    side = plan([a_host(1, VCPU=7), a_host(2, VCPU=2)], "VCPU:4", "VCPU:1").now
    assert (side.mixes, side.short) == (1, ("VCPU:4",))
    assert [(over.resource_class, over.free, over.largest) for over in side.left] == [("VCPU", 4, 2)]


def test_the_reported_number_fits_and_one_more_rarely_does() -> None:
    chance = random.Random(7)
    said = possible = 0
    for _ in range(40):
        capacities = [(chance.randint(2, 11), chance.randint(2, 11)) for _ in range(chance.randint(1, 3))]
        mix = [(chance.randint(1, 2), chance.randint(1, 3), chance.randint(1, 3)) for _ in "ab"]
        hosts = [a_host(n, VCPU=cpu, MEMORY_MB=memory) for n, (cpu, memory) in enumerate(capacities)]
        side = plan(hosts, *(f"{parts}xVCPU:{cpu},MEMORY_MB:{memory}" for parts, cpu, memory in mix)).now
        best = 0
        while _can_hold(tuple(sorted(capacities)), tuple(sorted(mix * (best + 1)))):
            best += 1
        assert side.mixes <= best <= side.mixes_in_sum
        said, possible = said + side.mixes, possible + best
        taken = [side.mixes * sum(one[0] * one[place] for one in mix) for place in (1, 2)]
        assert [over.free for over in side.left] == [
            sum(room[place] for room in capacities) - taken[place] for place in (0, 1)
        ]
    assert said >= 0.95 * possible > 20


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
    ("said", "problem"),
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
def test_invalid_plans_are_refused(said: dict[str, list[str]], problem: str) -> None:
    with pytest.raises(InvalidPlan) as bad:
        planned(HALL, parse_plan(said.get("mix", ["VCPU:1"]), said.get("add", ()), said.get("without", ())))
    assert any(problem in arg for arg in bad.value.args)


@pytest.mark.parametrize("ratio", [16.0, 3e38, -1e308])
def test_the_plan_counts_hosts_of_any_allocation_ratio(ratio: float) -> None:
    capacity = capacity_of(2**31 - 1, 0, ratio)
    stock = HostStock(resource_class="VCPU", free=capacity, capacity=capacity)
    hosts = [dataclasses.replace(a_host(number), stocks=(stock,)) for number in range(1000)]
    (room,) = plan(hosts, "VCPU:1").now.flavors
    assert room.in_sum == max(1000 * capacity, 0) < 2**63


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


OTHER = uid(2000, "b")
ONE = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}  # room for one


async def supposed(
    cloud: MovingCloud, *moves: MoveRequested, closed: tuple[int, ...] = ()
) -> list[WhatIfAnswered]:
    what_ifs = WhatIfsOfMoves(WhatIfs(cloud.scheduler), cloud.moves.courses)
    asked = WhatIfMoves(moves=moves, closed=tuple(root(number) for number in closed))
    return list((await what_ifs.answer(asked)).answers)


def where(answers: list[WhatIfAnswered]) -> list[str]:
    return [answer.placed[0].host if answer.placed else answer.decision.code for answer in answers]


def another(cloud: MovingCloud) -> None:
    cloud.placement.hold(OTHER, 1)
    cloud.cells.know(a_build_that_stands(1, build=OTHER))


async def test_a_what_if_of_a_move_shows_its_host_and_begins_nothing() -> None:
    cloud = a_cloud(hosts=3)
    [answer] = await supposed(cloud, a_move())
    assert answer.fits and answer.placed[0].root in (root(2), root(3))
    assert {host.root for host in answer.best} == {root(2), root(3)}
    assert answer.decision.considered and answer.decision.record is not None
    assert (cloud.placement.orders, cloud.placement.retired) == ([], {})
    placed = await cloud.placed(a_move())
    assert placed.chosen is not None and placed.chosen.root == answer.placed[0].root


REFUSED = [
    ("nobody fits", a_move(1, "resize", flavor=Flavor(name="huge", vcpus=99)), "class", ""),
    ("unknown", a_move(build=uid(4, "b")), "unknown", "does not know of such a build"),
    ("it is there", a_move(wanted_host="host1"), "same_host", "it is on host1 already"),
    ("not fenced", a_move(1, "evacuate"), "not_fenced", "`berth host force-down host1`"),
    ("no such host", a_move(wanted_host="nix"), "unreadable", "there is no host 'nix'"),
    ("no flavor", a_move(1, "resize"), "unreadable", "flavor: a resize requires"),
]


@pytest.mark.parametrize(("move", "code", "why"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED])
async def test_a_what_if_has_the_refusal_of_the_move(move: MoveRequested, code: str, why: str) -> None:
    cloud = a_cloud()
    [answer] = await supposed(cloud, move)
    assert (answer.fits, answer.decision.code) == (False, code)
    assert why in answer.refusal and bool(answer.refusal) == bool(why)
    assert cloud.placement.retired == {}
    assert (await cloud.refused(move)).code == code


async def test_each_move_leaves_less_capacity_for_the_next() -> None:
    cloud = a_cloud(a_candidate(1), a_candidate(2, free=dict(ONE)), a_candidate(3, free=dict(ONE)))
    another(cloud)
    huge = a_move(2, "resize", build=OTHER, flavor=Flavor(name="huge", vcpus=99))
    answers = await supposed(cloud, a_move(), huge, a_move(3, build=OTHER), a_move(4))
    assert [answer.fits for answer in answers] == [True, False, True, False]
    assert {*where(answers)[0:1], *where(answers)[2:3]} == {"host2", "host3"}
    assert [bool(answer.best) for answer in answers] == [True, False, False, False]
    assert where(await supposed(cloud, a_move(), a_move(2, build=OTHER))) != ["class", "class"]


async def test_a_what_if_uses_no_host_to_be_disabled() -> None:
    cloud = a_cloud(hosts=3)
    assert where(await supposed(cloud, a_move(), closed=(1, 2))) == ["host3"]
    [nowhere] = await supposed(cloud, a_move(), closed=(1, 2, 3))
    assert not nowhere.fits


async def test_planned_moves_of_a_group_respect_its_policy() -> None:
    cloud = a_cloud(hosts=3)
    another(cloud)
    members: dict[str, tuple[str, ...]] = {BUILD: (root(1),), OTHER: (root(1),)}
    cloud.placement.groups[GROUP] = ServerGroup(
        id=GROUP, name="web", policy="anti-affinity", project="p", members=members, left={}
    )
    answers = await supposed(cloud, a_move(), a_move(2, build=OTHER))
    assert {*where(answers)} == {"host2", "host3"}


async def test_moves_without_a_host_are_judged_as_well() -> None:
    cloud = a_cloud()
    [shelve, rebuild] = await supposed(
        cloud, a_move(1, "shelve"), a_move(2, "rebuild", image=Image(name="i"))
    )
    assert (shelve.fits, shelve.placed) == (True, ())
    assert (rebuild.fits, rebuild.placed[0].host) == (True, "host1")
    shelved(cloud)
    stands = cloud.cells.stands["cell1"][BUILD]
    assert where(await supposed(cloud, a_move(1, "unshelve"))) != []
    cloud.cells.know(replace(stands, move=a_move(3).move))
    [begun] = await supposed(cloud, a_move(3))
    assert not begun.fits and begun.refusal == "it has begun before, and its cell sees it through"


ON_A_CELL = Flavor(name="f", vcpus=1, memory_mb=1, extra_specs={"hw:numa_nodes": "1"})


def a_host_of_cells(number: int, cells: int, vcpus: int) -> Tree:
    first = 10_000 * number
    children = [
        state(first + index, first, {"VCPU": vcpus, "MEMORY_MB": 10_000}) for index in range(1, cells + 1)
    ]
    return tree(state(first, None, {}), *children)


def a_scheduler(source: CandidateSource, clock: Clock | None = None) -> Scheduler:
    return scheduler_of(FakePlacement(), source=source, clock=clock or Clock())


async def room(*hosts: Tree, clock: Clock | None = None) -> WhatIfAnswered:
    scheduler = a_scheduler(source_of(hosts), clock)
    return await WhatIfs(scheduler).answer(WhatIf(request=a_request(flavor=ON_A_CELL), room=True))


async def test_other_work_goes_on_while_1000_providers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "LONGEST", 100.0)
    monkeypatch.setattr(what_if, "PATIENCE", 600.0)  # a busy machine needs more than 30 s
    readings = itertools.count()  # the clock advances by a millisecond each time it is read
    clock = Clock(monotonic=lambda: next(readings) / 1000)
    counting = asyncio.create_task(room(a_host_of_cells(1, cells=1000, vcpus=100), clock=clock))
    turns = 0
    while not counting.done():
        await asyncio.sleep(0)
        turns += 1
    (found,) = counting.result().room
    assert (found.instances, bool(counting.result().cut)) == (1000, True)
    assert turns > found.instances / 5  # a slice of 3 ms is at most five searches


@pytest.mark.parametrize("vcpus", [3, 5])
@pytest.mark.parametrize("slice_", [-1.0, 0.0001, 10.0])
async def test_the_count_does_not_depend_on_its_slices(
    slice_: float, vcpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "SLICE", slice_)
    answer = await room(*(a_host_of_cells(number, cells=4, vcpus=vcpus) for number in range(1, 6)))
    (found,) = answer.room
    assert (found.hosts, found.instances, answer.cut) == (5, 5 * 4 * vcpus - 1, "")


@pytest.mark.parametrize(("count", "fits"), [(2400, True), (2401, False)])
async def test_more_instances_than_a_boot_may_have(count: int, fits: bool) -> None:
    hosts = [
        a_host_of_cells(number, cells=1, vcpus=8) for number in range(1, 301)
    ]  # 8: as many as io_ops admits
    scheduler = a_scheduler(source_of(hosts))
    question = WhatIf(request=a_request(flavor=ON_A_CELL), count=count)
    received = decode(WhatIf, encode(question))
    answer = await WhatIfs(scheduler).answer(received)
    assert (answer.fits, sum(there.instances for there in answer.placed)) == (fits, count if fits else 0)


async def test_capacity_is_counted_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "SLICE", -1.0)  # one host, then other work
    monkeypatch.setattr(what_if, "LONGEST", 0.0)
    answer = await room(*(a_host_of_cells(number, cells=4, vcpus=3) for number in range(1, 6)))
    assert answer.cut.startswith("counting stopped after 0 s")
    assert sum(left.instances for left in answer.room) < 5 * 4 * 3 - 1


async def test_a_what_if_ends_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "PATIENCE", 0.05)
    monkeypatch.setattr(what_if, "LONGEST", 60.0)
    answer = await room(a_host_of_cells(1, cells=1000, vcpus=100))
    assert (answer.fits, answer.refusal) == (False, "there was no answer within 0.05 s")


async def test_remedies_are_searched_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(help_search, "REQUEST_SECONDS", 0.1)
    specs = {f"resources{index}:VCPU": "2" for index in range(60)} | {"group_policy": "isolate"}
    specs |= {f"same_subtree{index}": f"{index},{index + 1}" for index in range(59)}
    scheduler = a_scheduler(source_of([a_host_of_cells(1, cells=1000, vcpus=100)]))
    began = process_time()
    await scheduler.place_many([a_request(flavor=Flavor(name="f", extra_specs=specs))])
    assert process_time() - began < 4.0
