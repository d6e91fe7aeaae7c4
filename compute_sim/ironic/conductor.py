"""Simulates Ironic's conductor: nodes with their locks, and the operations that lead nodes through states."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from bus.clock import Clock
from compute_sim.core.faults import Durations, draw
from compute_sim.ironic.node import HOST, SimNode
from compute_sim.ironic.notifications import Action, SentNotification
from compute_sim.ironic.patching import ApiRefusal
from compute_sim.ironic.states import STATES, Phase, phase_of

Emit = Callable[[SentNotification], None]

LOCK_ATTEMPTS, LOCK_SECONDS = 3, 1.0  # Ironic's defaults of node_locked_retry_attempts and _interval

_OPERATIONS = {"manage": "verify", "provide": "clean", "deploy": "deploy", "delete": "tear_down"}
_FAILED = {
    "verify": "Failed to get power state for node {node}. Error: the BMC does not answer.",
    "clean": "Node {node} failed step deploy.erase: a disk could not be erased",
    "deploy": "Deploy step deploy.deploy failed: the image could not be written",
    "tear_down": "Failed to tear down: the node's ports could not be removed",
    "power": "Failed to change power state: the BMC does not answer.",
}


NO_DELAY = Durations("constant", (0.0,))


@dataclass(frozen=True, slots=True)
class SimPlan:
    """The planned behaviour of a simulated Ironic, derived from a seed."""

    seed: int = 0
    step_time: Durations = NO_DELAY  # of each operation
    fail: float = 0.0  # share of operations that fail
    call_back: bool = False  # cleaning and deployments wait for a callback of the node, like real hardware
    churn: float = 0.0  # notifications per second of background traffic

    def __post_init__(self) -> None:
        if not 0 <= self.fail <= 1:
            raise ValueError(f"fail is a share of all operations, not {self.fail}")

    def seconds(self, node: str, number: int) -> float:
        """Return the planned seconds of the `number`-th operation on the node with the uuid `node`."""
        if self.step_time.name == "constant":
            return self.step_time.values[0]
        return self.step_time.at(
            draw(self.seed, "time", node, number), draw(self.seed, "more time", node, number)
        )

    def fails(self, node: str, number: int) -> bool:
        """Return whether the operation with this number fails on the node, by the seed."""
        return bool(self.fail) and draw(self.seed, "fate", node, number) < self.fail


class Conductor:
    """The conductor of a simulated Ironic with its nodes; `emit` sends its notifications."""

    tasks: asyncio.TaskGroup  # in which operations run

    def __init__(
        self, plan: SimPlan | None = None, clock: Clock | None = None, emit: Emit = lambda _: None
    ) -> None:
        self.plan = plan or SimPlan()
        self.clock = clock or Clock()
        self.emit = emit
        self.nodes: dict[str, SimNode] = {}  # by uuid, oldest first
        self._names: dict[str, str] = {}
        self._instances: dict[str, str] = {}
        self._begun = Counter[str]()  # number of operations of each node
        self._running: dict[str, asyncio.Task[None]] = {}

    # Nodes

    def find(self, ident: str) -> SimNode:
        """Return the node with this uuid or name; raise ApiRefusal if no node has it."""
        node = self.nodes.get(ident) or self.nodes.get(self._names.get(ident, ""))
        if node is None:
            raise ApiRefusal(404, f"Node {ident} could not be found.")
        return node

    async def unlocked(self, uuid: str) -> SimNode:
        """Wait until a node is unlocked and return it. Raise ApiRefusal if that takes too long."""
        for attempt in range(LOCK_ATTEMPTS):
            if attempt:
                await asyncio.sleep(LOCK_SECONDS)
            node = self.find(uuid)
            if node.reservation is None:
                return node
        raise locked(node)

    def enroll(self, nodes: Iterable[SimNode]) -> None:
        """Add nodes without notifications."""
        for node in nodes:
            self.nodes[node.uuid] = node
            self._index(node)

    def check_unique(self, node: SimNode) -> None:
        """Raise ApiRefusal if another node has the same name or the same instance."""
        if node.name and self._names.get(node.name, node.uuid) != node.uuid:
            raise ApiRefusal(409, f"A node with name {node.name} already exists.")
        if node.instance_uuid and self._instances.get(node.instance_uuid, node.uuid) != node.uuid:
            text = f"Instance {node.instance_uuid} is already associated with a node"
            raise ApiRefusal(409, f"{text}, it cannot be associated with this other node {node.uuid}")

    def change(self, node: SimNode, **changes: Any) -> None:
        """Set the given fields of a node, and the time of its last change."""
        self._unindex(node)
        for name, value in changes.items():
            setattr(node, name, value)
        self._index(node)
        node.updated_at = self.clock.now()

    def _index(self, node: SimNode) -> None:
        if node.name:
            self._names[node.name] = node.uuid
        if node.instance_uuid:
            self._instances[node.instance_uuid] = node.uuid

    def _unindex(self, node: SimNode) -> None:
        self._names.pop(node.name or "", None)
        self._instances.pop(node.instance_uuid or "", None)

    def notify(
        self,
        action: Action,
        phase: Phase,
        node: SimNode,
        request: str,
        shown: SimNode | None = None,
        **more: Any,
    ) -> None:
        """Emit a notification of a change of `node`; its payload shows `shown`, if given, in its place."""
        self.emit(SentNotification(action, phase, node, request, shown, more))

    # Operations

    def begin(self, node: SimNode, event: str, request: str) -> None:
        """Move a node by an event such as `provide`, which its state permits, and start the operation."""
        self._stop(node)
        if event == "abort":
            node.last_error = "By request, the operation was aborted"
        if event == "abort" or (event == "manage" and node.provision_state != "enroll"):
            self._move(node, event, request)
            return
        node.reservation, node.last_error = HOST, None
        self._move(node, event, request)
        self._start(node, self._carry_out(node, _OPERATIONS[event], request))

    def set_power(self, node: SimNode, target: str, request: str) -> None:
        """Lock an unlocked node and begin to change its power state to `target`, such as `power off`."""
        goal = "power off" if target.endswith("off") else "power on"
        node.reservation = HOST
        self.change(node, target_power_state=goal, last_error=None)
        self.notify("power_set", "start", node, request, to_power=target)
        self._start(node, self._switch(node, target, goal, request))

    def _start(self, node: SimNode, operation: Coroutine[Any, Any, None]) -> None:
        self._running[node.uuid] = self.tasks.create_task(operation)

    def _stop(self, node: SimNode) -> None:
        if (operation := self._running.pop(node.uuid, None)) is not None:
            operation.cancel()

    def _planned(self, node: SimNode, operation: str) -> tuple[float, bool]:
        """Return the seconds of a node's next operation, and whether it fails."""
        self._begun[node.uuid] += 1
        number = self._begun[node.uuid]
        fails = node.driver_info.get(f"berth_{operation}") == "fail"
        return self.plan.seconds(node.uuid, number), fails or self.plan.fails(node.uuid, number)

    async def _switch(self, node: SimNode, target: str, goal: str, request: str) -> None:
        seconds, fails = self._planned(node, "power")
        await asyncio.sleep(seconds)
        self.change(node, target_power_state=None, reservation=None)
        if fails:
            node.last_error = _FAILED["power"]
        else:
            node.power_state = goal
        self.notify("power_set", "error" if fails else "end", node, request, to_power=target)

    async def _carry_out(self, node: SimNode, operation: str, request: str) -> None:
        seconds, fails = self._planned(node, operation)
        if self.plan.call_back and operation in ("clean", "deploy"):
            await asyncio.sleep(seconds / 2)
            node.reservation = None
            self._move(node, "wait", request)
            await asyncio.sleep(seconds / 2)
            node.reservation = HOST
            self._move(node, "resume", request)
        else:
            await asyncio.sleep(seconds)
        if fails:
            self._fail(node, operation, request)
        elif operation == "tear_down":
            self.change(node, instance_uuid=None, instance_info={})
            self._move(node, "clean", request)
            await self._carry_out(node, "clean", request)
        else:
            self._succeed(node, request)

    def _succeed(self, node: SimNode, request: str) -> None:
        before, node.reservation = node.power_state, None
        node.power_state = before or "power off"  # read when Ironic verifies the node
        self._move(node, "done", request)
        if before != node.power_state:
            self.notify("power_state_corrected", "success", node, request, from_power=before)

    def _fail(self, node: SimNode, operation: str, request: str) -> None:
        node.reservation, node.last_error = None, _FAILED[operation].format(node=node.uuid)
        if operation == "clean":
            node.maintenance, node.fault = True, "clean failure"
            node.maintenance_reason = node.maintenance_reason or node.last_error
        self._move(node, "fail", request)
        if operation == "tear_down":  # Ironic sends no notification of this change
            self.change(node, instance_uuid=None, instance_info={})

    def _move(self, node: SimNode, event: str, request: str) -> None:
        before, before_target = node.provision_state, node.target_provision_state
        node.provision_state = STATES[before].next[event]
        node.target_provision_state = STATES[node.provision_state].target
        node.provision_updated_at = node.updated_at = self.clock.now()
        self.notify(
            "provision_set", phase_of(before, event), node, request,
            event=event, previous_provision_state=before, previous_target_provision_state=before_target,
        )  # fmt: skip


def locked(node: SimNode) -> ApiRefusal:
    """Return the refusal of an operation on a node that another operation has locked."""
    text = f"Node {node.uuid} is locked by host {node.reservation}"
    return ApiRefusal(409, f"{text}, please retry after the current operation is completed.")
