"""Fragmentation: which share of the free memory of Nova's hosts is stranded after a decision."""

from collections.abc import Mapping

import msgspec

from features.nova.core.cloud import NovaCloud, NovaHost
from features.nova.core.request_spec import NovaFlavor
from features.nova.with_what_if.core.observed_request import shown_host

MOST_STRANDING = 1000  # hosts on which an instance strands memory; with more, nothing is recorded


class FreeMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Free memory of Nova's usable hosts when a request is decided, in MB.

    Memory is stranded if the request's flavor does not fit on its host: memory or vCPUs are too few.
    """

    total: int = 0
    stranded: int = 0
    flavor: int = 0  # memory of the flavor
    strands: Mapping[
        str, int
    ] = {}  # host → memory that an instance of the flavor strands if it is placed there

    def fragmentation(self, host: str) -> float | None:
        """Return the share of free memory that is stranded after an instance is placed on this host; None if
        no free memory is left or known.
        """
        left = self.total - self.flavor
        return min(1.0, (self.stranded + self.strands.get(host, 0)) / left) if left > 0 else None


UNKNOWN = FreeMemory()


def free_memory(cloud: NovaCloud, flavor: NovaFlavor) -> FreeMemory:
    """Return the free memory of all usable hosts, and how much of it is stranded for this flavor.

    Return UNKNOWN if more than MOST_STRANDING hosts have capacity for exactly one instance of the flavor.
    """
    total, stranded, strands = 0, 0, dict[str, int]()
    for host in cloud.hosts.values():
        if not host.state.enabled:
            continue
        total += host.free_memory_mb
        if not _fits(host, flavor, 1):
            stranded += host.free_memory_mb
        elif not _fits(host, flavor, 2):
            strands[shown_host(cloud, host.host, host.node)] = host.free_memory_mb - flavor.memory_mb
    if len(strands) > MOST_STRANDING:
        return UNKNOWN
    return FreeMemory(total=total, stranded=stranded, flavor=flavor.memory_mb, strands=strands)


def _fits(host: NovaHost, flavor: NovaFlavor, number: int) -> bool:
    return host.free_memory_mb >= number * flavor.memory_mb and host.free_vcpus >= number * flavor.vcpus
