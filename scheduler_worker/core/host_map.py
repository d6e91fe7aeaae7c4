"""Holds cells, agents and reported data of all hosts as arrays for the filters and weighers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bus.aggregates import Aggregate
from bus.candidates import (
    Bools,
    CandidateSearch,
    CandidateSource,
    HostAmounts,
    Ints,
    PlacedHost,
    ProviderArrays,
)
from bus.reports import HostState
from scheduler_worker.core.demand import UNKNOWN_DEMAND, UsualShapes
from scheduler_worker.core.host_hashes import mixed, slice_of
from scheduler_worker.core.rule import FACTS, UNKNOWN, HostFacts, Number, Reads, Rule, numbers

NO_AGENT = "has_agent"
Numbers = npt.NDArray[np.float64]
NOBODY = 0  # the array index shared by hosts without data
NEVER = -np.inf  # the time of a heartbeat that has not arrived
FIRST_SLOTS = 1024
HostKey = tuple[str, str]  # cell and root: reports of a cell count only for hosts of this cell
MOST_IMAGES = 32


class HostMap:
    """The cell and the agent of each host, as arrays in the sequence of placement's index."""

    def __init__(self, source: CandidateSource, cells: Collection[str] | None = None) -> None:
        self.served: Bools = np.zeros(0, np.bool_)  # by host: whether it has an agent
        self.cell_at: npt.NDArray[np.intp] = np.zeros(0, np.intp)  # by host: the number of its cell
        self.mixed: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.ours: Bools | None = None  # mask of the hosts that this scheduler prefers; None: no preference
        self.cells: dict[str, int] = {}
        self._shared: tuple[object, ...] = ()
        self._source = source
        self._named = None if cells is None else frozenset(cells)  # cells in the settings; None: all cells
        self._ours = self._named
        self._known: list[tuple[str, str, str]] = []
        self.by_cell: Ints = np.zeros(0, np.intp)  # the positions of all hosts grouped by cell
        # by number of the cell: the index in `by_cell` of its first host
        self.first_of_cell: Ints = np.zeros(0, np.intp)
        self._layout: int | None = None
        self.has_agent = Rule(NO_AGENT, lambda host, alternative: self.why_no_agent(host) or None)

    def update(self) -> None:
        """Update the arrays of cells and agents after changes of hosts; call this again after every await."""
        if self._named is not None and (ours := self._named.union(self._source.cells)) != self._ours:
            self._ours, self._layout = ours, None
            self._known = [("", "", "")] * len(self._known)
        if self._source.layout == self._layout:
            return
        self._layout = self._source.layout
        more = self._source.size - len(self._known)
        if more > 0:
            more = max(more, len(self._known))
            self._known += [("", "", "")] * more
            self.served = np.concatenate([self.served, np.zeros(more, np.bool_)])
            self.cell_at = np.concatenate([self.cell_at, np.zeros(more, np.intp)])
            self.mixed = np.concatenate([self.mixed, np.zeros(more, np.uint64)])
        for host in self._source.hosts():
            position, identity = host.position, (host.uuid, host.cell, host.agent)
            if self._known[position] != identity:
                self._known[position] = identity
                self.served[position] = not self.why_no_agent(host)
                self.cell_at[position] = self.number(host.cell)
                self.mixed[position] = mixed(host.uuid)
        self.by_cell = np.argsort(self.cell_at, kind="stable")
        self.first_of_cell = np.searchsorted(self.cell_at[self.by_cell], range(len(self.cells) + 1))

    def share(self, schedulers: Sequence[str], name: str) -> None:
        """Divide the hosts among the live schedulers, of which this one is `name`. Each prefers its hosts, so
        that two rarely choose the same host.
        """
        shared = schedulers, name, self._layout
        if shared != self._shared:
            self._shared = shared
            self.ours = slice_of(self.mixed, schedulers, name)

    def number(self, cell: str) -> int:
        """Return the number of a cell, a new one at its first use."""
        return self.cells.setdefault(cell, len(self.cells))

    def why_no_agent(self, host: PlacedHost | HostFacts) -> str:
        """Return why no agent can build on the host for this scheduler; "" if one can."""
        if not host.agent or not host.cell:
            return "no agent builds on it"
        if self._ours is not None and host.cell not in self._ours:
            return f"its cell {host.cell!r} is not one of this scheduler's: {', '.join(sorted(self._ours))}"
        return ""


