"""Refusals: the named host first, true codes and figures, and every code is documented."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.decisions import OF_HOSTS, OF_THE_WHOLE, REASONS, ReasonTable
from bus.host_health import DISABLED, HELD
from bus.messages import BuildRequested, BuildUnplaceable, HostReported
from bus.reports import HostState
from bus.requests import Flavor
from bus.vocabulary import Id
from scheduler_worker import FILTER_BOOK
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.fitting import Shortage
from scheduler_worker.core.order import Order
from scheduler_worker.extension import HostLimit, NoNarrowing, Remedies, Tally
from tests.support.ids import uid
from tests.support.index_source import source_of
from tests.support.provider_trees import SHARES, state, tree
from tests.support.ranking_builders import FLAVORS, Hall
from tests.support.refused_worlds import CLOSED, RandomCloud, a_question, a_world
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
from tests.support.schedulers import scheduler_of
from tests.support.virtual_time import TurnedClock

SMALL_FLAVOR, LARGE = FLAVORS[0], replace(FLAVORS[0], vcpus=64)


def three_hosts() -> Hall:
    """Three hosts: p0 is open, p1 is disabled because of its disk, p2 is disabled."""
    stock = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100}
    traits_of = enumerate(((), (DISABLED, f"{HELD}DISK"), (DISABLED,)))
    return Hall(source_of([tree(state(at, None, dict(stock), None, traits)) for at, traits in traits_of]))


def refused(hall: Hall, order: Order) -> tuple[Shortage, str]:
    (answer,) = hall.choosing().choose([order])
    assert not answer.picks and answer.short is not None
    return answer.short, answer.short.reason(order.request, len(order.instances), ())


def test_a_disabled_host_that_is_named_is_explained_first_with_its_cause() -> None:
    hall = three_hosts()
    short, reason = refused(hall, hall.order(a_request(flavor=SMALL_FLAVOR, wanted_host="p1")))
    assert reason.startswith("p1: disabled by an operator: disk. no valid host among 3: ")
    assert reason.endswith("not the requested host: 2 hosts, disabled: 1 host")
    assert short.code == "disabled"


def test_disabled_hosts_are_no_near_misses() -> None:
    hall = three_hosts()
    short, _ = refused(hall, hall.order(a_request(flavor=LARGE)))
    assert [miss.host for miss in short.nearest] == ["p0"]


def test_hosts_that_are_down_are_no_near_misses() -> None:
    trees = [tree(state(number, None, {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 100})) for number in (0, 1)]
    hall = Hall(source_of(trees), now=40.0)
    for second in range(41):
        hall.book.listened(float(second))
        for stored in trees[:1] if second else trees:  # p1 has one heartbeat, at the beginning
            states = (HostState(root=stored.root, host=stored.host),)
            report = HostReported(cell=stored.cell, agent=stored.agent, sequence=second + 1, hosts=states)
            hall.book.handle(report, float(second))
    short, _ = refused(hall, hall.order(a_request(flavor=LARGE)))
    assert [miss.host for miss in short.nearest] == ["p0"]


def reserved(why: str, *roots: str) -> HostLimit:
    return HostLimit("reserved", "reserved for other requests", frozenset(roots), lambda root: why)


def test_a_reserved_host_is_named_as_reserved() -> None:
    hall = three_hosts()
    order = hall.order(a_request(flavor=SMALL_FLAVOR))
    order = order.limited(reserved("reserved for waiting request R", uid(0, "a")))
    short, reason = refused(hall, order)
    assert "reserved for other requests: 1 host" in reason
    assert "p0 (reserved for waiting request R)" in reason
    assert "reserved" in {removal.code for removal in short.removals}


CELL = {"VCPU": "2", "MEMORY_MB": "512"}  # of a guest with two


def a_cell_hall() -> Hall:
    """A host of one provider, and one of two NUMA cells that is full; a pool shares with both."""
    small = {"VCPU": 4, "MEMORY_MB": 4096}
    flat = tree(state(0, None, {"VCPU": 8, "MEMORY_MB": 8192}, None, (), (3,)))
    cells = [state(position, 1, dict(small), dict(small)) for position in (2, 3)]
    full = tree(state(1, None, {}, None, (), (3,)), *cells)
    pool = tree(state(4, None, {"DISK_GB": 100}, None, (SHARES,), (3,)), cell="")
    return Hall(source_of([flat, full, dataclasses.replace(pool, agent="")]))


def test_pools_and_flat_hosts_are_not_closest_to_a_numa_request() -> None:
    hall = a_cell_hall()
    specs = {f"resources{cell}:{name}": amount for cell in "12" for name, amount in CELL.items()}
    flavor = Flavor(name="f", extra_specs={**specs, "group_policy": "isolate"})
    short, reason = refused(hall, hall.order(a_request(flavor=flavor)))
    assert reason.startswith("no valid host among 2: ")
    assert short.nearest[0].host == "p1"


def test_a_preferred_trait_that_no_host_has_is_noted() -> None:
    hall = three_hosts()
    pick = hall.rank(a_request(flavor=SMALL_FLAVOR, preferred_traits={"CUSTOM_NONE": 1.0})).take()
    assert pick is not None and pick.notes == ("preferred_traits: no host that fits has CUSTOM_NONE",)


def test_aggregates_are_named() -> None:
    hall = three_hosts()
    there = Aggregate(id=uid(1, "e"), name="ssd")
    hall.source._memory.index.aggregate_facts[there.id] = there  # type: ignore[attr-defined]
    _, reason = refused(hall, hall.order(a_request(flavor=SMALL_FLAVOR, aggregates=((there.id,),))))
    assert "root aggregate ssd removed" in reason


def test_the_host_of_the_instance_named_by_same_host_is_explained_first() -> None:
    hall = three_hosts()
    order = hall.order(a_request(flavor=LARGE))
    alternative = dataclasses.replace(order.alternative, same=frozenset({uid(0, "a")}))
    _, reason = refused(hall, replace(order, attempts=((alternative,),)))
    assert reason.startswith("p0: 56 VCPU: asked 64, free 8. no valid host among 3: ")


ROOT = Path(__file__).parents[2]
SAYING = ("features", "scheduler_worker", "placement_worker/core", "placement_worker/memory.py")


def literal_codes() -> set[str]:
    found: set[str] = set()
    for place in SAYING:
        at = ROOT / place
        for file in [at] if at.is_file() else at.rglob("*.py"):
            if "tests" in file.relative_to(ROOT).parts:
                continue
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.keyword)
                    and node.arg == "code"
                    and isinstance(node.value, ast.Constant)
                ):
                    assert isinstance(node.value.value, str)
                    found.add(node.value.value)
    return found


def test_every_reason_code_is_in_the_table() -> None:
    codes = {rule.code for name, make in FILTER_BOOK.built_in.items() if (rule := make()).code != name}
    known = {code for table in REASONS.values() for code in table.codes}
    assert literal_codes() | codes <= known
    assert {*REASONS[OF_HOSTS].codes, *REASONS[OF_THE_WHOLE].codes} & FILTER_BOOK.built_in.keys() == {"zone"}
    assert sum(len(table.codes) for table in REASONS.values()) == len(known)  # none is in two tables


@pytest.mark.parametrize("table", [pytest.param(table, id=title) for title, table in REASONS.items()])
def test_the_docs_have_the_same_table(table: ReasonTable) -> None:
    text = (ROOT / "docs" / "reasons.md").read_text()
    part = text.partition(f"### {table.title}\n")[2].partition("\n### ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", part, re.MULTILINE)) == table.codes


class Advice(NoNarrowing):
    """Suggests another zone to every order, and counts the orders."""

    def __init__(self) -> None:
        self.given: list[Id] = []

    async def remedies(self) -> Remedies:
        return self._advise

    def _advise(self, order: Order, choosing: Choosing, tally: Tally) -> Iterator[str]:
        self.given.append(order.request.request)
        yield "another zone"


async def test_only_an_unplaceable_request_gets_suggestions_and_equal_requests_share_them() -> None:
    advice, free = Advice(), {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 80}
    placement = FakePlacement(a_candidate(1, free=free), a_candidate(2, free=free))
    scheduler = scheduler_of(placement, clock=TurnedClock().clock, narrowings=[advice])
    await scheduler.place_many([a_request(1), a_request(2)])
    assert not advice.given
    big = Flavor(name="f", vcpus=1, memory_mb=16384, disk_gb=10)
    verdicts = await scheduler.place_many([a_request(3, flavor=big), a_request(4, flavor=big)])
    assert advice.given == [uid(3, "a")]
    for (refusal,) in verdicts:  # type: ignore[misc]
        assert isinstance(refusal, BuildUnplaceable) and refusal.decision.code == "class"
        assert refusal.decision.helps[-1] == "another zone"


SEEDS, REFUSALS = 10, 20  # worlds, and refusals of each


def check_figures(world: RandomCloud, request: BuildRequested, short: Shortage) -> None:
    lacks, left = world.lacks(request), len(world.trees)
    assert short.considered == left
    assert short.code in {*REASONS[OF_HOSTS].codes, *REASONS[OF_THE_WHOLE].codes}
    for removal in short.removals:
        left -= removal.removed
        assert removal.left == left
        if removal.code == "chosen":
            continue
        assert all(removal.code in lacks[host] for host in removal.hosts), (removal, lacks)
        if removal.code != "class":
            gone = {host for host in lacks if removal.code in lacks[host]}
            assert len(gone) >= removal.removed
    for miss in short.nearest:
        taken = short.fitted and miss.code in ("chosen", "class")
        assert taken or miss.code in lacks[miss.host], (miss, lacks[miss.host])


def check_sentence(world: RandomCloud, request: BuildRequested, short: Shortage) -> None:
    reason = short.reason(request, len(request.instances), ())
    lacks = world.lacks(request)
    if request.wanted_host:
        named = lacks[request.wanted_host]
        assert reason.startswith(f"{request.wanted_host}: "), reason
        first = reason.split(". ")[0]
        assert ("disabled" in first) == ("disabled" in named), reason
        assert short.code in (named or {"room"}), (short.code, named)
        return
    for miss in short.nearest:
        shown_closed = any(code in lacks[miss.host] for code in CLOSED)
        assert not shown_closed or miss.code == "disabled", (miss, lacks[miss.host])
    fitting = world.holds(request)
    if fitting:
        assert short.code == "room" and f"free capacity for {fitting} of the" in reason, (reason, fitting)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_refusals_are_true(seed: int) -> None:
    chance, refused = Random(seed), 0
    while refused < REFUSALS:
        world = a_world(chance)
        request = a_question(chance, world, refused + 1)
        hall = world.hall()
        (answer,) = hall.choosing().choose([hall.order(request)])
        fits = world.holds(request) >= len(request.instances)
        assert fits == bool(answer.picks)
        if answer.picks or answer.short is None or answer.short.unknown:
            continue
        refused += 1
        check_figures(world, request, answer.short)
        check_sentence(world, request, answer.short)
