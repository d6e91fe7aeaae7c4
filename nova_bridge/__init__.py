"""Schedules for OpenStack Nova: answers the calls of Nova's scheduler RPC (see README.md)."""

from bus.rabbit.oslo import RpcAddress
from nova_bridge.core.translation import BridgeOptions
from nova_bridge.databases import NovaDatabases, address_of
from nova_bridge.worker import FollowedNova, nova_bridge

__all__ = ["BridgeOptions", "FollowedNova", "NovaDatabases", "RpcAddress", "address_of", "nova_bridge"]
