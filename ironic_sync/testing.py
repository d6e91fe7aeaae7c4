"""All that tests and benchmarks of features import of ironic_sync, in addition to `ironic_sync.extension`."""

from ironic_sync.maintenance import REASON, TRAIT, MaintenanceFlags

__all__ = [
    "REASON",  # the reason that Ironic shows for its maintenance flag
    "TRAIT",  # the trait of nodes whose flag shall be set
    "MaintenanceFlags",  # sets and removes the maintenance flags of Ironic's nodes
]
