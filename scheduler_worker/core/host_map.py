"""Facts of all hosts as arrays: their cells and agents by position, their reports by slot, the order of
equals, and the slice of hosts that each scheduler prefers.

Slices use rendezvous hashing: a host is preferred by the scheduler with the highest hash of both names. All
schedulers agree without messages, and if one starts or stops, only its slice changes.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from bus.candidates import Bools, CandidateSource, Ints, PlacedHost
from bus.reports import HostState
from scheduler_worker.core.rule import FACTS, UNKNOWN, HostFacts, Reads, Rule

Uints = npt.NDArray[np.unsignedinteger[Any]]

_WORD = 2**64 - 1
_DROPPED = 11  # bits: what is left is exact as a float, too
Hashes = npt.NDArray[np.uint64]
_ALL_BITS = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
NO_AGENT = "has_agent"
Numbers = npt.NDArray[np.float64]
Column = tuple[Reads, Numbers, float]  # the float is the value of hosts without a report
NOBODY = 0  # the slot of hosts without a slot
NEVER = -np.inf  # the time of a heartbeat that has not come
FIRST_SLOTS = 1024
HostKey = tuple[str, str]  # cell and root: a cell reports only its hosts, whatever root it names
MOST_IMAGES = 32


def mixed(root: str) -> int:
    """Return a hash of the host's number."""
    return int.from_bytes(blake2b(root.encode(), digest_size=8).digest())


@lru_cache(maxsize=64)  # of one seed it is asked again and again
def factor(seed: str) -> int:
    """Return an odd factor derived from a seed: multiplying by it keeps distinct numbers distinct."""
    return mixed(seed) | 1


def tie(seed: str, root: str) -> int:
    return (mixed(root) * factor(seed) & _WORD) >> _DROPPED


def ties(seed: str, mixed_roots: Uints) -> Uints:
    return (mixed_roots * np.uint64(factor(seed))) >> np.uint64(_DROPPED)


def drawn(seed: str, build: str, among: int) -> int:
    """Return which of several equally good hosts a build gets: the same one for the same seed."""
    return mixed(f"{seed} {build}") % among if among > 1 else 0


def slice_of(hashes: Hashes, schedulers: Sequence[str], own: str) -> Bools | None:
    """Return a mask of the hosts that this scheduler prefers, or None if it is the only scheduler."""
    others = [name for name in schedulers if name != own]
    if not others:
        return None
    ours = _weights(hashes, own)
    mine = np.ones(len(hashes), np.bool_)
    for name in others:
        theirs = _weights(hashes, name)
        mine &= (ours > theirs) | ((ours == theirs) & (own < name))
    return mine


def _weights(hashes: Hashes, name: str) -> Hashes:
    mixed = hashes ^ np.uint64((crc32(name.encode()) + 1) * _GOLDEN & _ALL_BITS)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    weights: Hashes = mixed ^ (mixed >> np.uint64(31))
    return weights


