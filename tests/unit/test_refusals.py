"""Refusals: the named host first, true codes and figures, and every code is documented."""

import ast
import re
from pathlib import Path
from random import Random

import pytest

from bus.decisions import OF_HOSTS, OF_THE_WHOLE, REASONS, ReasonTable
from bus.host_health import DISABLED, HELD
from bus.messages import BuildRequested
from scheduler_worker import FILTER_BOOK
from scheduler_worker.core.order import Order
from scheduler_worker.core.shortage import Shortage
from scheduler_worker.extension import HostLimit
from tests.support.index_source import source_of
from tests.support.provider_trees import state, tree
from tests.support.ranking_builders import FLAVORS, Hall
from tests.support.refused_worlds import CLOSED, RandomCloud, a_question, a_world
from tests.support.scheduler_builders import a_request

SMALL_FLAVOR = FLAVORS[0]


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


def reserved(why: str, *roots: str) -> HostLimit:
    return HostLimit("reserved", "reserved for other requests", frozenset(roots), lambda root: why)


CELL = {"VCPU": "2", "MEMORY_MB": "512"}  # of a guest with two


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


SEEDS, REFUSALS = 4, 20  # worlds, and refusals of each


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
