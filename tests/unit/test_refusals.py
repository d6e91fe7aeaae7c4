"""Refusals: the named host first, true codes and figures, and every code is documented."""

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.decisions import OF_HOSTS, OF_THE_WHOLE, REASONS, ReasonTable
from bus.host_health import DISABLED, HELD
from bus.messages import BuildRequested, BuildUnplaceable, HostReported
from bus.reports import HostState
from bus.requests import Flavor, Hints
from bus.vocabulary import Resources
from placement_worker import IndexedSource
from placement_worker.core.trees import Tree
from scheduler_worker import FILTER_BOOK, ChoicePolicy, placing
from scheduler_worker.core import helping
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.fitting import Shortage
from scheduler_worker.core.helping import MOST_PAIRED, MOST_TRIED, Tally, helps
from scheduler_worker.core.order import Order
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.rule import Alternative, HostFacts, Rule
from scheduler_worker.extension import HostLimit, NoNarrowing
from scheduler_worker.placing import Scheduler
from tests.support.ids import uid
from tests.support.index_source import FilledMemory, source_of
from tests.support.provider_trees import SHARES, an_index, state, tree
from tests.support.ranking_builders import FLAVORS, Hall, a_hall
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request, a_state
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


def test_leaving_out_ignore_hosts_is_no_remedy_for_a_reserved_host() -> None:
    hall = three_hosts()
    order = hall.order(a_request(flavor=SMALL_FLAVOR, ignore_hosts=("p2",)))
    order = order.limited(reserved("reserved for waiting request R", uid(0, "a")))
    reply = helps(order.alternative, hall.choosing(), "s")
    assert not [remedy for remedy in reply if "ignore_hosts" in remedy]


class HeldForOthers(NoNarrowing):
    def concerns(self, order: Order) -> bool:
        return True

    def limit(self, orders: Sequence[Order]) -> Sequence[Order]:
        return [order.limited(reserved("reserved", uid(1, "c"))) for order in orders]


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


def test_a_remedy_names_its_group() -> None:
    hall = a_cell_hall()
    specs = {"resources1:VCPU": "9", "resources2:VCPU": "4", "group_policy": "none"}
    flavor = Flavor(name="f", vcpus=1, memory_mb=512, extra_specs=specs)
    reply = helps(hall.alternative(a_request(flavor=flavor)), hall.choosing(), "s")
    assert reply and all("in group 1" in one or "VCPU" not in one for one in reply), reply


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


FREE: Resources = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 80}
LITTLE: Resources = {"VCPU": 8, "MEMORY_MB": 2048, "DISK_GB": 80}
HOSTS = (
    a_candidate(1, free=FREE, zone="z1", cell="cell1", traits=("CUSTOM_A",)),
    a_candidate(2, free=FREE, zone="z1", cell="cell2"),
    a_candidate(3, free=LITTLE, zone="z2", cell="cell2"),
)
STATES = (a_state(1), a_state(2, enabled=False), a_state(3))


def of(**fields: int) -> Flavor:
    return replace(Flavor(name="f", vcpus=1, memory_mb=1024, disk_gb=10), **fields)


HELPS: dict[str, tuple[BuildRequested, tuple[str, ...]]] = {
    "a class: the most that anybody has": (
        a_request(flavor=of(memory_mb=16384)),
        ("1 host would fit with 8192 MEMORY_MB instead of 16384",),
    ),
    "two classes: neither by itself": (
        a_request(flavor=of(memory_mb=16384, vcpus=99)),
        ("with 8 VCPU instead of 99 and with 8192 MEMORY_MB instead of 16384: 1 host",),
    ),
    "a zone and a cell": (
        a_request(zone="z9", cell="c9"),
        ("without zone z9 and without cell c9: 2 hosts",),
    ),
    "a zone, and a class or a host that is disabled": (
        a_request(flavor=of(memory_mb=4096), zone="z9", cell="cell2"),
        (
            "without zone z9 and without cell cell2: 1 host",
            "without zone z9 and with 2048 MEMORY_MB instead of 4096: 1 host",
            "without zone z9 and with hosts that are disabled: 1 host",
        ),
    ),
    "three things at once": (a_request(flavor=of(memory_mb=16384, vcpus=99), zone="z9"), ()),
    "a cell, or a host that is disabled": (
        a_request(flavor=of(memory_mb=4096), cell="cell2"),
        (
            "1 host would fit with 2048 MEMORY_MB instead of 4096",
            "without cell cell2: 1 host",
            "1 host is disabled",
        ),
    ),
    "hosts that are ignored": (
        a_request(flavor=of(memory_mb=4096), ignore_hosts=("host1",)),
        (
            "1 host would fit with 2048 MEMORY_MB instead of 4096",
            "without ignore_hosts: 1 host",
            "1 host is disabled",
        ),
    ),
    "a hint": (
        a_request(hints=Hints(build_near_host_ip="10.0.0.1")),
        ("without the hint build_near_host_ip: 2 hosts",),
    ),
}  # fmt: skip


def near(host: HostFacts, alternative: Alternative) -> str | None:
    return "too far" if alternative.request.hints.build_near_host_ip else None


