"""Samples the capacity of the cloud over time, by resource class, flavor and zone."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np
from msgspec import structs

from bus.candidates import CandidateSearch, CandidateSource, Floats, SenselessQuery
from bus.host_health import CLOSED
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.sql.database import Database
from bus.sql.statement import Transaction
from features.capacity_history import store as stored
from features.capacity_history.messages import CapacityFound, CapacityKind, CapacitySample, FindCapacity
from scheduler_worker.extension import Alternative, Searching

USUAL = ("VCPU", "MEMORY_MB", "DISK_GB")
UNNAMED = "custom"  # name of the flavor of a `berth boot` with amounts instead of a flavor


# Returns requests that wait for capacity, each with the number of instances that wait for the like.
FindWaiting = Callable[[Transaction], Awaitable[Sequence[tuple[BuildRequested, int]]]]


class CapacitySampler:
    """Stores a sample of the capacity for each interval, unless another scheduler did, and answers queries
    about samples.
    """

    def __init__(self, scheduler: Searching, database: Database) -> None:
        self._scheduler = scheduler
        self._database = database
        self.waiting: list[FindWaiting] = []  # of joins

    async def find(self, query: FindCapacity) -> CapacityFound:
        async with self._database.read_single() as tx:
            return await stored.find(tx, query)

    async def store(self) -> None:
        """Store the sample of the present interval unless a scheduler has stored it; merge old samples."""
        span = stored.SPANS[0][0]
        now = self._scheduler.clock.now()
        at = int(now) // span * span
        async with self._database.read() as tx:
            if await stored.has_sample(tx, at):
                return
            waiting = [each for find in self.waiting for each in await find(tx)]
        samples = await self._samples(float(at), waiting)
        async with self._database.write() as tx:
            await stored.add(tx, samples)
            await stored.merge(tx, now)

    async def _samples(
        self, at: float, waiting: Sequence[tuple[BuildRequested, int]]
    ) -> list[CapacitySample]:
        flavors = {name_of(each): each.asked for each in self._scheduler.flavors.latest()}
        waits: Counter[tuple[CapacityKind, str, str]] = Counter()
        for request, instances in waiting:
            for alternative in self._scheduler.orders.alternatives_of(request)[:1]:
                name = name_of(alternative)
                flavors.setdefault(name, alternative.asked)
                waits["flavor", name, request.zone] += instances
                for class_, amount in alternative.asked.items():
                    waits["class", class_, request.zone] += instances * amount
        cloud = _Cloud(self._scheduler.source)
        for class_ in dict.fromkeys((*USUAL, *(name for asked in flavors.values() for name in asked))):
            cloud.add_class(class_)
            await asyncio.sleep(0)
        found: dict[tuple[CapacityKind, str, str], CapacitySample] = {}
        for name, asked in flavors.items():
            for zone, fits in cloud.add_flavor(asked).items():
                found["flavor", name, zone] = CapacitySample(at, "flavor", name, zone, free=fits)
            await asyncio.sleep(0)
        found |= cloud.classes(at)
        for (kind, name, zone), amount in waits.items():
            known = found.get((kind, name, zone)) or CapacitySample(at, kind, name, zone)
            found[kind, name, zone] = structs.replace(known, waiting=float(amount))
        return list(found.values())


def name_of(alternative: Alternative) -> str:
    """Return the name of the flavor or, for the unnamed flavor of a `berth boot` with amounts, these amounts,
    as in `VCPU:2`.
    """
    name = alternative.flavor.name
    return name if name != UNNAMED else ",".join(f"{key}:{value}" for key, value in alternative.asked.items())


class _Cloud:
    """The amounts of all hosts by resource class, as arrays by position of the host."""

    def __init__(self, source: CandidateSource) -> None:
        self._source = source
        self._size = source.size
        self._zones, self._names = source.labels("zone")
        closed = [host.position for host in source.hosts() if not CLOSED.isdisjoint(host.traits)]
        self._open = np.ones(self._size, np.bool_)
        self._open[closed] = False
        self._capacity: dict[str, Floats] = {}
        self._free: dict[str, Floats] = {}
        self._usable: dict[str, Floats] = {}

    def add_class(self, name: str) -> None:
        group = ResourceGroup(resources={name: 1})
        try:
            search = self._source.search(FindCandidates(groups=(group,)), empty=True)
        except SenselessQuery:  # no host has a requested resource class
            return
        self._capacity[name] = self._placed(search, search.capacity(name))
        self._free[name] = np.maximum(self._placed(search, search.free(name)), 0)
        self._usable[name] = np.zeros(self._size)

    def _placed(self, search: CandidateSearch, amounts: Floats) -> Floats:
        placed = np.zeros(self._size)
        placed[search.positions] = amounts
        return placed

    def add_flavor(self, asked: Mapping[str, int]) -> dict[str, float]:
        """Return how many instances of a flavor fit, by zone, and record the amounts that they would use. A
        host's free amount of a class is the sum over its providers.
        """
        if not asked or not asked.keys() <= self._free.keys():
            return {}
        fits = np.where(self._open, np.min([self._free[name] // n for name, n in asked.items()], axis=0), 0)
        for name, amount in asked.items():
            np.maximum(self._usable[name], fits * amount, out=self._usable[name])
        return self._by_zone(fits)

    def classes(self, at: float) -> dict[tuple[CapacityKind, str, str], CapacitySample]:
        """Return a sample of each resource class in each zone, by ("class", name of the resource class,
        zone).
        """
        found: dict[tuple[CapacityKind, str, str], CapacitySample] = {}
        for name, capacity in self._capacity.items():
            free, usable = self._free[name], self._usable[name]
            frees, stranded = self._by_zone(free), self._by_zone(np.maximum(free - usable, 0))
            for zone, amount in self._by_zone(capacity).items():
                if amount:
                    used = amount - frees[zone]
                    sample = CapacitySample(
                        at, "class", name, zone, amount, used, frees[zone], stranded[zone]
                    )
                    found["class", name, zone] = sample
        return found

    def _by_zone(self, amounts: Floats) -> dict[str, float]:
        sums = np.bincount(self._zones, weights=amounts[: len(self._zones)], minlength=len(self._names))
        return {name: float(total) for name, total in zip(self._names, sums, strict=True)}
