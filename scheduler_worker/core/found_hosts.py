"""Hosts of a search one by one, for rankings and explanations."""

from collections.abc import Collection

import numpy as np

from bus.candidates import CandidateSearch, PlacedHost
from scheduler_worker.core.facts import HostFacts
from scheduler_worker.core.host_map import HostMap
from scheduler_worker.core.view import HostsNow


class FoundHosts:
    """Known by their index into the arrays of the search."""

    def __init__(self, search: CandidateSearch, now: HostsNow, hosts: HostMap) -> None:
        self._search = search
        self._now = now
        self._hosts = hosts
        self._positions = search.positions
        self._facts: dict[int, HostFacts] = {}

    def host(self, index: int) -> PlacedHost:
        return self._search.host(self._positions.item(index))

    def name(self, index: int) -> str:
        return self.host(index).host

    def facts(self, index: int) -> HostFacts:
        """Return the facts of a host as of the first call, or of `read_again`."""
        facts = self._facts.get(index)
        if facts is None:
            facts = self.read_again(index)
        return facts

    def read_again(self, index: int) -> HostFacts:
        """Read the facts of a host again, because its free capacity changed."""
        facts = self._facts[index] = self._now.facts(self._search, self._positions.item(index))
        return facts

    def facts_beyond(self, host: str) -> HostFacts | None:
        """Return the facts of a host outside the search result, or None if its name is not unique."""
        source = self._now.source
        positions = [source.position(root) for root in source.named(host)]
        if len(positions) != 1 or positions[0] is None:
            return None
        return self._now.facts(self._search, positions[0])

    def indices(self, roots: Collection[str]) -> set[int]:
        """Return the indices of the roots in `roots` that the search found."""
        positions = [self._now.source.position(root) for root in roots]
        known = [position for position in positions if position is not None]
        found: list[int] = np.flatnonzero(np.isin(self._positions, known)).tolist()
        return set(found)

    def why_no_agent(self, index: int) -> str:
        return self._hosts.why_no_agent(self.host(index))

    def index(self, root: str) -> int:
        """Return the index of a root that the search found."""
        position = self._now.source.position(root)
        return int(np.searchsorted(self._positions, -1 if position is None else position))
