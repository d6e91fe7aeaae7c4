"""The part of shared nodes in an agent that deploys instances on Ironic's nodes."""

from features.shared_nodes.lease import NodeLease, nodes_of
from features.shared_nodes.messages import LEASE, REPORT_NODES
from ironic_sync.extension import ForMetal, MetalNeeds, MetalPart

LEASE_TIMEOUT = 1.0  # seconds: a later answer would give little time to act


def part(needs: MetalNeeds, settings: None) -> MetalPart:
    lease = NodeLease(
        needs.agent,
        needs.pool,
        needs.cell,
        needs.bus.asker(LEASE, timeout=LEASE_TIMEOUT),
        needs.bus.clock,
        needs.bus.asker(REPORT_NODES),
        nodes_of(needs.api, needs.selection, needs.cell, needs.pool),
    )
    return MetalPart(right=lease)


PART = ForMetal(part)