class HostColumns:
    """The reported data, recent builds and failed builds of hosts as arrays with one index for each host."""

    def __init__(self) -> None:
        self.slots: dict[HostKey, int] = {}
        self.states: list[HostState | None] = [None] * FIRST_SLOTS
        self.recent: Numbers = np.zeros(FIRST_SLOTS)
        self.failures: Numbers = np.zeros(FIRST_SLOTS)  # failed builds; weight 1: at the last rescaling
        self.heartbeat: Numbers = np.full(FIRST_SLOTS, NEVER)  # last heartbeat, in seconds of `Listening`
        self.silence: Numbers = np.zeros(FIRST_SLOTS)  # seconds of silence after which the host is down
        self.recorded_down: Numbers = np.zeros(FIRST_SLOTS)  # 1: recorded as down, no heartbeat since
        # (type, name) → how to read a value, the values, and the value of hosts without a report
        self._columns: dict[tuple[str, str], tuple[Reads, Numbers, float]] = {}
        self._next = 1
        self._free: list[int] = []
        self.read: dict[str, Numbers] = {}  # name → array by position, valid until the next report
        self.new: list[HostKey] = []  # hosts whose position in placement's index is not yet known

    def slot(self, key: HostKey) -> int:
        """Return the array position of a host, a new one at its first use."""
        slot = self.slots.get(key)
        if slot is None:
            if self._free:
                slot = self._free.pop()
            else:
                slot = self._next
                self._next += 1
                if slot == len(self.states):
                    self._grow()
            self.slots[key] = slot
            self.new.append(key)
        return slot

    def put(self, cell: str, state: HostState) -> int:
        """Enter the state that a host has reported; return the host's slot."""
        slot = self.slot((cell, state.root))
        before, self.states[slot], self.read = self.states[slot], state, {}
        same_images = before is not None and before.images == state.images
        for (kind, _), (reads, column, _) in self._columns.items():
            if kind != "image" or not same_images:
                column[slot] = reads(state)
        return slot

    def forget(self, key: HostKey) -> None:
        """Delete the reported data of a host. Its array index stays: its recent builds still count."""
        slot = self.slots[key]
        self.states[slot] = None
        self.heartbeat[slot] = NEVER
        for _, column, unknown in self._columns.values():
            column[slot] = unknown

    def drop(self, key: HostKey) -> None:
        """Free the array index of a host for another host; the old index must not be used afterwards."""
        self.forget(key)
        slot = self.slots.pop(key)
        self.recent[slot] = self.failures[slot] = self.recorded_down[slot] = 0.0
        self._free.append(slot)

    def fact(self, name: str) -> Numbers:
        """Return an attribute of all hosts by its name in FACTS."""
        return self._column("fact", name, FACTS[name])

    def metric(self, name: str) -> Numbers:
        """Return a reported metric of all hosts."""
        return self._column("metric", name, lambda state: state.metrics.get(name, UNKNOWN))

    def cached(self, image: str) -> Numbers:
        """Return an array with 1 for each host that has cached the image, else 0."""
        images = [key for key in self._columns if key[0] == "image"]
        if ("image", image) not in images and len(images) >= MOST_IMAGES:
            for key in images:
                del self._columns[key]
        return self._column("image", image, lambda state: image in state.images, 0.0)

    def _column(self, kind: str, name: str, reads: Reads, unknown: float = UNKNOWN) -> Numbers:
        known = self._columns.get((kind, name))
        if known is None:
            values = (unknown if state is None else reads(state) for state in self.states)
            column = np.fromiter(values, np.float64, len(self.states))
            known = self._columns[kind, name] = reads, column, unknown
        return known[1]

    def _grow(self) -> None:
        more = len(self.states)
        self.states.extend([None] * more)
        self.recent = np.concatenate([self.recent, np.zeros(more)])
        self.failures = np.concatenate([self.failures, np.zeros(more)])
        self.heartbeat = np.concatenate([self.heartbeat, np.full(more, NEVER)])
        self.silence = np.concatenate([self.silence, np.zeros(more)])
        self.recorded_down = np.concatenate([self.recorded_down, np.zeros(more)])
        for key, (reads, column, unknown) in self._columns.items():
            self._columns[key] = reads, np.concatenate([column, np.full(more, unknown)]), unknown


def numbered(positions: Sequence[int], numbers: Sequence[int], size: int) -> Ints:
    """Return an array of `size` zeros with the given numbers at the given indices."""
    found = np.zeros(size, np.intp)
    found[np.array(positions, np.intp)] = np.array(numbers, np.intp)
    return found


_NONE = np.float64(0.0)  # NumPy's 0.0: a comparison with it returns a NumPy bool, which `~` can negate


