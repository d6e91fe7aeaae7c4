"""Carries maintenance windows out: closes and drains their hosts in time, and opens them at the end."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from bus.clock import Clock
from bus.errors import UNANSWERED
from bus.resources import FindAllocations, FindProviders
from bus.sql.database import Database
from bus.vocabulary import UNSAID_ID, Id
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
from features.moves.messages import EmptiedHost, Emptying, MoveKind, MoveRequested, StopPlan
from features.moves.plans import MovePlans
from features.moves.supposed_moves import MoveEvaluation, SupposedMove, why_not, without_host
from scheduler_worker.extension import CellQueries, PlacementQueries

CAUSE = "maintenance"
SLOT = "RESERVATION"  # type of consumers that hold capacity and have no guest
TRAIT = cause_trait(CAUSE)
ESTIMATE_SECONDS = 300.0  # seconds after which the instances of a host that is not drained yet are read again
ESTIMATES_A_STEP = 50
JUDGED_SECONDS = 60.0  # seconds after which it is judged again whether a host can be emptied
JUDGED_A_STEP = 50
MEASURED = 200  # latest moves whose durations are used for estimates
HORIZON_SECONDS = 7 * 86400.0  # seconds before its begin, from which a window's drains are estimated

log = logging.getLogger(__name__)


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
    _judged: dict[tuple[MoveKind, tuple[Id, ...]], tuple[float, Mapping[Id, Mapping[Id, str]]]] = field(
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
    ) -> dict[Id, Mapping[Id, str]]:
        """Return the instances that would find no host if the hosts of each group were emptied together now,
        by root, each with the reason; at most JUDGED_SECONDS old. At most JUDGED_A_STEP hosts are judged.
        """
        now, found, most = self.clock.now(), dict[Id, Mapping[Id, str]](), JUDGED_A_STEP
        for group in groups:
            key = kind, tuple(group)
            at, known = self._judged.get(key, (float("-inf"), {}))
            if at < now - JUDGED_SECONDS and len(group) <= most:
                most -= len(group)
                known = await self._without_host(view, group, kind)
                self._judged[key] = now, known
            found.update(known)
        self._judged = {
            key: each for key, each in self._judged.items() if each[0] >= now - 2 * JUDGED_SECONDS
        }
        return found

    async def _without_host(
        self, view: HostView, roots: Sequence[Id], kind: MoveKind
    ) -> dict[Id, Mapping[Id, str]]:
        evaluation = self.evaluation
        if evaluation is None:
            return {}

        async def suppose(moves: Sequence[MoveRequested]) -> Sequence[SupposedMove]:
            return await evaluation.supposed(moves, roots)

        try:
            there = {root: await instances_on(self.cells, view.hosts[root].cell, root) for root in roots}
            every = [instance for some in there.values() for instance in some]
            asked = MoveRequested(move=UNSAID_ID, build=UNSAID_ID, kind=kind)
            stay = await without_host(every, asked, suppose, self.clock.uuid)
        except UNANSWERED as problem:
            log.warning("whether hosts can be emptied is not known: %s", problem)
            return {}
        return {
            root: {each.build: why_not(stay[each.build]) for each in some if each.build in stay}
            for root, some in there.items()
        }


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
        self.hosts = {host.root: host for host in window.state.hosts}

    async def run(self) -> WindowState:
        before = dict(self.hosts)
        over = self.state.cancelled or self.now >= self.window.ends
        for root, host in before.items():
            if host.phase not in OVER:
                await self._advance(root, over or root in self.finished)
        drain_begins = self.state.drain_begins
        if not all(host.phase in OVER for host in self.hosts.values()):
            drain_begins = await self._plan(await self._drain())
        changed = [host for root, host in self.hosts.items() if host != before[root]]
        ended = self.now if all(host.phase in OVER for host in self.hosts.values()) else 0.0
        if ended:
            await self.all.plans.stop(StopPlan(plan=self.window.id))
            self._event("ended", "cancelled" if self.state.cancelled else "")
        state = replace(self.state, hosts=tuple(self.hosts.values()), drain_begins=drain_begins, ended=ended)
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
        return WindowPlan(
            hosts=tuple(hosts),
            drain_seconds=planner.first_drain_seconds(),
            drain_begins=planner.drain_begins(),
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
                    note = f"{others} other consumers hold resources: `berth drain` lists them"
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

    async def _plan(self, departing: Mapping[Id, HostDeparture]) -> float:
        """Close the hosts that must begin to drain, and mark the late hosts. Return when drains begin; 0 if
        not known yet.
        """
        if self.now < self.window.begins - HORIZON_SECONDS:
            return 0.0
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
        return planner.drain_begins()

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
        hosts = [
            dataclasses.replace(host, without_host=found.get(host.root, {}))
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
