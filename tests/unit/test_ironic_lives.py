"""Notifications of Ironic in order, out of order, twice and with gaps: the reports to placement.

They are those of a node with many changes per second, and those recorded from a real Ironic. Placement is a
model, compared with the real one in `tests/contract/test_ironic_placement.py`.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from bus.messages import InventoryReported
from ironic_sync.core.known_state import InPlacement, KnownStateRules, Moment, Step
from ironic_sync.core.known_states import KnownStates
from ironic_sync.core.node import IronicNode, Phase, ReceivedNotification
from ironic_sync.core.rule import is_open, reserved
from tests.support.belief_world import CONDUCTOR, SILENT, History, Recorded, Truth, recorded
from tests.support.ids import uid
from tests.support.ironic_builders import PLACE

T = TypeVar("T")


Vary = Callable[[Sequence[T], random.Random], list[T]]


PASSING = 0.004  # seconds between one thing and the next


def reordered(reply: Sequence[T], chance: random.Random) -> list[T]:
    return chance.sample(reply, len(reply))


def duplicated(reply: Sequence[T], chance: random.Random) -> list[T]:
    """Each twice, the second anywhere after the first."""
    twice: list[T] = []
    for t in reversed(reply):
        twice.insert(chance.randint(0, len(twice)), t)
        twice.insert(0, t)
    return twice


def with_one_dropped(reply: Sequence[T], chance: random.Random) -> list[T]:
    left = list(reply)
    if left:
        left.pop(chance.randrange(len(left)))
    return left


def all_of_that(reply: Sequence[T], chance: random.Random) -> list[T]:
    return reordered(duplicated(with_one_dropped(reply, chance), chance), chance)


def in_order(reply: Sequence[T], chance: random.Random) -> list[T]:
    return list(reply)


WAYS: list[Vary[object]] = [in_order, reordered, duplicated, with_one_dropped, all_of_that]


def arriving(reply: list[T], held: list[T], late: float, chance: random.Random) -> list[T]:
    """Return what arrives now, some of it `held` from before; the rest of `said` is held."""
    now = [message for message in reply if chance.random() >= late]
    before = [held.pop() for _ in range(len(held)) if chance.random() < 0.5]
    held += [message for message in reply if message not in now]
    return now + before


def tells_of_closing(reply: ReceivedNotification) -> bool:
    """Return whether the node was certainly closed then. A request does not say so."""
    node, ended = reply.node, reply.phase == "end"
    if reply.event == "delete" and ended:
        return True
    if node is None or not reserved(node):
        return False
    return reply.event in CONDUCTOR or (ended and (node.maintenance or node.instance_uuid is not None))


class NodeWorld:
    def __init__(self, history: History, *, can_read: bool, chance: random.Random) -> None:
        self.history = history
        self.beliefs = KnownStates(KnownStateRules(place=lambda node: PLACE, can_read=can_read))
        self.placement: dict[str, InventoryReported] = {}
        self.now = 0.0
        self._chance = chance
        self._reported_closed: dict[str, float] = {}
        self._wished: set[str] = set()
        self._reading: dict[str, tuple[Moment, IronicNode | None]] = {}

    def deliver(self, reply: ReceivedNotification) -> None:
        self.now = max(self.now + PASSING, reply.at + PASSING / 2)
        self._take(reply.uuid, self.beliefs.handle(reply, latest=self.now + 60.0))
        if tells_of_closing(reply):
            self._reported_closed[reply.uuid] = max(reply.at, self._reported_closed.get(reply.uuid, 0.0))

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
                self._take(uuid, self.beliefs.read(uuid, node, began, InPlacement(known, PLACE)))

    def differences(self) -> list[str]:
        return [uuid for uuid, node in self.history.nodes(self.now) if self._differs(uuid, node)]

    def open_against_the_truth(self) -> list[str]:
        return [
            uuid
            for uuid, node in self.history.nodes(self.now)
            if uuid in self.placement
            and is_open(self.placement[uuid])
            and (node is None or reserved(node))
            and self._reported_closed.get(uuid, 0.0) >= self.history.since(uuid, self.now)
        ]

    def _differs(self, uuid: str, node: IronicNode | None) -> bool:
        has = self.placement.get(uuid)
        has = None if has is None or has.gone else replace(has, sequence=0)
        should = None if node is None else self.beliefs.rules.report(node, PLACE)
        if has is not None and should is not None and not self.beliefs.rules.can_read:
            has = replace(has, closed=should.closed)  # Ironic does not notify all changes of closed nodes
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


SAID_AFTER = 0.002  # seconds from a change to its notification


class RandomIronic(History):
    """A node of an Ironic that changes randomly, with notifications like the real one.

    Late, wrong and missing notifications follow the reference: a change of traits ends with a snapshot from
    before the call, and a request is announced before it is executed and also when it is refused.
    """

    def __init__(
        self, chance: random.Random, *, reads_tell_times: bool = True, tells_all: bool = False
    ) -> None:
        self.uuid = uid(1, "c")
        self.reply: list[ReceivedNotification] = []
        self.now = 1_000_000.0
        self.tells_all = tells_all
        self._chance = chance
        self._reads_tell_times = reads_tell_times
        super().__init__()
        self._history = self.of[self.uuid] = []
        self._exists = False
        self._create()

    def at(self, uuid: str, now: float) -> IronicNode | None:
        found = super().at(uuid, now)
        if found is None:
            return None
        return replace(found, whole=True, updated_at=found.updated_at if self._reads_tell_times else None)

    def happens(self) -> list[ReceivedNotification]:
        before = len(self.reply)
        self._pass(0.0, 0.9)
        if not self._exists:
            self._create()
        else:
            self._chance.choice(_REPORTED if self.tells_all else (*_REPORTED, *_NOT_REPORTED))(self)
        self._pass(0.0, 0.3)
        return self.reply[before:]

    def _create(self) -> None:
        self._exists = True
        node = IronicNode(uuid=self.uuid, resource_class="gold", provision_state="enroll")
        self._history.append((self.now, node))
        self._say("create", "start", node)
        self._pass(SAID_AFTER)
        self._say("create", "end", node)
        self._pass(0.0, 0.2)
        self._change(provision_state="manageable", power_state="power off")
        self._conductor("provision_set", "end")

    def _delete(self) -> None:
        if self._node.provision_state not in ("manageable", "available") or self._chance.random() < 0.8:
            self._say("delete", "start", self._node)
            self._pass(SAID_AFTER)
            self._say("delete", "error", self._node)
            return
        node = self._node
        self._say("delete", "start", node)
        self._pass(0.0, 0.1)
        self._exists = False
        self._history.append((self.now, None))
        self._pass(SAID_AFTER)
        self._say("delete", "end", node)

    def _provision(self) -> None:
        state = self._node.provision_state
        if state == "available":
            if self._chance.random() < 0.3:
                self._change(provision_state="manageable")
                self._conductor("provision_set", "success")
                return
            self._on_the_way("deploying", "active")
        elif state in ("manageable", "error"):
            self._on_the_way("cleaning", "available")
        else:
            self._change(provision_state="deleting")
            self._conductor("provision_set", "start")
            self._pass(0.0, 0.6)
            if self._chance.random() < 0.2:
                self._change(provision_state="error")
                self._conductor("provision_set", "error")
                self._change(instance_uuid=None)  # #195 |
                return
            self._change(provision_state="cleaning", instance_uuid=None)
            self._conductor("provision_set", "success")
            self._pass(0.0, 0.6)
            self._change(provision_state="available")
            self._conductor("provision_set", "end")

    def _on_the_way(self, over: str, to: str) -> None:
        self._change(provision_state=over)
        self._conductor("provision_set", "start")
        self._pass(0.0, 0.6)
        self._change(provision_state=to)
        self._conductor("provision_set", "end")

    def _patch(self) -> None:
        self._asked("update", self._changed_by_hand())

    def _set_maintenance(self) -> None:
        self._asked("maintenance_set", {"maintenance": self._chance.random() < 0.5})

    def _changed_by_hand(self) -> dict[str, Any]:
        chance = self._chance
        what = chance.choice(["maintenance", "instance_uuid", "name"])
        if what == "maintenance":
            return {what: chance.random() < 0.5}
        if what == "instance_uuid":
            return {what: chance.choice([None, uid(7, "b")])}
        return {what: f"node{chance.randrange(100)}"}

    def _asked(self, event: str, changes: dict[str, Any]) -> None:
        self._say(event, "start", replace(self._node, **changes))
        self._pass(0.0, 0.1)
        if self._chance.random() < 0.2:
            self._say(event, "error", replace(self._node, **changes))
            return
        self._change(**changes)
        self._pass(SAID_AFTER)
        self._say(event, "end", self._node)

    def _set_traits(self) -> None:
        traits = tuple(sorted(self._chance.sample(["CUSTOM_A", "CUSTOM_B", "CUSTOM_C"], 2)))
        snapshot = replace(self._node, traits=traits)
        self._say("update", "start", snapshot)
        self._pass(0.0, 0.05)
        if self._chance.random() < 0.6:
            meanwhile = [RandomIronic._provision, RandomIronic._power_fails, RandomIronic._nothing]
            self._chance.choice(meanwhile)(self)
            self._pass(0.0, 0.05)
        self._change(traits=traits)
        self._pass(SAID_AFTER)
        self._say("update", "end", snapshot)

    def _power_fails(self) -> None:
        power = self._chance.choice([None, "error", "power on"])
        self._change(power_state=power, maintenance=True)
        self._conductor("power_state_corrected", "success")
        if self._chance.random() < 0.7:
            self._pass(0.0, 1.0)
            self._power_recovers()

    def _power_recovers(self) -> None:
        tells = self.tells_all or self._node.power_state in (None, "error")
        self._change(power_state="power on", maintenance=False)
        if tells:
            self._conductor("power_state_corrected", "success")

    def _set_power(self) -> None:
        self._conductor("power_set", "start")
        self._pass(0.0, 0.2)
        if self._chance.random() < 0.3:
            self._conductor("power_set", "error")
            return
        self._change(power_state=self._chance.choice(["power on", "power off"]))
        self._conductor("power_set", "end")

    def _allocated(self) -> None:
        self._change(instance_uuid=uid(8, "b") if self._node.instance_uuid is None else None)

    def _nothing(self) -> None:
        self._pass(0.0, 2.0)

    @property
    def _node(self) -> IronicNode:
        node = self._history[-1][1]
        assert node is not None
        return node

    def _change(self, **changes: Any) -> None:
        second = float(math.floor(self.now))
        self._history.append((self.now, replace(self._node, updated_at=second, **changes)))

    def _conductor(self, event: str, phase: Phase) -> None:
        self._pass(SAID_AFTER / 4)
        self._say(event, phase, self._node)

    def _say(self, event: str, phase: Phase, node: IronicNode) -> None:
        reply = ReceivedNotification(
            event=event, phase=phase, at=self.now, id=str(len(self.reply)), uuid=self.uuid, node=node
        )
        self.reply.append(reply)

    def _pass(self, least: float, most: float | None = None) -> None:
        self.now += least if most is None else self._chance.uniform(least, most)


_REPORTED = (
    *[RandomIronic._provision] * 3,
    *[RandomIronic._patch, RandomIronic._set_maintenance, RandomIronic._set_traits] * 2,
    *(RandomIronic._power_fails, RandomIronic._set_power, RandomIronic._nothing, RandomIronic._delete),
)
_NOT_REPORTED = (RandomIronic._power_recovers, RandomIronic._allocated)


def a_life(
    seed: int, vary: Vary[ReceivedNotification], late: float, *, can_read: bool, reads_tell_times: bool
) -> None:
    chance = random.Random(seed)
    ironic = RandomIronic(chance, reads_tell_times=reads_tell_times)
    world = NodeWorld(ironic, can_read=can_read, chance=chance)
    held: list[ReceivedNotification] = []
    for turn in range(25):
        for notification in arriving(vary(ironic.happens(), chance), held, late, chance):
            world.deliver(notification)
            world.some_reading()
        world.now = max(world.now, ironic.now)
        world.all_reading()
        assert world.open_against_the_truth() == [], f"turn {turn}, seed {seed}"
        if turn % 5 == 4:
            world.sweep()
            world.all_reading()
            assert world.differences() == [], f"turn {turn}, seed {seed}"


@pytest.mark.parametrize("late", [0.0, 0.2], ids=["", "some late"])
@pytest.mark.parametrize(
    ("can_read", "reads_tell_times"),
    [(True, True), (True, False), (False, True)],
    ids=["with an API", "with one that tells no times", "without"],
)
@pytest.mark.parametrize("vary", WAYS)
def test_random_events_leave_no_closed_node_open(
    vary: Vary[ReceivedNotification], can_read: bool, reads_tell_times: bool, late: float
) -> None:
    for seed in range(15):
        a_life(seed, vary, late, can_read=can_read, reads_tell_times=reads_tell_times)


@pytest.mark.parametrize("reads_tell_times", [True, False])
def test_with_an_api_and_nothing_lost_placement_is_always_right(reads_tell_times: bool) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        ironic = RandomIronic(chance, reads_tell_times=reads_tell_times, tells_all=True)
        world = NodeWorld(ironic, can_read=True, chance=chance)
        for notification in ironic.reply:
            world.deliver(notification)
        for turn in range(25):
            for notification in ironic.happens():
                world.deliver(notification)
                world.some_reading()
            world.now = max(world.now, ironic.now)
            world.all_reading()
            assert world.differences() == [], f"turn {turn}, seed {seed}"


# Recorded notifications


TRUTH = Truth()
SEEDS = range(3)


def steps_of(
    vary: Vary[ReceivedNotification], chance: random.Random, late: float
) -> list[tuple[Recorded, list[ReceivedNotification]]]:
    """The recording as it is delivered; some messages come only with one of the next steps."""
    found, held = [], list[ReceivedNotification]()
    for step in recorded():
        mixed = arriving(vary(step.reply, chance), held, late, chance)
        if late:
            chance.shuffle(mixed)
        found.append((step, mixed))
    return found


def played(
    vary: Vary[ReceivedNotification], can_read: bool, late: float
) -> Iterator[tuple[NodeWorld, Recorded, int]]:
    """A world of each seed after each step: all of it has been delivered, and some of it read."""
    for seed in SEEDS:
        chance = random.Random(seed)
        world = NodeWorld(TRUTH, can_read=can_read, chance=chance)
        for step, reply in steps_of(vary, chance, late):
            for notification in reply:
                world.deliver(notification)
                world.some_reading()
            yield world, step, seed


@pytest.mark.parametrize("late", [0.0, 0.2], ids=["", "some late"])
@pytest.mark.parametrize("can_read", [True, False], ids=["with an API", "without"])
@pytest.mark.parametrize("vary", WAYS)
def test_without_a_sweep_no_closed_node_stays_open(
    vary: Vary[ReceivedNotification], can_read: bool, late: float
) -> None:
    for world, step, seed in played(vary, can_read, late):
        world.all_reading()
        assert world.open_against_the_truth() == [], f"after {step.step}, seed {seed}"


@pytest.mark.parametrize("can_read", [True, False], ids=["with an API", "without"])
def test_ordered_events_miss_only_changes_without_events(can_read: bool) -> None:
    world = NodeWorld(TRUTH, can_read=can_read, chance=random.Random(0))
    missed = set()
    for step in recorded():
        for notification in step.reply:
            world.deliver(notification)
            world.all_reading()
        world.now = max(world.now, step.ended)
        if step.nodes.keys() & set(world.differences()):
            missed.add(step.step)
    assert missed == SILENT
