"""The names of ironic_sync that features may import, and what a feature's part of its agent consists of."""

from dataclasses import dataclass

from bus.delivery.runner import Bus
from bus.feature import MakesPart, PartNeeds
from ironic_sync.agent.right import NodeRight, Standing
from ironic_sync.api import IronicApi, IronicRefused
from ironic_sync.core.node import Malformed, from_rest
from ironic_sync.core.selection import NodeSelection
from ironic_sync.openstack import Access, KeystoneRefused, KeystoneUnavailable, cloud_access


@dataclass(frozen=True, kw_only=True)
class MetalNeeds(PartNeeds):
    """The objects from which a feature makes its part of an agent of Ironic's nodes."""

    agent: str
    cell: str
    pool: str  # the nodes that the agent deploys on; several agents may share a pool
    bus: Bus
    api: IronicApi
    selection: NodeSelection  # the nodes that berth uses, with the pool of each


@dataclass(frozen=True, kw_only=True)
class MetalPart:
    """A feature's part of an agent of Ironic's nodes."""

    right: NodeRight  # decides on which nodes the agent may act
    offers: tuple[object, ...] = ()  # objects for the features that need this one


class ForMetal(MakesPart[MetalNeeds, MetalPart]):
    """The value PART of a feature's module `metal`."""
