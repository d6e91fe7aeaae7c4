"""Hosts as filters and weighers see them: all fitting hosts as arrays, or one host, with equal numbers."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from bus.aggregates import Aggregate
from bus.candidates import Bools, CandidateSearch, CandidateSource, Ints, PlacedHost
from scheduler_worker.core.host_map import HostColumns, Numbers
from scheduler_worker.core.rule import UNKNOWN, Alternative, HostFacts, Number, numbers

_NONE = np.float64(0.0)  # what is compared with it can be turned round by ~, which of a Python bool it cannot


@dataclass(slots=True, eq=False)
class HostsNow:
    """The reported state of all hosts, by position in placement's index, valid until the next await."""

    source: CandidateSource
    columns: HostColumns
    slot_at: Ints
    placed: Ints  # the positions of all hosts
    up: Bools  # false: the host is down
    unknown: Bools | None  # up, but without a heartbeat so far; None: the same for all hosts
    fading: float  # what a failure that was counted as one counts now
    why_down: Callable[[PlacedHost], str]
    _limits: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    _read: dict[str, Numbers] = field(default_factory=dict)

    def facts(self, search: CandidateSearch, position: int) -> HostFacts:
        placed = search.host(position)
        slot = self.slot_at.item(position)
        columns = self.columns
        state, known = columns.states[slot], self.source.aggregates
        building = int(columns.recent.item(slot))
        free, capacity = search.amounts(position)
        return HostFacts(
            root=placed.uuid,
            host=placed.host,
            cell=placed.cell,
            agent=placed.agent,
            zone=placed.zone,
            traits=placed.traits,
            aggregates=tuple([known[uuid] for uuid in placed.aggregates if uuid in known]),
            free=free,
            capacity=capacity,
            state=state,
            down="" if self.up.item(position) else self.why_down(placed),
            building=building if state is None else building + state.building,
            failures=columns.failures.item(slot) * self.fading,
        )

    def fact(self, name: str, otherwise: float) -> Numbers:
        """Return the values of a reported fact by position. The array is shared: do not write to it."""
        columns, slots = self.columns, self.slot_at
        # What is chosen for one class counts for the next, so the first two are not stored.
        if name == "sent":
            return columns.recent.take(slots)
        if name == "building":
            return self.fact("reported", 0.0) + columns.recent.take(slots)

        def read() -> Numbers:
            if name == "up":
                return self.up.astype(np.float64)
            if name == "failures":
                return columns.failures.take(slots) * self.fading
            reported = columns.fact(name).take(slots)
            return np.where(np.isnan(reported), otherwise, reported)

        return self._once(f"fact {name} or {otherwise}", read)

    def metric(self, name: str) -> Numbers:
        return self._once(f"metric {name}", lambda: self.columns.metric(name).take(self.slot_at))

    def cached(self, image: str) -> Numbers:
        return self._once(f"image {image}", lambda: self.columns.cached(image).take(self.slot_at))

    def _once(self, key: str, read: Callable[[], Numbers]) -> Numbers:
        found = self._read.get(key)
        if found is None:
            found = read()
            of_hosts = found.take(self.placed)
            if of_hosts.size and (of_hosts == of_hosts[0]).all():  # the usual case: store a single value
                found = np.broadcast_to(of_hosts[0], found.shape)
            found.flags.writeable = False
            self._read[key] = found
        return found

    def limits(self, key: str) -> list[tuple[str, float]]:
        """Return the aggregates that have a number under this metadata key."""
        found = self._limits.get(key)
        if found is None:
            found = self._limits[key] = [
                (uuid, number)
                for uuid, aggregate in self.source.aggregates.items()
                for number in numbers((aggregate.metadata[key],) if key in aggregate.metadata else ())
            ]
        return found


class AllHosts:
    """The data of all fitting hosts as arrays; a fact with the same value everywhere is one plain number."""

    def __init__(self, search: CandidateSearch, now: HostsNow) -> None:
        self._search = search
        self.now = now
        self._positions = search.positions
        self._facts: dict[tuple[str, float], Number] = {}  # shared: do not write to the arrays
        self._all = len(self._positions) == len(now.slot_at)

    def free(self, resource_class: str) -> Number:
        return self._search.free(resource_class) if self._search.any_of(resource_class) else _NONE

    def capacity(self, resource_class: str) -> Number:
        return self._search.capacity(resource_class) if self._search.any_of(resource_class) else _NONE

    def has(self, trait: str) -> Number:
        found = self._search.has(trait)
        return found.astype(np.float64) if found.any() else _NONE

    def fact(self, name: str, otherwise: float = UNKNOWN) -> Number:
        found = self._facts.get((name, otherwise))
        if found is None:
            found = self._facts[name, otherwise] = self._of_found(self.now.fact(name, otherwise))
        return found

    def metric(self, name: str) -> Number:
        return self._of_found(self.now.metric(name))

    def members(self, alternative: Alternative) -> Number:
        counts = np.zeros(len(self._positions))
        for root, count in alternative.members.items():
            counts[self._where_is(root)] = count
        return counts

    def among(self, roots: Collection[str]) -> Number:
        found = np.zeros(len(self._positions))
        for root in roots:
            found[self._where_is(root)] = 1.0
        return found

    def within(self, says: Callable[[Aggregate], bool]) -> Number:
        aggregates = [uuid for uuid, aggregate in self.now.source.aggregates.items() if says(aggregate)]
        if not aggregates:
            return _NONE
        found = np.zeros(len(self._positions))
        for uuid in aggregates:
            found[self._search.within(uuid)] = 1.0
        return found

    def cached(self, image: str) -> Number:
        return self._of_found(self.now.cached(image))

    def said(self, value: Number) -> Number:
        return ~np.isnan(value)

    def each(self, value: Callable[[HostFacts], float]) -> Number:
        facts, search = self.now.facts, self._search
        values = (value(facts(search, position)) for position in self._positions.tolist())
        return np.fromiter(values, np.float64, len(self._positions))

    def where(self, condition: Number, then: Number, otherwise: Number) -> Number:
        return np.where(condition, then, otherwise)

    def override(self, key: str, otherwise: float) -> Number:
        limits = self.now.limits(key)
        if not limits:
            return otherwise
        found: Numbers = np.full(len(self._positions), np.inf)
        for uuid, number in limits:
            np.minimum(found, np.where(self._search.within(uuid), number, np.inf), out=found)
        found[np.isinf(found)] = otherwise
        return found

    def _of_found(self, values: Numbers) -> Number:
        if values.size and not values.strides[0]:  # all values are equal
            return values[0]
        return values if self._all else values.take(self._positions)

    def _where_is(self, root: str) -> slice:
        position = self.now.source.position(root)
        if position is None:
            return slice(0, 0)
        first = int(np.searchsorted(self._positions, position))
        found = first < len(self._positions) and self._positions[first] == position
        return slice(first, first + bool(found))
