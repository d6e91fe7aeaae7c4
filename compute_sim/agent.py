"""Simulates an agent: executes build orders after a delay, with planned faults and power failures.

An order stays unacknowledged while its build runs, so that it is redelivered after a crash of the agent.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import TypeVar

from msgspec.structs import replace

from bus.agent_builds import allocations_of, report, reshaped_mappings
from bus.claims import holder_consumer
from bus.guests import GuestsAsked, GuestsReported, HostsProbe, ProbedHost, ProbeResult, ReportedGuest
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered, GuestOrder
from bus.protocol import Ask
from bus.resources import AllocationsFound, FindAllocations
from compute_sim.agent_disk import AgentDisk
from compute_sim.core.faults import Fate, SimOptions
from compute_sim.driven_guests import DrivenGuests
from compute_sim.guests import AgentJob, AgentJobs, GuestRecord, PowerSupply
from compute_sim.hooks import run_hook

# Probes whether other hosts are reachable, for the scheduler's vote about a host without heartbeats.


SECONDS = 3.0  # until a host counts as not reached


@dataclass(frozen=True, slots=True)
class HostProber:
    """Probes hosts by an operator's command, else by a TCP connection to `port`. With neither, no host is
    reported as reached or unreached.
    """

    port: int = 0
    command: Sequence[str] = ()

    async def probe(self, asked: HostsProbe) -> ProbeResult:
        """Test whether other hosts are reachable, and return the result for each."""
        results = await asyncio.gather(*(self._is_reached(host) for host in asked.hosts))
        roots: dict[bool | None, list[str]] = {True: [], False: []}
        for host, is_reached in zip(asked.hosts, results, strict=True):
            roots.setdefault(is_reached, []).append(host.root)
        return ProbeResult(id=asked.id, reached=tuple(roots[True]), unreached=tuple(roots[False]))

    async def _is_reached(self, host: ProbedHost) -> bool | None:
        address = host.ip or host.host
        if self.command:
            code, _ = await run_hook(self.command, [host.host, address], SECONDS)
            return {0: True, 1: False}.get(-1 if code is None else code)
        return await _answers(address, self.port) if self.port else None


async def _answers(address: str, port: int) -> bool | None:
    """Return True if a host accepts or refuses a TCP connection, False if it does not answer, and None if its
    name has no address.
    """
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except socket.gaierror:
        return None
    except OSError:  # also a time-out
        return False
    writer.close()
    return True


log = logging.getLogger(__name__)

NOTHING_HERE = "placement has given it nothing on this host, or gives it nothing any more"
GUESTS_A_PAGE = 500
LOST_POWER = "the agent lost power while it was building"
HANG_SECONDS = 1500.0  # less than the half hour after which RabbitMQ redelivers an unacknowledged order

O = TypeVar("O", bound=GuestOrder)  # noqa: E741


class SimulatedAgent:
    """One simulated agent with its orders and guests; all its hosts share one simulated power supply."""

    def __init__(
        self,
        agent: str,
        options: SimOptions,
        disk: AgentDisk,
        use_changed: Callable[[str], None] = lambda root: None,
        allocations: Ask[FindAllocations, AllocationsFound] | None = None,
        driven: DrivenGuests | None = None,
    ) -> None:
        self.agent = agent
        self.driven = driven or DrivenGuests()
        self.allocations = allocations  # queries placement for the allocations of consumers
        self.use_changed = use_changed  # called with a host whenever a guest starts or ends there
        self.absent_after = options.absent_after
        self.faults = options.faults
        self._prober = HostProber(options.probe_port, options.probe_command)
        self.disk = disk
        # builds of an earlier process start again when their orders are redelivered
        disk.builds.running.clear()
        self.jobs = AgentJobs()
        self.power = PowerSupply(agent, options.crashes, self.jobs)
        self.power.changed = lambda: self._power_changed(self.power.on)
        self._home = asyncio.Event()
        self._absences = 0
        self._last_active: float | None = None  # monotonic time of the last activity
        self._begin()

    @property
    def ready(self) -> bool:
        """Return True if the agent has power, and placement has confirmed which guests the agent must run."""
        self._check_clock()
        return self._home.is_set()

    @property
    def absences(self) -> int:
        """Return how often the agent has lost power or stalled. Each time, placement must confirm again which
        guests the agent must run.
        """
        self._check_clock()
        return self.power.failed + self._absences

    async def until_ready(self) -> None:
        """Wait until the agent knows which of its guests it may run."""
        while not self.ready:
            await self._home.wait()

    def confirm_guests(self) -> None:
        """Record that placement has confirmed which guests the agent must run."""
        self._home.set()

    async def build(self, order: BuildOrdered) -> AgentReported | None:
        """Build a guest; return the report, or None if the order was overtaken by another."""
        await self.until_ready()
        async with self.driven.turn(order.build, order.root):
            return await self._build(order)

    async def _build(self, order: BuildOrdered) -> AgentReported | None:
        if self.may_be_reshaped(order) and not self.disk.builds.must_not_start(order):
            given = await self.with_current_allocations(order)
            await self.until_ready()
            if given is None:
                return await self._store_outcome(report(order, "failed", cause=NOTHING_HERE))
            order = given
        verdict = self.disk.builds.ordered(order)
        if isinstance(verdict, AgentReported):
            await self.disk.settled()
            return verdict
        key = order.build, order.attempt
        if order.adopt:
            self.disk.begin(order)
            self.use_changed(order.root)
            return await self._store_outcome(report(order, "built"))
        if verdict == "start" and (why := self.disk.devices.refusal(key, allocations_of(order))):
            return await self._store_outcome(report(order, "failed", cause=f"the host cannot hold it: {why}"))
        fate = self.faults.fate(*key)
        job = self.jobs.get(order.build, ("build", order.attempt))
        if job is None:
            job = self._start(order, HANG_SECONDS if fate.kind == "hang" else fate.seconds)
        if self.driven.of(order.root) is not None:
            return await self._build_with_driver(order, job)
        how = await self.jobs.end(job)
        if how == "handed over":
            return None
        await self.until_ready()
        if not self.jobs.finish(job):  # destroyed meanwhile, as `destroy` has reported
            return None
        return await self._store_outcome(self._outcome(order, fate, lost=how == "lost"))

    async def _build_with_driver(self, order: BuildOrdered, job: AgentJob) -> AgentReported | None:
        guest = self.disk.guest(order.build, order.attempt)
        assert guest is not None, f"the build of {order.build} was started without a guest"
        fate = await self.driven.create(order, guest, job)
        if not self.jobs.finish(job) or fate is None:  # destroyed meanwhile, as `destroy` reports
            return None
        return await self._store_outcome(self._outcome(order, fate, lost=False))

    def _start(self, order: BuildOrdered, seconds: float) -> AgentJob:
        now = asyncio.get_running_loop().time()
        work = "build", order.attempt
        job = self.jobs.begin(AgentJob(order.build, order.attempt, work, order.root, now, now + seconds))
        self.disk.begin(order)
        self.use_changed(order.root)
        self.power.count_down()
        return job

    def may_be_reshaped(self, order: GuestOrder) -> bool:
        """Return True if the order names a provider that was removed from its host, or a resource class that
        the provider lacks: a reshape may have moved the allocations after the order was sent.
        """
        return self.allocations is not None and self.disk.devices.misplaced(allocations_of(order))

    async def with_current_allocations(self, order: O) -> O | None:
        """Return the order with the present allocations of its guest, read from placement; None if the guest
        has no allocations on the order's host.
        """
        assert self.allocations is not None
        holder = holder_consumer(order.build, order.attempt)
        asked = FindAllocations(consumers=(order.build, holder), cell=order.cell)
        held = {consumer.id: consumer.allocations for consumer in (await self.allocations(asked)).consumers}
        for given in (held.get(holder, {}), held.get(order.build, {})):
            if self.disk.devices.on_root(order.root, given):
                mappings = reshaped_mappings(order.mappings, allocations_of(order), given)
                return replace(order, allocations=given, mappings=mappings)
        return None

    async def _store_outcome(self, outcome: AgentReported) -> AgentReported:
        self.disk.finished(outcome)
        await self.disk.settled()
        return outcome

    async def destroy(self, order: DestroyOrdered) -> AgentReported:
        """Stop the builds and destroy the guests of the named attempts, and report it."""
        await self.power.there()
        self.jobs.destroy(order)
        async with self.driven.turn(order.build, order.root):
            attempts = range(order.above + 1, order.attempt + 1)
            here = self.disk.hosted.there.get(order.build, {}).items()
            guests = [guest for attempt, guest in here if attempt in attempts]
            await self.driven.stop_within(order.grace, guests)
            await self.driven.destroy(order, guests)
            outcome = self._destroy(order)
        await self.disk.settled()
        return outcome

    async def report_guests(self, asked: GuestsAsked) -> GuestsReported:
        """Return the guests of the requested builds or, if no builds are requested, a page of all guests. If
        the request is to probe other hosts, return only which hosts were reached, and no guests.
        """
        await self.power.there()
        if asked.probe is not None:
            probed = await self._prober.probe(asked.probe)
            return GuestsReported(
                cell=asked.cell, agent=asked.agent, builds=(), reply_to=asked.reply_to, probed=probed
            )
        by_build = self.disk.hosted.there
        builds, more = asked.builds, False
        if not builds:
            behind = nsmallest(GUESTS_A_PAGE + 1, (build for build in by_build if build > asked.after))
            builds, more = tuple(behind[:GUESTS_A_PAGE]), len(behind) > GUESTS_A_PAGE
        guests = tuple(
            ReportedGuest(guest.build, guest.attempt, guest.root, guest.state, guest.allocations)
            for build in dict.fromkeys(builds)
            for _, guest in sorted(by_build.get(build, {}).items())
        )
        return GuestsReported(
            cell=asked.cell,
            agent=asked.agent,
            builds=asked.builds,
            guests=guests,
            reply_to=asked.reply_to,
            after=asked.after,
            more=more,
        )

    def drop(self, guest: GuestRecord) -> AgentReported:
        """Destroy this guest, but no guest of another attempt of its build; return the report to send."""
        return self._destroy(DestroyOrdered(**guest.address, above=guest.attempt - 1))

    def _destroy(self, order: DestroyOrdered) -> AgentReported:
        outcome = self.disk.destroyed(order)
        self.jobs.destroy(order)
        self.use_changed(order.root)
        return outcome

    def _outcome(self, order: BuildOrdered, fate: Fate, *, lost: bool) -> AgentReported:
        if not lost and fate.kind == "built":
            return report(order, "built")
        if not lost and fate.kind != "hang":
            if (guest := self.disk.guest(order.build, order.attempt)) is not None:
                self.disk.lose(guest)
            self.use_changed(order.root)
        cause = LOST_POWER if lost else fate.cause or "the build hung"
        leftover = self.disk.guest(order.build, order.attempt) is not None  # of an interrupted build
        return report(order, "failed", retry=lost or fate.kind != "abort", cause=cause, leftover=leftover)

    def _power_changed(self, on: bool) -> None:
        if on:
            self._begin()
        else:
            self._home.clear()
            self.disk.lose_power()

    def _check_clock(self) -> None:
        # If the process stalled, other hosts may have started its guests: it restarts as after a power
        # failure, but running jobs continue.
        now, before = asyncio.get_running_loop().time(), self._last_active
        self._last_active = now
        if before is None or now - before <= self.absent_after or not self.power.on:
            return
        log.warning(
            "%s was paused for %.1f s: it asks placement for the owners of its guests",
            self.agent,
            now - before,
        )
        self._absences += 1
        self._power_changed(False)
        self._power_changed(True)

    def _begin(self) -> None:
        # Without a query to placement, the agent must run all guests.
        if self.allocations is None:
            self.disk.asleep.clear()
        if self.allocations is None or not self.disk.guests:
            self.confirm_guests()
