"""Executes the operations of Ironic's API, and sends notifications of each request and its result.

A notification `.start` shows the requested values, and so does `.error` if the request was refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

from compute_sim.ironic import node as nodes
from compute_sim.ironic import patching
from compute_sim.ironic.conductor import Conductor
from compute_sim.ironic.envelope import Action
from compute_sim.ironic.node import INTERFACES, Json, SimNode
from compute_sim.ironic.patching import ApiRefusal
from compute_sim.ironic.power import TARGETS, Power
from compute_sim.ironic.transitions import Works

_ENROLL_SINCE = 11  # clients of older APIs create nodes as available
_NEEDS = {"rescue": "rescue_password", "clean": "clean_steps", "service": "service_steps"}
_ALLOWED = ", ".join(nodes.NEW_CLASS_IN)
_ONLY_REMOVE_INSTANCE = [{"op": "remove", "path": "/instance_uuid"}]


class Api:
    def __init__(self, conductor: Conductor, works: Works, power: Power) -> None:
        self._conductor = conductor
        self._works = works
        self._power = power

    async def create(self, given: Mapping[str, Any], minor: int, request: str) -> SimNode:
        fields = patching.new_node(given)
        state = "enroll" if minor >= _ENROLL_SINCE else "available"
        uuid = fields.pop("uuid", None) or self._conductor.clock.uuid()
        node = SimNode(uuid=uuid, provision_state=state, created_at=self._conductor.clock.now()).with_changes(
            {field: value for field, value in fields.items() if value is not None}
        )
        unset = [field for field in INTERFACES if fields.get(field) is None]
        with self._asked("create", node.with_changes(dict.fromkeys(unset)), node, request):
            if node.uuid in self._conductor.nodes:
                raise ApiRefusal(409, f"A node with UUID {node.uuid} already exists.")
            self._conductor.check_unique(node)
            self._conductor.enroll([node])
        self._conductor.notify("create", "end", node, request)
        return node

    async def patch(self, ident: str, operations: object, request: str) -> SimNode:
        node = self._conductor.find(ident)
        names = patching.names_in(operations)
        if not (node.maintenance and operations == _ONLY_REMOVE_INSTANCE):
            _check_changeable(node, ident)
        for name in names:
            if not patching.good_name(name):
                raise ApiRefusal(400, f"Node {ident}: Cannot change name to invalid name '{name}'")
        changes = patching.patched(node, operations)
        if changes.get("maintenance") is False:
            changes.update(maintenance_reason=None, fault=None)
        for flag in ("protected", "retired"):
            if changes.get(flag) is False:
                changes[f"{flag}_reason"] = None
        with self._asked("update", node.with_changes(changes), node, request):
            _check_flags(node, changes)
            node = await self._conductor.free(node.uuid)
            _check_instance_and_class(node, changes)
            wanted = node.with_changes(changes)
            self._conductor.check_unique(wanted)
            if "instance_uuid" in changes and not wanted.instance_uuid and node.allocation_uuid:
                _check_deallocation(node)
                self._conductor.forget(node)
                changes["allocation_uuid"] = None
            self._conductor.change(node, **changes)
        self._conductor.notify("update", "end", node, request)
        return node

    async def delete(self, ident: str, request: str) -> None:
        node = self._conductor.find(ident)
        last = copy(node)
        with self._asked("delete", last, node, request):
            node = await self._conductor.free(node.uuid)
            if not node.maintenance and node.instance_uuid:
                raise ApiRefusal(409, f"Node {node.uuid} is associated with instance {node.instance_uuid}.")
            if node.protected:
                raise _protected(node)
            if not node.maintenance and (state := node.provision_state) not in nodes.DELETABLE:
                where = f'Can not delete node "{node.uuid}" while it is in provision state "{state}"'
                valid = f'Valid provision states to perform deletion are: "{nodes.DELETABLE}"'
                raise ApiRefusal(409, f"{where}. {valid}, or set the node into maintenance mode")
            self._conductor.remove(node)
        self._conductor.notify("delete", "end", node, request, shown=last)

    async def maintain(self, ident: str, on: bool, reason: str | None, request: str) -> None:
        node = self._conductor.find(ident)
        changes: Json = {"maintenance": on, "maintenance_reason": reason if on else None}
        with self._asked("maintenance_set", node.with_changes(changes), node, request):
            node = await self._conductor.free(node.uuid)
            if not on:
                changes["fault"] = None
            self._conductor.change(node, **changes)
        self._conductor.notify("maintenance_set", "end", node, request)

    async def change_traits(
        self, ident: str, request: str, traits: object = None, *, add: str = "", missing: str | None = None
    ) -> None:
        """Set an Ironic node's traits to `traits` or, if given, only add the trait `add` or remove the trait
        `missing`.
        """
        node = self._conductor.find(ident)
        if add:
            traits = [*node.traits, *_traits([add])]
        elif missing is not None:
            traits = [trait for trait in node.traits if trait != missing]
        elif isinstance(traits, list):
            traits = _traits(traits)
        else:
            raise ApiRefusal(400, "The traits of a node are a list of names")
        # `.end` shows this snapshot too, even if waiting for the lock took long.
        wanted = node.with_changes({"traits": tuple(sorted({*traits}))})
        with self._asked("update", wanted, node, request):
            node = await self._conductor.free(node.uuid)
            if missing is not None and missing not in node.traits:
                raise ApiRefusal(404, f"Node {node.uuid} doesn't have a trait '{missing}'")
            self._conductor.change(node, traits=wanted.traits)
        self._conductor.notify("update", "end", node, request, shown=wanted)

    async def provision(self, ident: str, target: str, more: Mapping[str, Any], request: str) -> None:
        node = self._conductor.find(ident)
        if target in ("active", "rebuild") and node.maintenance:
            text = f"The provisioning operation can't be performed on node {node.uuid}"
            raise ApiRefusal(400, f"{text} because it's in maintenance mode.")
        _event(node, target)
        steps = _steps(target, more)
        node = await self._conductor.free(node.uuid)
        event = _event(node, target)
        if event == "provide" and node.retired:
            text = f"The providing operation can't be performed on node {node.uuid}"
            raise ApiRefusal(400, f"{text} because it is retired.")
        if event in ("delete", "rebuild") and node.protected:
            raise _protected(node)
        if event == "abort" and node.provision_state == "service failed" and node.maintenance:
            raise ApiRefusal(409, f'Can not abort service on node "{node.uuid}" while it is in maintenance.')
        if event == "rescue":
            secret = {"rescue_password": more["rescue_password"]}
            node.instance_info = {**node.instance_info, **secret}
        self._works.begin(node, event, request, hold=any(step.get("step") == "hold" for step in steps))

    async def power(self, ident: str, target: str, request: str) -> None:
        node = self._conductor.find(ident)
        if target not in TARGETS:
            raise patching.wrong_state(target, node, node.power_state)
        if node.provision_state in ("clean wait", "cleaning"):
            raise patching.wrong_state(target, node, node.provision_state)
        self._power.set(await self._conductor.free(node.uuid), target, request)

    @contextmanager
    def _asked(self, action: Action, wanted: SimNode, node: SimNode, request: str) -> Iterator[None]:
        """Emit an API call's `start` notification, and `error` if the `with` block refuses the call; both
        show the node `wanted`.
        """
        self._conductor.notify(action, "start", node, request, shown=wanted, sort="asked")
        try:
            yield
        except ApiRefusal:
            self._conductor.notify(action, "error", node, request, shown=wanted, sort="asked")
            raise


def _event(node: SimNode, target: str) -> str:
    event = nodes.event_of(target, node.provision_state)
    if event is None:
        if target in nodes.VERBS and node.reservation is not None:
            raise patching.locked(node)
        raise patching.wrong_state(target, node, node.provision_state)
    return event


def _steps(target: str, more: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    need = _NEEDS.get(target)
    if need is not None and not more.get(need):
        raise ApiRefusal(400, f'"{need}" is required when setting target provision state to {target}')
    steps = [step for kind in ("clean", "deploy", "service") for step in more.get(f"{kind}_steps") or ()]
    if not all(isinstance(step, Mapping) for step in steps):
        raise ApiRefusal(400, "A step is an object with an interface and a step")
    return steps


def _traits(names: Sequence[object]) -> list[str]:
    for name in names:
        if not patching.good_trait(name):
            raise ApiRefusal(400, f"A trait is a standard one or begins with CUSTOM_: {name!r} is not valid")
    return [str(name) for name in names]


def _check_changeable(node: SimNode, ident: str) -> None:
    if node.provision_state == "inspecting":
        raise ApiRefusal(409, f'Cannot update node "{node.uuid}" while it is in state "inspecting".')
    if node.target_provision_state and node.provision_state not in nodes.CHANGEABLE:
        raise ApiRefusal(409, f"Node {ident} can not be updated while a state transition is in progress.")


def _check_flags(node: SimNode, changes: Json) -> None:
    state = node.provision_state
    if changes.get("protected") and state not in ("active", "rescue"):
        text = "can only be made protected in provision states 'active' or 'rescue'"
        raise ApiRefusal(409, f"Node {node.uuid} {text}, the current state is '{state}'")
    if changes.get("retired") and state == "available":
        text = "can not have 'retired' set in provision state 'available'"
        raise ApiRefusal(409, f"Node {node.uuid} {text}, the current state is '{state}'")
    for flag in ("protected", "retired"):
        if changes.get(f"{flag}_reason") and not changes.get(flag, getattr(node, flag)):
            raise ApiRefusal(400, f"The {flag}_reason field can only be set when {flag} is True")


def _check_instance_and_class(node: SimNode, changes: Json) -> None:
    if changes.get("instance_uuid") and node.instance_uuid:
        raise ApiRefusal(409, f"Node {node.uuid} is associated with instance {node.instance_uuid}.")
    state = node.provision_state
    if "resource_class" in changes and node.resource_class and state not in nodes.NEW_CLASS_IN:
        text = f"can not have resource_class updated unless it is in one of allowed ({_ALLOWED}) states"
        raise ApiRefusal(409, f"Node {node.uuid} {text}. Current state is '{state}'.")


def _check_deallocation(node: SimNode) -> None:
    if not node.maintenance and (state := node.provision_state) not in nodes.NEW_CLASS_IN:
        text = "with an allocation can not have instance_uuid removed unless it is in one of allowed"
        where = f"({_ALLOWED}) states or in maintenance mode"
        raise ApiRefusal(409, f"Node {node.uuid} {text} {where}. Current state is '{state}'.")


def _protected(node: SimNode) -> ApiRefusal:
    return ApiRefusal(403, f"Node {node.uuid} is protected and cannot be undeployed, rebuilt or deleted")
