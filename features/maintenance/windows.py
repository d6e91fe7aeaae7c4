"""Carries maintenance windows out: closes and drains their hosts in time, and opens them at the end."""

import dataclasses
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from bus.clock import Clock
from bus.errors import UNANSWERED
from bus.resources import FindAllocations, FindProviders
from bus.sql.database import Database
from bus.vocabulary import UNSAID_ID, Id, portions
from features.maintenance import store as stored
from features.maintenance.core.maintenance import (
    CLOSED,
    OVER,
    DrainedHost,
    MeasuredMove,
    WindowPlanner,
    after_the_window,
)
from features.maintenance.hosts import HostView
from features.maintenance.messages import (
    HostPhase,
    MaintenanceEvent,
    MaintenanceWindow,
    WindowHost,
    WindowPlan,
    WindowState,
)
from features.maintenance.store import StoredWindow
from features.moves.emptying import HostDeparture, instances_on, kept_empty, memory_of
from features.moves.host_traits import cause_trait, close_host, open_host
from features.moves.messages import (
    EmptiedHost,
    Emptying,
    MoveKind,
    MoveRequested,
    StopPlan,
    SupposedDestination,
)
from features.moves.plans import MovePlans
from features.moves.supposed_moves import MoveEvaluation, SupposedMove, moves_off
from scheduler_worker.extension import CellQueries, PlacementQueries

CAUSE = "maintenance"
SLOT = "RESERVATION"  # type of consumers that hold capacity and have no guest
TRAIT = cause_trait(CAUSE)
ESTIMATE_SECONDS = 300.0  # seconds after which the instances of a host that is not drained yet are read again
ESTIMATES_A_STEP = 50
JUDGED_SECONDS = 60.0  # seconds after which it is judged again whether a host can be emptied
JUDGED_A_STEP = 50
MEASURED = 200  # latest moves whose durations are used for estimates
ESTIMATE_STEP = 60.0  # seconds to a multiple of which estimates of drains in progress are rounded up
DECISIONS = 50  # instances whose decision a plan of a window shows
HORIZON_SECONDS = 7 * 86400.0  # seconds before its begin, from which a window's drains are estimated

log = logging.getLogger(__name__)


# Instances of some hosts that move so, while these and other hosts are closed.
_Judged = tuple[MoveKind, tuple[Id, ...], tuple[Id, ...]]


