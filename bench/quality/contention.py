"""The evenness with which clouds of virtual machines are used, while synthetic flavors come and go.

The hosts are overcommitted: four virtual processors share one. While much is free, the fullest host should be
hardly fuller than others; when little is left, large flavors should still fit.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from statistics import fmean
from typing import Any

import numpy as np

from bench.quality.cloud import Asked, HostSpec, OpenCloud, host_number
from bus.packing import Floats
from bus.requests import Flavor

HOSTS = 100
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the scarcest class that are used
HOST = HostSpec({"VCPU": 48, "MEMORY_MB": 262_144, "DISK_GB": 4000}, ratios={"VCPU": 4.0})
CAPACITY = {name: total * HOST.ratios.get(name, 1.0) for name, total in HOST.resources.items()}
DAY = 86_400.0
LIFETIMES = 2.0  # mean lifetimes for which instances come and go before the end
SAMPLES = 20  # in the second half of that time
LARGEST = 3  # flavors that count as large
EVENNESS = ("hosts used", "fullest host, %", "p99 of hosts, %", "lost with one host")


def flavors() -> list[Flavor]:
    """Return 20 flavors of 1 to 16 processors with 1 to 8 GB each; the largest need half of a host."""
    return [
        Flavor(name=f"{cpus}x{gb}", vcpus=cpus, memory_mb=1024 * cpus * gb, disk_gb=10 + 5 * cpus)
        for cpus in (1, 2, 4, 8, 16)
        for gb in (1, 2, 4, 8)
    ]


def amounts(flavor: Flavor) -> Floats:
    return np.array([flavor.vcpus, flavor.memory_mb, flavor.disk_gb], np.float64)


def evenness(shares: Floats, instances: Floats) -> dict[str, float]:
    """Return how evenly hosts are used, given the used share of each class of each host, and their instances.
    The used share of a host is that of its most used class.
    """
    of_hosts = shares.max(axis=1)
    return {
        "hosts used": float((instances > 0).sum()),
        "fullest host, %": 100 * float(of_hosts.max()),
        "p99 of hosts, %": 100 * float(np.quantile(of_hosts, 0.99)),
        "lost with one host": float(instances.max()),
    }


@dataclass(eq=False)
class UsedHosts:
    """The used amounts of each host, with the cloud that chooses the hosts."""

    open_cloud: OpenCloud
    hosts: int
    seed: int

    def __post_init__(self) -> None:
        self.cloud = self.open_cloud([HOST] * self.hosts, self.seed)
        self.capacity: Floats = np.array([*CAPACITY.values()], np.float64)
        self.used: Floats = np.zeros((self.hosts, len(self.capacity)))
        self.instances: Floats = np.zeros(self.hosts)
        self.refused = 0
        self._asked: dict[str, Asked] = {}

    def place(self, flavor: Flavor, now: float) -> Any:
        asked = self._asked.setdefault(flavor.name, Asked(flavor))
        self.cloud.advance(now)
        held = self.cloud.place(asked)
        if held is None:
            self.refused += 1
            return None
        host = host_number(held)
        self.used[host] += amounts(flavor)
        self.instances[host] += 1
        return held, flavor

    def release(self, placed: Any, now: float) -> None:
        held, flavor = placed
        self.cloud.advance(now)
        self.cloud.release(held)
        host = host_number(held)
        self.used[host] -= amounts(flavor)
        self.instances[host] -= 1

    def measured(self, large: Sequence[Flavor]) -> dict[str, float]:
        """Return figures of this moment."""
        free = self.capacity - self.used
        fits = [np.floor(free / amounts(each)).min(axis=1).sum() for each in large]
        found = evenness(self.used / self.capacity, self.instances)
        return {**found, "large flavors that fit": float(np.mean(fits))}


def steady(share: float, open_cloud: OpenCloud, seed: int, hosts: int = HOSTS) -> dict[str, float]:
    """Return the means of figures while instances come and go, and use this share of the scarcest class."""
    chance, some = random.Random(seed), flavors()
    weights = [1.0 / math.sqrt(each.memory_mb) for each in some]
    mean = np.average([amounts(each) for each in some], axis=0, weights=weights)
    cloud = UsedHosts(open_cloud, hosts, seed)
    running = share * hosts / float((mean / cloud.capacity).max())
    large = sorted(some, key=lambda flavor: flavor.memory_mb)[-LARGEST:]
    ends: list[tuple[float, int, Any]] = []
    samples: list[dict[str, float]] = []
    end, now, number = LIFETIMES * DAY, 0.0, 0
    times = [end * (0.5 + 0.5 * (nth + 1) / SAMPLES) for nth in range(SAMPLES)]
    try:
        while len(samples) < SAMPLES:
            if number >= running:  # the first ones are there at the beginning
                now += chance.expovariate(running / DAY)
            while ends and ends[0][0] <= now:
                at, _, placed = heappop(ends)
                cloud.release(placed, at)
            while len(samples) < SAMPLES and times[len(samples)] <= now:
                samples.append(cloud.measured(large))
            (flavor,) = chance.choices(some, weights)
            placed = cloud.place(flavor, now)
            number += 1
            if placed is not None:
                heappush(ends, (now + chance.expovariate(1 / DAY), number, placed))
    finally:
        cloud.cloud.close()
    found = {name: fmean([sample[name] for sample in samples]) for name in samples[0]}
    return found | {"refused": float(cloud.refused)}


def nearly_empty(open_cloud: OpenCloud, seed: int, hosts: int = HOSTS) -> dict[str, float]:
    """Return figures after one boot a host of two flavors, of which one needs half of a host's memory."""
    small = Flavor(name="small", vcpus=2, memory_mb=4096, disk_gb=20)
    large = Flavor(name="large", vcpus=8, memory_mb=HOST.resources["MEMORY_MB"] // 2, disk_gb=40)
    chance, cloud = random.Random(seed), UsedHosts(open_cloud, hosts, seed)
    try:
        for _ in range(hosts):
            cloud.place(large if chance.random() < 0.25 else small, 0.0)
        return cloud.measured([large])
    finally:
        cloud.cloud.close()
