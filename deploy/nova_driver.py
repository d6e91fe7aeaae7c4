"""A compute driver without a hypervisor; the configuration sets the size of its hosts.

The driver runs in nova-compute. Unlike Nova's fake drivers, it keeps its node's UUID over a restart, and
forgets servers that were migrated away.
"""

from __future__ import annotations

import json
import os
from typing import Any

from nova.virt import fake

from deploy.nova_configuration import node_uuid


class SizedDriver(fake.FakeDriver):  # type: ignore[misc]  # Nova has no types here
    """A compute driver whose size is in the environment variable SIZED_DRIVER, as JSON."""

    def __init__(self, virtapi: Any, read_only: bool = False) -> None:
        size = json.loads(os.environ["SIZED_DRIVER"])
        self.vcpus = size["vcpus"]
        self.memory_mb = size["memory_mb"]
        self.local_gb = size["disk_gb"]
        super().__init__(virtapi, read_only)

    def get_available_resource(self, nodename: str) -> Any:
        found = super().get_available_resource(nodename)
        if found:
            found["uuid"] = node_uuid(nodename)
        return found

    def get_nodenames_by_uuid(self, refresh: bool = False) -> dict[str, str]:
        return {node_uuid(name): name for name in self.get_available_nodes()}

    def post_live_migration(self, context: Any, instance: Any, *args: Any, **kwargs: Any) -> None:
        self.destroy(context, instance, network_info=None)
