"""Huawei-East-1, as the SPANE paper replays it (AAMAS 2025): instances wait for hosts of two NUMA nodes.

Each episode begins at a given instance of the trace with five empty hosts. It has as many instances as first
fit places before one does not fit, and 40 more. An instance that does not fit waits, and all others behind
it, until others have ended. The figure is the mean of the episodes' waiting times without the highest and
the lowest tenth: lower is better.
"""

import csv
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.quality.cloud import Asked, DeviceSpec, HostSpec, TraceCloud
from bus.packing import Bools, Floats
from bus.requests import Flavor
from bus.vocabulary import Allocations
from scheduler_worker import ChoicePolicy

HOSTS, NODES = 5, 2
CPU, MEMORY = 80, 180  # of a NUMA node, in halves of a processor and of a GB
LARGE = 10  # GB above which an instance takes half of its amounts from each node
MORE = 40  # instances of an episode after the first that does not fit
CUT = 0.1  # part of the episodes that is left out at each end
PUBLISHED = {"valid": {"first fit": 267_140.0, "balance fit": 204_081.0}}


@dataclass(frozen=True)
class NumaInstance:
    cpu: int  # in halves, as `CPU`
    memory: int
    is_large: bool
    arrives: int
    lives: int


def read(path: Path) -> list[NumaInstance]:
    with open(path, encoding="utf-8") as file:
        rows = [
            (int(row["cpu"]), int(row["mem"]), int(float(row["at"])), int(float(row["lt"])))
            for row in csv.DictReader(file)
        ]
    return [NumaInstance(2 * cpu, 2 * mem, mem > LARGE, arrives, lives) for cpu, mem, arrives, lives in rows]


class Hosts(Protocol):
    def begin(self) -> None:
        """Empty all hosts."""

    def place(self, instance: NumaInstance, now: int) -> Any:
        """Return what `release` needs; None if no host fits."""

    def release(self, held: Any, now: int) -> None: ...