@pytest.mark.parametrize(("request_", "reply"), HELPS.values(), ids=HELPS)
def test_remedies_of_refused_requests(request_: BuildRequested, reply: tuple[str, ...]) -> None:
    policy = ChoicePolicy.from_names(("up", "enabled", "zone", "near"), custom={"near": near})
    hall = a_hall(*HOSTS, policy=policy)
    for host_state, host in zip(STATES, HOSTS, strict=True):
        hall.handle(host_state, cell=host.cell)
    found = helps(hall.alternative(request_), hall.choosing(), "s")
    assert set(reply) <= set(found), found
    assert bool(reply) == bool(found), found
    assert not hall.source.promised  # type: ignore[attr-defined]


def test_the_search_for_pairs_of_remedies_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    hall, ranked, rank = a_hall(*HOSTS), list[str](), Choosing.rank

    def counting(choosing: Choosing, alternative: Alternative, seed: str) -> Ranking:
        ranked.append(seed)
        return rank(choosing, alternative, seed)

    monkeypatch.setattr(Choosing, "rank", counting)
    specs = {f"resources:CUSTOM_{name}": "5" for name in "BCDEFGHIJK"}
    lacking = a_request(flavor=replace(of(), extra_specs=specs))
    assert helps(hall.alternative(lacking), hall.choosing(), "s") == ()
    assert MOST_PAIRED < len(ranked) <= MOST_TRIED + MOST_PAIRED


def a_scheduler(placement: FakePlacement) -> Scheduler:
    return scheduler_of(placement, clock=TurnedClock().clock)


async def test_only_an_unplaceable_request_has_remedies_and_equal_requests_share_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, all_helps = list[str](), placing.all_helps

    def counted(order: Order, *given: Any) -> Any:
        looked.append(order.request.request)
        return all_helps(order, *given)

    monkeypatch.setattr(placing, "all_helps", counted)
    scheduler = a_scheduler(FakePlacement(*HOSTS))
    await scheduler.place_many([a_request(1), a_request(2)])
    assert not looked
    big = of(memory_mb=16384)
    verdicts = await scheduler.place_many([a_request(3, flavor=big), a_request(4, flavor=big)])
    assert looked == [uid(3, "a")]
    for (refusal,) in verdicts:  # type: ignore[misc]
        assert isinstance(refusal, BuildUnplaceable) and refusal.decision.code == "class"
        assert refusal.decision.helps == ("2 hosts would fit with 7168 MEMORY_MB instead of 16384",)


