"""Schedules for OpenStack Nova: answers the calls of Nova's scheduler RPC, in place of nova-scheduler."""

from bus.rabbit.foreign import ForeignListener, ForeignPublisher
from bus.rabbit.oslo import RpcAddress
from nova_bridge.core.scheduler_notifications import NotificationOptions
from nova_bridge.core.translation import BridgeOptions
from nova_bridge.databases import NovaDatabases, address_of
from nova_bridge.notifying import SchedulerNotifications
from nova_bridge.shadow import ShadowedNova, nova_shadow
from nova_bridge.worker import FollowedNova, nova_bridge

__all__ = [
    "BridgeOptions",
    "FollowedNova",
    "ForeignListener",
    "ForeignPublisher",
    "NotificationOptions",
    "NovaDatabases",
    "RpcAddress",
    "SchedulerNotifications",
    "ShadowedNova",
    "address_of",
    "nova_bridge",
    "nova_shadow",
]
