"""A model of placement, an Ironic to read, and its notifications in any order, for tests of the sync."""

import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from bus.messages import InventoryReported
from ironic_sync.core.known_state import KnownStateRules, Moment, Step
from ironic_sync.core.known_states import KnownStates
from ironic_sync.core.node import IronicNode, ReceivedNotification, from_rest, opened
from ironic_sync.core.rule import is_open, reserved
from tests.support.ironic_builders import PLACE

T = TypeVar("T")
Vary = Callable[[Sequence[T], random.Random], list[T]]

CONDUCTOR = ("provision_set", "power_set", "power_state_corrected", "console_set")
PASSING = 0.004  # seconds between one thing and the next


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


def reordered(said: Sequence[T], chance: random.Random) -> list[T]:
    return chance.sample(said, len(said))


def duplicated(said: Sequence[T], chance: random.Random) -> list[T]:
    """Each twice, the second anywhere after the first."""
    twice: list[T] = []
    for t in reversed(said):
        twice.insert(chance.randint(0, len(twice)), t)
        twice.insert(0, t)
    return twice


def with_one_dropped(said: Sequence[T], chance: random.Random) -> list[T]:
    left = list(said)
    if left:
        left.pop(chance.randrange(len(left)))
    return left


def all_of_that(said: Sequence[T], chance: random.Random) -> list[T]:
    return reordered(duplicated(with_one_dropped(said, chance), chance), chance)


def in_order(said: Sequence[T], chance: random.Random) -> list[T]:
    return list(said)


WAYS: list[Vary[object]] = [in_order, reordered, duplicated, with_one_dropped, all_of_that]


def tells_of_closing(said: ReceivedNotification) -> bool:
    """Return whether the node was certainly closed then. A request does not say so."""
    node, ended = said.node, said.phase == "end"
    if said.event == "delete" and ended:
        return True
    if node is None or not reserved(node):
        return False
    return said.event in CONDUCTOR or (ended and (node.maintenance or node.instance_uuid is not None))


class NodeWorld:
    def __init__(self, history: History, *, can_read: bool, chance: random.Random) -> None:
        self.history = history
        self.beliefs = KnownStates(KnownStateRules(place=lambda node: PLACE, can_read=can_read))
        self.placement: dict[str, InventoryReported] = {}
        self.now = 0.0
        self._chance = chance
        self._told_closed: dict[str, float] = {}
        self._wished: set[str] = set()
        self._reading: dict[str, tuple[Moment, IronicNode | None]] = {}

    def deliver(self, said: ReceivedNotification) -> None:
        self.now = max(self.now + PASSING, said.at + PASSING / 2)
        self._take(said.uuid, self.beliefs.handle(said, latest=self.now + 60.0))
        if tells_of_closing(said):
            self._told_closed[said.uuid] = max(said.at, self._told_closed.get(said.uuid, 0.0))

    def some_reading(self) -> None:
        while (self._wished or self._reading) and self._chance.random() < 0.5:
            self._step_reading()

    def all_reading(self) -> None:
        while self._wished or self._reading:
            self._step_reading()

    def sweep(self) -> None:
        """All nodes are read, and held against what placement has."""
        began = self.beliefs.moment(self.now)
        self.now += PASSING
        for uuid, node in self.history.nodes(began.at):
            known = self.placement[uuid].sequence if uuid in self.placement else 0
            if self._differs(uuid, node):
                self._take(uuid, self.beliefs.read(uuid, node, began, known=known, again=True, was=PLACE))

    def differences(self) -> list[str]:
        return [uuid for uuid, node in self.history.nodes(self.now) if self._differs(uuid, node)]

    def open_against_the_truth(self) -> list[str]:
        return [
            uuid
            for uuid, node in self.history.nodes(self.now)
            if uuid in self.placement
            and is_open(self.placement[uuid])
            and (node is None or reserved(node))
            and self._told_closed.get(uuid, 0.0) >= self.history.since(uuid, self.now)
        ]

    def _differs(self, uuid: str, node: IronicNode | None) -> bool:
        has = self.placement.get(uuid)
        has = None if has is None or has.gone else replace(has, sequence=0)
        should = None if node is None else self.beliefs.rules.report(node, PLACE)
        return has != should and (should is not None or node is None)  # without a class what is known stays

    def _step_reading(self) -> None:
        self.now += PASSING
        begin = sorted(self._wished - self._reading.keys())
        if begin and (not self._reading or self._chance.random() < 0.5):
            uuid = self._chance.choice(begin)
            self._wished.discard(uuid)
            self._reading[uuid] = self.beliefs.moment(self.now), self.history.at(uuid, self.now)
        else:
            uuid = self._chance.choice(sorted(self._reading))
            began, node = self._reading.pop(uuid)
            self._take(uuid, self.beliefs.read(uuid, node, began))

    def _take(self, uuid: str, step: Step) -> None:
        if step.report is not None:
            known = self.placement.get(uuid)
            if known is None or step.report.sequence > known.sequence:
                self.placement[uuid] = step.report
        if step.read:
            assert self.beliefs.rules.can_read
            self._wished.add(uuid)


# Recorded steps with changes that Ironic does not notify.
SILENT = {
    "96-power-mismatch-recovery-silent",  # out of maintenance
    "104-allocation-create",
    "107-allocation-create-2",  # the same, and it was open
}
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


class Truth(History):
    def __init__(self) -> None:
        super().__init__()
        for step in recorded():
            ended: dict[str, float] = {}
            for notification in step.said:
                if notification.node is not None:
                    self._handle(notification, notification.node)
                elif notification.phase == "end":  # an allocation was deleted
                    ended[notification.uuid] = notification.at
            for uuid, node in step.nodes.items():
                self._add(uuid, ended.get(uuid, step.ended), None if node is None else from_rest(node))

    def _handle(self, said: ReceivedNotification, node: IronicNode) -> None:
        before = self.at(said.uuid, said.at)
        if said.event in CONDUCTOR:
            self._add(said.uuid, said.at, node)
        elif said.phase == "end" and said.event in ("create", "maintenance_set", "delete", "update"):
            if said.event == "update" and before is not None and node.traits != before.traits:
                node = replace(before, traits=node.traits)  # all else is from before the call
            self._add(said.uuid, said.at, None if said.event == "delete" else node)

    def _add(self, uuid: str, since: float, node: IronicNode | None) -> None:
        node = None if node is None else replace(node, updated_at=None, whole=True)
        self.of.setdefault(uuid, []).append((since, node))
