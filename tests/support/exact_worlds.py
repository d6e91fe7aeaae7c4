"""Small clouds for exact choices, and the best host by a slow search with every filter and weigher."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from bus.aggregates import Aggregate
from bus.candidates import CandidateSearch
from bus.groups import ServerGroup
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import Flavor, Image
from bus.vocabulary import Allocations
from placement_worker import IndexedSource
from placement_worker.core.trees import ProviderState, Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.host_map import HostsNow
from scheduler_worker.core.order import Order
from scheduler_worker.core.ranking_order import tie
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost
from tests.support.ids import uid
from tests.support.index_source import FilledMemory
from tests.support.plain_search import PlainSearch, Way
from tests.support.provider_trees import SHARES, state, tree
from tests.support.ranking_builders import Hall
from tests.support.scheduler_builders import a_request

WEIGHERS = (
    "ram", "cpu", "disk", "io_ops", "load", "build_failure", "num_instances", "hypervisor_version",
    "image_cached", "preferred_traits", "soft_affinity", "soft_anti_affinity", "metrics",
)  # fmt: skip
GROUP_RULES = ("server_group_anti_affinity", "server_group_affinity")
RULES = ("up", "enabled", "io_ops", "num_instances", "compute_capabilities", *GROUP_RULES)
SAID = {"ram_weight_multiplier": "-2.5", "max_io_ops_per_host": "2", "cpu_weight_multiplier": "0.5"}
POOLS = (3, 4)
FLAVORS = tuple(
    Flavor(name=f"f{position}", vcpus=cpus, memory_mb=ram, disk_gb=disk, extra_specs=specs)
    for position, (cpus, ram, disk, specs) in enumerate(
        (
            (1, 512, 1, {}),
            (2, 1024, 5, {}),
            (4, 4096, 10, {"trait:CUSTOM_A": "required"}),
            (1, 256, 0, {"capabilities:hypervisor_type": "qemu"}),
            (3, 3000, 7, {"trait:CUSTOM_B": "forbidden"}),
            (1, 512, 20, {}),
            (1, 1024, 2, {"resources1:CUSTOM_VF": "1"}),
            (
                1,
                512,
                0,
                {"resources1:CUSTOM_VF": "1", "resources2:CUSTOM_VF": "1", "group_policy": "isolate"},
            ),
        )
    )
)


def a_policy(chance: Random) -> ChoicePolicy:
    names = [weigher for weigher in WEIGHERS if chance.random() < 0.5]
    return ChoicePolicy.from_names(
        [rule for rule in RULES if chance.random() < 0.7],
        {name: chance.choice((-2.0, -1.0, 0.0, 0.3, 1.0, 5.0)) for name in names},
        options={
            "io_ops": {"max_io_ops_per_host": chance.choice((1, 3, 8))},
            "metrics": {"weight_setting": {"temperature": -1.0}, "required": chance.random() < 0.3},
        },
        near=chance.choice((0.0, 0.0, 0.01, 0.4)),
        cells=chance.choice((None, None, ("c0", "c1"))),
    )


def a_source(chance: Random, trees: Sequence[Tree]) -> IndexedSource:
    memory = FilledMemory()
    for stored in trees:
        memory.index.put(stored, 1)
    for number in range(3):
        metadata = {key: value for key, value in SAID.items() if chance.random() < 0.3}
        memory.index.aggregate_facts[uid(number, "e")] = Aggregate(id=uid(number, "e"), metadata=metadata)
    return IndexedSource(memory)


def some_trees(chance: Random) -> list[Tree]:
    numbers, trees = iter(range(1000)), list[Tree]()
    sizes = [(chance.choice((4, 8, 64)), chance.choice((4096, 9000, 65_536))) for _ in range(2)]
    for position in range(chance.choice((1, 2, 4, 7, 9))):
        cpus, ram = chance.choice(sizes)
        traits = [one for one in ("CUSTOM_A", "CUSTOM_B") if chance.random() < 0.4]
        within = [one for one in range(3) if chance.random() < 0.2]
        within += [one for one in POOLS if chance.random() < 0.6]
        root = next(numbers)
        stock = {"VCPU": cpus, "MEMORY_MB": ram}
        disk = {"DISK_GB": chance.choice((10, 100))} if chance.random() < 0.4 else {}
        used = {name: chance.choice((0, 0, 0, amount // 2, amount - 1)) for name, amount in stock.items()}
        if chance.random() < 0.2:
            halves = {name: amount // 2 for name, amount in stock.items()}
            cells = [state(next(numbers), root, dict(halves), traits=traits) for _ in range(2)]
            parts = [state(root, None, dict(disk), None, traits, within), *cells]
        else:
            parts = [state(root, None, {**stock, **disk}, used, traits, within)]
        if chance.random() < 0.4:
            many = chance.choice((1, 2))
            parts += [state(next(numbers), root, {"CUSTOM_VF": many}) for _ in range(chance.choice((1, 2)))]
        trees.append(tree(*parts, cell=f"c{position % 3}"))
    for number in POOLS:
        if chance.random() < 0.8:
            pool = state(
                next(numbers), None, {"DISK_GB": chance.choice((6, 12, 40))}, None, (SHARES,), (number,)
            )
            trees.append(replace(tree(pool, cell=""), agent=""))
    return trees


class PlainRoom:
    def __init__(self, trees: Sequence[Tree]) -> None:
        self._trees = list(trees)
        self._found: dict[int, dict[str, set[Way]]] = {}

    def ways(self, question: FindCandidates) -> Mapping[str, set[Way]]:
        known = self._found.get(id(question))
        if known is None:
            known = self._found[id(question)] = PlainSearch(self._trees).by_anchor(question)
        return known

    def roots(self, question: FindCandidates) -> list[str]:
        return [root for root, ways in self.ways(question).items() if ways]

    def take(self, allocations: Allocations, sign: int = 1) -> None:
        self._found.clear()
        for position, one in enumerate(self._trees):
            if any(provider.uuid in allocations for provider in one.providers):
                parts = [_with(part, allocations.get(part.uuid, {}), sign) for part in one.providers]
                self._trees[position] = replace(one, providers=tuple(parts))


def _with(provider: ProviderState, amounts: Mapping[str, int], sign: int) -> ProviderState:
    used = dict(provider.used)
    for name, amount in amounts.items():
        used[name] += sign * amount
    return replace(provider, used=used)


def some_orders(chance: Random, hall: Hall) -> list[Order]:
    roots = [host.uuid for host in hall.source.hosts()]
    groups = [
        ServerGroup(
            id=uid(position, "9"),
            name=f"g{position}",
            policy=chance.choice(("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")),
            max_per_host=chance.choice((1, 1, 2)),
            members={
                uid(position * 10 + n, "f"): (chance.choice(roots),)
                for n in range(chance.choice((0, 0, 1, 2)))
            },
            left={uid(position * 10, "d"): (chance.choice(roots),)} if chance.random() < 0.2 else {},
        )
        for position in range(2)
    ]
    orders, number = list[Order](), 0
    for _ in range(chance.choice((1, 2, 3))):
        kind = a_kind(chance)
        group = chance.choice(groups) if chance.random() < 0.5 else None
        for _ in range(chance.choice((1, 2, 4))):
            number += 1
            several = chance.choice((1, 1, 2, 5))
            request = a_request(number, instances=several, at_least=chance.choice((0, 0, 1)), **kind)
            orders.append(an_order(hall, request, group))
    if chance.random() < 0.5:
        chance.shuffle(orders)
    return orders


def orders_that_start_groups(chance: Random, hall: Hall) -> list[Order]:
    orders = list[Order]()
    for number in range(chance.choice((1, 2, 3))):
        request = a_request(
            number,
            instances=chance.choice((2, 3, 5)),
            at_least=chance.choice((0, 0, 2)),
            flavor=chance.choice(FLAVORS),
        )
        group = ServerGroup(id=uid(number, "9"), name=f"g{number}", policy="affinity")
        orders.append(an_order(hall, request, group))
    return orders


def a_kind(chance: Random) -> dict[str, Any]:
    return {
        "flavor": chance.choice(FLAVORS),
        "image": Image(name="img") if chance.random() < 0.5 else None,
        "preferred_traits": {"CUSTOM_A": 1.0} if chance.random() < 0.3 else {},
        "cell": "c1" if chance.random() < 0.1 else "",
    }


def an_order(hall: Hall, request: BuildRequested, group: ServerGroup | None) -> Order:
    alternative = replace(hall.alternative(request), group=group)
    return Order(request=request, alternatives=(alternative,), instances=request.instances, bytes=0)


class PlainChoice:
    def __init__(
        self,
        alternative: Alternative,
        search: CandidateSearch,
        now: HostsNow,
        policy: ChoicePolicy,
        seed: str,
        fitting: Callable[[], Collection[str]],  # the roots that have room, found in another way
        tiers: Mapping[str, int],  # root → its tier; roots that are missing are in the first
    ) -> None:
        self.alternative = alternative
        self.fitting = fitting
        self.tiers = tiers
        self.search = search
        self.now = now
        self.policy = policy
        self.seed = seed
        self.chosen: dict[str, int] = {}
        self.positions = search.positions.tolist()
        self.scales = self._scales([OneHost(now.facts(search, position)) for position in self.positions])

    def best(self) -> list[str]:
        """The roots that would do, best first."""
        keys = []
        fitting = self.fitting()
        for position in self.positions:
            facts = self.now.facts(self.search, position)
            if facts.root in fitting and self._admitted(facts):
                key = (
                    self.tiers.get(facts.root, 0),
                    -self._score(facts),
                    self.chosen.get(facts.root, 0),
                    tie(self.seed, facts.root),
                    facts.root,
                )
                keys.append(key)
        return [key[-1] for key in sorted(keys)]

    def choose(self, root: str) -> None:
        self.chosen[root] = self.chosen.get(root, 0) + 1

    def _admitted(self, facts: HostFacts) -> bool:
        if not facts.agent or not facts.cell:
            return False
        if self.policy.cells is not None and facts.cell not in self.policy.cells:
            return False
        return all(
            rule.refuses(facts, self.alternative) is None
            for rule in self.policy.rules
            if rule.concerns is None or rule.concerns(self.alternative)
        )

    def _scales(self, views: Sequence[OneHost]) -> list[tuple[float, float] | None]:
        scales: list[tuple[float, float] | None] = []
        for weigher in self.policy.weighers:
            values = [float(weigher.value(view, self.alternative)) for view in views]
            if not values or min(values) == max(values):
                scales.append(None)
                continue
            lowest = min(values) if weigher.lowest is None else weigher.lowest
            highest = max(values)
            scales.append((lowest, max(highest, lowest + weigher.least_span)) if highest > lowest else None)
        return scales

    def _score(self, facts: HostFacts) -> float:
        view, score = OneHost(facts), 0.0
        for weigher, scale in zip(self.policy.weighers, self.scales, strict=True):
            if scale is None:
                continue
            lowest, highest = scale
            value = float(weigher.value(view, self.alternative))
            if weigher.lowest is not None:
                value = max(value, lowest)
            key = weigher.key or f"{weigher.name}_weight_multiplier"
            multiplier = view.override(key, weigher.multiplier)
            score += (value - lowest) / (highest - lowest) * multiplier
        near = self.policy.near
        return float(round(score / near)) if near else score
