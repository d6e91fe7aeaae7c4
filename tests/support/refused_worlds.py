"""Three hosts and small random clouds, and requests of which many do not fit."""

import dataclasses
from collections.abc import Mapping
from random import Random

from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.host_health import DISABLED, HELD
from bus.messages import BuildRequested, HostReported
from bus.reports import HostState
from bus.requests import Flavor
from bus.vocabulary import Resources
from placement_worker import IndexedSource
from placement_worker.core.trees import Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.rule import Alternative, HostFacts, Rule
from tests.support.ids import uid
from tests.support.index_source import FilledMemory
from tests.support.provider_trees import an_index, state, tree
from tests.support.ranking_builders import Hall
from tests.support.scheduler_builders import a_candidate, a_request

FREE: Resources = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 80}
LITTLE: Resources = {"VCPU": 8, "MEMORY_MB": 2048, "DISK_GB": 80}
HOSTS = (
    a_candidate(1, free=FREE, zone="z1", cell="cell1", traits=("CUSTOM_A",)),
    a_candidate(2, free=FREE, zone="z1", cell="cell2"),
    a_candidate(3, free=LITTLE, zone="z2", cell="cell2"),
)


def of(**fields: int) -> Flavor:
    return replace(Flavor(name="f", vcpus=1, memory_mb=1024, disk_gb=10), **fields)


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
