"""Refusals: the named host first, true codes and figures, and every code is documented."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.decisions import CONSTRAINTS, ENDS, MOVES
from bus.host_health import DISABLED, HELD
from bus.messages import BuildUnplaceable, HostReported
from bus.queries import WhatIf
from bus.reports import HostState
from bus.requests import Flavor
from placement_worker import IndexedSource
from scheduler_worker.core.events import NoHost
from scheduler_worker.core.helping import helps
from scheduler_worker.core.order import Order
from scheduler_worker.core.rules import RULES
from scheduler_worker.core.shortage import Shortage
from scheduler_worker.waiting.hosts import beside
from scheduler_worker.what_if import WhatIfs
from tests.support.exact_worlds import FLAVORS, FilledMemory, an_order
from tests.support.ids import uid
from tests.support.provider_trees import SHARES, state, tree
from tests.support.ranking_builders import Hall
from tests.support.scheduler_builders import FakePlacement, TurnedClock, a_candidate, a_request
from tests.support.schedulers import scheduler_of

SMALL, LARGE = FLAVORS[0], replace(FLAVORS[0], vcpus=64)


def a_hall() -> Hall:
    """Three hosts: p0 is open, p1 is disabled because of its disk, p2 is disabled."""
    memory = FilledMemory()
    stock = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100}
    for position, traits in enumerate(((), (DISABLED, f"{HELD}DISK"), (DISABLED,))):
        memory.index.put(tree(state(position, None, dict(stock), None, traits)), 1)
    return Hall(IndexedSource(memory))


def refused(hall: Hall, order: Order) -> tuple[Shortage, str]:
    (answer,) = hall.choosing().choose([order])
    assert isinstance(answer, NoHost)
    return answer.short, answer.short.reason(order.request, len(order.instances), ())


def test_a_disabled_host_that_is_named_is_explained_first_with_its_cause() -> None:
    hall = a_hall()
    short, reason = refused(hall, an_order(hall, a_request(flavor=SMALL, wanted_host="p1"), None))
    assert reason.startswith("p1: disabled by an operator: disk. no valid host among 3: ")
    assert reason.endswith("not the requested host: 2 hosts, disabled: 1 host")
    assert short.code == "disabled"


def test_a_named_host_that_is_disabled_and_too_small_is_explained_by_both() -> None:
    hall = a_hall()
    _, reason = refused(hall, an_order(hall, a_request(flavor=LARGE, forced_host="p2"), None))
    assert reason.startswith("p2: disabled; 56 VCPU: asked 64, free 8. ")


def test_disabled_hosts_are_no_near_misses() -> None:
    hall = a_hall()
    short, _ = refused(hall, an_order(hall, a_request(flavor=LARGE), None))
    assert [miss.host for miss in short.nearest] == ["p0"]


def test_hosts_that_are_down_are_no_near_misses() -> None:
    memory = FilledMemory()
    trees = [tree(state(number, None, {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100})) for number in (0, 1)]
    for stored in trees:
        memory.index.put(stored, 1)
    hall = Hall(IndexedSource(memory), now=40.0)
    for second in range(41):
        hall.book.listened(float(second))
        for stored in trees[:1] if second else trees:  # p1 has one heartbeat, at the beginning
            states = (HostState(root=stored.root, host=stored.host),)
            report = HostReported(cell=stored.cell, agent=stored.agent, sequence=second + 1, hosts=states)
            hall.book.handle(report, float(second))
    short, _ = refused(hall, an_order(hall, a_request(flavor=LARGE), None))
    assert [miss.host for miss in short.nearest] == ["p0"]


def test_a_reserved_host_is_named_as_reserved() -> None:
    hall = a_hall()
    order = an_order(hall, a_request(flavor=SMALL), None)
    order = beside(order, [uid(0, "a")], lambda root: "reserved for waiting request R")
    short, reason = refused(hall, order)
    assert "reserved for other requests: 1 host" in reason
    assert "p0 (reserved for waiting request R)" in reason
    assert "reserved" in {removal.code for removal in short.removals}


@pytest.mark.parametrize("ignored", [(), ("p2",)])
def test_leaving_out_ignore_hosts_is_no_remedy_for_a_reserved_host(ignored: tuple[str, ...]) -> None:
    hall = a_hall()
    order = an_order(hall, a_request(flavor=SMALL, ignore_hosts=ignored), None)
    order = beside(order, [uid(0, "a")], lambda root: "reserved for waiting request R")
    said = helps(order.alternative, hall.choosing(), "s")
    assert not [remedy for remedy in said if "ignore_hosts" in remedy]


async def test_too_many_instances_at_once_have_the_code_room_in_what_if_too() -> None:
    placement = FakePlacement.of(a_candidate(1, free={"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20}))
    scheduler = scheduler_of(placement, clock=TurnedClock().clock)
    request = a_request(instances=5)
    answer = await WhatIfs(scheduler).answer(WhatIf(request=request))
    assert not answer.fits and answer.decision.code == "room"
    ((message,),) = await scheduler.place_many([request])  # type: ignore[misc]
    assert isinstance(message, BuildUnplaceable) and message.decision.code == "room"


async def test_what_if_excludes_reserved_hosts_like_a_boot() -> None:
    placement = FakePlacement.of(a_candidate(1))
    scheduler = scheduler_of(placement, clock=TurnedClock().clock)
    scheduler.leave_out_reserved(
        lambda root: None,
        lambda orders: [beside(order, [uid(1, "c")], lambda root: "reserved for R") for order in orders],
    )
    answer = await WhatIfs(scheduler).answer(WhatIf(request=a_request()))
    assert not answer.fits


async def test_remedies_of_too_many_instances_leave_free_capacity_for_all() -> None:
    placement = FakePlacement.of(a_candidate(1, free={"VCPU": 3, "MEMORY_MB": 4096, "DISK_GB": 400}))
    scheduler = scheduler_of(placement, clock=TurnedClock().clock)
    flavor = Flavor(name="f", vcpus=2, memory_mb=1024, disk_gb=10)
    answer = await WhatIfs(scheduler).answer(WhatIf(request=a_request(instances=3, flavor=flavor)))
    assert answer.decision.helps == ("1 host would fit with 1 VCPU instead of 2",)


def a_cell_hall() -> Hall:
    """A host of one provider, and one of two NUMA cells that is full; a pool shares with both."""
    memory = FilledMemory()
    small = {"VCPU": 4, "MEMORY_MB": 4096}
    memory.index.put(tree(state(0, None, {"VCPU": 8, "MEMORY_MB": 8192}, None, (), (3,))), 1)
    cells = [state(position, 1, dict(small), dict(small)) for position in (2, 3)]
    memory.index.put(tree(state(1, None, {}, None, (), (3,)), *cells), 1)
    pool = tree(state(4, None, {"DISK_GB": 100}, None, (SHARES,), (3,)), cell="")
    memory.index.put(dataclasses.replace(pool, agent=""), 1)
    return Hall(IndexedSource(memory))


def test_pools_are_no_hosts_and_a_host_of_one_provider_is_not_closest_to_two_cells() -> None:
    hall = a_cell_hall()
    flavor = Flavor(name="f", vcpus=4, memory_mb=1024, extra_specs={"hw:numa_nodes": "2"})
    short, reason = refused(hall, an_order(hall, a_request(flavor=flavor), None))
    assert reason.startswith("no valid host among 2: ")
    assert short.nearest[0].host == "p1"


def test_a_remedy_names_its_group() -> None:
    hall = a_cell_hall()
    specs = {"resources1:VCPU": "9", "resources2:VCPU": "4", "group_policy": "none"}
    flavor = Flavor(name="f", vcpus=1, memory_mb=512, extra_specs=specs)
    said = helps(hall.alternative(a_request(flavor=flavor)), hall.choosing(), "s")
    assert said and all("in group 1" in one or "VCPU" not in one for one in said), said


def test_a_preferred_trait_that_no_host_has_is_noted() -> None:
    hall = a_hall()
    pick = hall.rank(a_request(flavor=SMALL, preferred_traits={"CUSTOM_NONE": 1.0})).take()
    assert pick is not None and pick.notes == ("preferred_traits: no host that fits has CUSTOM_NONE",)


def test_aggregates_are_named() -> None:
    hall = a_hall()
    there = Aggregate(id=uid(1, "e"), name="ssd")
    hall.source._memory.index.aggregate_facts[there.id] = there  # type: ignore[attr-defined]
    _, reason = refused(hall, an_order(hall, a_request(flavor=SMALL, aggregates=((there.id,),)), None))
    assert "root aggregate ssd removed" in reason


def test_the_host_of_the_instance_named_by_same_host_is_explained_first() -> None:
    hall = a_hall()
    order = an_order(hall, a_request(flavor=LARGE), None)
    alternative = dataclasses.replace(order.alternative, same=frozenset({uid(0, "a")}))
    _, reason = refused(hall, replace(order, alternatives=(alternative,)))
    assert reason.startswith("p0: 56 VCPU: asked 64, free 8. no valid host among 3: ")


ROOT = Path(__file__).parents[2]
SAYING = ("scheduler_worker", "placement_worker/core", "placement_worker/source.py")


def literal_codes() -> set[str]:
    found: set[str] = set()
    for place in SAYING:
        at = ROOT / place
        for file in [at] if at.is_file() else at.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.keyword)
                    and node.arg == "code"
                    and isinstance(node.value, ast.Constant)
                ):
                    assert isinstance(node.value.value, str)
                    found.add(node.value.value)
    return found


def test_every_code_that_is_said_is_in_the_table() -> None:
    codes = {rule.code for name, make in RULES.items() if (rule := make()) and rule.code}
    known = CONSTRAINTS.keys() | ENDS.keys()
    assert literal_codes() | codes <= known | MOVES.keys()
    assert not MOVES.keys() & known
    assert known & RULES.keys() == {"zone"}
    assert not CONSTRAINTS.keys() & ENDS.keys()


@pytest.mark.parametrize(
    ("table", "title"), [(CONSTRAINTS, "Of hosts"), (ENDS, "Of the whole"), (MOVES, "Of moves")]
)
def test_the_docs_have_the_same_table(table: dict[str, str], title: str) -> None:
    text = (ROOT / "docs" / "reasons.md").read_text()
    part = text.partition(f"### {title}")[2].partition("\n### ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", part, re.MULTILINE)) == table