async def test_pairs_of_remedies_are_not_built_after_the_search_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flavor of 190 groups has 18,000 pairs."""
    made: list[helping.Lessened] = []

    every = helping.lessened

    def lessened(alternative: Alternative) -> Iterator[helping.Lessened]:
        for lessened in every(alternative):
            made.append(lessened)
            yield lessened

    monkeypatch.setattr(helping, "lessened", lessened)
    hall = a_hall(*HOSTS)
    groups = Flavor(name="groups", extra_specs={f"resources{index}:CUSTOM_A": "1" for index in range(190)})
    list(helping.paired(hall.alternative(a_request(flavor=groups)), hall.choosing(), Tally("seed", 48)))
    assert 0 < len(made) < 1000


SEEDS, REFUSALS = 10, 20  # worlds, and refusals of each


def dedicated() -> Rule:
    def refuses(host: HostFacts, alternative: Alternative) -> str | None:
        return "of other projects" if any(host.metadata("filter_tenant_id")) else None

    return Rule("dedicated", refuses, code="tenant")


POLICY = ChoicePolicy.from_names(("up", "enabled", "zone", "dedicated"), custom={"dedicated": dedicated})
CLOSED = ("disabled", "tenant")


@dataclasses.dataclass
class RandomCloud:
    trees: list[Tree]
    closed: set[str]

    def hall(self, *, enabled: bool = False) -> Hall:
        memory = FilledMemory(an_index(self.trees))
        tenants = Aggregate(id=uid(0, "e"), metadata={"filter_tenant_id": "other"})
        memory.index.aggregate_facts[tenants.id] = tenants
        hall = Hall(IndexedSource(memory), POLICY)
        for stored in self.trees:
            is_open = enabled or stored.root not in self.closed
            states = (HostState(root=stored.root, host=stored.host, enabled=is_open),)
            report = HostReported(cell=stored.cell, agent=stored.agent, sequence=1, hosts=states)
            hall.book.handle(report, 0.0)
        return hall

    def lacks(self, request: BuildRequested) -> dict[str, set[str]]:
        """Return the codes of all that each host lacks, by its name."""
        return {tree.host: set(self._lacks(tree, request)) for tree in self.trees}

    def _lacks(self, tree: Tree, request: BuildRequested) -> list[str]:
        (root,) = tree.providers
        free = {name: stock.total - root.used[name] for name, stock in root.inventories.items()}
        asked = asked_of(request)
        facts: Mapping[str, bool] = {
            "host": bool(request.wanted_host) and tree.host != request.wanted_host,
            "forbidden_host": tree.host in request.ignore_hosts,
            "zone": bool(request.zone) and tree.zone != request.zone,
            "cell": bool(request.cell) and tree.cell != request.cell,
            "trait": "trait:CUSTOM_A" in request.flavor.extra_specs and "CUSTOM_A" not in root.traits,
            "disabled": DISABLED in root.traits or tree.root in self.closed,
            "tenant": uid(0, "e") in root.aggregates,
            "class": any(free[name] < amount for name, amount in asked.items()),
        }
        return [code for code, lacking in facts.items() if lacking]

    def holds(self, request: BuildRequested) -> int:
        """Return how many instances there is free capacity for."""
        lacks, asked, total = self.lacks(request), asked_of(request), 0
        for stored in self.trees:
            (root,) = stored.providers
            if not lacks[stored.host]:
                total += min((root.inventories[n].total - root.used[n]) // a for n, a in asked.items())
        return total


def asked_of(request: BuildRequested) -> dict[str, int]:
    flavor = request.flavor
    asked = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    return {name: amount for name, amount in asked.items() if amount}


def a_world(chance: Random) -> RandomCloud:
    trees, closed = [], set()
    for position in range(chance.choice((2, 5, 9))):
        stock = {"VCPU": chance.choice((4, 16)), "MEMORY_MB": chance.choice((4096, 16384)), "DISK_GB": 100}
        used = {name: chance.choice((0, 0, amount // 2, amount - 1)) for name, amount in stock.items()}
        traits = ["CUSTOM_A"] if chance.random() < 0.5 else []
        if chance.random() < 0.25:
            traits += [DISABLED, *([f"{HELD}DISK"] if chance.random() < 0.5 else [])]
        within = (0,) if chance.random() < 0.2 else ()
        one = tree(state(position, None, dict(stock), used, traits, within), cell=f"c{position % 2}")
        trees.append(dataclasses.replace(one, zone=chance.choice(("", "north"))))
        if chance.random() < 0.2:
            closed.add(one.root)
    return RandomCloud(trees, closed)


def a_question(chance: Random, world: RandomCloud, number: int) -> BuildRequested:
    names = [tree.host for tree in world.trees]
    wanted = chance.choice(names) if chance.random() < 0.4 else ""
    ignored = chance.choice(names) if chance.random() < 0.3 else ""
    specs = {"trait:CUSTOM_A": "required"} if chance.random() < 0.3 else {}
    flavor = Flavor(
        name="f", vcpus=chance.choice((1, 3, 9)), memory_mb=chance.choice((512, 3000, 9000)),
        disk_gb=chance.choice((0, 10, 60)), extra_specs=specs,
    )  # fmt: skip
    return a_request(
        number,
        instances=chance.choice((1, 1, 1, 3, 40)),
        flavor=flavor,
        project="ours",
        zone=chance.choice(("", "", "north")),
        cell=chance.choice(("", "", "c1")),
        wanted_host=wanted,
        ignore_hosts=(ignored,) if ignored and ignored != wanted else (),
    )


def relaxed(reply: str, request: BuildRequested) -> BuildRequested:
    """Return the request with a remedy applied, as a client reads it."""
    for one in reply.split(" and "):
        if less := re.search(r"with (\d+) (\w+) instead of \d+", one):
            field = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}[less[2]]
            request = replace(request, flavor=replace(request.flavor, **{field: int(less[1])}))
        elif "without DISK_GB" in one:
            request = replace(request, flavor=replace(request.flavor, disk_gb=0))
        elif field_ := re.search(r"without (zone|cell|host|ignore_hosts)", one):
            name = {"host": "wanted_host"}.get(field_[1], field_[1])
            request = replace(request, **{name: () if name == "ignore_hosts" else ""})
        elif "trait CUSTOM_A" in one:
            request = replace(request, flavor=replace(request.flavor, extra_specs={}))
        else:
            assert "disabled" in one or "dedicated" in one, one
    return request


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


def check_remedies(world: RandomCloud, order: Order) -> int:
    hall = world.hall()
    reply = helps(order.preferred, hall.choosing(), "s", needed=order.needed)
    for one in reply:
        if "filter" in one:
            continue  # an operator's to change
        request = relaxed(one, order.request)
        tried = world.hall(enabled="disabled" in one)
        (answer,) = tried.choosing().choose([tried.order(request)])
        assert answer.picks, (one, order.request)
    return len(reply)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_refusals_are_true_and_remedies_help(seed: int) -> None:
    chance, refused, remedies = Random(seed), 0, 0
    while refused < REFUSALS:
        world = a_world(chance)
        request = a_question(chance, world, refused + 1)
        hall = world.hall()
        order = hall.order(request)
        (answer,) = hall.choosing().choose([order])
        fits = world.holds(request) >= len(request.instances)
        assert fits == bool(answer.picks)
        if answer.picks or answer.short is None or answer.short.unknown:
            continue
        refused += 1
        check_figures(world, request, answer.short)
        check_sentence(world, request, answer.short)
        remedies += check_remedies(world, order)
    assert remedies
