"""Data about Nova's cells, compute hosts and aggregates, read from Nova's databases."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bus.reports import HostState

DISCOVER = "its host is mapped to no cell: run nova-manage cell_v2 discover_hosts"
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class NovaCell:
    """A cell of Nova. `berth_name` is the cell's name or, if berth does not permit this name, its uuid."""

    uuid: str
    name: str
    is_disabled: bool = False

    @property
    def berth_name(self) -> str:
        """The name of the cell in berth: its name in Nova, or its uuid if the name is not valid here."""
        return self.name if _WORD.fullmatch(self.name) else self.uuid


@dataclass(frozen=True)
class NovaHost:
    """A compute node of Nova; its resource provider (`root`) is the root of a tree in placement."""

    root: str
    host: str  # of its service
    node: str  # its name at the hypervisor, and of its provider
    cell: str  # uuid
    version: int  # of its service
    state: HostState  # for filters and weighers
    free_memory_mb: int = 0  # with the allocation ratio, as nova-compute last reported
    free_vcpus: int = 0


@dataclass(frozen=True)
class MirroredAggregate:
    """An aggregate of Nova, as berth mirrors it."""

    uuid: str
    name: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()

    @property
    def zone(self) -> str:
        return self.metadata.get("availability_zone", "")


@dataclass(frozen=True)
class NovaCloud:
    """Nova's cells, compute nodes and aggregates, as last read from Nova's databases."""

    cells: Mapping[str, NovaCell] = field(default_factory=dict)  # by uuid
    hosts: Mapping[str, NovaHost] = field(default_factory=dict)  # by root
    aggregates: Mapping[str, MirroredAggregate] = field(default_factory=dict)  # by uuid
    # by root; compute nodes whose host is mapped to no cell, so Nova cannot build there
    unmapped: Mapping[str, NovaHost] = field(default_factory=dict)
    other_cells: tuple[str, ...] = ()  # names of berth's cells that are not Nova's

    def is_unmapped(self, host: str) -> bool:
        """Return whether a host of this name (in any case) has compute nodes, but is mapped to no cell."""
        return any(node.host.lower() == host.lower() for node in self.unmapped.values())

    @cached_property
    def nodes(self) -> Mapping[str, NovaHost]:
        """Return all compute nodes by root, also those whose host is mapped to no cell."""
        return {**self.unmapped, **self.hosts}

    @cached_property
    def berth_names(self) -> frozenset[str]:
        """Return the names that the cells of Nova have in berth."""
        return frozenset(cell.berth_name for cell in self.cells.values())

    @cached_property
    def zones(self) -> frozenset[str]:
        """The names of all availability zones."""
        return frozenset(aggregate.zone for aggregate in self.aggregates.values() if aggregate.zone)

    @cached_property
    def zone_of(self) -> Mapping[str, str]:
        """Return a mapping of the host names of Nova's services to their availability zones; hosts without a
        zone from an aggregate are missing."""
        return {
            host: aggregate.zone
            for aggregate in self.aggregates.values()
            if aggregate.zone
            for host in aggregate.hosts
        }

    @cached_property
    def _by_name(self) -> Mapping[tuple[str, str], tuple[NovaHost, ...]]:
        found: dict[tuple[str, str], list[NovaHost]] = {}
        for host in self.hosts.values():
            found.setdefault(("host", host.host.lower()), []).append(host)
            found.setdefault(("node", host.node), []).append(host)
        return {key: tuple(hosts) for key, hosts in found.items()}

    def of_host(self, name: str) -> tuple[NovaHost, ...]:
        """Return the compute nodes of the nova-compute service on the host `name`, ignoring letter case."""
        return self._by_name.get(("host", name.lower()), ())

    def of_node(self, name: str) -> tuple[NovaHost, ...]:
        return self._by_name.get(("node", name), ())

    @cached_property
    def least_version(self) -> int:
        """Return the lowest version among all nova-compute services, or 0 without any service."""
        return min((host.version for host in self.hosts.values()), default=0)