@dataclass(slots=True, eq=False)
class HostsNow:
    """The reported state of all hosts in the sequence of placement's index, valid until the next await."""

    source: CandidateSource
    columns: HostColumns
    slot_at: Ints
    placed: Ints  # the positions of all hosts
    up: Bools  # by position: False if the host is down
    unknown: Bools | None  # by position: True if no heartbeat arrived so far; None: the same for all hosts
    fading: float  # the factor that converts stored counts of failed builds to present counts
    why_down: Callable[[PlacedHost], str]
    _read: dict[str, Numbers]  # shared with later `HostsNow` until the next report
    demand: UsualShapes = UNKNOWN_DEMAND
    _limits: dict[str, list[tuple[str, float]]] = field(default_factory=dict)

    def facts(self, search: HostAmounts, position: int) -> HostFacts:
        """Return all that is known of a host at a position of the search."""
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
        """Return an attribute of all hosts, `otherwise` where it is not reported. Do not change the array."""
        columns, slots = self.columns, self.slot_at
        # A choice changes `sent` and `building` during a batch, so they are not cached.
        if name == "sent":
            return columns.recent.take(slots)
        if name == "building":
            return self.fact("reported", 0.0) + columns.recent.take(slots)
        if name == "failures":
            return self._once(name, lambda: columns.failures.take(slots) * self.fading)

        def read() -> Numbers:
            if name == "up":
                return self.up.astype(np.float64)
            reported = columns.fact(name).take(slots)
            return np.where(np.isnan(reported), otherwise, reported)

        return self._once(f"fact {name} or {otherwise}", read)

    def metric(self, name: str) -> Numbers:
        """Return a metric of all hosts; UNKNOWN for those that do not report it."""
        return self._once(f"metric {name}", lambda: self.columns.metric(name).take(self.slot_at))

    def cached(self, image: str) -> Numbers:
        """Return for all hosts whether they have reported the image as cached."""
        return self._once(f"image {image}", lambda: self.columns.cached(image).take(self.slot_at))

    def _once(self, key: str, read: Callable[[], Numbers]) -> Numbers:
        """Return the values of all positions, read when they are first asked for."""
        found = self._read.get(key)
        if found is None:
            found = read()
            of_hosts = found.take(self.placed)
            if of_hosts.size and (of_hosts == of_hosts[0]).all():  # all values are equal: store one
                found = np.broadcast_to(of_hosts[0], found.shape)
            found.flags.writeable = False
            self._read[key] = found
        return found

    def limits(self, key: str) -> list[tuple[str, float]]:
        """Return the aggregates whose metadata has a number under this key, with the number."""
        found = self._limits.get(key)
        if found is None:
            found = self._limits[key] = [
                (uuid, number)
                for uuid, aggregate in self.source.aggregates.items()
                for number in numbers((aggregate.metadata[key],) if key in aggregate.metadata else ())
            ]
        return found


class AllHosts:
    """Data of the hosts that a search found; methods return an array by host, or one number for all hosts."""

    def __init__(self, search: CandidateSearch, now: HostsNow) -> None:
        self._search = search
        self.now = now
        self._positions = search.positions
        self._facts: dict[tuple[str, float], Number] = {}  # name, default → read-only array, or number
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

    def by_root(self, values: Mapping[str, float]) -> Number:
        found = np.zeros(len(self._positions))
        for root, value in values.items():
            position = self.now.source.position(root)
            if position is not None:
                first = np.searchsorted(self._positions, position)
                found[first : first + 1][self._positions[first : first + 1] == position] = value
        return found

    def among(self, roots: Collection[str]) -> Number:
        return self.by_root(dict.fromkeys(roots, 1.0))

    def within(self, matches: Callable[[Aggregate], bool]) -> Number:
        aggregates = [uuid for uuid, aggregate in self.now.source.aggregates.items() if matches(aggregate)]
        if not aggregates:
            return _NONE
        found = np.zeros(len(self._positions))
        for uuid in aggregates:
            found[self._search.within(uuid)] = 1.0
        return found

    def cached(self, image: str) -> Number:
        return self._of_found(self.now.cached(image))

    def known(self, value: Number) -> Number:
        return ~np.isnan(value)

    @property
    def demand(self) -> UsualShapes:
        return self.now.demand

    def providers(self) -> ProviderArrays:
        return self._search.providers()

    def positions(self) -> Ints:
        return self._positions

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
        """Return the values of the found hosts: one number if all are equal."""
        if values.size and not values.strides[0]:  # a stride of 0: all values are equal
            return values[0]
        return values if self._all else values.take(self._positions)
