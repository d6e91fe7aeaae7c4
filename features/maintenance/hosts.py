"""The hosts of placement's index as the maintenance controller sees them: domains, traits and health."""

from collections.abc import Mapping
from dataclasses import dataclass

from bus.candidates import CandidateSource, PlacedHost
from bus.clock import Clock
from bus.domains import CELL
from bus.host_health import HostHealth
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.resources import PROCESSORS
from bus.vocabulary import Id
from scheduler_worker.extension import HostBook


@dataclass(frozen=True)
class HostView:
    """Placement's hosts, and the health of the hosts that are down, at one moment."""

    hosts: Mapping[Id, PlacedHost]
    down: Mapping[Id, HostHealth]
    source: CandidateSource

    @classmethod
    def take(cls, source: CandidateSource, book: HostBook, clock: Clock) -> "HostView":
        """Return the hosts with their health at this moment."""
        health = book.health(source, clock.monotonic(), clock.now())
        return cls(
            {host.uuid: host for host in source.hosts() if host.agent},
            {root: each for (_, root), each in health.items() if each.availability == "down"},
            source,
        )

    def guest_hosts(self) -> dict[Id, PlacedHost]:
        """Return the hosts that have processors for guests, by root; bare-metal nodes are left out."""
        found: dict[Id, PlacedHost] = {}
        for name in sorted(PROCESSORS):
            question = FindCandidates(groups=(ResourceGroup(resources={name: 1}),))
            search = self.source.search(question, empty=True)
            hosts = (search.host(position) for position in search.positions.tolist())
            found |= {host.uuid: host for host in hosts if host.uuid in self.hosts}
        return found

    def labels(self, level: str) -> dict[Id, str]:
        """Return the domain of each host at a level, by root; hosts without a label are left out."""
        if level == CELL:
            named = {root: host.cell for root, host in self.hosts.items()}
        else:
            ids, names = self.source.labels(level)
            places = {root: host.position for root, host in self.hosts.items()}
            named = {root: names[ids[place]] for root, place in places.items() if place < len(ids)}
        return {root: label for root, label in named.items() if label}
