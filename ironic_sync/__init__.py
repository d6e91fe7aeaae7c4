"""Keep placement true to Ironic: a node is a provider of one class, reserved unless it can be deployed on."""

from ironic_sync.worker import ironic_sync

__all__ = ["ironic_sync"]