class HostMap:
    """The cell and the agent of each host by its position; an unchanged host is not read again."""

    def __init__(self, source: CandidateSource, cells: Collection[str] | None = None) -> None:
        self.served: Bools = np.zeros(0, np.bool_)  # whether the host has an agent
        self.cell_at: npt.NDArray[np.intp] = np.zeros(0, np.intp)  # its cell's number
        self.mixed: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.ours: Bools | None = None  # the slice of this scheduler; None: all hosts
        self.cells: dict[str, int] = {}
        self._shared: tuple[object, ...] = ()
        self._source = source
        # cells of the settings; registered cells are added
        self._named = None if cells is None else frozenset(cells)
        self._ours = self._named
        self._known: list[tuple[str, str, str]] = []
        self._by_cell: Ints | None = None
        self.first_of_cell: Ints = np.zeros(0, np.intp)  # by number of the cell: its first index in `by_cell`
        self._layout: int | None = None
        # the filter of every policy
        self.has_agent = Rule(NO_AGENT, lambda host, alternative: self.why_no_agent(host) or None)

    def level(self) -> None:
        """Apply changes of placement's list of hosts; to be called before each synchronous use."""
        if self._named is not None and (ours := self._named.union(self._source.cells)) != self._ours:
            self._ours, self._layout = ours, None
            self._known = [("", "", "")] * len(self._known)
        if self._source.layout == self._layout:
            return
        self._layout = self._source.layout
        self._by_cell = None
        more = self._source.size - len(self._known)
        if more > 0:
            more = max(more, len(self._known))
            self._known += [("", "", "")] * more
            self.served = np.concatenate([self.served, np.zeros(more, np.bool_)])
            self.cell_at = np.concatenate([self.cell_at, np.zeros(more, np.intp)])
            self.mixed = np.concatenate([self.mixed, np.zeros(more, np.uint64)])
        for host in self._source.hosts():
            identity = host.uuid, host.cell, host.agent
            if self._known[host.position] != identity:
                self._known[host.position] = identity
                self._put(host)

    def share(self, schedulers: Sequence[str], own: str) -> None:
        shared = schedulers, own, self._layout
        if shared != self._shared:
            self._shared = shared
            self.ours = slice_of(self.mixed, schedulers, own)

    def number(self, cell: str) -> int:
        return self.cells.setdefault(cell, len(self.cells))

    @property
    def by_cell(self) -> Ints:
        """Return the positions of all hosts grouped by cell, in ascending order."""
        if self._by_cell is None:
            self._by_cell = np.argsort(self.cell_at, kind="stable")
            self.first_of_cell = np.searchsorted(self.cell_at[self._by_cell], range(len(self.cells) + 1))
        return self._by_cell

    def why_no_agent(self, host: PlacedHost | HostFacts) -> str:
        if not host.agent or not host.cell:
            return "no agent builds on it"
        if self._ours is not None and host.cell not in self._ours:
            return f"its cell {host.cell!r} is none of ours: {', '.join(sorted(self._ours))}"
        return ""

    def _put(self, host: PlacedHost) -> None:
        position = host.position
        self.served[position] = not self.why_no_agent(host)
        self.cell_at[position] = self.number(host.cell)
        self.mixed[position] = mixed(host.uuid)


class HostColumns:
    """The reported facts, recent builds and failures of hosts, as arrays with one slot for each host."""

    def __init__(self) -> None:
        self.slots: dict[HostKey, int] = {}
        self.states: list[HostState | None] = [None] * FIRST_SLOTS
        self.recent: Numbers = np.zeros(FIRST_SLOTS)
        self.failures: Numbers = np.zeros(FIRST_SLOTS)  # as they counted at some moment long ago
        self.heartbeat: Numbers = np.full(FIRST_SLOTS, NEVER)  # the last one, in seconds of listening
        # seconds without a heartbeat after which a host is down
        self.silence: Numbers = np.zeros(FIRST_SLOTS)
        self.recorded_down: Numbers = np.zeros(FIRST_SLOTS)  # 1: down by a record, until a heartbeat comes
        self._columns: dict[tuple[str, str], Column] = {}  # by kind and name
        self._next = 1
        self._free: list[int] = []
        self.new: list[HostKey] = []  # hosts whose position in placement is not known yet

    def slot(self, key: HostKey) -> int:
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

    def put(self, cell: str, state: HostState) -> None:
        slot = self.slot((cell, state.root))
        before, self.states[slot] = self.states[slot], state
        same_images = before is not None and before.images == state.images
        for (kind, _), (reads, column, _) in self._columns.items():
            if kind != "image" or not same_images:
                column[slot] = reads(state)

    def forget(self, key: HostKey) -> None:
        """Delete the reported facts of a host. It keeps its slot: recent builds there still count."""
        slot = self.slots[key]
        self.states[slot] = None
        self.heartbeat[slot] = NEVER
        for _, column, unknown in self._columns.values():
            column[slot] = unknown

    def drop(self, key: HostKey) -> None:
        """Free the slot of a host in the arrays; it must not be read afterwards, because it is reused."""
        self.forget(key)
        slot = self.slots.pop(key)
        self.recent[slot] = self.failures[slot] = self.recorded_down[slot] = 0.0
        self._free.append(slot)

    def fact(self, name: str) -> Numbers:
        """Return the values of a reported fact for all slots. Raise KeyError if there is no such fact."""
        return self._column("fact", name, FACTS[name])

    def metric(self, name: str) -> Numbers:
        return self._column("metric", name, lambda state: state.metrics.get(name, UNKNOWN))

    def cached(self, image: str) -> Numbers:
        """Return 1 for each host that has cached the image, else 0; recent results are kept as arrays."""
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
    """Return an array over all positions with the given numbers at the given positions and 0 elsewhere."""
    found = np.zeros(size, np.intp)
    found[np.array(positions, np.intp)] = np.array(numbers, np.intp)
    return found
