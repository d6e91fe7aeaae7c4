"""Azure's packing trace of 2020, in samples of one percent: instances come and go on equal hosts.

The hosts are as many as the processors or the memory of all running instances would fill if instances could
be cut in pieces, or a given factor of that. An instance that no host fits is rejected. The figure is the
number of rejected instances: lower is better. No published result is comparable; best fit is the reference.
"""

import csv
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np

from bench.quality.cloud import Asked, HostSpec, OpenCloud, host_number
from bench.quality.contention import evenness
from bus.packing import Floats, are_free
from bus.requests import Flavor

CPU, MEMORY = 9600, 2250  # of a host: hundredths of a processor, and memory in the trace's unit
DAY = 86_400.0  # the trace counts time in days
DAYS = 14  # after which no instances arrive


@dataclass(frozen=True)
class VirtualMachine:
    begins: float
    ends: float  # infinite: does not end within the trace
    cpu: int
    memory: int


@dataclass(frozen=True)
class VmTrace:
    machines: tuple[VirtualMachine, ...]
    events: tuple[tuple[float, int, int], ...]  # time, 1: begins or 0: ends, number of the machine

    @property
    def bound(self) -> float:
        """Return the hosts that the running instances fill if they can be cut in pieces, at the peak."""
        cpu = memory = 0
        most = 0.0
        for _, begins, number in self.events:
            machine, sign = self.machines[number], 1 if begins else -1
            cpu, memory = cpu + sign * machine.cpu, memory + sign * machine.memory
            most = max(most, cpu / CPU, memory / MEMORY)
        return most

    def hosts(self, factor: float = 1.0) -> int:
        return math.ceil(self.bound * factor)


def trace_of(machines: Sequence[VirtualMachine]) -> VmTrace:
    some = sorted(machines, key=lambda machine: machine.begins)
    events = [(machine.begins, 1, number) for number, machine in enumerate(some)]
    events += [(machine.ends, 0, number) for number, machine in enumerate(some) if machine.ends < math.inf]
    return VmTrace(tuple(some), tuple(sorted(events)))


def read(path: Path) -> VmTrace:
    with open(path, encoding="utf-8") as file:
        rows = [
            VirtualMachine(
                float(row["starttime"]),
                float(row["endtime"]),
                round(float(row["cores"])),
                round(float(row["ram"])),
            )
            for row in csv.DictReader(file)
        ]
    return trace_of([machine for machine in rows if machine.cpu <= CPU and machine.memory <= MEMORY])


class VmFleet(Protocol):
    def place(self, machine: VirtualMachine) -> Any:
        """Return what `release` needs; None if no host fits."""

    def release(self, held: Any, now: float) -> None: ...


class PlainFleet:
    def __init__(self, hosts: int, best: bool) -> None:
        self.free: Floats = np.tile(np.array([CPU, MEMORY], np.float64), (hosts, 1))
        self._best = best

    def place(self, machine: VirtualMachine) -> Any:
        amounts = np.array([machine.cpu, machine.memory], np.float64)
        fits = are_free(amounts, self.free)
        if not fits.any():
            return None
        rest = (self.free / (CPU, MEMORY)).sum(axis=1)
        host = int(np.argmin(np.where(fits, rest, np.inf))) if self._best else int(np.argmax(fits))
        self.free[host] -= amounts
        return host, amounts

    def release(self, held: Any, now: float) -> None:
        self.free[held[0]] += held[1]


class BerthFleet:
    def __init__(self, hosts: int, open_cloud: OpenCloud, seed: int) -> None:
        self.cloud = open_cloud([HostSpec({"VCPU": CPU, "MEMORY_MB": MEMORY})] * hosts, seed)
        self.used: Floats = np.zeros((hosts, 2))
        self.instances: Floats = np.zeros(hosts)
        self._asked: dict[tuple[int, int], Asked] = {}

    def place(self, machine: VirtualMachine) -> Any:
        key = machine.cpu, machine.memory
        if key not in self._asked:
            self._asked[key] = Asked(
                Flavor(name=f"vm-{machine.cpu}-{machine.memory}", vcpus=machine.cpu, memory_mb=machine.memory)
            )
        self.cloud.advance(machine.begins * DAY)
        held = self.cloud.place(self._asked[key])
        if held is not None:
            self._count(host_number(held), key, 1)
        return held and (held, key)

    def release(self, held: Any, now: float) -> None:
        allocations, key = held
        self.cloud.advance(now * DAY)
        self.cloud.release(allocations)
        self._count(host_number(allocations), key, -1)

    def _count(self, host: int, amounts: tuple[int, int], sign: int) -> None:
        self.used[host] += np.array(amounts) * sign
        self.instances[host] += sign

    def measured(self) -> dict[str, float]:
        return evenness(self.used / (CPU, MEMORY), self.instances)


def rejected(
    trace: VmTrace, fleet: VmFleet, on_event: Callable[[float], None] = lambda now: None
) -> dict[str, float]:
    held: dict[int, Any] = {}
    refused = cores = 0
    for now, begins, number in trace.events:
        machine = trace.machines[number]
        on_event(now)
        if not begins:
            if number in held:
                fleet.release(held.pop(number), now)
        elif (taken := fleet.place(machine)) is None:
            refused, cores = refused + 1, cores + machine.cpu
        else:
            held[number] = taken
    total = sum(machine.cpu for machine in trace.machines)
    return {"rejected": refused, "rejected_cores_percent": 100 * cores / total}


def with_berth(trace: VmTrace, hosts: int, open_cloud: OpenCloud, seed: int) -> dict[str, float]:
    """Return how many instances were rejected, and how evenly hosts were used, as a mean over days."""
    fleet = BerthFleet(hosts, open_cloud, seed)
    days: list[dict[str, float]] = []

    def on_event(now: float) -> None:
        if len(days) < min(now, DAYS):
            days.append(fleet.measured())

    try:
        found = rejected(trace, fleet, on_event)
        return found | {name: fmean([day[name] for day in days]) for name in (days[0] if days else ())}
    finally:
        fleet.cloud.close()


def synthetic(seed: int) -> VmTrace:
    """Return a small trace of instances in several sizes, some with much processor, some with much memory."""
    chance, machines = random.Random(seed), []
    sizes = ((100, 25), (200, 50), (400, 100), (800, 200), (200, 25), (400, 200), (1600, 400), (2400, 300))
    weights = (30, 20, 15, 8, 12, 6, 3, 2)
    for _ in range(4000):
        begins = chance.random() * 7
        cpu, memory = chance.choices(sizes, weights)[0]
        lives = chance.lognormvariate(-2.5, 1.8)
        machines.append(
            VirtualMachine(begins, begins + lives if begins + lives < 7 else math.inf, cpu, memory)
        )
    return trace_of(machines)
