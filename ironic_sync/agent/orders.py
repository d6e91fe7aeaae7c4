"""Executes orders to build and destroy on Ironic's nodes through Ironic's API, one step after another.

An order stays unacknowledged while it is executed: after a crash of the agent it is redelivered and continues
from the node's state in Ironic. Ironic's notifications only cause a new read of the node; without
them the agent reads it periodically.
"""

import asyncio
import logging
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from weakref import WeakValueDictionary

from bus.agent_builds import AgentBuilds, report
from bus.clock import Clock, set_within
from bus.errors import Retry, Unavailable
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from ironic_sync.agent.core import node as metal_node
from ironic_sync.agent.core import steps
from ironic_sync.agent.core.node import FIELDS, MetalNode, node_of
from ironic_sync.agent.core.steps import Order, Step, next_step
from ironic_sync.agent.right import NodeRight
from ironic_sync.api import IronicApi, IronicRefused
from ironic_sync.core.node import DEPLOYING

log = logging.getLogger(__name__)

HOLD_SECONDS = 1500.0  # less than the half hour after which RabbitMQ redelivers an unacknowledged order
NO_RIGHT_SECONDS = 5.0  # how long an order is held while the agent may not act
SHORTEST_PAUSE = 0.1  # seconds between two checks of a node, doubled while nothing changes
LONGEST_PAUSE = 10.0
MOST_STARTED = 4  # transitions of a failed deployment with its teardown; after this many, steps are delayed

Key = tuple[type[Order], str, int, str]  # the order's type, build, attempt and node


@dataclass(eq=False, repr=False)
class OrderProgress:
    """The progress of one order on an Ironic node; if the order is delivered again, it is continued."""

    order: Order
    came: float
    turn: int = 0  # counts the deliveries: all but the last are abandoned
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: str = ""
    writes: bool = True
    refused: Step | None = None  # the step that Ironic refused last time
    state: str = ""
    # since when the node has been in maintenance without being deployed
    maintained: float | None = None
    started: int = 0  # number of transitions of the node that this order has started
    pause: float = SHORTEST_PAUSE

    def __post_init__(self) -> None:
        self.changed = self.came  # when the node's state last changed

    def saw(self, node: MetalNode | None, now: float, maintenance_patience: float) -> None:
        """Record the node's state, read at the monotonic time `now`; fail a build after
        `maintenance_patience` seconds of maintenance.
        """
        self._check_maintenance(node, now, maintenance_patience)
        state = "gone" if node is None else f"{node.provision_state} {node.instance_uuid}"
        if state != self.state:
            self.state, self.changed, self.pause = state, now, SHORTEST_PAUSE

    def _check_maintenance(self, node: MetalNode | None, now: float, patience: float) -> None:
        """Fail a build with its node in maintenance for `patience` seconds: its deployment would not end."""
        ours = node is not None and node.attempt_of(self.order.build) == self.order.attempt
        if node is None or not ours or not node.maintenance or node.provision_state not in DEPLOYING:
            self.maintained = None
        elif self.maintained is None:
            self.maintained = now
        elif now - self.maintained >= patience and isinstance(self.order, BuildOrdered):
            reason = node.maintenance_reason or "no reason is given"
            self.given_up = f"the node has been in maintenance for {now - self.maintained:.0f} s: {reason}"

    def rest(self) -> float:
        """Return the minimum time, in seconds, until the order's node is read again: 0, but more if this
        order has started many transitions of the node.
        """
        return (
            0.0 if self.started < MOST_STARTED else min(2.0 ** (self.started - MOST_STARTED), LONGEST_PAUSE)
        )


