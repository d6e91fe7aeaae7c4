"""A slow evaluation of all hosts for each choice, to compare with the choices of a batch of orders."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as but
from random import Random
from typing import Any

import pytest

from bus.aggregates import Aggregate
from bus.candidates import CandidateSearch
from bus.messages import HostReported
from bus.queries import Candidate, FindCandidates
from bus.reports import HostState
from bus.requests import Image
from bus.vocabulary import Allocations
from placement_worker import IndexedSource
from placement_worker.core.trees import ProviderState, Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.choosing import CHOICES, MORE_CHOICES
from scheduler_worker.core.events import Chosen
from scheduler_worker.core.host_hashes import tie
from scheduler_worker.core.host_map import HostsNow
from scheduler_worker.core.order import Order
from scheduler_worker.core.ranking import Pick
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost
from scheduler_worker.core.scores import replay
from scheduler_worker.pending_choices import PendingChoice
from tests.support.ids import uid
from tests.support.index_source import FilledMemory
from tests.support.plain_search import PlainSearch, Way
from tests.support.provider_trees import SHARES, an_index, state, tree
from tests.support.ranking_builders import FLAVORS, Hall
from tests.support.scheduler_builders import a_request

WEIGHERS = (
    "ram", "cpu", "disk", "io_ops", "load", "build_failure", "image_cached", "preferred_traits",
)  # fmt: skip
RULES = ("up", "enabled", "io_ops", "few_failures")
SAID = {"ram_weight_multiplier": "-2.5", "max_io_ops_per_host": "2", "cpu_weight_multiplier": "0.5"}
POOLS = (3, 4)


def a_policy(
    chance: Random, rules: Sequence[str], weighers: Sequence[str], options: Mapping[str, Any]
) -> ChoicePolicy:
    names = [weigher for weigher in weighers if chance.random() < 0.5]
    policy = ChoicePolicy.from_names(
        [rule for rule in rules if chance.random() < 0.7],
        {name: chance.choice((-2.0, -1.0, 0.0, 0.3, 1.0, 5.0)) for name in names},
        options={"io_ops": {"max_io_ops_per_host": chance.choice((1, 3, 8))}, **options},
    )
    near, cells = chance.choice((0.0, 0.0, 0.01, 0.4)), chance.choice((None, None, frozenset({"c0", "c1"})))
    return but(policy, near=near, cells=cells)


def a_source(chance: Random, trees: Sequence[Tree]) -> IndexedSource:
    memory = FilledMemory(an_index(trees))
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
            trees.append(but(tree(pool, cell=""), agent=""))
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
                self._trees[position] = but(one, providers=tuple(parts))


def _with(provider: ProviderState, amounts: Mapping[str, int], sign: int) -> ProviderState:
    used = dict(provider.used)
    for name, amount in amounts.items():
        used[name] += sign * amount
    return but(provider, used=used)


def a_kind(chance: Random) -> dict[str, Any]:
    return {
        "flavor": chance.choice(FLAVORS),
        "image": Image(name="img") if chance.random() < 0.5 else None,
        "preferred_traits": {"CUSTOM_A": 1.0} if chance.random() < 0.3 else {},
        "cell": "c1" if chance.random() < 0.1 else "",
    }


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


BATCHES, MORE_BATCHES = 100, 6000  # by default, and in `make soak`


def in_soak(first: int, last: int, step: int) -> list[object]:
    return [pytest.param(range(at, at + step), marks=pytest.mark.soak) for at in range(first, last, step)]


def sent(chance: Random, hall: Hall) -> Hall:
    for nth, host in enumerate(hall.source.hosts()):
        if chance.random() < 0.2:
            continue
        reply = HostState(
            root=host.uuid,
            host=host.host,
            load=chance.choice((0.0, 0.5, 2.5)),
            building=chance.choice((0, 0, 1, 7)),
            enabled=chance.random() < 0.9,
            instances=chance.randrange(4),
            hypervisor="qemu" if chance.random() < 0.6 else "xen",
            hypervisor_version=chance.choice((0, 2_000_000, 2_008_000)),
            images=("img",) if chance.random() < 0.3 else (),
            metrics={"temperature": chance.choice((20.0, 35.5))} if chance.random() < 0.8 else {},
        )
        report = HostReported(cell=host.cell, agent=host.agent, sequence=nth + 1, hosts=(reply,))
        hall.book.handle(report, hall.now)
        for _ in range(chance.choice((0, 0, 0, 1, 3))):
            hall.book.failed(host.cell, host.uuid, hall.now)
    if chance.random() < 0.4:
        hall.hosts.update()
        hall.hosts.share(("a", "b", "c"), chance.choice("abc"))
    return hall


def tiers(hall: Hall) -> dict[str, int]:
    """Root → 1 if it is in the share of another scheduler, 2 if no heartbeat of it came."""
    ours, found = hall.hosts.ours, dict[str, int]()
    for host in hall.source.hosts():
        if hall.book.state(host.cell, host.uuid) is None:
            found[host.uuid] = 2
        elif ours is not None and not ours[host.position]:
            found[host.uuid] = 1
    return found


class PlainBatch:
    def __init__(self, hall: Hall, room: PlainRoom) -> None:
        self.hall = hall
        self.room = room
        self.tiers = tiers(hall)
        self.now = hall.book.snapshot(hall.source, hall.now)
        self.reserved_amounts = hall.pending
        self.kinds: dict[Hashable, PlainChoice] = {}

    def check(self, nth: int, order: Order, answer: Chosen) -> int:
        picks = answer.picks
        taken: list[tuple[PlainChoice, Candidate, object]] = []
        for number, instance in enumerate(order.instances):
            plain = self._plainly(nth, order)
            expected = plain.best()
            if self.starts_together(plain.alternative) and not taken:
                expected = [root for root in expected if self._room_for(plain, root, order.needed)]
            if not expected:
                break
            if picks:
                assert number < len(picks), ("room was left", expected)
                way = self._checked(plain.alternative, picks[number], expected)
                replayed = replay(instance, picks[number].record).host
                assert replayed is not None and replayed.root == way.root
            else:
                position = self.hall.source.position(expected[0])
                assert position is not None
                way = plain.search.ways(position, 1)[0]
            taken.append((plain, way, self.reserved_amounts.enter(way)))
            plain.choose(way.root)
            self.room.take(way.allocations)
            self.took(order, instance, way.root)
        if picks:
            assert len(taken) == len(picks) >= order.needed
            return len(picks)
        assert len(taken) < order.needed
        for (plain, way, promise), instance in zip(taken, order.instances, strict=False):
            plain.chosen[way.root] -= 1
            self.room.take(way.allocations, -1)
            self.reserved_amounts.drop(promise)
            self.released(order, instance)
        return 0

    def is_alone(self, order: Order) -> bool:
        """Return whether the choices for other orders change which hosts an order may use."""
        return False

    def starts_together(self, alternative: Alternative) -> bool:
        """Return whether its instances must be on one host, and none is there yet."""
        return False

    def seen(self, alternative: Alternative) -> Alternative:
        """Return an alternative with what its filters need to know about the choices so far."""
        return alternative

    def took(self, order: Order, instance: str, root: str) -> None:
        """Record that an instance got a host."""

    def released(self, order: Order, instance: str) -> None:
        """Forget that an instance got a host."""

    def _room_for(self, plain: PlainChoice, root: str, several: int) -> bool:
        """Try it: one after the other, each as the rules and the room are then."""
        position = self.hall.source.position(root)
        assert position is not None
        reserved_amounts = list[tuple[Candidate, PendingChoice]]()
        while len(reserved_amounts) < several and root in plain.best():
            way = plain.search.ways(position, 1)[0]
            reserved_amounts.append((way, self.reserved_amounts.enter(way)))
            self.room.take(way.allocations)
        for way, promise in reserved_amounts:
            self.room.take(way.allocations, -1)
            self.reserved_amounts.drop(promise)
        return len(reserved_amounts) == several

    def _checked(self, alternative: Alternative, pick: Pick, expected: list[str]) -> Candidate:
        roots = list(dict.fromkeys(way.root for way in pick.choices))
        assert roots == expected[: len(roots)]
        named = MORE_CHOICES if self.hall.policy.packs else CHOICES
        assert len(roots) == min(named, len(expected)) or len(pick.choices) == 64
        way, there = pick.choices[0], self.room.ways(alternative.question)
        amounts = {(one, name, n) for one, given in way.allocations.items() for name, n in given.items()}
        assert any(amounts == set(taken) for taken, _ in there[way.root])
        return way

    def _plainly(self, nth: int, order: Order) -> PlainChoice:
        alternative = order.alternative
        kind = (nth, object()) if self.is_alone(order) else self.hall.policy.kind(alternative)
        if kind not in self.kinds:
            alternative = self.seen(alternative)
            search = self.hall.source.search(alternative.question)
            fitting = self.room.roots
            plain = PlainChoice(
                alternative, search, self.now, self.hall.policy, order.request.request,
                lambda: fitting(alternative.question), self.tiers,
            )  # fmt: skip
            known = {search.host(position).uuid for position in plain.positions}
            assert known >= set(fitting(alternative.question)), "a host that has room was not looked at"
            self.kinds[kind] = plain
        return self.kinds[kind]


def some_orders(chance: Random, hall: Hall) -> list[Order]:
    orders, number = list[Order](), 0
    for _ in range(chance.choice((1, 2, 3))):
        kind = a_kind(chance)
        for _ in range(chance.choice((1, 2, 4))):
            number += 1
            several = chance.choice((1, 1, 2, 5))
            request = a_request(number, instances=several, at_least=chance.choice((0, 0, 1)), **kind)
            orders.append(hall.order(request))
    if chance.random() < 0.5:
        chance.shuffle(orders)
    return orders


Making = Callable[[Random, Hall], list[Order]]


@dataclass(frozen=True)
class Batches:
    """Batches of random orders, by their seeds: the filters and weighers of which some are enabled, and the
    slow evaluation.
    """

    rules: Sequence[str] = RULES
    weighers: Sequence[str] = WEIGHERS
    evaluation: type[PlainBatch] = PlainBatch
    options: Callable[[Random], Mapping[str, Any]] = lambda chance: {}  # of filters and weighers

    def _one(self, seed: int, making: Making) -> tuple[int, int]:
        def a_hall() -> tuple[Hall, PlainRoom]:
            chance = Random(seed)
            trees = some_trees(chance)
            policy = a_policy(chance, self.rules, self.weighers, self.options(chance))
            return sent(chance, Hall(a_source(chance, trees), policy)), PlainRoom(trees)

        (hall, _), (other, room) = a_hall(), a_hall()
        orders = making(Random(f"orders {seed}"), hall)
        answers = hall.choosing().choose(orders)
        plain = self.evaluation(other, room)
        alike: dict[Hashable, list[int]] = {}
        for nth, order in enumerate(orders):
            kind = nth if plain.is_alone(order) else hall.policy.kind(order.alternative)
            alike.setdefault(kind, []).append(nth)
        given = {
            nth: plain.check(nth, orders[nth], answers[nth]) for those in alike.values() for nth in those
        }
        return sum(given.values()), sum(not one for one in given.values())

    def check(self, seeds: range, making: Making) -> tuple[int, int]:
        """Compare all choices with the slow evaluation. Return how many instances got a host, and how many
        orders got none.
        """
        given = none = 0
        for seed in seeds:
            try:
                its_given, its_none = self._one(seed, making)
            except AssertionError as problem:
                problem.add_note(f"in the batch of seed {seed}")
                raise
            given, none = given + its_given, none + its_none
        return given, none
