"""A simulated agent: builds what it is ordered to, after a while, as its fault plan says, and loses power.

An order is unsettled for as long as its build runs: when the agent is killed, it comes again.
"""

import asyncio
import logging
from collections.abc import Callable
from heapq import nsmallest
from math import inf
from typing import TypeVar

from msgspec.structs import replace

from bus.agent_builds import report
from bus.build_orders import allocations_of, reshaped_mappings
from bus.claims import keeper
from bus.guests import GuestsAsked, GuestsTold, GuestTold
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.moves import MoveOrdered
from bus.protocol import Ask
from bus.resources import AllocationsFound, FindAllocations
from compute_sim.core.faults import CrashPlan, Fate, FaultPlan
from compute_sim.disk import AgentDisk
from compute_sim.guests import GuestRecord
from compute_sim.jobs import AgentJob, AgentJobs, PowerSupply

log = logging.getLogger(__name__)

NOTHING_HERE = "placement has given it nothing on this host, or gives it nothing any more"
GUESTS_A_PAGE = 500
LOST_POWER = "the agent lost power while it was building"
HANG_SECONDS = 1500.0  # less than the half hour after which RabbitMQ takes an order back from a silent reader

O = TypeVar("O", BuildOrdered, MoveOrdered)  # noqa: E741


