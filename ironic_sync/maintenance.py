"""Sets Ironic's maintenance flag on nodes that are closed for a maintenance window, and removes it later.

Placement's trait shows which nodes are closed, and the reason in Ironic shows which flags berth has set. Each
step compares both, so nothing is stored here: the next step completes an interrupted step.
"""

import logging
from dataclasses import dataclass

from bus.errors import UNANSWERED, Unavailable
from bus.host_health import HELD
from bus.protocol import Ask
from bus.requests import ResourceGroup
from bus.resources import PROCESSORS, FindProviders, ProvidersFound
from bus.vocabulary import portions
from ironic_sync.api import IronicApi, IronicRefused, Json

STEP_SECONDS = 10.0
REASON = "berth: maintenance window"
TRAIT = f"{HELD}MAINTENANCE"
STABLE = ("available", "manageable")  # states in which the flag interrupts no work of Ironic's
FIELDS = ("uuid", "maintenance", "maintenance_reason", "instance_uuid", "provision_state")
PAGE = 200

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MaintenanceFlags:
    """Sets the maintenance flags of Ironic nodes for hosts that berth empties."""

    api: IronicApi
    find: Ask[FindProviders, ProvidersFound]

    async def step(self) -> None:
        """Set and remove flags as needed. A node with an instance, or in a transition, gets its flag in a
        later step. A flag with another reason than berth's is never changed.
        """
        try:
            closed, flagged = await self._closed(), await self._flagged()
        except (*UNANSWERED, IronicRefused) as problem:
            log.info("maintenance flags are checked later: %s", problem)
            return
        for uuid in sorted(closed ^ flagged):
            try:
                if uuid in flagged:
                    await self.api.set_maintenance(uuid, False)
                elif _may_be_flagged(await self.api.node(uuid, FIELDS)):
                    await self.api.set_maintenance(uuid, True, REASON)
            except (Unavailable, IronicRefused) as problem:
                log.warning("maintenance flag of node %s: %s", uuid, problem)

    async def _closed(self) -> set[str]:
        """Return the bare-metal nodes that are closed for a maintenance window."""
        like, found = ResourceGroup(required=(TRAIT,)), set[str]()
        roots = (await self.find(FindProviders(like=like, parts=()))).providers
        for ids in portions([each.id for each in roots if each.parent is None], PAGE):
            page = (await self.find(FindProviders(ids=ids, parts=("inventories",)))).providers
            found |= {each.id for each in page if PROCESSORS.isdisjoint(each.inventories)}
        return found

    async def _flagged(self) -> set[str]:
        found = set[str]()
        async for page in self.api.nodes(fields=FIELDS, maintenance=True):
            found |= {node["uuid"] for node in page if node.get("maintenance_reason") == REASON}
        return found


def _may_be_flagged(node: Json | None) -> bool:
    return (
        node is not None
        and not node.get("maintenance")
        and not node.get("instance_uuid")
        and node.get("provision_state") in STABLE
    )
