"""Notifications of a real Ironic, recorded during 125 steps, and the state of its nodes after each step.

`captures/ironic.jsonl.gz` has a line for each step: the AMQP messages (body, routing key, time of arrival),
and the nodes as the REST API returned them afterwards (null: deleted). Changes between the steps were not
recorded, and `updated_at` was not kept.
"""

import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ironic_sync.core.node import IronicNode, ReceivedNotification, from_rest, opened
from tests.support.belief_world import CONDUCTOR

RECORDED = Path(__file__).parent.parent / "captures" / "ironic.jsonl.gz"


class RecordedMessage(msgspec.Struct, frozen=True):
    arrival: float
    key: str
    body: str


class Recorded(msgspec.Struct, frozen=True):
    """One step, from before its first REST call to after its last effect."""

    step: str
    began: float
    ended: float
    messages: tuple[RecordedMessage, ...]
    nodes: dict[str, dict[str, Any] | None]

    @property
    def said(self) -> tuple[ReceivedNotification, ...]:
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


class Truth:
    def __init__(self) -> None:
        self._of: dict[str, list[tuple[float, IronicNode | None]]] = {}
        for step in recorded():
            ended: dict[str, float] = {}
            for notification in step.said:
                if notification.node is not None:
                    self._handle(notification, notification.node)
                elif notification.phase == "end":  # an allocation was deleted
                    ended[notification.uuid] = notification.at
            for uuid, node in step.nodes.items():
                self._add(uuid, ended.get(uuid, step.ended), None if node is None else from_rest(node))

    def at(self, uuid: str, now: float) -> IronicNode | None:
        found = None
        for since, node in self._of.get(uuid, ()):
            if since > now:
                break
            found = node
        return found

    def nodes(self, now: float) -> Iterator[tuple[str, IronicNode | None]]:
        return ((uuid, self.at(uuid, now)) for uuid, known in self._of.items() if known[0][0] <= now)

    def since(self, uuid: str, now: float) -> float:
        """When it last came to be as it was at this time."""
        return max(since for since, _ in self._of[uuid] if since <= now)

    def _handle(self, said: ReceivedNotification, node: IronicNode) -> None:
        before = self.at(said.uuid, said.at)
        if said.event in CONDUCTOR or (said.phase == "end" and said.event in ("create", "maintenance_set")):
            self._add(said.uuid, said.at, node)
        elif said.event == "delete" and said.phase == "end":
            self._add(said.uuid, said.at, None)
        elif said.event == "update" and said.phase == "end":
            if before is not None and node.traits != before.traits:  # all else is from before the call
                node = msgspec.structs.replace(before, traits=node.traits)
            self._add(said.uuid, said.at, node)

    def _add(self, uuid: str, since: float, node: IronicNode | None) -> None:
        if node is not None:
            node = msgspec.structs.replace(node, updated_at=None, provision_updated_at=None, whole=True)
        self._of.setdefault(uuid, []).append((since, node))
