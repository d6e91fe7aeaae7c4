"""Makes the answer to Nova's RPC `select_destinations`: Selections of claimed hosts and alternates."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bus.messages import BuildPlaced, Selection
from features.nova.core.cloud import NovaCloud
from features.nova.core.objects import versioned

MICROVERSION = "1.36"  # microversion of allocation requests in Selections, which has mappings
_NO_LIMITS = {"numa_topology": None, "vcpu": None, "disk_gb": None, "memory_mb": None}


def selections(
    placed: Sequence[BuildPlaced], suffixes: Sequence[str], cloud: NovaCloud, default_zone: str
) -> list[list[dict[str, Any]]]:
    """Return Nova's Selections for each instance: first its claimed host, then its alternates in the same
    cell.

    `suffixes`: the suffixes of the request's groups, by which Nova finds the providers of ports and devices.
    """
    return [
        [
            _selection(each, suffixes, cloud, default_zone)
            for each in (build.chosen, *build.alternates)
            if each.root in cloud.hosts
        ]
        for build in placed
    ]


def present_host(root: str, cloud: NovaCloud, default_zone: str) -> dict[str, Any]:
    """Return Nova's Selection of the host on which an instance is already, without a claim, for a rebuild."""
    return _selection_of(root, None, cloud, default_zone)


def _selection(
    selection: Selection, suffixes: Sequence[str], cloud: NovaCloud, default_zone: str
) -> dict[str, Any]:
    allocations = {
        provider: {"resources": resources} for provider, resources in selection.choice.allocations.items()
    }
    mappings = {suffix: list(providers) for suffix, providers in selection.mappings.items()}
    if not mappings:  # the root serves all groups
        mappings = {suffix: [selection.root] for suffix in ("", *suffixes)}
    request = {"allocations": allocations, "mappings": mappings}
    return _selection_of(selection.root, msgspec.json.encode(request).decode(), cloud, default_zone)


def _selection_of(root: str, request: str | None, cloud: NovaCloud, default_zone: str) -> dict[str, Any]:
    host = cloud.hosts[root]
    return versioned(
        "Selection",
        "1.1",
        {
            "compute_node_uuid": root,
            "service_host": host.host,
            "nodename": host.node,
            "cell_uuid": host.cell,
            "limits": versioned("SchedulerLimits", "1.0", _NO_LIMITS),
            "allocation_request": request,
            "allocation_request_version": MICROVERSION if request is not None else None,
            "availability_zone": cloud.zone_of.get(host.host, default_zone),
        },
    )
