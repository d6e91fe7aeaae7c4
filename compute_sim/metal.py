"""The bare-metal agent: deploys on nodes through Ironic's API, whoever serves it.

An order is unsettled while it is carried out: when the agent is killed, it comes again and goes on from what
Ironic says of the node. News of nodes only say when to look; without any the agent looks by itself.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

from bus.clock import Clock
from bus.errors import Retry, Unavailable
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered, HostReported
from bus.topics import AGENT_BUILD, AGENT_DESTROY, AGENT_REPORT, HOST_REPORTED
from bus.vocabulary import HostState
from bus.worker import Worker, every, on
from compute_sim import metal_core as core
from compute_sim.core import REMEMBERED, AgentBuilds, report
from compute_sim.metal_core import Json, MetalNode, Order, Step, next_step

log = logging.getLogger(__name__)

HOLD_SECONDS = 1500.0  # less than the half hour after which RabbitMQ takes an order back from a silent reader
SHORTEST_PAUSE = 0.1  # seconds between two looks at a node, doubled while nothing changes
LONGEST_PAUSE = 10.0
LONGEST_PAUSE_WITH_NEWS = 60.0
MOST_BEGUN = 4  # a deploy that fails and is torn down, held half-way, takes as many
HOSTS_IN_A_REPORT = 500


class NodeApi(Protocol):
    """Ironic's API. While it is away it raises bus.errors.Unavailable."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> Json | None:
        """None: there is no such node."""

    def nodes(self, *, fields: Sequence[str] | None = None, **filters: Any) -> AsyncIterator[list[Json]]:
        """Page after page of those that meet all filters."""

    async def patch_node(self, uuid: str, operations: Sequence[Json]) -> Json:
        """The node as it is then."""

    async def set_provision_state(self, uuid: str, target: str, **more: Any) -> None: ...


Heard = Callable[[str], None]
News = Callable[[Heard], Coroutine[Any, Any, None]]  # as long as it runs it names nodes that something befell
Key = tuple[type[Order], str, int, str]  # what is to be done: with which build and attempt, on which node


class _Job:
    """An order being carried out, by whoever was handed it last."""

    def __init__(self, order: Order, now: float) -> None:
        self.order = order
        self.turn = 0  # counts the deliveries: all but the last are let go
        self.woken = asyncio.Event()
        self.given_up = ""
        self.writes = True
        self.refused: Step | None = None  # what Ironic would not do the last time
        self.why_refused = ""
        self.state = ""
        self.changed = now  # when its node was last seen to be other than before
        self.begun = 0  # how often Ironic was set to work: more than once for the same is to no avail
        self.pause = SHORTEST_PAUSE

    def saw(self, node: MetalNode | None, now: float) -> None:
        state = "gone" if node is None else f"{node.provision_state} {node.instance_uuid}"
        if state != self.state:
            self.state, self.changed, self.pause = state, now, SHORTEST_PAUSE

    def rest(self) -> float:
        """For how long it is left alone whatever befalls its node: a tear-down may fail again and again."""
        return 0.0 if self.begun < MOST_BEGUN else min(2.0 ** (self.begun - MOST_BEGUN), LONGEST_PAUSE)


