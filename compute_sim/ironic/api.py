"""Executes the operations of Ironic's API, and sends notifications of each request and its result.

A notification `.start` shows the requested values, and so does `.error` if the request was refused.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from compute_sim.ironic import states
from compute_sim.ironic.conductor import Conductor, locked
from compute_sim.ironic.node import Json, SimNode
from compute_sim.ironic.notifications import Action
from compute_sim.ironic.patching import ApiRefusal, created, patched

_POWER_TARGETS = ("power on", "power off", "rebooting", "soft rebooting", "soft power off")
_ALLOWED = ", ".join(states.NEW_CLASS_IN)


class Api:
    """The REST operations of the simulated Ironic, with its checks and notifications."""

    def __init__(self, conductor: Conductor) -> None:
        self._conductor = conductor

    async def patch(self, ident: str, operations: object, request: str) -> SimNode:
        """Change fields of a node; refused during a change of state."""
        node = self._conductor.find(ident)
        if node.target_provision_state and node.provision_state not in states.CHANGEABLE:
            raise ApiRefusal(409, f"Node {ident} can not be updated while a state transition is in progress.")
        changes = patched(node, operations)
        with self._requested("update", replace(node, **changes), node, request):
            node = await self._conductor.unlocked(node.uuid)
            _check_instance_and_class(node, changes)
            self._conductor.check_unique(replace(node, **changes))
            self._conductor.change(node, **changes)
        self._conductor.notify("update", "end", node, request)
        return node

    async def create(self, values: Json, request: str) -> SimNode:
        """Enroll a node; it has no power state and no traits yet."""
        node = SimNode(**created(values, self._conductor.clock.uuid()))
        with self._requested("create", node, node, request):
            self._conductor.check_unique(node)
            if node.uuid in self._conductor.nodes:
                raise ApiRefusal(409, f"A node with UUID {node.uuid} already exists.")
            node = replace(node, created_at=self._conductor.clock.now())
            self._conductor.enroll([node])
        self._conductor.notify("create", "end", node, request)
        return node

    async def set_traits(self, ident: str, traits: tuple[str, ...], request: str) -> None:
        node = self._conductor.find(ident)
        with self._requested("update", replace(node, traits=traits), node, request):
            node = await self._conductor.unlocked(node.uuid)
            self._conductor.change(node, traits=traits)
        self._conductor.notify("update", "end", node, request)

    async def remove_trait(self, ident: str, trait: str, request: str) -> None:
        node = self._conductor.find(ident)
        rest = tuple(name for name in node.traits if name != trait)
        with self._requested("update", replace(node, traits=rest), node, request):
            if rest == node.traits:
                raise ApiRefusal(404, f"Node {node.uuid} doesn't have a trait '{trait}'")
            node = await self._conductor.unlocked(node.uuid)
            self._conductor.change(node, traits=rest)
        self._conductor.notify("update", "end", node, request)

    async def set_maintenance(self, ident: str, on: bool, reason: str | None, request: str) -> None:
        node = self._conductor.find(ident)
        changes: Json = {"maintenance": on, "maintenance_reason": reason if on else None}
        with self._requested("maintenance_set", replace(node, **changes), node, request):
            node = await self._conductor.unlocked(node.uuid)
            self._conductor.change(node, **changes, fault=node.fault if on else None)
        self._conductor.notify("maintenance_set", "end", node, request)

    async def set_provision_state(self, ident: str, target: object, request: str) -> None:
        """Begin a change of the provision state; refused in maintenance, or if the present state does not
        permit it.
        """
        node = self._conductor.find(ident)
        if target == "active" and node.maintenance:
            text = f"The provisioning operation can't be performed on node {node.uuid}"
            raise ApiRefusal(400, f"{text} because it's in maintenance mode.")
        _event(node, target)
        node = await self._conductor.unlocked(node.uuid)
        event = _event(node, target)
        if event == "delete" and node.protected:
            text = f"Node {node.uuid} is protected and cannot be undeployed, rebuilt or deleted"
            raise ApiRefusal(403, text)
        self._conductor.begin(node, event, request)

    async def set_power_state(self, ident: str, target: object, request: str) -> None:
        """Begin a change of the power state; refused while the node is cleaned."""
        node = self._conductor.find(ident)
        if target not in _POWER_TARGETS:
            raise _wrong_state(target, node, node.power_state)
        if node.provision_state in ("clean wait", "cleaning"):
            raise _wrong_state(target, node, node.provision_state)
        self._conductor.set_power(await self._conductor.unlocked(node.uuid), str(target), request)

    @contextmanager
    def _requested(self, action: Action, wanted: SimNode, node: SimNode, request: str) -> Iterator[None]:
        """Emit a request's notification `.start`, and `.error` if the `with` block refuses the request; both
        show the node `wanted`.
        """
        self._conductor.notify(action, "start", node, request, shown=wanted)
        try:
            yield
        except ApiRefusal:
            self._conductor.notify(action, "error", node, request, shown=wanted)
            raise


def _event(node: SimNode, target: object) -> str:
    """Return the event that a request for `target` causes; raise ApiRefusal if the state forbids it."""
    event = states.VERBS.get(str(target), "")
    if event not in states.STATES[node.provision_state].next:
        if event and node.reservation is not None:
            raise locked(node)
        raise _wrong_state(target, node, node.provision_state)
    return event


def _wrong_state(action: object, node: SimNode, state: str | None) -> ApiRefusal:
    text = f'The requested action "{action}" can not be performed on node "{node.uuid}"'
    return ApiRefusal(400, f'{text} while it is in state "{state}".')


def _check_instance_and_class(node: SimNode, changes: Json) -> None:
    if changes.get("instance_uuid") and node.instance_uuid:
        raise ApiRefusal(409, f"Node {node.uuid} is associated with instance {node.instance_uuid}.")
    state = node.provision_state
    if "resource_class" in changes and node.resource_class and state not in states.NEW_CLASS_IN:
        text = f"can not have resource_class updated unless it is in one of allowed ({_ALLOWED}) states"
        raise ApiRefusal(409, f"Node {node.uuid} {text}. Current state is '{state}'.")
