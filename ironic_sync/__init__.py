"""Keep placement true to Ironic: a node is a provider of one class, reserved unless it can be deployed on."""

from ironic_sync.access import Access
from ironic_sync.api import IronicApi
from ironic_sync.core.selection import NodeSelection
from ironic_sync.notifications import Notifications
from ironic_sync.worker import FollowedIronic, ironic_sync

__all__ = ["Access", "FollowedIronic", "IronicApi", "NodeSelection", "Notifications", "ironic_sync"]
