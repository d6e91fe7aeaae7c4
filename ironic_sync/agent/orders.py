"""Orders being carried out on nodes, each step by step, through Ironic's API.

An order is unsettled while it is carried out: when the agent is killed, it comes again and goes on from what
Ironic says of the node. News of nodes only say when to look; without any the agent looks by itself.
"""

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from bus.agent_builds import AgentBuilds, report
from bus.clock import Clock
from bus.errors import Retry, Unavailable
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from ironic_sync.access import IronicRefused
from ironic_sync.agent.core import instance, steps
from ironic_sync.agent.core.node import FIELDS, MetalNode, node_of
from ironic_sync.agent.core.steps import Order, Step, next_step
from ironic_sync.agent.lease import ActingRight, Unshared
from ironic_sync.api import IronicApi
from ironic_sync.core.states import DEPLOYING

log = logging.getLogger(__name__)

HOLD_SECONDS = 1500.0  # less than the half hour after which RabbitMQ takes an order back from a silent reader
NO_LEASE_SECONDS = 5.0  # for which an order is held without a right to act
SHORTEST_PAUSE = 0.1  # seconds between two looks at a node, doubled while nothing changes
LONGEST_PAUSE = 10.0
MOST_BEGUN = 4  # a deploy that fails and is torn down, held half-way, takes as many

Key = tuple[type[Order], str, int, str]  # what is to be done: with which build and attempt, on which node


class OrderProgress:
    """An order being carried out, by whoever was handed it last."""

    def __init__(self, order: Order, now: float) -> None:
        self.order = order
        self.came = now
        self.turn = 0  # counts the deliveries: all but the last are let go
        self.woken = asyncio.Event()
        self.given_up = ""
        self.writes = True
        self.refused: Step | None = None  # what Ironic would not do the last time
        self.state = ""
        self.changed = now  # when its node was last seen to be other than before
        self.maintained: float | None = None  # since when its node is in maintenance, and not deployed yet
        self.begun = 0  # how often Ironic was set to work: more than once for the same is to no avail
        self.pause = SHORTEST_PAUSE

    def ordered_anew(self, order: Order, now: float) -> None:
        """The same, under an epoch that may be another."""
        if order.epoch > self.order.epoch:
            self.order, self.came = order, now

    def saw(self, node: MetalNode | None, now: float, maintenance_patience: float) -> None:
        """`now` is a monotonic clock's."""
        self._look_at_maintenance(node, now, maintenance_patience)
        state = "gone" if node is None else f"{node.provision_state} {node.instance_uuid}"
        if state != self.state:
            self.state, self.changed, self.pause = state, now, SHORTEST_PAUSE

    def _look_at_maintenance(self, node: MetalNode | None, now: float, patience: float) -> None:
        """Ironic itself waits without end for a node in maintenance to call back."""
        ours = node is not None and node.attempt_of(self.order.build) == self.order.attempt
        if node is None or not ours or not node.maintenance or node.provision_state not in DEPLOYING:
            self.maintained = None
        elif self.maintained is None:
            self.maintained = now
        elif now - self.maintained >= patience and isinstance(self.order, BuildOrdered):
            reason = node.maintenance_reason or "no reason is given"
            self.given_up = f"the node has been in maintenance for {now - self.maintained:.0f} s: {reason}"

    def rest(self) -> float:
        """For how long it is left alone whatever befalls its node: a tear-down may fail again and again."""
        return 0.0 if self.begun < MOST_BEGUN else min(2.0 ** (self.begun - MOST_BEGUN), LONGEST_PAUSE)