@dataclass(eq=False)
class _Agent:
    """One agent: the nodes it is sent to, one ledger, one way into Ironic."""

    agent: str
    cell: str
    ironic: NodeApi
    refused: type[Exception]
    period: float
    patience: float
    longest_pause: float
    clock: Clock
    ledger: AgentBuilds
    _jobs: dict[Key, _Job] = field(default_factory=dict)
    _on: defaultdict[str, set[_Job]] = field(default_factory=lambda: defaultdict(set))  # node → jobs there
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _told: dict[str, str] = field(default_factory=dict)  # the nodes that were said to be building

    # What it is told to do

    async def build(self, order: BuildOrdered) -> AgentReported | None:
        verdict = self.ledger.ordered(order)
        if isinstance(verdict, AgentReported):
            ending = any(kind is DestroyOrdered and build == order.build for kind, build, *_ in self._jobs)
            return None if ending and verdict.outcome == "destroyed" else verdict
        outcome = await self._carry_out(order)
        if outcome is not None:
            self.ledger.finished(outcome)
        return outcome

    async def destroy(self, order: DestroyOrdered) -> AgentReported | None:
        void = self.ledger.running_upto(order)
        for key in [key for key in self._jobs if key[0] is BuildOrdered and (key[1], key[2]) in void]:
            self._forget(key)
        self.ledger.destroyed(order)
        return await self._carry_out(order)

    def heard(self, uuid: str) -> None:
        """Something befell this node."""
        for job in self._on.get(uuid, ()):
            job.woken.set()

    # How it does so

    async def _carry_out(self, order: Order) -> AgentReported | None:
        """Step by step, until there is something to report; None: not for us to do any more."""
        key = type(order), order.build, order.attempt, order.root
        loop = asyncio.get_running_loop()
        until = loop.time() + HOLD_SECONDS
        job = self._job(key, order)
        turn = job.turn
        lock = self._locks.setdefault(order.root, asyncio.Lock())
        while loop.time() < until:
            async with (
                lock
            ):  # of two orders for one node neither decides by what the other is about to change
                if self._jobs.get(key) is not job or job.turn != turn:
                    return None
                job.woken.clear()
                said = await self._advance(job)
                if said is not None:
                    self._forget(key)
                    return report(order, said.outcome, cause=said.cause)
            await self._pause(job)
        raise Retry(1.0, f"{order.host} takes longer than {HOLD_SECONDS:.0f} s")

    async def _advance(self, job: _Job) -> core.Say | None:
        """Look at the node and do what can be done at once; None: there is more to do, later."""
        order = job.order
        step: Step = core.Wait("it was not read yet")
        try:
            said = await self.ironic.node(order.root, core.FIELDS)
            node = None if said is None else core.node_of(said)
            while True:
                job.saw(node, self.clock.now())
                step = next_step(node, order, given_up=job.given_up, writes=job.writes)
                match step:
                    case core.Say():
                        return step
                    case core.Wait():
                        return None
                    case core.Close() if step.cause:
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
        except self.refused as problem:
            return await self._turned_down(job, step, problem)

    async def _do(self, step: Step, node: MetalNode, order: Order) -> MetalNode | None:
        """The node as it is after a step that was done; None after one that was only begun."""
        match step:
            case core.Claim() if isinstance(order, BuildOrdered):
                patch = core.claim(node, order)
            case core.Close():
                patch = core.close(node, order, step.cause)
            case core.LetGo():
                patch = core.let_go()
            case _:
                await self.ironic.set_provision_state(node.uuid, _TARGETS[type(step)])
                return None
        return core.node_of(await self.ironic.patch_node(node.uuid, patch))

    async def _turned_down(self, job: _Job, step: Step, problem: Exception) -> core.Say | None:
        """What becomes of a step that Ironic would not do. The node is looked at again in any case.

        Busy and locked (409) pass. What is refused for another reason, and again while nothing has changed,
        is given up; but what is ours must be undone, however long that takes.
        """
        busy = getattr(problem, "status", 0) == 409
        again, job.refused = job.refused == step, step
        log.info("%s: %s: %s: %s", self.agent, job.order.host, type(step).__name__, problem)
        match step:
            case core.Close() if not busy or again:
                job.writes = False
            case core.Claim() if busy:
                return await self._elsewhere(job.order)
            case core.Claim() if again:
                return core.Say("failed", str(problem))
            case core.Deploy() if again and not busy:
                job.given_up = str(problem)
        return None

    async def _elsewhere(self, order: Order) -> core.Say | None:
        """Is another node held for this build? For a later attempt: then this order is too late."""
        try:
            async for page in self.ironic.nodes(fields=core.FIELDS, instance_uuid=order.build):
                for other in map(core.node_of, page):
                    if (other.attempt_of(order.build) or 0) > order.attempt:
                        return core.Say("destroyed")
        except (Unavailable, self.refused) as problem:
            log.info("%s: %s: %s", self.agent, order.host, problem)
        return None

    def _job(self, key: Key, order: Order) -> _Job:
        """Whoever carried it out until now is told to let go."""
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(order, self.clock.now())
            self._on[order.root].add(job)
        job.turn += 1
        job.woken.set()
        return job

    def _forget(self, key: Key) -> None:
        job = self._jobs.pop(key)
        job.woken.set()
        self.ledger.running.discard((job.order.build, job.order.attempt))
        jobs = self._on[job.order.root]
        jobs.discard(job)
        if not jobs:
            del self._on[job.order.root]

    async def _pause(self, job: _Job) -> None:
        seconds = job.pause * self.clock.chance.uniform(0.75, 1.25)  # so that not all come back at once
        job.pause = min(2 * job.pause, self.longest_pause)
        await asyncio.sleep(job.rest())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await job.woken.wait()

    # What it tells

    async def beat(self) -> Sequence[HostReported]:
        """That it is there, and where it builds. It is silent while Ironic is away: it could not build."""
        await self.ironic.node(_NOBODY, ("uuid",))
        building = Counter(job.order.root for job in self._building())
        hosts = {job.order.root: job.order.host for job in self._building()}
        states = [
            HostState(root=root, host=host, building=building[root], load=float(building[root]))
            for root, host in (self._told | hosts).items()
        ]
        self._told = hosts
        sequence = int(self.clock.now() * 1_000_000)
        return [
            HostReported(
                cell=self.cell,
                agent=self.agent,
                sequence=sequence,
                period=self.period,
                hosts=tuple(states[start : start + HOSTS_IN_A_REPORT]),
            )
            for start in range(0, len(states) or 1, HOSTS_IN_A_REPORT)
        ]

    async def progress(self) -> Sequence[AgentReported]:
        """The builds that are under way; not those in which nothing has moved for too long."""
        since = self.clock.now() - self.patience
        return [
            AgentReported(
                build=job.order.build,
                attempt=job.order.attempt,
                cell=job.order.cell,
                agent=job.order.agent,
                root=job.order.root,
                host=job.order.host,
                outcome="progress",
            )
            for job in self._building()
            if job.changed > since
        ]

    def _building(self) -> list[_Job]:
        return [job for job in self._jobs.values() if isinstance(job.order, BuildOrdered)]