@dataclass
class MaintenanceWindows:
    """Advances all open windows; each step continues where the last one of any scheduler ended."""

    database: Database
    placement: PlacementQueries
    cells: CellQueries
    plans: MovePlans
    clock: Clock
    lead: float
    evaluation: MoveEvaluation | None = None  # None: no feature evaluates moves
    late: int = field(default=0, init=False)  # number of late hosts in the last step
    closed: frozenset[Id] = field(default=frozenset(), init=False)  # hosts in maintenance in the last step
    _sizes: dict[Id, tuple[float, list[int]]] = field(default_factory=dict, init=False)
    _judged: dict[_Judged, tuple[float, Sequence[SupposedDestination] | None]] = field(
        default_factory=dict, init=False
    )

    async def step(self, view: HostView) -> None:
        """Advance all open maintenance windows."""
        async with self.database.read() as tx:
            windows = {each.state.window.id: each for each in await stored.windows(tx)}
        for id_, window in windows.items():
            state = window.state
            try:
                others = [each.state for key, each in windows.items() if key != id_]
                step = _WindowStep(self, view, window, others)
                state = await step.run()
            except UNANSWERED as problem:
                log.warning("maintenance window %s: %s", id_, problem)
                continue
            windows[id_] = StoredWindow(state, window.finished)
        open_ = [host for each in windows.values() for host in each.state.hosts]
        self.late = sum(host.late for host in open_)
        self.closed = frozenset(host.root for host in open_ if host.phase in CLOSED)
        self._sizes = {root: known for root, known in self._sizes.items() if root in view.hosts}

    async def plan(self, view: HostView, window: MaintenanceWindow, others: list[WindowState]) -> WindowPlan:
        """Return which hosts of a window that is not stored would be drained first, and when."""
        names = {root: host.host for root, host in view.hosts.items()}
        rows = [WindowHost(root=root, host=names.get(root, root)) for root in window.roots]
        state = WindowState(window=window, hosts=tuple(rows))
        return await _WindowStep(self, view, StoredWindow(state, frozenset()), others).trial()

    async def sizes(
        self, view: HostView, roots: Iterable[Id], most: int = ESTIMATES_A_STEP
    ) -> Mapping[Id, list[int]]:
        """Return the memory in MB of the instances on each host, by root, at most ESTIMATE_SECONDS old; [] if
        not read yet. At most this many hosts are read.
        """
        now, asked = self.clock.now(), [root for root in roots if root in view.hosts]
        old = [root for root in asked if self._sizes.get(root, (0.0,))[0] < now - ESTIMATE_SECONDS]
        for root in old[:most]:
            there = await instances_on(self.cells, view.hosts[root].cell, root)
            memory = await memory_of(self.placement, [instance.build for instance in there])
            self._sizes[root] = now, [memory.get(instance.build, 0) for instance in there]
        return {root: self._sizes[root][1] if root in self._sizes else [] for root in asked}

    async def judged(
        self, view: HostView, groups: Iterable[Sequence[Id]], kind: MoveKind
    ) -> dict[Id, Sequence[SupposedDestination]]:
        """Return where each active instance would move if the hosts of each group were emptied together now,
        by root, at most JUDGED_SECONDS old. At most JUDGED_A_STEP hosts are judged; a host whose instances
        were not judged yet is missing.
        """
        now, found, most = self.clock.now(), dict[Id, Sequence[SupposedDestination]](), JUDGED_A_STEP
        some = [(part, tuple(group)) for group in groups for part in portions(tuple(group), JUDGED_A_STEP)]
        for roots, closed in some:
            key = kind, roots, closed
            at, known = self._judged.get(key, (float("-inf"), None))
            if at < now - JUDGED_SECONDS and len(roots) <= most:
                most -= len(roots)
                known = await self._destinations(view, roots, closed, kind)
                self._judged[key] = now, known
            if known is not None:
                found |= {root: [one for one in known if one.root == root] for root in roots}
        self._judged = {
            key: each for key, each in self._judged.items() if each[0] >= now - 2 * JUDGED_SECONDS
        }
        return found

    async def _destinations(
        self, view: HostView, roots: Sequence[Id], closed: Sequence[Id], kind: MoveKind
    ) -> Sequence[SupposedDestination] | None:
        evaluation = self.evaluation
        if evaluation is None:
            return None

        async def suppose(moves: Sequence[MoveRequested]) -> Sequence[SupposedMove]:
            return await evaluation.supposed(moves, closed)

        try:
            cells = {root: view.hosts[root].cell for root in roots}
            there = [one for root in roots for one in await instances_on(self.cells, cells[root], root)]
            asked = MoveRequested(move=UNSAID_ID, build=UNSAID_ID, kind=kind)
            return await moves_off(there, asked, suppose, self.clock.uuid)
        except UNANSWERED as problem:
            log.warning("whether hosts can be emptied is not known: %s", problem)
            return None


def _shown(instances: Sequence[SupposedDestination]) -> tuple[SupposedDestination, ...]:
    """Return destinations for an answer: only the first instances that would stay have decisions."""
    stay = [one.build for one in instances if one.why][:DECISIONS]
    return tuple(one if one.build in stay else replace(one, decision=None) for one in instances)


def _kind(cold: bool) -> MoveKind:
    return "migrate" if cold else "live"