class SimulatedAgent:
    """One agent: its orders, its guests, one power supply for all of its hosts."""

    def __init__(
        self,
        agent: str,
        faults: FaultPlan,
        crashes: CrashPlan,
        disk: AgentDisk,
        use_changed: Callable[[str], None] = lambda root: None,
        allocations: Ask[FindAllocations, AllocationsFound] | None = None,
        absent_after: float = inf,
    ) -> None:
        self.agent = agent
        self.absent_after = absent_after  # seconds without a look at the clock: then it was given up, perhaps
        self.allocations = allocations  # what placement has given whom
        self.use_changed = use_changed  # told of a host whenever a guest begins or ends there
        self.faults = faults
        self.disk = disk
        disk.builds.running.clear()  # what an earlier process was at is begun again when it is ordered again
        self.jobs = AgentJobs()
        self.power = PowerSupply(agent, crashes, self.jobs)
        self.power.changed = lambda: self._power_changed(self.power.on)
        self._home = asyncio.Event()
        self._absences = 0
        self._looked: float | None = None  # at the clock
        self._begin()

    @property
    def ready(self) -> bool:
        """There is power, and it is known which guests are its own."""
        self._look_at_the_clock()
        return self._home.is_set()

    @property
    def times_away(self) -> int:
        """So often it has lost power, or stood still: what was asked before that counts for nothing."""
        self._look_at_the_clock()
        return self.power.failed + self._absences

    async def at_home(self) -> None:
        """Returns when it is ready."""
        while not self.ready:
            await self._home.wait()

    def know_guests(self) -> None:
        """Whoever is still here is its own, or is to be told of."""
        self._home.set()

    # What it is told to do

    async def build(self, order: BuildOrdered) -> AgentReported | None:
        await self.at_home()
        if not self.disk.builds.known_to_be(order) and self.may_be_elsewhere(order):
            given = await self.as_given(order)
            await self.at_home()
            if given is None:
                return await self._over(report(order, "failed", cause=NOTHING_HERE))
            order = given
        verdict = self.disk.builds.ordered(order)
        if isinstance(verdict, AgentReported):
            await self.disk.settled()
            return verdict
        key = order.build, order.attempt
        if (
            verdict == "start"
            and not order.adopt
            and (why := self.disk.devices.refusal(key, allocations_of(order)))
        ):
            return await self._over(report(order, "failed", cause=f"the host cannot hold it: {why}"))
        if order.adopt:
            self.disk.begin(order)
            self.use_changed(order.root)
            return await self._over(report(order, "built"))
        fate = self.faults.fate(*key)
        job = self.jobs.get(order.build, ("build", order.attempt))
        if job is None:
            job = self._start(order, HANG_SECONDS if fate.kind == "hang" else fate.seconds)
        how = await self.jobs.end(job)
        if how == "handed over":
            return None
        await self.at_home()
        if not self.jobs.over(job):  # destroyed meanwhile, which was reported then
            return None
        return await self._over(self._outcome(order, fate, lost=how == "lost"))

    def _start(self, order: BuildOrdered, seconds: float) -> AgentJob:
        now = asyncio.get_running_loop().time()
        what = "build", order.attempt
        job = self.jobs.begin(AgentJob(order.build, order.attempt, what, order.root, now, now + seconds))
        self.disk.begin(order)
        self.use_changed(order.root)
        self.power.count_down()
        return job

    def may_be_elsewhere(self, order: BuildOrdered | MoveOrdered) -> bool:
        """Is it to take what this host has not, or not any more? While it was on its way the host may have
        been reshaped."""
        return self.allocations is not None and self.disk.devices.misplaced(allocations_of(order))

    async def as_given(self, order: O) -> O | None:
        """The order with what placement has given it here by now, or keeps for it; None: nothing."""
        assert self.allocations is not None
        kept = keeper(order.build, order.attempt)
        asked = FindAllocations(consumers=(order.build, kept), cell=order.cell)
        held = {one.id: one.allocations for one in (await self.allocations(asked)).consumers}
        for given in (held.get(kept, {}), held.get(order.build, {})):
            if self.disk.devices.on_root(order.root, given):
                mappings = reshaped_mappings(order.mappings, allocations_of(order), given)
                return replace(order, allocations=given, mappings=mappings)
        return None

    async def _over(self, outcome: AgentReported) -> AgentReported:
        """What is said of an attempt is known for good before it is said."""
        self.disk.finished(outcome)
        await self.disk.settled()
        return outcome

    async def destroy(self, order: DestroyOrdered) -> AgentReported:
        await self.power.there()
        outcome = self._destroy(order)
        await self.disk.settled()
        return outcome

    async def tell(self, asked: GuestsAsked) -> GuestsTold:
        """Which guests of these builds are here; or which there are at all, so many builds at a time."""
        await self.power.there()
        there = self.disk.hosted.there
        builds, more = asked.builds, False
        if not builds:
            behind = nsmallest(GUESTS_A_PAGE + 1, (build for build in there if build > asked.after))
            builds, more = tuple(behind[:GUESTS_A_PAGE]), len(behind) > GUESTS_A_PAGE
        guests = tuple(
            GuestTold(one.build, one.attempt, one.root, one.state, one.allocations)
            for build in dict.fromkeys(builds)
            for _, one in sorted(there.get(build, {}).items())
        )
        return GuestsTold(
            cell=asked.cell,
            agent=asked.agent,
            builds=asked.builds,
            guests=guests,
            reply_to=asked.reply_to,
            after=asked.after,
            more=more,
        )

    def drop(self, guest: GuestRecord) -> AgentReported:
        """Destroy this one, and no other of its build."""
        return self._destroy(
            DestroyOrdered(
                build=guest.build,
                attempt=guest.attempt,
                cell=guest.cell,
                agent=guest.agent,
                root=guest.root,
                host=guest.host,
                above=guest.attempt - 1,
            )
        )

    def _destroy(self, order: DestroyOrdered) -> AgentReported:
        outcome = self.disk.destroyed(order)
        self.jobs.destroy(order)
        self.use_changed(order.root)
        return outcome

    def _outcome(self, order: BuildOrdered, fate: Fate, *, lost: bool) -> AgentReported:
        """What failed as planned has been cleaned up after; what broke off leaves what there was."""
        if not lost and fate.kind == "built":
            return report(order, "built")
        if not lost and fate.kind != "hang":
            self.disk.remove(order.build, range(order.attempt, order.attempt + 1))
            self.use_changed(order.root)
        cause = LOST_POWER if lost else fate.cause or "the build hung"
        leftover = self.disk.holds(order)
        retry = lost or fate.kind != "abort"
        return report(order, "failed", retry=retry, cause=cause, leftover=leftover)

    # Its power supply

    def _power_changed(self, on: bool) -> None:
        if on:
            self._begin()
        else:
            self._home.clear()
            self.disk.lose_power()

    def _look_at_the_clock(self) -> None:
        """Somebody does so all the time. Where nobody did its process stood still: its hosts may have been
        taken for dead, and it begins as after a loss of power; what is under way goes on."""
        now, before = asyncio.get_running_loop().time(), self._looked
        self._looked = now
        if before is None or now - before <= self.absent_after or not self.power.on:
            return
        log.warning("%s stood still for %.1f s: it asks whose its guests are", self.agent, now - before)
        self._absences += 1
        self._power_changed(False)
        self._power_changed(True)

    def _begin(self) -> None:
        """Whose its guests are it asks before anything else; who can ask nobody believes what it knows."""
        if self.allocations is None:
            self.disk.asleep.clear()
        if self.allocations is None or not self.disk.guests:
            self.know_guests()
