"""Hosts with GPUs, and their values, computed for one host and one shape after the other."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import pi, prod
from operator import mul
from random import Random

from bench.quality.cloud import Asked, DeviceSpec, HostSpec, TraceCloud
from bus.requests import Flavor, ResourceGroup
from bus.vocabulary import Allocations
from scheduler_worker.core.extension import Shape, UsualShapes
from scheduler_worker.extension import ChoicePolicy

GPU = "CUSTOM_GPU"
Amounts = dict[str, dict[str, int]]  # provider → class → amount; the root is first


def pack() -> ChoicePolicy:
    only, options = {"fragmentation": 1.0}, {"fragmentation": {"spread": 0.0}}
    return ChoicePolicy.from_names(weighers=only, options=options, max_builds=1000)


def balanced() -> ChoicePolicy:
    return ChoicePolicy.from_names(weighers={"fragmentation": 1.0}, max_builds=1000)


def some_hosts(chance: Random) -> list[HostSpec]:
    sizes = [
        (chance.choice((8, 16, 32)), chance.choice((32, 64)), chance.choice((0, 2, 4))) for _ in range(3)
    ]
    return [
        HostSpec({"VCPU": cpus, "MEMORY_MB": ram}, (), (DeviceSpec({GPU: 10}),) * gpus)
        for cpus, ram, gpus in chance.choices(sizes, k=6)
    ]


def some_asked(chance: Random, gpus_each: Sequence[int] = (0, 0, 1, 1, 2)) -> Asked:
    cpus, ram, gpus = chance.choice((1, 2, 4)), chance.choice((2, 4, 8)), chance.choice(gpus_each)
    amount = chance.choice((3, 5, 10)) if gpus == 1 else 10
    flavor = Flavor(
        name=f"f-{cpus}-{ram}-{gpus}-{amount}",
        vcpus=cpus,
        memory_mb=ram,
        extra_specs={"group_policy": "isolate"} if gpus > 1 else {},
    )
    groups = [ResourceGroup(suffix=f"_g{nth}", resources={GPU: amount}) for nth in range(gpus)]
    return Asked(flavor, tuple(groups))


class SlowValues:
    """The value of hosts, computed for one host and one shape after the other."""

    def __init__(self, usual: UsualShapes, hosts: Sequence[Amounts]) -> None:
        self.usual = usual
        asked = {name for shape in usual.shapes for name in shape.amounts}
        total = {name: sum(of.get(name, 0) for host in hosts for of in host.values()) for name in asked}
        self.average = {name: amount / len(hosts) for name, amount in total.items() if amount}

    def size(self, amounts: Mapping[str, int]) -> float:
        shares = [amounts.get(name, 0) / average for name, average in self.average.items()]
        return sum(shares) / len(shares)

    def copies(self, shape: Shape, host: Amounts) -> int:
        found = 10**9
        for group in shape.groups:
            if group.is_split:
                together = {name: sum(of.get(name, 0) for of in host.values()) for name, _ in group.resources}
                found = min([found, *(together[name] // amount for name, amount in group.resources)])
                continue
            units = [
                min(of.get(name, 0) // amount for name, amount in group.resources) for of in host.values()
            ]
            most = sum(units) // group.count
            if shape.apart:
                while most and sum(min(unit, most) for unit in units) < group.count * most:
                    most -= 1
            found = min(found, most)
        return found

    def of(self, host: Amounts, whole: Amounts, scarcity: "SlowScarcity | None" = None) -> float:
        shapes = list(zip(self.usual.shapes, self.usual.parts, strict=True))
        scarce = [1.0] * len(shapes) if scarcity is None else scarcity.of_shapes
        value = sum(
            by * part * self.size(shape.amounts) * self.copies(shape, host)
            for by, (shape, part) in zip(scarce, shapes, strict=True)
        )
        overall = 1.0 if scarcity is None else scarcity.overall
        root, *gpus = host
        shares = [host[root][name] / whole[root][name] for name in ("VCPU", "MEMORY_MB")]
        if gpus and GPU in self.average:
            free = sum(host[gpu][GPU] for gpu in gpus) / sum(whole[gpu][GPU] for gpu in gpus)
            return value - 0.5 * max(0.0, free - min(shares))
        totals = {name: sum(of.get(name, 0) for of in whole.values()) for name in self.average}
        return value + overall * 0.1 / 0.9 * pi**2 / 12 * self.size(totals) * prod(shares)


def least_share(host: Amounts, whole: Amounts) -> float:
    names = {name for of in whole.values() for name in of}
    return min(total([host], name) / total([whole], name) for name in names)


class SlowScarcity:
    """The scarcity of shapes, from all hosts, as of each call of `follow`."""

    def __init__(self) -> None:
        self.of_shapes: list[float] = []
        self.overall = 0.0
        self._version = -1

    def balance(self, host: Amounts, whole: Amounts) -> float:
        return 0.02 * (1.0 - self.overall) * least_share(host, whole)

    def follow(self, values: SlowValues, free: Sequence[Amounts], whole: Sequence[Amounts]) -> None:
        usual = values.usual
        parts = list(zip(usual.shapes, usual.parts, strict=True))
        common = [
            name
            for name in values.average
            if sum(part for shape, part in parts if name in shape.amounts) >= 0.1
        ]
        used = max([0.0, *(1.0 - total(free, name) / total(whole, name) for name in common)])
        found = [self._of(values, shape, used, free, whole) for shape in usual.shapes]
        weights = [part * values.size(shape.amounts) for shape, part in parts]
        if usual.version == self._version:
            changes = zip(found, self.of_shapes, weights, strict=True)
            changed = sum(abs(now - before) * weight for now, before, weight in changes)
            if changed < 0.05 * sum(weights):
                return
        self._version, self.of_shapes = usual.version, found
        counted = [
            weight if shape.amounts.keys() <= {*common} else 0.0
            for shape, weight in zip(usual.shapes, weights, strict=True)
        ]
        self.overall = sum(map(mul, found, counted)) / max(sum(counted), 1e-12)

    def _of(
        self, values: SlowValues, shape: Shape, used: float, free: Sequence[Amounts], whole: Sequence[Amounts]
    ) -> float:
        if any(name == GPU for name in shape.amounts):
            return 1.0
        fitting = sum(values.copies(shape, host) for host in free)
        possible = sum(values.copies(shape, host) for host in whole)
        return min(max(2.0 * (1.0 - fitting / possible / max(1.3 * used, 1e-9)), 0.0), 1.0)


def total(hosts: Sequence[Amounts], name: str) -> float:
    return sum(of.get(name, 0) for host in hosts for of in host.values())


def amounts_of(cloud: TraceCloud) -> tuple[list[Amounts], list[Amounts]]:
    index = cloud.placement.index
    hosts = [[index.rows[uuid] for uuid in tree] for tree in index.trees.values()]
    free = [{row.uuid: dict(row.free) for row in host} for host in hosts]
    return free, [{row.uuid: dict(row.capacity) for row in host} for host in hosts]


def all_ways(asked: Asked, host: Amounts) -> Iterator[Allocations]:
    root, *gpus = host
    for chosen in combinations(gpus, len(asked.groups)):
        way = {root: {"VCPU": asked.flavor.vcpus, "MEMORY_MB": asked.flavor.memory_mb}}
        way |= {gpu: dict(group.resources) for gpu, group in zip(chosen, asked.groups, strict=True)}
        if all(host[uuid][name] >= amount for uuid, of in way.items() for name, amount in of.items()):
            yield way


def after(host: Amounts, way: Allocations) -> Amounts:
    return {
        uuid: {name: amount - way.get(uuid, {}).get(name, 0) for name, amount in of.items()}
        for uuid, of in host.items()
    }
