"""Simulates Ironic's conductor: nodes, locks, operations that take time, notifications, planned failures.

Only waiting for a lock yields to the event loop, so a node does not change while a request is executed.
"""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from bus.clock import Clock
from compute_sim.core.faults import Durations, draw
from compute_sim.ironic.envelope import Action, AllocationNotification, SentNotification
from compute_sim.ironic.node import Phase, SimNode
from compute_sim.ironic.patching import ApiRefusal, locked, not_found

Notification = SentNotification | AllocationNotification
Emit = Callable[[Notification], None]

AT_ONCE = 200  # actions before other tasks may run


# The kind of work on a node.
Kind = Literal[
    "verify", "inspect", "clean", "deploy", "delete", "rescue", "unrescue", "service", "adopt", "power",
]  # fmt: skip
# How work fails: in a step, before the first step, or by a timeout of the callback.
Fault = Literal["step", "prepare", "timeout"]

KINDS: tuple[Kind, ...] = get_args(Kind)
FAULTS: tuple[Fault, ...] = get_args(Fault)
NO_DELAY = Durations("constant", (0.0,))


@dataclass(frozen=True, slots=True)
class SimPlan:
    """The planned behaviour of a simulated Ironic, derived from a seed. Times are in seconds."""

    seed: int = 0
    step_time: Durations = NO_DELAY
    fail: float = 0.0  # share of works that fail in a step
    call_back: bool = False  # works wait for a callback of the node, like real hardware
    automated_clean: bool = True
    patience: float = 2.0  # how long a request waits for a locked node
    sync_every: float = 10.0  # between two checks of the real power states
    sync_retries: int = 3
    churn: float = 0.0  # notifications per second of background traffic

    def __post_init__(self) -> None:
        if not 0 <= self.fail <= 1:
            raise ValueError(f"fail is a share of all works, not {self.fail}")

    def seconds(self, node: str, number: int) -> float:
        """Return the planned seconds of the `number`-th operation on the Ironic node with the uuid `node`."""
        if self.step_time.name == "constant":
            return self.step_time.values[0]
        return self.step_time.at(
            draw(self.seed, "time", node, number), draw(self.seed, "more time", node, number)
        )

    def fault(self, node: str, number: int) -> Fault | None:
        """Return how the `number`-th operation on an Ironic node is planned to fail; None: it succeeds."""
        return "step" if self.fail and draw(self.seed, "fate", node, number) < self.fail else None


class Conductor:
    """The conductor of a simulated Ironic with its nodes; `emit` sends its notifications."""

    host = "localhost"

    def __init__(
        self, plan: SimPlan | None = None, clock: Clock | None = None, emit: Emit = lambda _: None
    ) -> None:
        self.plan = plan or SimPlan()
        self.clock = clock or Clock()
        self.nodes: dict[str, SimNode] = {}  # by uuid, oldest first
        self._names: dict[str, str] = {}
        self._instances: dict[str, str] = {}
        self.emit = emit
        # waits while too many notifications are unsent; awaited before an operation emits more
        self.wait_for_space: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)
        self._works: dict[str, int] = {}
        self._planned: dict[tuple[str, Kind], Fault] = {}
        self._waiting: dict[str, asyncio.Event] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._work_added = asyncio.Event()
        # called whenever a node or its instance is removed
        self.forget: Callable[[SimNode], object] = lambda node: None

    def find(self, ident: str) -> SimNode:
        """Return the simulated Ironic node with this uuid or name; raise ApiRefusal if no node has it."""
        node = self.nodes.get(ident) or self.nodes.get(self._names.get(ident, ""))
        if node is None:
            raise not_found(ident)
        return node

    def enroll(self, nodes: Iterable[SimNode]) -> None:
        for node in nodes:
            node.conductor = self.host
            self.nodes[node.uuid] = node
            self._index(node)

    def check_unique(self, node: SimNode) -> None:
        """Raise ApiRefusal if another Ironic node has the same name or the same instance."""
        if node.name and self._names.get(node.name, node.uuid) != node.uuid:
            raise ApiRefusal(409, f"A node with name {node.name} already exists.")
        if node.instance_uuid and self._instances.get(node.instance_uuid, node.uuid) != node.uuid:
            text = f"Instance {node.instance_uuid} is already associated with a node"
            raise ApiRefusal(409, f"{text}, it cannot be associated with this other node {node.uuid}")

    def change(self, node: SimNode, **changes: Any) -> None:
        """Set the given fields of a simulated Ironic node, and the time of its last change."""
        self._names.pop(node.name or "", None)
        self._instances.pop(node.instance_uuid or "", None)
        for field, value in changes.items():
            setattr(node, field, value)
        self._index(node)
        node.updated_at = self.clock.now()

    def remove(self, node: SimNode) -> None:
        self.nodes.pop(node.uuid, None)
        self._works.pop(node.uuid, None)
        self._names.pop(node.name or "", None)
        self._instances.pop(node.instance_uuid or "", None)
        self.forget(node)
        self.unlock(node)

    def _index(self, node: SimNode) -> None:
        if node.name:
            self._names[node.name] = node.uuid
        if node.instance_uuid:
            self._instances[node.instance_uuid] = node.uuid

    async def free(self, uuid: str) -> SimNode:
        """Wait until an Ironic node is unlocked and return it. Raise ApiRefusal if that takes too long."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.plan.patience
        while True:
            node = self.nodes.get(uuid)
            if node is None:
                raise not_found(uuid)
            if node.reservation is None:
                return node
            if loop.time() >= deadline:
                raise locked(node)
            freed = self._waiting.setdefault(uuid, asyncio.Event())
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await freed.wait()

    def unlock(self, node: SimNode) -> None:
        node.reservation = None
        if (freed := self._waiting.pop(node.uuid, None)) is not None:
            freed.set()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        due = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._due, (due, next(self._order), action))
        self._work_added.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for _ in range(AT_ONCE):
                if not self._due or self._due[0][0] > loop.time():
                    break
                heapq.heappop(self._due)[2]()
            if self._due and self._due[0][0] <= loop.time():
                await self.wait_for_space()
                continue
            self._work_added.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._due[0][0] if self._due else None):
                    await self._work_added.wait()
            await self.wait_for_space()

    def notify(
        self,
        action: Action,
        phase: Phase,
        node: SimNode,
        request: str,
        *,
        shown: SimNode | None = None,
        sort: Literal["real", "asked", "silent"] = "real",
        **more: Any,
    ) -> None:
        """Emit a notification of a change of `node`; its payload shows `shown`, if given, in place of `node`.

        `sort`: "asked" if the payload has values that a client requested, not the node's present values;
        "silent" for a change without a notification from a real Ironic.
        """
        asked, silent = sort == "asked", sort == "silent"
        self.emit(SentNotification(action, phase, node, request, shown, asked, silent, more))

    def plan_fault(self, node: SimNode, kind: Kind, fault: Fault | None) -> None:
        """Plan how an Ironic node's next operation of this type fails; None removes the planned failure."""
        if fault is None:
            self._planned.pop((node.uuid, kind), None)
        else:
            self._planned[node.uuid, kind] = fault

    def fate(self, node: SimNode, kind: Kind) -> tuple[float, Fault | None]:
        """Return the planned seconds and failure (None: success) of a node's next operation. Each call counts
        as one operation of the node.
        """
        number = self._works[node.uuid] = self._works.get(node.uuid, 0) + 1
        planned = self._planned.pop((node.uuid, kind), None)
        return self.plan.seconds(node.uuid, number), planned or self.plan.fault(node.uuid, number)
