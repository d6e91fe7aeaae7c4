"""Sends the reports of a simulated agent: heartbeats of its hosts, and their inventories."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import inf

from msgspec.structs import replace

from bus.claims import holder_consumer
from bus.clock import Clock, ReportSequence
from bus.errors import Unavailable
from bus.ironic import UNKNOWN_TIME, NodeChanged
from bus.messages import HostReported, InventoryReported
from bus.protocol import Ask
from bus.reports import HostState, ProviderReport, Reshaping
from bus.resources import Consumer, FindAllocations, FindProviders, Provider, ProvidersFound
from bus.vocabulary import Allocations, portions
from compute_sim.agent import SimulatedAgent
from compute_sim.agent_disk import AgentDisk
from compute_sim.core.device_book import fits_tree, reshaping
from compute_sim.core.drivers import build_tree
from compute_sim.core.faults import SimOptions, draw
from compute_sim.core.provider_tree import ProviderTree, TreeProvider, answered, differences
from compute_sim.extension import AgentPart
from compute_sim.guest_driver import GuestDriver
from compute_sim.guests import GuestRecord, HostGuests
from compute_sim.machines import SimAgent, SimHost

# Holds the provider trees of an agent's hosts, and compares them with placement.


log = logging.getLogger(__name__)

MOST_IGNORED_REPORTS = 3  # after so many failed reports an error is logged
_COMPARED = (  # the fields of a provider that decide whether its host is reported again
    *("id", "name", "parent", "inventories", "traits", "aggregates", "cell", "agent", "zone", "host", "gone"),
    *("kept_classes", "kept_traits", "kept_aggregates"),
)


class HostTrees:
    """The provider trees of all hosts of an agent, without the bare-metal nodes of Ironic."""

    def __init__(self, agent: SimAgent, disk: AgentDisk) -> None:
        self.cell, self.agent = agent.cell, agent.agent
        self._hosts = {host.root: host for host in agent.hosts if not host.metal}
        self._disk = disk
        self._devices = disk.devices
        self._pools: dict[str, None] = {}  # providers of shared pools that guests use
        self._stored: dict[str, tuple[TreeProvider, ...]] = {}
        self._trees: dict[str, ProviderTree] = {}
        self._reported: dict[str, int] = {}  # root → sequence of its last report
        self._newest_taken = -1  # the highest sequence of this agent's reports in placement at the last check
        self._not_taken: dict[str, int] = {}  # root → consecutive checks in which placement lacked the report
        self._alike: dict[str, list[Provider]] = {}  # root → placement's last answer that equalled the tree
        # roots with a changed tree or guests since the last check of allocations
        self._to_fit: dict[str, None] = {}
        for root in self._hosts:
            self._rebuild_tree(root)

    @property
    def roots(self) -> Sequence[str]:
        return tuple(self._hosts)

    def report(self, root: str, sequence: int) -> tuple[tuple[ProviderReport, ...], Reshaping | None]:
        """Return a host's provider tree as report number `sequence`, and the reshape to report with it (None:
        no allocations move).
        """
        self._reported[root] = sequence
        return self._trees[root].report(), self._reshaping(root)

    def _reshaping(self, root: str) -> Reshaping | None:
        hosted = self._disk.hosted.of(root)
        guests = [((guest.build, guest.attempt), guest.allocations) for guest in hosted]
        return reshaping(self._stored.get(root, ()), self._trees[root], guests)

    def use_changed(self, root: str) -> None:
        """Record that a host's guests changed, so that their allocations are checked."""
        if root in self._hosts:
            self._to_fit[root] = None

    def compare(
        self, providers: Iterable[Provider], owners: Mapping[str, Provider], read_at: Callable[[str], int]
    ) -> Iterator[tuple[str, bool]]:
        """Compare placement's `providers` with the hosts' trees; yield each host's root, and whether to
        report the host. `owners`: the hosts' root providers in placement, by id. Hosts reported with a
        sequence above `read_at(root)` are not compared: `providers` may be older than the report.
        """
        answers: dict[str, list[Provider]] = {}
        for provider in providers:
            answers.setdefault(provider.root, []).append(provider)
        coming = self._still_coming(owners)
        coming |= {root for root, sequence in self._reported.items() if sequence > read_at(root)}
        for root, host in self._hosts.items():
            yield root, root not in coming and self._differs(host, owners.get(root), answers.get(root, []))

    def _differs(self, host: SimHost, owner: Provider | None, answer: list[Provider]) -> bool:
        root = host.root
        alike = self._alike.get(root)
        matches = alike is not None and [*map(_but_for_use, alike)] == [*map(_but_for_use, answer)]
        if matches and self._was_applied(root, owner):
            return False
        self._alike.pop(root, None)
        first = root not in self._stored
        self._stored[root] = answered(answer).get(root, ())
        self._rebuild_tree(root)
        found = [*_of_owner(owner, host, self.cell, self.agent)]
        unpublished = first or not self._was_applied(root, owner)
        found += differences(self._stored[root], self._trees[root], closed_too=unpublished)
        if moves := self._reshaping(root):
            found.append(f"the allocations of {len(moves.guests)} guests are on other providers")
        if found:
            log.info("%s is reported: %s", host.host, "; ".join(found[:20]))
        else:
            tree = self._trees[root]
            has = {now.id: now.inventories.keys() for now in tree.providers}
            # If placement has classes that the tree lacks, their allocations may still have to move.
            if all(was.id in has and was.inventories.keys() <= has[was.id] for was in self._stored[root]):
                self._alike[root] = answer
        self._note_taken(host, owner)
        return bool(found)

    def _still_coming(self, owners: Mapping[str, Provider]) -> set[str]:
        # While placement applies reports, a repeated report would only wait behind the first report.
        us = (self.cell, self.agent)
        ours = [owner.sequence for owner in owners.values() if (owner.cell, owner.agent) == us]
        newest, before = max(ours, default=-1), self._newest_taken
        self._newest_taken = newest
        if newest <= before:
            return set()
        later = (root for root, sequence in self._reported.items() if sequence > newest)
        return {root for root in later if not self._was_applied(root, owners.get(root))}

    def misplaced(self) -> list[GuestRecord]:
        """Return guests with recorded allocations of providers or resource classes that their host's tree
        lacks, except guests on hosts with a pending reshape.
        """
        found = []
        for root in [root for root in self._to_fit if root in self._stored]:
            tree, guests = self._trees[root], self._disk.hosted.of(root)
            wrong = [guest for guest in guests if not fits_tree(guest.allocations, tree, self._pools)]
            if not wrong:
                del self._to_fit[root]
            elif self._reshaping(root) is None:
                found += wrong
        return found

    def settle(self, guests: Iterable[GuestRecord], found: Iterable[Consumer]) -> None:
        """Replace the recorded allocations of guests by the allocations of their consumers in placement,
        `found`; guests without allocations there get an empty record.
        """
        held = {consumer.id: consumer.allocations for consumer in found}
        for guest in filter(self._disk.hosted.is_there, guests):
            tree = self._trees[guest.root]
            known = (held.get(holder_consumer(guest.build, guest.attempt), {}), held.get(guest.build, {}))
            now: Allocations = next((held for held in known if any(map(tree.by_id, held))), {})
            if now == guest.allocations:  # so the provider that the tree lacks is a shared pool
                self._pools.update(dict.fromkeys(pool for pool in now if tree.by_id(pool) is None))
                continue
            log.info("%s on %s: its allocations belong to other providers", guest.build, guest.host)
            self._disk.move(guest, now)

    def _rebuild_tree(self, root: str) -> None:
        host, stored = self._hosts[root], self._stored.get(root, ())
        tree = build_tree(root, host.host, host.all_drivers, stored, disabled=bool(host.disabled))
        self._trees[root] = tree
        self._to_fit[root] = None
        moves = self._reshaping(root)
        self._devices.set_tree(tree, {move.provider for move in moves.moves} if moves else ())

    def _was_applied(self, root: str, owner: Provider | None) -> bool:
        sequence = self._reported.get(root, -1)
        return sequence < 0 or (owner is not None and owner.sequence >= sequence)

    def _note_taken(self, host: SimHost, owner: Provider | None) -> None:
        # Placement dead-letters a refused report, so the agent only finds the report missing.
        if self._was_applied(host.root, owner):
            self._not_taken.pop(host.root, None)
            return
        often = self._not_taken[host.root] = self._not_taken.get(host.root, 0) + 1
        if often >= MOST_IGNORED_REPORTS:
            text = "placement has accepted none of the last %d reports of %s: see `berth system dead list`"
            log.error(text, often, host.host)