class _WindowStep:
    def __init__(
        self, windows: MaintenanceWindows, view: HostView, window: StoredWindow, others: list[WindowState]
    ) -> None:
        self.all, self.view, self.state, self.finished = windows, view, window.state, window.finished
        self.window = window.state.window
        self.others = others
        self.now = windows.clock.now()
        self.events: list[MaintenanceEvent] = []
        self.destinations: Mapping[Id, Sequence[SupposedDestination]] = {}  # of planned hosts, by root
        self.hosts = {host.root: host for host in window.state.hosts}

    async def run(self) -> WindowState:
        before = dict(self.hosts)
        over = self.state.cancelled or self.now >= self.window.ends
        for root, host in before.items():
            if host.phase not in OVER:
                await self._advance(root, over or root in self.finished)
        state = self.state
        if not all(host.phase in OVER for host in self.hosts.values()):
            state = await self._plan(await self._drain())
        changed = [host for root, host in self.hosts.items() if host != before[root]]
        ended = self.now if all(host.phase in OVER for host in self.hosts.values()) else 0.0
        if ended:
            await self.all.plans.stop(StopPlan(plan=self.window.id))
            self._event("ended", "cancelled" if self.state.cancelled else "")
        state = replace(state, hosts=tuple(self.hosts.values()), ended=ended)
        if changed or state != self.state:
            async with self.all.database.write() as tx:
                await stored.put_window(tx, state, changed)
                await stored.record(tx, self.events)
        return state

    async def trial(self) -> WindowPlan:
        """Return which hosts of this window, whose drain has not started, will be drained first, and when."""
        sizes = await self.all.sizes(self.view, self.hosts, len(self.hosts))
        planner = await self._planner({}, sizes)
        first, late = {*planner.next_hosts()}, planner.late(self.now)
        hosts = [
            replace(
                host,
                phase="closing" if root in first else "planned",
                instances=len(sizes.get(root, ())),
                late=root in late,
                note=late.get(root, ""),
            )
            for root, host in self.hosts.items()
        ]
        some = [root for root, memory in sizes.items() if memory and root not in self.destinations]
        return WindowPlan(
            hosts=tuple(hosts),
            drain_seconds=planner.first_drain_seconds(),
            drain_begins=planner.drain_begins(),
            empty_at=planner.empty_at(self.now),
            measured=len(planner.measured),
            instances=_shown([one for root in self.hosts for one in self.destinations.get(root, ())]),
            not_evaluated=len(some),
        )

    async def _advance(self, root: Id, over: bool) -> None:
        """Close a host to new instances, open it, or leave it unchanged, as its phase requires. `over`: its
        maintenance has ended.
        """
        host, placed = self.hosts[root], self.view.hosts.get(root)
        if placed is None:
            self._put(root, "ended", "placement no longer has it")
        elif over:
            phase = after_the_window(self.window, host.phase)
            if phase == "ended" and host.phase in CLOSED and not self._closed_elsewhere(root):
                await open_host(self.all.placement, root, CAUSE)
            self._put(root, phase)
        elif host.phase == "closing":
            await close_host(self.all.placement, root, CAUSE)
            self._put(root, "draining")
        elif host.phase in CLOSED and TRAIT not in placed.traits:
            self._put(root, "opened", "an operator has enabled it")

    def _closed_elsewhere(self, root: Id) -> bool:
        return any(host.root == root and host.phase in CLOSED for each in self.others for host in each.hosts)

    async def _drain(self) -> dict[Id, HostDeparture]:
        """Give the plan of moves of this window the hosts that are to be drained now. Return the state of
        each of these hosts, by root, as far as the plan has read their instances.
        """
        draining = [root for root, host in self.hosts.items() if host.phase == "draining"]
        if not draining and all(host.phase == "planned" for host in self.hosts.values()):
            return {}
        hosts = [
            EmptiedHost(root=root, host=host.host, cell=host.cell)
            for root in draining
            for host in [self.view.hosts[root]]
        ]
        goal = Emptying(hosts=tuple(hosts), kind=_kind(self.window.cold), because=CAUSE, keeps_on=True)
        found = await kept_empty(self.all.plans, self.window.id, goal, self.window.moves, "maintenance")
        states = {root: found[root] for root in draining if root in found}
        for root, left in states.items():
            note = "; ".join(f"{build}: {why}" for build, why in sorted(left.failed.items())[:5])
            self.hosts[root] = replace(self.hosts[root], instances=len(left.memory_mb), note=note)
            if not left.memory_mb and not left.in_progress:
                if others := await self._other_consumers(root):
                    note = f"{others} other consumers hold resources: `berth host drain` lists them"
                    self.hosts[root] = replace(self.hosts[root], note=note)
                else:
                    self._put(root, "empty")
        return states

    async def _other_consumers(self, root: Id) -> int:
        """Return how many consumers, such as clean-ups, hold resources of a host that has no instances."""
        tree = (await self.all.placement.providers(FindProviders(in_tree=root, parts=()))).providers
        question = FindAllocations(providers=tuple(provider.id for provider in tree))
        consumers = (await self.all.placement.allocations(question)).consumers
        return sum(consumer.type != SLOT for consumer in consumers)

    async def _plan(self, departing: Mapping[Id, HostDeparture]) -> WindowState:
        """Close the hosts that must begin to drain, and mark the late hosts. Return the state of the window
        with the estimates of its drains, unless the window begins too late for an estimate.
        """
        if self.now < self.window.begins - HORIZON_SECONDS:
            return replace(self.state, drain_begins=0.0, empty_at=0.0)
        planned = [root for root, host in self.hosts.items() if host.phase in ("planned", "closing")]
        planner = await self._planner(departing, await self.all.sizes(self.view, planned))
        for root in planner.to_close(self.now):
            self._put(root, "closing")
        late = planner.late(self.now)
        for root, host in self.hosts.items():
            why = late.get(root, "")
            if why and not host.late:
                self._event(f"late: {host.host}", why)
            note = why if host.phase == "planned" else host.note or why
            self.hosts[root] = replace(self.hosts[root], late=bool(why), note=note)
        at = planner.empty_at(self.now)
        if planner.has_begun:  # rounded up, so that it is not stored in each step
            at = math.ceil(at / ESTIMATE_STEP) * ESTIMATE_STEP
        return replace(
            self.state,
            drain_begins=planner.drain_begins(),
            empty_at=at or self.state.empty_at,
            measured=len(planner.measured),
        )

    async def _planner(
        self, departing: Mapping[Id, HostDeparture], sizes: Mapping[Id, list[int]]
    ) -> WindowPlanner:
        """Return an object that decides, from the present state, which hosts of the window to drain and when.
        `departing` has the instances left on each host being drained; `sizes`, for the other hosts, the
        memory in MB of each instance.
        """
        domains = self.view.labels(self.window.level) if self.window.level else {}
        measured = [MeasuredMove(*each) for each in await self.all.plans.durations(MEASURED)]
        drained = []
        for root, host in self.hosts.items():
            left = departing.get(root, HostDeparture())
            memory = [*left.memory_mb.values()] if root in departing else sizes.get(root, ())
            facts = root, host.phase, host.since, domains.get(root, "")
            drained.append(DrainedHost(*facts, memory, len(left.failed)))
        unavailable = self._unavailable(domains)
        return await self._judged(WindowPlanner(self.window, drained, measured, self.all.lead, unavailable))

    async def _judged(self, planner: WindowPlanner) -> WindowPlanner:
        """Add to the hosts whose drain has not begun the instances that would find no host: to the hosts that
        are drained first as if they were emptied together, to the others as if each was emptied alone.
        """
        first = planner.next_hosts()
        planned = [host.root for host in planner.hosts if host.phase == "planned"]
        groups = [first, *([root] for root in planned if root not in first)]
        there = [[root for root in group if root in self.view.hosts] for group in groups]
        found = await self.all.judged(self.view, filter(None, there), _kind(self.window.cold))
        self.destinations = found
        hosts = [
            dataclasses.replace(
                host, without_host={one.build: one.why for one in found.get(host.root, ()) if one.why}
            )
            if host.phase == "planned"
            else host
            for host in planner.hosts
        ]
        return dataclasses.replace(planner, hosts=hosts)

    def _unavailable(self, domains: Mapping[Id, str]) -> dict[str, set[Id]]:
        """Return the hosts of each domain that are closed for a window, or down."""
        closed = {host.root for host in self.hosts.values() if host.phase in CLOSED}
        closed |= {host.root for each in self.others for host in each.hosts if host.phase in CLOSED}
        found: dict[str, set[Id]] = {}
        for root in closed.union(self.view.down):
            found.setdefault(domains.get(root, ""), set()).add(root)
        if "" in found:  # of the hosts without a label, only those of this window count
            found[""] &= {*self.hosts}
        return found

    def _put(self, root: Id, phase: HostPhase, note: str = "") -> None:
        host = self.hosts[root]
        if phase != host.phase:
            instances = 0 if phase == "empty" else host.instances
            self.hosts[root] = replace(
                host, phase=phase, since=self.now, note=note, instances=instances, late=False
            )
            self._event(f"{phase}: {host.host}", note)

    def _event(self, event: str, detail: str) -> None:
        self.events.append(
            MaintenanceEvent(subject=self.window.id, at=self.now, event=event[:255], detail=detail[:1000])
        )