@dataclass(eq=False)
class OrdersInHand:
    """What one agent was ordered to do, and how far each order is."""

    agent: str
    api: IronicApi
    longest_pause: float
    maintenance_patience: float
    clock: Clock
    builds: AgentBuilds
    right: ActingRight = field(default_factory=Unshared)
    _jobs: dict[Key, OrderProgress] = field(default_factory=dict)
    _on: defaultdict[str, set[OrderProgress]] = field(
        default_factory=lambda: defaultdict(set)
    )  # node → jobs there
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    # What it is told to do

    async def build(self, order: BuildOrdered) -> AgentReported | None:
        verdict = self.builds.ordered(order)
        if isinstance(verdict, AgentReported) and verdict.epoch < order.epoch:
            self.builds.forget(verdict)  # the node was another's meanwhile
            verdict = self.builds.ordered(order)
        if isinstance(verdict, AgentReported):
            ending = any(kind is DestroyOrdered and build == order.build for kind, build, *_ in self._jobs)
            return None if ending and verdict.outcome == "destroyed" else verdict
        outcome = await self._carry_out(order)
        if outcome is not None:
            self.builds.finished(outcome)
        return outcome

    async def destroy(self, order: DestroyOrdered) -> AgentReported | None:
        void = self.builds.running_upto(order)
        for key in [key for key in self._jobs if key[0] is BuildOrdered and (key[1], key[2]) in void]:
            self._forget(key)
        self.builds.destroyed(order)
        return await self._carry_out(order)

    def heard(self, uuid: str) -> None:
        """Something befell this node."""
        for job in self._on.get(uuid, ()):
            job.woken.set()

    def look_at_all(self) -> None:
        """What we may do is not what it was."""
        for job in self._jobs.values():
            job.pause = SHORTEST_PAUSE
            job.woken.set()

    # How it does so

    async def _carry_out(self, order: Order) -> AgentReported | None:
        """Step by step, until there is something to report; None: not for us to do any more.

        On a node that we may not act on nothing is done: not now, and never again once it is another's, who
        is told to do what is still to be done.
        """
        key = type(order), order.build, order.attempt, order.root
        loop = asyncio.get_running_loop()
        until = loop.time() + HOLD_SECONDS
        job = self._job(key, order)
        turn = job.turn
        lock = self._locks.setdefault(order.root, asyncio.Lock())
        while loop.time() < until:
            async with lock:  # of two orders for one node neither decides by what the other may change
                if self._jobs.get(key) is not job or job.turn != turn:
                    return None
                job.woken.clear()
                standing = self.right.standing(order.root, job.order.epoch, job.came)
                if standing == "over":
                    self._forget(key)
                    log.info(
                        "%s: %s is another's: build %s is not for us", self.agent, order.host, order.build
                    )
                    return None
                said = await self._advance(job) if standing == "ours" else None
                if said is not None:
                    self._forget(key)
                    return report(
                        job.order, said.outcome, cause=said.cause, retry=said.retry, leftover=said.leftover
                    )
            if not self.right.good() and self.clock.monotonic() - job.came > NO_LEASE_SECONDS:
                raise Retry(
                    1.0, f"agent {self.agent} has no lease"
                )  # another process of its name may have it
            await self._pause(job)
        raise Retry(1.0, f"{order.host} takes longer than {HOLD_SECONDS:.0f} s")

    async def _advance(self, job: OrderProgress) -> steps.Say | None:
        """Look at the node and do what can be done at once; None: there is more to do, later."""
        order = job.order
        step: Step = steps.Wait("it was not read yet")
        try:
            said = await self.api.node(order.root, FIELDS)
            node = None if said is None else node_of(said)
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
                    job.begun, job.pause = job.begun + 1, SHORTEST_PAUSE
                    return None
        except Unavailable as away:
            log.warning("%s: %s waits: %s", self.agent, order.host, away)
            return None
        except IronicRefused as problem:
            return await self._turned_down(job, step, problem)

    async def _do(self, step: Step, node: MetalNode, order: Order) -> MetalNode | None:
        """The node as it is after a step that was done; None after one that was only begun."""
        match step:
            case steps.Claim() if isinstance(order, BuildOrdered):
                patch = instance.claim(node, order)
            case steps.Close():
                patch = instance.close(node, order, step.cause)
            case steps.LetGo():
                patch = instance.let_go()
            case _:
                async with self.right.writing(order.root, order.epoch):
                    await self.api.set_provision_state(node.uuid, _TARGETS[type(step)])
                return None
        async with self.right.writing(order.root, order.epoch):
            return node_of(await self.api.patch_node(node.uuid, patch))

    async def _turned_down(self, job: OrderProgress, step: Step, problem: IronicRefused) -> steps.Say | None:
        """What becomes of a step that Ironic would not do. The node is looked at again in any case.

        Busy and locked (409) pass. What is refused for another reason, and again while nothing has changed,
        is given up; but what is ours must be undone, however long that takes.
        """
        busy = problem.status == 409
        again, job.refused = job.refused == step, step
        log.info("%s: %s: %s: %s", self.agent, job.order.host, type(step).__name__, problem)
        match step:
            case steps.Close() if not busy or again:
                job.writes = False
            case steps.Claim() if busy:
                return await self._elsewhere(job.order)
            case steps.Claim() if again:
                return steps.Say("failed", str(problem))
            case steps.Deploy() if again and not busy:
                job.given_up = str(problem)
        return None

    async def _elsewhere(self, order: Order) -> steps.Say | None:
        """Is another node held for this build? For a later attempt: then this order is too late."""
        try:
            async for page in self.api.nodes(fields=FIELDS, instance_uuid=order.build):
                for other in map(node_of, page):
                    if (other.attempt_of(order.build) or 0) > order.attempt:
                        return steps.Say("destroyed")
        except (Unavailable, IronicRefused) as problem:
            log.info("%s: %s: %s", self.agent, order.host, problem)
        return None

    def _job(self, key: Key, order: Order) -> OrderProgress:
        """Whoever carried it out until now is told to let go."""
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = OrderProgress(order, self.clock.monotonic())
            self._on[order.root].add(job)
        job.ordered_anew(order, self.clock.monotonic())
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
        seconds = job.pause * self.clock.chance.uniform(0.75, 1.25)  # so that not all come back at once
        job.pause = min(2 * job.pause, self.longest_pause)
        await asyncio.sleep(job.rest())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await job.woken.wait()

    # What is under way

    def building(self) -> list[OrderProgress]:
        return [job for job in self._jobs.values() if isinstance(job.order, BuildOrdered)]


_TARGETS: dict[type[Step], str] = {steps.Deploy: "active", steps.Undeploy: "deleted", steps.Abort: "abort"}