def _but_for_use(provider: Provider) -> tuple[object, ...]:
    return tuple(getattr(provider, name) for name in _COMPARED)


def _of_owner(owner: Provider | None, host: SimHost, cell: str, agent: str) -> Iterable[str]:
    if owner is None:
        yield "placement does not know it"
    elif owner.gone:
        yield "placement has it as deleted"
    elif owner.label_sources.reported != host.labels:
        yield f"placement has it with the labels {owner.label_sources.reported}, not {dict(host.labels)}"
    elif (owner.cell, owner.agent, owner.zone, owner.host) != (cell, agent, host.zone, host.host):
        yield f"placement has it as {owner.host} of {owner.agent or 'no agent'} in {owner.cell or 'no cell'}"


HOSTS_IN_A_REPORT = 500
PROVIDERS_A_QUESTION = 250
PAGE_GAP = 2.0  # seconds between pages of a check that is not urgent, as claims wait behind them
LEISURE = 3.0  # least pause after reading a page, as a multiple of its duration
HOSTS_AT_A_STRETCH = 50  # compared before other tasks may run
STRETCH_GAP = 0.05  # seconds between stretches of a check that is not urgent
HOSTS_IN_A_BEAT = 250  # a receiver does nothing else while it handles a heartbeat
HYPERVISOR_VERSION = 8_002_000  # 8.2.0, in libvirt's format
GUESTS_A_QUESTION = 250
RESHAPE_GAP = 1.0  # after a report that moves allocations, until its effect is checked
STARTING_SECONDS = 10.0  # placement may be starting too
FIRST_GAP = 10.0  # first interval between announcements, doubled each time: placement may not be running yet


