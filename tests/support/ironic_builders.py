"""Builders for tests that follow Ironic: one node, its notifications and reads, and bytes on the wire."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from bus.messages import InventoryReported
from ironic_sync.core.known_state import KnownStateRules, Step
from ironic_sync.core.known_states import KnownStates
from ironic_sync.core.node import IronicNode, Phase, Place, ReceivedNotification
from ironic_sync.core.rule import is_open
from tests.support.ids import uid

PLACE = Place(cell="cell1", agent="cell1-metal")
NODE = uid(1, "c")
INSTANCE = uid(7, "b")
T = 1_700_000_000.0  # a full second
FREE = IronicNode(
    uuid=NODE, resource_class="gold", provision_state="available", power_state="power on", updated_at=T - 100
)
READ = replace(FREE, whole=True)
API = ["create", "update", "delete", "maintenance_set"]


class BeliefCase:
    def __init__(self, *, can_read: bool, **rules: Any) -> None:
        reply: dict[str, Any] = {"place": lambda node: PLACE, "can_read": can_read}
        self.beliefs = KnownStates(KnownStateRules(**reply | rules))
        self.reported: InventoryReported | None = None

    def handle(self, event: str, phase: Phase, at: float, node: IronicNode = FREE, **changes: Any) -> Step:
        reply = ReceivedNotification(
            event=event, phase=phase, at=at, uuid=NODE, node=replace(node, **changes), id=f"{event}{at}"
        )
        return self._keep(self.beliefs.handle(reply, latest=T + 1e6))

    def hint(self, at: float) -> Step:
        reply = ReceivedNotification(event="allocation", phase="end", at=at, uuid=NODE)
        return self._keep(self.beliefs.handle(reply, latest=T + 1e6))

    def read(
        self, at: float, node: IronicNode | None = READ, *, received: int | None = None, **more: Any
    ) -> Step:
        began = self.beliefs.moment(at)
        began = began if received is None else began._replace(received=received)
        return self._keep(self.beliefs.read(NODE, node, began, **more))

    @property
    def open(self) -> bool:
        return self.reported is not None and is_open(self.reported)

    def _keep(self, step: Step) -> Step:
        if step.report is not None:
            assert self.reported is None or step.report.sequence > self.reported.sequence
            self.reported = step.report
        return step


def opened(*, can_read: bool) -> BeliefCase:
    """Return the case of a node that has been available since T."""
    case = BeliefCase(can_read=can_read)
    case.handle("provision_set", "end", T, updated_at=T)
    if can_read:
        case.read(T, replace(READ, updated_at=T))
    assert case.open
    return case


def closed(*, can_read: bool) -> BeliefCase:
    """Return the case of a node that has been in cleaning since T."""
    case = BeliefCase(can_read=can_read)
    case.handle("provision_set", "start", T, updated_at=T, provision_state="cleaning")
    assert case.reported is not None and not case.open
    return case


with_and_without = pytest.mark.parametrize("can_read", [True, False], ids=["with an API", "without"])


def a_notification(event: str, at: float, node: dict[str, Any]) -> bytes:
    stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    message = {
        "message_id": f"{event}-{at}",
        "publisher_id": "ironic-conductor.test",
        "event_type": f"baremetal.node.{event}",
        "timestamp": stamp,
        "payload": {"ironic_object.data": {k: v for k, v in node.items() if k != "shard"}},
    }
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(message)}).encode()
