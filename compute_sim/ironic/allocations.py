"""Simulates Ironic's allocation API, which reserves a node without a notification about the node."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from compute_sim.ironic.conductor import Conductor
from compute_sim.ironic.envelope import AllocationNotification
from compute_sim.ironic.node import CHANGEABLE, Json, Phase, SimNode, iso
from compute_sim.ironic.patching import ApiRefusal, good_name, is_uuid

_KNOWN = {"candidate_nodes", "extra", "name", "node", "owner", "resource_class", "traits", "uuid"}


class Allocation(msgspec.Struct, kw_only=True):
    """An allocation of Ironic's API, which reserves a node; the fields are ordered as in notifications."""

    uuid: str
    name: str | None = None
    node_uuid: str | None = None
    state: str | None = None
    last_error: str | None = None
    owner: str | None = None
    resource_class: str | None = None
    traits: list[str] = []
    candidate_nodes: list[str] | None = None
    extra: Json = {}
    created_at: float | None = None
    updated_at: float | None = None

    def as_json(self, zone: str) -> Json:
        fields = msgspec.structs.asdict(self)
        for field in ("created_at", "updated_at"):
            if fields[field] is not None:
                fields[field] = iso(int(fields[field]), zone)
        return fields


class NodeAllocations:
    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor
        self.known: dict[str, Allocation] = {}
        conductor.forget = lambda node: self.known.pop(node.allocation_uuid or "", None)

    def find(self, ident: str) -> Allocation:
        for allocation in self.known.values():
            if ident in (allocation.uuid, allocation.name):
                return allocation
        raise ApiRefusal(404, f"Allocation {ident} could not be found.")

    async def create(self, given: Mapping[str, Any], request: str) -> Allocation:
        allocation = self._new(given)
        self._notify("create", "start", allocation, request)
        allocation.state, allocation.created_at = "allocating", self._conductor.clock.now()
        self.known[allocation.uuid] = allocation
        self._notify("create", "end", allocation, request)
        self._conductor.later(0.0, lambda: self._allocate(allocation))
        return allocation

    async def delete(self, ident: str, request: str) -> None:
        allocation = self.find(ident)
        node = self._conductor.nodes.get(allocation.node_uuid or "")
        if node is not None:
            _check_deallocation(node, allocation)
        self._notify("delete", "start", allocation, request)
        self.known.pop(allocation.uuid, None)
        if node is not None and node.allocation_uuid == allocation.uuid:
            self._associate(node, None, request)
        self._notify("delete", "end", allocation, request)

    def _new(self, given: Mapping[str, Any]) -> Allocation:
        if unknown := sorted(given.keys() - _KNOWN):
            raise ApiRefusal(400, f"Schema error for allocation: {', '.join(unknown)} unexpected")
        name = given.get("name")
        if name is not None and not good_name(name):
            raise ApiRefusal(400, f"Cannot create allocation with invalid name '{name}'")
        if name is not None and any(other.name == name for other in self.known.values()):
            raise ApiRefusal(409, f"An allocation with name {name} already exists.")
        if not given.get("resource_class") and not given.get("node"):
            raise ApiRefusal(400, "The resource_class field is mandatory when not backfilling")
        candidates = [given["node"]] if given.get("node") else given.get("candidate_nodes")
        uuid = given.get("uuid") or self._conductor.clock.uuid()
        if not is_uuid(uuid) or uuid in self.known:
            raise ApiRefusal(409 if uuid in self.known else 400, f"Not a new uuid: {uuid}")
        return Allocation(
            uuid=uuid,
            name=name,
            owner=given.get("owner"),
            resource_class=given.get("resource_class"),
            traits=list(given.get("traits") or ()),
            candidate_nodes=[self._conductor.find(node).uuid for node in candidates] if candidates else None,
            extra=given.get("extra") or {},
        )

    def _allocate(self, allocation: Allocation) -> None:
        # A random node that matches gets the instance; like Ironic, without a notification of the node.
        if self.known.get(allocation.uuid) is not allocation:
            return
        fitting = [node for node in self._conductor.nodes.values() if _fits(node, allocation)]
        allocation.updated_at = self._conductor.clock.now()
        if not fitting:
            text = f"Failed to process allocation {allocation.uuid}: no available nodes match"
            allocation.state = "error"
            allocation.last_error = f"{text} the resource class {allocation.resource_class}"
            return
        node = self._conductor.clock.chance.choice(fitting)
        allocation.state, allocation.node_uuid = "active", node.uuid
        self._associate(node, allocation, f"req-{self._conductor.clock.uuid()}")

    def _associate(self, node: SimNode, allocation: Allocation | None, request: str) -> None:
        uuid = allocation.uuid if allocation else None
        self._conductor.change(node, instance_uuid=uuid, allocation_uuid=uuid)
        if allocation is not None:
            node.instance_info = {**node.instance_info, "traits": list(allocation.traits)}
        self._conductor.notify("update", "success", node, request, sort="silent")

    def _notify(
        self, action: Literal["create", "delete"], phase: Phase, allocation: Allocation, request: str
    ) -> None:
        self._conductor.emit(AllocationNotification(phase, action, allocation.as_json("Z"), request))


def _fits(node: SimNode, allocation: Allocation) -> bool:
    return (
        node.provision_state == "available"
        and node.instance_uuid is None
        and node.power_state is not None
        and not node.maintenance
        and node.reservation is None
        and (allocation.resource_class is None or node.resource_class == allocation.resource_class)
        and (allocation.candidate_nodes is None or node.uuid in allocation.candidate_nodes)
        and (allocation.owner is None or allocation.owner in (node.owner, node.lessee))
        and set(allocation.traits) <= set(node.traits)
    )


def _check_deallocation(node: SimNode, allocation: Allocation) -> None:
    if node.maintenance:
        return
    moving = node.target_provision_state and node.provision_state not in CHANGEABLE
    if moving or node.provision_state == "active":
        text = (
            f"Cannot remove allocation {allocation.uuid} for node {node.uuid}, because the node is in state"
        )
        raise ApiRefusal(409, f"{text} {node.provision_state} (and maintenance mode is off)")