@dataclass(eq=False, repr=False)
class RunningOrders:
    """The orders that one agent is executing."""

    agent: str
    api: IronicApi
    longest_pause: float
    maintenance_patience: float
    clock: Clock
    builds: AgentBuilds
    right: NodeRight
    _jobs: dict[Key, OrderProgress] = field(default_factory=dict)
    # node → jobs there
    _on: defaultdict[str, set[OrderProgress]] = field(default_factory=lambda: defaultdict(set))
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def build(self, order: BuildOrdered) -> AgentReported | None:
        """Carry out an order to build, or repeat the report of one that has ended."""
        verdict = self.builds.ordered(order)
        if isinstance(verdict, AgentReported) and verdict.epoch < order.epoch:
            self.builds.forget(verdict)  # the outcome is outdated: the node had another agent since
            verdict = self.builds.ordered(order)
        if isinstance(verdict, AgentReported):
            ending = any(kind is DestroyOrdered and build == order.build for kind, build, *_ in self._jobs)
            return None if ending and verdict.outcome == "destroyed" else verdict
        outcome = await self._carry_out(order)
        if outcome is not None:
            self.builds.finished(outcome)
        return outcome

    async def destroy(self, order: DestroyOrdered) -> AgentReported | None:
        """Stop the builds that the order invalidates, and tear their node down."""
        void = self.builds.running_upto(order)
        for key in [key for key in self._jobs if key[0] is BuildOrdered and (key[1], key[2]) in void]:
            self._forget(key)
        self.builds.destroyed(order)
        return await self._carry_out(order)

    def check_node(self, uuid: str) -> None:
        """Continue the orders for this Ironic node now, because a notification of Ironic named the node."""
        for job in self._on.get(uuid, ()):
            job.woken.set()

    def check_all(self) -> None:
        """Continue all orders of this agent now, because its right to act on nodes has changed."""
        for job in self._jobs.values():
            job.pause = SHORTEST_PAUSE
            job.woken.set()

    async def _carry_out(self, order: Order) -> AgentReported | None:
        """Execute an order and return its report; None if another agent must execute it, or if another
        delivery of the order, or a later order, has replaced this one.
        """
        key = type(order), order.build, order.attempt, order.root
        loop = asyncio.get_running_loop()
        until = loop.time() + HOLD_SECONDS
        job = self._job(key, order)
        running_turn = job.turn
        lock = self._locks.setdefault(order.root, asyncio.Lock())
        while loop.time() < until:
            async with lock:  # two orders for one node must not interleave
                if self._jobs.get(key) is not job or job.turn != running_turn:
                    return None
                job.woken.clear()
                standing = self.right.standing(order.root, job.order.epoch, job.came)
                if standing == "over":
                    self._forget(key)
                    log.info(
                        "%s: %s is of another agent: build %s is ignored", self.agent, order.host, order.build
                    )
                    return None
                result = await self._advance(job) if standing == "ours" else None
                if result is not None:
                    self._forget(key)
                    return report(job.order, **asdict(result))
            if not self.right.good() and self.clock.monotonic() - job.came > NO_RIGHT_SECONDS:
                # another process of the same agent may have the right
                raise Retry(1.0, f"agent {self.agent} may not act on nodes")
            await self._pause(job)
        raise Retry(1.0, f"{order.host} takes longer than {HOLD_SECONDS:.0f} s")

    async def _advance(self, job: OrderProgress) -> steps.Say | None:
        """Read the order's node and do all steps possible now; return the result, or None if unfinished."""
        order = job.order
        step: Step = steps.Wait("it was not read yet")
        try:
            fields = await self.api.node(order.root, FIELDS)
            node = None if fields is None else node_of(fields)
            while True:
                job.saw(node, self.clock.monotonic(), self.maintenance_patience)
                step = next_step(node, order, given_up=job.given_up, writes=job.writes)
                match step:
                    case steps.Say():
                        return step
                    case steps.Wait():
                        return None
                    case steps.Close() if step.cause:
                        job.given_up = step.cause
                assert node is not None
                node = await self._do(step, node, order)
                job.refused = None
                if node is None:
                    job.started, job.pause = job.started + 1, SHORTEST_PAUSE
                    return None
        except Unavailable as away:
            log.warning("%s: %s waits: %s", self.agent, order.host, away)
            return None
        except IronicRefused as problem:
            return await self._turned_down(job, step, problem)

    async def _do(self, step: Step, node: MetalNode, order: Order) -> MetalNode | None:
        """Do a step through Ironic's API; return the changed node, or None if Ironic still works on it."""
        match step:
            case steps.Action.CLAIM if isinstance(order, BuildOrdered):
                patch = metal_node.claim(node, order)
            case steps.Close():
                patch = metal_node.close(node, order, step.cause)
            case steps.Action.RELEASE:
                patch = metal_node.release_node()
            case steps.Action():
                async with self.right.writing(order.root, order.epoch):
                    await self.api.set_provision_state(node.uuid, step.value)
                return None
            case _:
                raise ValueError(f"no step of this order: {step}")
        async with self.right.writing(order.root, order.epoch):
            return node_of(await self.api.patch_node(node.uuid, patch))

    async def _turned_down(self, job: OrderProgress, step: Step, problem: IronicRefused) -> steps.Say | None:
        """Return an order's result after Ironic refused a step, or None if the order continues."""
        busy = problem.status == 409
        again, job.refused = job.refused == step, step
        log.info("%s: %s: %s: %s", self.agent, job.order.host, step, problem)
        match step:
            case steps.Close() if not busy or again:
                job.writes = False
            case steps.Action.CLAIM if busy:
                return await self._elsewhere(job.order)
            case steps.Action.CLAIM if again:
                return steps.Say("failed", str(problem))
            case steps.Action.DEPLOY if again and not busy:
                job.given_up = str(problem)
        return None

    async def _elsewhere(self, order: Order) -> steps.Say | None:
        """Return the result `destroyed` if a later attempt of the order's build has reserved another node;
        None if not, or if Ironic does not answer.
        """
        try:
            async for page in self.api.nodes(fields=FIELDS, instance_uuid=order.build):
                for other in map(node_of, page):
                    if (other.attempt_of(order.build) or 0) > order.attempt:
                        return steps.Say("destroyed")
        except (Unavailable, IronicRefused) as problem:
            log.info("%s: %s: %s", self.agent, order.host, problem)
        return None

    def _job(self, key: Key, order: Order) -> OrderProgress:
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = OrderProgress(order, self.clock.monotonic())
            self._on[order.root].add(job)
        if order.epoch > job.order.epoch:
            job.order, job.came = order, self.clock.monotonic()
        job.turn += 1
        job.woken.set()
        return job

    def _forget(self, key: Key) -> None:
        job = self._jobs.pop(key)
        job.woken.set()
        self.builds.running.discard((job.order.build, job.order.attempt))
        jobs = self._on[job.order.root]
        jobs.discard(job)
        if not jobs:
            del self._on[job.order.root]

    async def _pause(self, job: OrderProgress) -> None:
        seconds = job.pause * self.clock.chance.uniform(0.75, 1.25)  # spread the checks
        job.pause = min(2 * job.pause, self.longest_pause)
        await asyncio.sleep(job.rest())
        await set_within(job.woken, seconds)

    def building(self) -> list[OrderProgress]:
        return [job for job in self._jobs.values() if isinstance(job.order, BuildOrdered)]