@dataclass
class InventoryCheck:
    """A comparison of all hosts of an agent with placement, in progress."""

    is_urgent: bool  # complete it immediately
    sequences: dict[str, int] = field(default_factory=dict)  # root → `last` when its first page was read
    last: int = 0  # the report sequence number drawn just before the last page was read
    complete: bool = False  # the last page was read
    after: str = ""  # the last provider read
    due: float = 0.0  # when to read the next page
    found: list[Provider] = field(default_factory=list)

    def read_at(self, root: str) -> int:
        """Return the report sequence number drawn just before a host's providers were read. The read
        providers may lack reports with higher numbers.
        """
        return self.sequences.get(root, self.last)


class HostReports:
    """Makes an agent's heartbeats and inventory reports.

    Without `providers`, a query of placement's providers, the inventories of all hosts are reported
    repeatedly; with the query, only inventories that differ from placement.
    """

    def __init__(
        self,
        agent: SimAgent,
        does: SimulatedAgent,
        trees: HostTrees,
        options: SimOptions,
        clock: Clock,
        providers: Ask[FindProviders, ProvidersFound] | None,
        parts: Sequence[AgentPart] = (),
    ) -> None:
        self._parts = parts
        self.agent, self.cell = agent.agent, agent.cell
        self.hosts = {host.root: host for host in agent.hosts}
        self.period = options.period
        self.announce_every = options.announce_every
        self._version = options.version
        self.clock = clock
        self._does = does
        self._trees = trees
        self._crashes = 0  # power failures noticed
        self._to_announce: dict[str, None] = {}
        self._gap = FIRST_GAP
        self._next_check = 0.0
        self._check: InventoryCheck | None = None
        self._is_urgent = True  # the next check: after a start, a power failure and a reshape
        self._run = clock.uuid()
        self._sequence = ReportSequence(clock)
        self._providers = providers
        # root → the values from which the host's last state was computed, and the state
        self._states: dict[str, tuple[object, HostState]] = {}
        self._reshaped: set[str] = set()  # roots with a reported reshape
        self._started = clock.monotonic()
        self._shares = [*portions(self.hosts, HOSTS_IN_A_BEAT)]
        self._turns = cycle(self._shares)
        self._reported_absences = -1  # the number of absences at the last complete heartbeat

    @property
    def beat_every(self) -> float:
        """Return the seconds between heartbeats. Each heartbeat covers a part of the hosts, to be small."""
        return self.period / max(1, len(self._shares))

    async def beat(self) -> Sequence[HostReported]:
        """Return a heartbeat of the next part of the hosts; after a power failure or stall, of all hosts."""
        if not self._does.ready or not self._shares:
            return []
        if self._reported_absences != (away := self._does.absences):
            self._reported_absences, shares = away, self._shares
        else:
            shares = [next(self._turns)]
        sequence = self._sequence.next()
        return [
            HostReported(
                cell=self.cell,
                agent=self.agent,
                sequence=sequence,
                run=self._run,
                period=self.period,
                hosts=tuple(self._state(self.hosts[root]) for root in roots),
            )
            for roots in shares
        ]

    async def announce(self) -> Sequence[InventoryReported | NodeChanged]:
        """Return the next inventory reports, at most 500 in all: of hosts that differed from placement in the
        last check, and of bare-metal nodes.
        """
        if not self._does.ready:
            return []
        now = self.clock.monotonic()
        if self._crashes != self._does.power.failed:
            self._crashes, self._gap = self._does.power.failed, FIRST_GAP
            self._check, self._next_check, self._is_urgent = None, 0.0, True
        if self._check is None and now >= self._next_check:
            self._check = InventoryCheck(self._is_urgent)
            self._next_check, self._is_urgent = inf, False
        if self._check is not None and now >= self._check.due and not self._to_announce:
            try:
                await self._continue(self._check)
            except Unavailable as away:
                if now - self._started > STARTING_SECONDS:
                    raise
                log.info("agent %s: placement is not there yet: %s", self.agent, away)
                return []
            if not self._does.ready:  # the process stalled meanwhile
                return []
        sequence = self._sequence.next()
        chunk = [*islice(self._to_announce, HOSTS_IN_A_REPORT)]
        for root in chunk:
            del self._to_announce[root]
        return [self._report_of(self.hosts[root], sequence) for root in chunk]

    async def _continue(self, check: InventoryCheck) -> None:
        """Read the next page of the hosts' providers in placement; after the last page, record which hosts to
        report, and when the next check begins.
        """
        if self._providers is None:
            differing = list(self.hosts)
        elif not await self._read_page(self._providers, check):
            return
        else:
            differing = await self._differing_hosts(self._providers, check)
        self._check = None
        self._to_announce.update(dict.fromkeys(differing))
        self._next_check = min(self._next_check, self.clock.monotonic() + self._gap)
        self._gap = min(2 * self._gap, self.announce_every)

    async def _read_page(self, ask: Ask[FindProviders, ProvidersFound], check: InventoryCheck) -> bool:
        """Read a page of providers, in an urgent check all pages; return whether the last page was read."""
        more = bool(self._trees.roots) and not check.complete
        while more:
            check.last = self._sequence.next()
            asked = FindProviders(
                parts=("inventories", "traits", "aggregates", "owner"),
                agents=(self.agent,),
                after=check.after,
                limit=PROVIDERS_A_QUESTION,
                cell=self.cell,
            )
            began = self.clock.monotonic()
            page = (await ask(asked)).providers
            check.found += page
            for provider in page:
                check.sequences.setdefault(provider.root, check.last)
            check.after, more = max((each.id for each in page), default=""), len(page) == PROVIDERS_A_QUESTION
            if more and not check.is_urgent:
                now = self.clock.monotonic()
                check.due = now + max(PAGE_GAP, LEISURE * (now - began))
                return False
        check.complete = True
        return True

    async def _differing_hosts(
        self, ask: Ask[FindProviders, ProvidersFound], check: InventoryCheck
    ) -> list[str]:
        # The next reports must get higher sequences than all reports that placement has applied.
        metal = [root for root, host in self.hosts.items() if host.metal]
        owners = {provider.id: provider for provider in check.found if provider.id == provider.root}
        strange = [root for root in self._trees.roots if root not in owners]
        for some in portions(strange, HOSTS_IN_A_REPORT):
            answer = await ask(FindProviders(ids=some, parts=("owner",), cell=self.cell))
            owners.update((provider.id, provider) for provider in answer.providers)
        for owner in owners.values():
            self._sequence.follow(owner.sequence)
        differing = []
        for index, (root, differs) in enumerate(self._trees.compare(check.found, owners, check.read_at), 1):
            if differs:
                differing.append(root)
            if index % HOSTS_AT_A_STRETCH == 0:
                await asyncio.sleep(0 if check.is_urgent else STRETCH_GAP)
        await self._settle()
        return metal + differing

    async def _settle(self) -> None:
        # Placement moved allocations when it applied a reshape: update this agent's record of them.
        if (allocations := self._does.allocations) is None:
            return
        misplaced = self._trees.misplaced()
        for some in portions(misplaced, GUESTS_A_QUESTION):
            names = dict.fromkeys(name for guest in some for name in guest.consumers)
            asked = FindAllocations(consumers=tuple(names), cell=self.cell)
            self._trees.settle(some, (await allocations(asked)).consumers)
        if misplaced:
            await self._does.disk.settled()

    def _state(self, host: SimHost) -> HostState:
        building, guests = self._does.jobs.on[host.root], self._does.disk.hosted.on[host.root]
        minute = int(self.clock.now() // 60)
        now = minute, building, guests.changes
        before, state = self._states.get(host.root, (None, None))
        if state is None or before != now:
            state = self._state_anew(host, building, guests, minute)
            self._states[host.root] = now, state
        return state

    def _state_anew(self, host: SimHost, building: int, guests: HostGuests, minute: int) -> HostState:
        state = self._simulated_state(host, building, guests, minute)
        driver = self._does.driven.of(host.root)
        if driver is None:
            return state
        facts = driver.facts()
        return replace(
            state,
            hypervisor=facts.hypervisor,
            hypervisor_version=facts.version,
            architecture=facts.architecture or host.architecture,
            vm_modes=facts.vm_modes,
            capabilities=dict(facts.capabilities),
            metrics=dict(facts.metrics),
            driver=f"{type(driver).__module__}:{type(driver).__qualname__}",
            moves=self._operations(driver),
        )

    def _simulated_state(self, host: SimHost, building: int, guests: HostGuests, minute: int) -> HostState:
        temperature = 22.0 + 3.0 * building + 8.0 * draw(host.root, minute)
        return HostState(
            root=host.root,
            host=host.host,
            enabled=not host.disabled,
            why_disabled=host.disabled,
            zone=host.zone,
            building=building,
            load=float(building),
            metrics={"temperature": round(temperature, 1), "power_watts": round(150 + 8 * temperature)},
            instances=guests.instances,
            images=tuple(guests.images),
            image_properties=dict(guests.properties),
            architecture=host.architecture,
            hypervisor="ironic" if host.metal else "QEMU",
            hypervisor_version=1 if host.metal else HYPERVISOR_VERSION,
            vm_modes=("hvm",),
            ip=host.ip,
            capabilities={"cpu_info:arch": host.architecture},
            driver="ironic" if host.metal else "simulated",
            agent_version=self._version,
            moves=() if host.metal else self._operations(None),
        )

    def _operations(self, driver: GuestDriver | None) -> tuple[str, ...]:
        return tuple(name for part in self._parts for name in part.operations(driver))

    def _report_of(self, host: SimHost, sequence: int) -> InventoryReported | NodeChanged:
        if host.metal:
            return NodeChanged(
                event="create",
                node=host.root,
                name=host.host,
                at=UNKNOWN_TIME,
                cell=self.cell,
                agent=self.agent,
                resource_class=host.metal,
                provision_state="available",
                traits=host.traits,
                zone=host.zone,
            )
        providers, reshape = self._trees.report(host.root, sequence)
        if reshape is not None and host.root not in self._reshaped:  # check the effect soon
            self._reshaped.add(host.root)
            self._check, self._is_urgent = None, True  # pages read before are outdated
            self._next_check = self.clock.monotonic() + RESHAPE_GAP
        return InventoryReported(
            root=host.root,
            host=host.host,
            cell=self.cell,
            agent=self.agent,
            zone=host.zone,
            sequence=sequence,
            providers=providers,
            reshape=reshape,
            labels=dict(host.labels),
        )
