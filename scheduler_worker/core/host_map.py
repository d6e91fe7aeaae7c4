"""Facts of every host in placement for rankings, by position: its cell, its number, its agent."""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from bus.candidates import Bools, CandidateSource, Ints, PlacedHost
from scheduler_worker.core.slices import slice_of
from scheduler_worker.core.tie_break import mixed

NO_AGENT = "has_agent"  # the rule of every policy: the host has an agent


class HostMap:
    """Kept level with placement's layout; a host that has not changed is not read again."""

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

    def level(self) -> None:
        """Apply changes of placement's layout. Call it before reading, whenever a change may have arrived."""
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
        """Divide the hosts among the schedulers: each prefers its slice."""
        shared = schedulers, own, self._layout
        if shared != self._shared:
            self._shared = shared
            self.ours = slice_of(self.mixed, schedulers, own)

    def number(self, cell: str) -> int:
        return self.cells.setdefault(cell, len(self.cells))

    @property
    def by_cell(self) -> Ints:
        """Return all positions grouped by cell, in ascending order."""
        if self._by_cell is None:
            self._by_cell = np.argsort(self.cell_at, kind="stable")
            self.first_of_cell = np.searchsorted(self.cell_at[self._by_cell], range(len(self.cells) + 1))
        return self._by_cell

    def why_no_agent(self, host: PlacedHost) -> str:
        """Return why no agent would receive a build for the host; empty if one would."""
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