class PlainHosts:
    """Hosts as arrays: `free[host, node]` is its free processors and memory."""

    def __init__(self, choose: Callable[[Floats, NumaInstance, Bools], int]) -> None:
        self._choose = choose
        self.begin()

    def begin(self) -> None:
        self.free: Floats = np.tile(np.array([CPU, MEMORY], np.float64), (HOSTS, NODES, 1))

    def fitting(self, instance: NumaInstance) -> Bools:
        """Return for each node of each host whether the instance fits there."""
        fits: Bools
        if instance.is_large:
            halves = instance.cpu // 2, instance.memory // 2
            fits = (self.free >= halves).all(axis=(1, 2)).repeat(NODES)
        else:
            fits = (self.free >= (instance.cpu, instance.memory)).all(axis=2).reshape(-1)
        return fits

    def place(self, instance: NumaInstance, now: int) -> Any:
        fits = self.fitting(instance)
        if not fits.any():
            return None
        host, node = divmod(int(self._choose(self.free, instance, fits)), NODES)
        amounts = np.array([instance.cpu, instance.memory])
        held = (host, slice(None), amounts // 2) if instance.is_large else (host, node, amounts)
        self.free[held[0], held[1]] -= held[2]
        return held

    def release(self, held: Any, now: int) -> None:
        self.free[held[0], held[1]] += held[2]


def first_fit(free: Floats, instance: NumaInstance, fits: Bools) -> int:
    return int(np.argmax(fits))


def balance_fit(free: Floats, instance: NumaInstance, fits: Bools) -> int:
    """Choose the host whose nodes differ most, and there the emptier node: the paper's best heuristic."""
    if instance.is_large:
        return int(np.argmax(fits))
    left = (free / (CPU, MEMORY)).min(axis=2)
    differences = np.abs(left[:, 0] - left[:, 1]) * fits.reshape(-1, NODES).max(axis=1)
    if not differences.any():
        return int(np.argmax(fits))
    host = int(np.argmax(differences))
    place = NODES * host + int(np.argmax(left[host]))
    return place if fits[place] else place ^ 1


def best_fit(free: Floats, instance: NumaInstance, fits: Bools) -> int:
    left = (free / (CPU, MEMORY)).min(axis=2)
    rest = left.sum(axis=1).repeat(NODES) if instance.is_large else left.reshape(-1)
    return int(np.argmin(np.where(fits, rest, np.inf)))


REFERENCES: dict[str, Callable[[Floats, NumaInstance, Bools], int]] = {
    "first fit": first_fit,
    "best fit": best_fit,
    "balance fit": balance_fit,
}


class BerthHosts:
    """Hosts for which a scheduler decides. It is asked only if an instance fits: refusals take longest."""

    def __init__(self, policy: ChoicePolicy, seed: int, forgets: bool = False) -> None:
        self._policy, self._seed, self._forgets = policy, seed, forgets
        self.cloud = self._opened()
        self._asked: dict[tuple[int, int, bool], Asked] = {}
        self._held: dict[int, Allocations] = {}
        self._known = PlainHosts(first_fit)

    def _opened(self) -> TraceCloud:
        node = DeviceSpec({"VCPU": CPU, "MEMORY_MB": MEMORY}, ("HW_NUMA_ROOT",))
        return TraceCloud([HostSpec({}, (), (node,) * NODES)] * HOSTS, self._policy, self._seed)

    def begin(self) -> None:
        """Empty all hosts; if the demand is forgotten, with a new scheduler."""
        if self._forgets:
            self.cloud.close()
            self.cloud = self._opened()
        else:
            for held in self._held.values():
                self.cloud.release(held)
        self._held.clear()
        self._known.begin()

    def place(self, instance: NumaInstance, now: int) -> Any:
        if not self._known.fitting(instance).any():
            return None
        key = instance.cpu, instance.memory, instance.is_large
        if key not in self._asked:
            specs = {"hw:numa_nodes": str(NODES if instance.is_large else 1)}
            name = f"vm-{instance.cpu}-{instance.memory}"
            self._asked[key] = Asked(
                Flavor(name=name, vcpus=instance.cpu, memory_mb=instance.memory, extra_specs=specs)
            )
        self.cloud.advance(float(now))
        held = self.cloud.place(self._asked[key])
        assert held is not None, f"no host for {instance}, which fits"
        self._change(held, -1)
        self._held[id(held)] = held
        return held

    def release(self, held: Any, now: int) -> None:
        self.cloud.advance(float(now))
        self.cloud.release(held)
        self._change(held, 1)
        del self._held[id(held)]

    def _change(self, held: Allocations, sign: int) -> None:
        for uuid, amounts in held.items():
            host, node = self.cloud.devices[uuid]
            self._known.free[host, node] += np.array([amounts["VCPU"], amounts["MEMORY_MB"]]) * sign


def length(trace: Sequence[NumaInstance], start: int) -> int:
    """Return the number of instances of the episode that begins at an instance of the trace."""
    hosts, ends, index = PlainHosts(first_fit), list[tuple[int, int, Any]](), start
    while True:
        instance = trace[index]
        while ends and ends[0][0] <= instance.arrives:
            hosts.release(heappop(ends)[2], 0)
        held = hosts.place(instance, 0)
        heappush(ends, (instance.arrives + instance.lives, index, held))
        index += 1
        if index >= len(trace) - 1 or not hosts.fitting(trace[index]).any():
            return index - start + MORE


def waited(trace: Sequence[NumaInstance], start: int, count: int, hosts: Hosts) -> float:
    """Return the sum of the waiting times of the instances of an episode."""
    hosts.begin()
    ends, now, total = list[tuple[int, int, Any]](), trace[start].arrives, 0

    def end_next() -> int:
        ended, _, held = heappop(ends)
        hosts.release(held, ended)
        return ended

    for index in range(start, min(start + count, len(trace))):
        instance = trace[index]
        while ends and ends[0][0] <= instance.arrives:
            now = end_next()
        held = hosts.place(instance, now)
        if held is not None:
            now = max(now, instance.arrives)
        while held is None:
            now = end_next()
            while ends and ends[0][0] == now:
                end_next()
            held = hosts.place(instance, now)
        total += now - instance.arrives
        heappush(ends, (now + instance.lives, index, held))
    return total


def trimmed_mean(values: Sequence[float]) -> float:
    cut = int(len(values) * CUT)
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)


def waiting(trace: Sequence[NumaInstance], starts: Sequence[int], hosts: Hosts) -> dict[str, float]:
    waits = [waited(trace, start, length(trace, start), hosts) for start in starts]
    return {"wait": trimmed_mean(waits), "mean": sum(waits) / len(waits)}


def with_berth(
    trace: Sequence[NumaInstance],
    starts: Sequence[int],
    policy: ChoicePolicy,
    seed: int,
    forgets: bool = False,
) -> dict[str, float]:
    """Return the waiting times. `forgets`: nothing is known of the demand at the begin of each episode."""
    hosts = BerthHosts(policy, seed, forgets)
    try:
        return waiting(trace, starts, hosts)
    finally:
        hosts.cloud.close()


def random_starts(trace: Sequence[NumaInstance], count: int, seed: int) -> list[int]:
    """Return starts of episodes that are not those of the paper."""
    chance = random.Random(seed)
    return [chance.randrange(len(trace) - 2000) for _ in range(count)] if len(trace) > 2000 else [0] * count


def synthetic(seed: int) -> list[NumaInstance]:
    """Return a small trace of instances of one and of two NUMA nodes."""
    return list(_synthetic(random.Random(seed)))


def _synthetic(chance: random.Random) -> Iterator[NumaInstance]:
    arrives = 0.0
    sizes = ((1, 1), (1, 2), (2, 4), (2, 8), (4, 8), (4, 16), (8, 16), (8, 32), (16, 32), (16, 64))
    weights = (12, 10, 12, 10, 8, 8, 5, 4, 2, 1)
    for _ in range(2400):
        arrives += chance.expovariate(1 / 30)
        cpu, memory = chance.choices(sizes, weights)[0]
        lives = int(chance.lognormvariate(6.0, 2.0)) + 1
        yield NumaInstance(2 * cpu, 2 * memory, memory > LARGE, int(arrives), lives)
