"""Reported facts of hosts as columns, so that one fact of all hosts is read with one array operation."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from bus.candidates import Ints
from bus.reports import HostState
from scheduler_worker.core.rule import UNKNOWN

Numbers = npt.NDArray[np.float64]
Reads = Callable[[HostState], float]

NOBODY = 0  # the slot of hosts without a slot
NEVER = -np.inf  # the time of a heartbeat that has not come
FIRST_SLOTS = 1024

HostKey = tuple[str, str]  # cell and root: a cell reports only its hosts, whatever root it names
MOST_IMAGES = 32

# The attributes that can be read by name. A version of 0 means that none was reported.
FACTS: Mapping[str, Reads] = {
    "load": lambda state: state.load,
    "instances": lambda state: state.instances,
    "enabled": lambda state: state.enabled,
    "forced_down": lambda state: state.forced_down,
    "hypervisor_version": lambda state: state.hypervisor_version or UNKNOWN,
    "reported": lambda state: state.building,
}


def reads_metric(name: str) -> Reads:
    return lambda state: state.metrics.get(name, UNKNOWN)


class HostColumns:
    """One slot for each host, with its reported facts, recent builds and failures.

    A slot is assigned at the first report of a host, also if placement does not have the host.
    """

    def __init__(self) -> None:
        self.slots: dict[HostKey, int] = {}
        self.states: list[HostState | None] = [None] * FIRST_SLOTS
        self.recent: Numbers = np.zeros(FIRST_SLOTS)
        self.failures: Numbers = np.zeros(FIRST_SLOTS)  # as they counted at some moment long ago
        self.heartbeat: Numbers = np.full(FIRST_SLOTS, NEVER)  # the last one, in seconds of listening
        self.silence: Numbers = np.zeros(
            FIRST_SLOTS
        )  # seconds without a heartbeat after which a host is down
        self.recorded_down: Numbers = np.zeros(FIRST_SLOTS)  # 1: down by a record, until a heartbeat comes
        self._facts: dict[str, tuple[Reads, Numbers]] = {}
        self._metrics: dict[str, tuple[Reads, Numbers]] = {}
        self._images: dict[str, tuple[Reads, Numbers]] = {}
        self._next = 1
        self._free: list[int] = []
        self.new: list[HostKey] = []  # hosts whose position in placement is not known yet

    def slot(self, key: HostKey) -> int:
        """Return the slot of a host; create it if needed."""
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
        before = self.states[slot]
        self.states[slot] = state
        if self._images and (before is None or before.images != state.images):
            for reads, column in self._images.values():
                column[slot] = reads(state)
        for reads, column in self._facts.values():
            column[slot] = reads(state)
        for reads, column in self._metrics.values():
            column[slot] = reads(state)

    def forget(self, key: HostKey) -> None:
        """Delete the reported facts of a host. It keeps its slot: recent builds there still count."""
        slot = self.slots[key]
        self.states[slot] = None
        self.heartbeat[slot] = NEVER
        for _, column in chain(self._facts.values(), self._metrics.values()):
            column[slot] = UNKNOWN
        for _, column in self._images.values():
            column[slot] = 0.0

    def drop(self, key: HostKey) -> None:
        """Free the slot of a host. The slot must not be read afterwards: it is reused."""
        self.forget(key)
        slot = self.slots.pop(key)
        self.recent[slot] = self.failures[slot] = self.recorded_down[slot] = 0.0
        self._free.append(slot)

    def fact(self, name: str) -> Numbers:
        """Return a fact of all slots. Raise KeyError if there is no such fact."""
        return self._column(self._facts, name, FACTS[name])

    def metric(self, name: str) -> Numbers:
        return self._column(self._metrics, name, reads_metric(name))

    def cached(self, image: str) -> Numbers:
        """Return 1 for each host that has the image. Recently used images have a column each."""
        if image not in self._images and len(self._images) >= MOST_IMAGES:
            self._images.clear()
        return self._column(self._images, image, lambda state: image in state.images, 0.0)

    def _column(
        self, kind: dict[str, tuple[Reads, Numbers]], name: str, reads: Reads, otherwise: float = UNKNOWN
    ) -> Numbers:
        known = kind.get(name)
        if known is None:
            said = (otherwise if state is None else reads(state) for state in self.states)
            known = kind[name] = reads, np.fromiter(said, np.float64, len(self.states))
        return known[1]

    def _grow(self) -> None:
        more = len(self.states)
        self.states.extend([None] * more)
        self.recent = np.concatenate([self.recent, np.zeros(more)])
        self.failures = np.concatenate([self.failures, np.zeros(more)])
        self.heartbeat = np.concatenate([self.heartbeat, np.full(more, NEVER)])
        self.silence = np.concatenate([self.silence, np.zeros(more)])
        self.recorded_down = np.concatenate([self.recorded_down, np.zeros(more)])
        self._images.clear()
        for kind in (self._facts, self._metrics):
            for name, (reads, column) in kind.items():
                kind[name] = reads, np.concatenate([column, np.full(more, UNKNOWN)])


def numbered(positions: Sequence[int], numbers: Sequence[int], size: int) -> Ints:
    """Return an array over placement's positions with the given numbers at the given positions, and 0
    elsewhere.
    """
    found = np.zeros(size, np.intp)
    found[np.array(positions, np.intp)] = np.array(numbers, np.intp)
    return found
