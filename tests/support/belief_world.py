"""Notifications recorded from a real Ironic, and the true states of its nodes."""

import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ironic_sync.core.node import IronicNode, ReceivedNotification, from_rest, opened

CONDUCTOR = ("provision_set", "power_set", "power_state_corrected", "console_set")


class History:
    """The states of nodes over time; None while a node does not exist."""

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[float, IronicNode | None]]] = {}

    def at(self, uuid: str, now: float) -> IronicNode | None:
        return next((node for since, node in reversed(self.of.get(uuid, ())) if since <= now), None)

    def nodes(self, now: float) -> Iterator[tuple[str, IronicNode | None]]:
        return ((uuid, self.at(uuid, now)) for uuid, known in self.of.items() if known[0][0] <= now)

    def since(self, uuid: str, now: float) -> float:
        """Return when the node last changed before this time."""
        return max(since for since, _ in self.of[uuid] if since <= now)


# Recorded steps with changes about which Ironic sends no notification.
SILENT = {
    "96-power-mismatch-recovery-silent",  # the node's maintenance ends
    "104-allocation-create",
    "107-allocation-create-2",  # an instance gets the node, which was open
}
RECORDED = Path(__file__).parent.parent / "captures" / "ironic.jsonl.gz"


class RecordedMessage(msgspec.Struct, frozen=True):
    arrival: float
    key: str
    body: str


class Recorded(msgspec.Struct, frozen=True):
    """The recording of one step: Ironic's messages from before the first REST call to after the last effect,
    and the nodes then.
    """

    step: str
    began: float
    ended: float
    messages: tuple[RecordedMessage, ...]
    nodes: dict[str, dict[str, Any] | None]

    @property
    def reply(self) -> tuple[ReceivedNotification, ...]:
        return _said(self.step)


@cache
def recorded() -> tuple[Recorded, ...]:
    lines = gzip.decompress(RECORDED.read_bytes()).splitlines()
    return tuple(msgspec.json.decode(line, type=Recorded) for line in lines)


@cache
def _said(step: str) -> tuple[ReceivedNotification, ...]:
    (wanted,) = (one for one in recorded() if one.step == step)
    read = [opened(message.body.encode()) for message in wanted.messages]
    return tuple(one for one in read if isinstance(one, ReceivedNotification) and one.uuid)


class Truth(History):
    def __init__(self) -> None:
        super().__init__()
        for step in recorded():
            ended: dict[str, float] = {}
            for notification in step.reply:
                if notification.node is not None:
                    self._handle(notification, notification.node)
                elif notification.phase == "end":  # an allocation was deleted
                    ended[notification.uuid] = notification.at
            for uuid, node in step.nodes.items():
                self._add(uuid, ended.get(uuid, step.ended), None if node is None else from_rest(node))

    def _handle(self, reply: ReceivedNotification, node: IronicNode) -> None:
        before = self.at(reply.uuid, reply.at)
        if reply.event in CONDUCTOR:
            self._add(reply.uuid, reply.at, node)
        elif reply.phase == "end" and reply.event in ("create", "maintenance_set", "delete", "update"):
            if reply.event == "update" and before is not None and node.traits != before.traits:
                node = replace(before, traits=node.traits)  # other fields are of before the call
            self._add(reply.uuid, reply.at, None if reply.event == "delete" else node)

    def _add(self, uuid: str, since: float, node: IronicNode | None) -> None:
        node = None if node is None else replace(node, updated_at=None, whole=True)
        self.of.setdefault(uuid, []).append((since, node))
