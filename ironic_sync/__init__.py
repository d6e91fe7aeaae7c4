"""Copies Ironic's nodes to placement. Each node is a provider with one unit of a resource class, which is
reserved while no instance can be deployed on the node."""

from bus.openstack import Access
from ironic_sync.api import IronicApi
from ironic_sync.core.selection import NodeSelection
from ironic_sync.notifications import Notifications
from ironic_sync.worker import FollowedIronic, ironic_sync

__all__ = ["Access", "FollowedIronic", "IronicApi", "NodeSelection", "Notifications", "ironic_sync"]