_TARGETS: dict[type[Step], str] = {core.Deploy: "active", core.Undeploy: "deleted", core.Abort: "abort"}
_NOBODY = "00000000-0000-0000-0000-000000000000"


def metal_agent(
    agent: str,
    cell: str,
    ironic: NodeApi,
    refused: type[Exception],
    *,
    news: News | None = None,
    period: float = 10.0,
    progress_every: float = 30.0,
    patience: float = 3600.0,
    concurrency: int = 5000,
    clock: Clock | None = None,
    remembered: int = REMEMBERED,
) -> Worker:
    """An agent that builds on the nodes of an Ironic.

    `refused` is what that API raises when it will not do a thing; its `status` is HTTP's. `patience` is how
    long a node may stay as it is, and the conductor is still told that the build goes on.
    """
    longest_pause = LONGEST_PAUSE if news is None else LONGEST_PAUSE_WITH_NEWS
    working = _Agent(
        *(agent, cell, ironic, refused, period, patience, longest_pause),
        clock or Clock(),
        AgentBuilds(remembered),
    )
    return Worker(
        f"agent.{agent}",
        consumes=[
            on(AGENT_BUILD.at(agent=agent), working.build, emits=[AGENT_REPORT], concurrency=concurrency),
            on(AGENT_DESTROY.at(agent=agent), working.destroy, emits=[AGENT_REPORT], concurrency=concurrency),
        ],
        timers=[
            every(period, working.beat, emits=[HOST_REPORTED], at_once=True),
            every(progress_every, working.progress, emits=[AGENT_REPORT]),
        ],
        starts=[ironic.open],
        runs=[] if news is None else [partial(news, working.heard)],
        stops=[ironic.close],
    )
