"""200 refusals of random clouds against a plain evaluation: sentence, codes, figures, remedies."""

import dataclasses
import re
from collections.abc import Mapping
from random import Random

import pytest
from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.decisions import CONSTRAINTS, ENDS
from bus.host_health import DISABLED, HELD
from bus.messages import BuildRequested, HostReported
from bus.reports import HostState
from bus.requests import Flavor
from placement_worker import IndexedSource
from placement_worker.core.trees import Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.events import Chosen, NoHost
from scheduler_worker.core.helping import helps
from scheduler_worker.core.order import Order
from scheduler_worker.core.shortage import Shortage
from tests.support.exact_worlds import FilledMemory, an_order
from tests.support.ids import uid
from tests.support.provider_trees import state, tree
from tests.support.ranking_builders import Hall
from tests.support.scheduler_builders import a_request

SEEDS, REFUSALS = 10, 20  # worlds, and refusals of each
POLICY = ChoicePolicy.from_names(("up", "enabled", "zone", "aggregate_multi_tenancy_isolation"))
CLOSED = ("disabled", "tenant")


@dataclasses.dataclass
class RandomCloud:
    trees: list[Tree]
    closed: set[str]

    def hall(self, *, enabled: bool = False) -> Hall:
        memory = FilledMemory()
        for stored in self.trees:
            memory.index.put(stored, 1)
        tenants = Aggregate(id=uid(0, "e"), metadata={"filter_tenant_id": "other"})
        memory.index.aggregate_facts[tenants.id] = tenants
        hall = Hall(IndexedSource(memory), POLICY)
        for stored in self.trees:
            said = HostState(
                root=stored.root, host=stored.host, enabled=enabled or stored.root not in self.closed
            )
            hall.book.handle(
                HostReported(cell=stored.cell, agent=stored.agent, sequence=1, hosts=(said,)), 0.0
            )
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


def relaxed(said: str, request: BuildRequested) -> BuildRequested:
    """Return the request with a remedy applied, as a client reads it."""
    for one in said.split(" and "):
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
            assert "disabled" in one or "aggregate_multi_tenancy_isolation" in one, one
    return request


def check_figures(world: RandomCloud, request: BuildRequested, short: Shortage) -> None:
    lacks, left = world.lacks(request), len(world.trees)
    assert short.considered == left
    assert short.code in {*CONSTRAINTS, *ENDS}
    for removal in short.removals:
        left -= removal.removed
        assert removal.left == left
        if removal.code == "chosen":
            continue
        if short.fitted and removal.code == "class":
            continue  # the instances that had a host took it
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
    said = helps(order.alternatives[0], hall.choosing(), "s", needed=order.needed)
    for one in said:
        if "filter" in one:
            continue  # an operator's to change
        request = relaxed(one, order.request)
        tried = world.hall(enabled="disabled" in one)
        (answer,) = tried.choosing().choose([an_order(tried, request, None)])
        assert isinstance(answer, Chosen), (one, order.request)
    return len(said)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_refusals_are_true_and_remedies_help(seed: int) -> None:
    chance, refused, remedies = Random(seed), 0, 0
    while refused < REFUSALS:
        world = a_world(chance)
        request = a_question(chance, world, refused + 1)
        hall = world.hall()
        order = an_order(hall, request, None)
        (answer,) = hall.choosing().choose([order])
        fits = world.holds(request) >= len(request.instances)
        assert fits == isinstance(answer, Chosen)
        if not isinstance(answer, NoHost) or answer.short.unknown:
            continue
        refused += 1
        check_figures(world, request, answer.short)
        check_sentence(world, request, answer.short)
        remedies += check_remedies(world, order)
    assert remedies
