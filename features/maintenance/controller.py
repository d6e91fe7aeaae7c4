"""Runs maintenance windows and automatic evacuations in one scheduler at a time, and answers queries about
them.
"""

from dataclasses import dataclass
from functools import partial

import msgspec
from prometheus_client import Gauge

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.sql.database import Database
from bus.sql.statement import Transaction
from bus.vocabulary import LimitReached, page_after
from features.maintenance import store as stored
from features.maintenance.core.dead_hosts import EvacuationLimits
from features.maintenance.core.maintenance import OVER
from features.maintenance.evacuations import Confirm, DeadHosts
from features.maintenance.fencing import call_hook
from features.maintenance.hosts import HostView
from features.maintenance.messages import (
    AddWindow,
    CancelWindow,
    ChangeWindow,
    FindMaintenance,
    FinishHosts,
    MaintenanceEdited,
    MaintenanceEditRequested,
    MaintenanceEvent,
    MaintenanceFound,
    MaintenanceWindow,
    ReleaseEvacuations,
    WindowHost,
    WindowPlan,
)
from features.maintenance.quorum import AgentQuorum
from features.maintenance.settings import MaintenanceSettings
from features.maintenance.windows import MaintenanceWindows
from features.moves.plans import MovePlans
from features.moves.supposed_moves import MoveEvaluation
from scheduler_worker.extension import CellQueries, HostBook, Lead, PlacementQueries, Publish

STEP_SECONDS = 2.0
LEAD_SECONDS = 6.0  # seconds after which another scheduler leads if the leader is silent: three steps
WORK = "maintenance"
PAGE_BYTES = 500_000  # approximate size of an answer; a message is limited to 1 MiB
LATE = Gauge("berth_maintenance_late_hosts", "Hosts of maintenance windows that are not empty in time")
HELD = Gauge("berth_evacuation_held_hosts", "Missing hosts that the rate limit keeps from being evacuated")
UNFENCED = Gauge("berth_evacuation_unfenced_hosts", "Missing hosts that were not confirmed as off")


@dataclass(frozen=True, kw_only=True)
class MaintenanceNeeds:
    """The objects of a scheduler that maintenance uses."""

    database: Database
    placement: PlacementQueries
    cells: CellQueries
    plans: MovePlans
    source: CandidateSource
    book: HostBook
    clock: Clock
    publish: Publish
    evaluation: MoveEvaluation | None = None


class MaintenanceController:
    """Begins and ends maintenance windows, and answers queries about them."""

    def __init__(self, needs: MaintenanceNeeds, settings: MaintenanceSettings) -> None:
        self._needs = needs
        self.most_windows = settings.windows
        self.lead = Lead(needs.database, WORK, LEAD_SECONDS, needs.clock)
        stores = needs.database, needs.placement
        self.windows = MaintenanceWindows(*stores, needs.cells, needs.plans, needs.clock, settings.lead)
        self.windows.evaluation = needs.evaluation
        votes, seconds = settings.quorum, settings.fence_seconds
        self.quorum = AgentQuorum(needs.source, needs.book, needs.publish, needs.clock, votes, seconds)
        confirm: Confirm | None = self.quorum.confirm if votes else None
        if settings.hook:
            confirm = partial(call_hook, settings.hook, seconds)
        limits = EvacuationLimits(settings.after, most=settings.most)
        self.dead_hosts = DeadHosts(*stores, needs.plans, needs.clock, limits, settings.level, confirm)

    async def step(self) -> None:
        """If this scheduler leads, advance maintenance windows and evacuations by a step."""
        needs, leads = self._needs, await self.lead.renew()
        if leads:
            await needs.source.fresh()
            view = HostView.take(needs.source, needs.book, needs.clock)
            await self.windows.step(view)
            await self.dead_hosts.step(view, self.windows.closed)
        LATE.set(self.windows.late if leads else 0)
        HELD.set(self.dead_hosts.held if leads else 0)
        UNFENCED.set(self.dead_hosts.unfenced if leads else 0)

    async def prune(self, keep: float) -> None:
        async with self._needs.database.write() as tx:
            await stored.prune(tx, self._needs.clock.now() - keep)

    async def find(self, asked: FindMaintenance) -> MaintenanceFound:
        """Return windows and evacuations that match a query."""
        if asked.plan is not None:
            return MaintenanceFound(planned=await self._planned(asked.plan))
        every = asked.ended or bool(asked.subject or asked.build)
        of_build = await self._needs.plans.moves_of(build=asked.build) if asked.build else []
        moves = [each.move for each in of_build]
        async with self._needs.database.read() as tx:
            windows = await stored.windows(tx, ended=every, begin=asked.subject)
            dead = await stored.evacuations(tx, over=every, begin=asked.subject)
            if asked.build:
                subjects = {move.plan for move in moves}
                windows = [each for each in windows if each.state.window.id in subjects]
                dead = [each for each in dead if each.id in subjects or not each.is_over]
            sizes = {each.state.window.id: len(_encode(each.state)) for each in windows}
            sizes |= {each.id: len(_encode(each)) for each in dead}
            ids, last = page_after(asked.after, sizes, PAGE_BYTES)
            events = await stored.events(tx, ids) if asked.subject or asked.build else []
        if asked.subject:
            moves = [each.move for each in await self._needs.plans.moves_of(plans=ids)]
        return MaintenanceFound(
            windows=tuple(each.state for each in windows if each.state.window.id in ids),
            evacuations=tuple(each for each in dead if each.id in ids),
            events=tuple(events),
            moves=tuple(move for move in moves if move.plan in ids),
            evacuates=self.dead_hosts.confirm is not None,
            last=last,
        )

    async def _planned(self, window: MaintenanceWindow) -> WindowPlan:
        needs = self._needs
        async with needs.database.read() as tx:
            if refused := self._unknown(window) or await self._refusal(tx, window):
                return WindowPlan(refused=refused)
            others = [each.state for each in await stored.windows(tx)]
        return await self.windows.plan(HostView.take(needs.source, needs.book, needs.clock), window, others)

    async def edit(self, asked: MaintenanceEditRequested) -> MaintenanceEdited:
        """Add, change or cancel a window, and record it."""
        edit = asked.edit
        async with self._needs.database.write() as tx:
            if isinstance(edit, AddWindow):
                return await self._add(tx, edit.window)
            if isinstance(edit, ChangeWindow):
                return await self._change(tx, edit.window)
            if isinstance(edit, CancelWindow):
                return MaintenanceEdited(changed=await stored.cancel(tx, edit.window))
            if isinstance(edit, FinishHosts):
                return MaintenanceEdited(changed=await stored.finish(tx, edit.roots))
            return MaintenanceEdited(changed=await self._release(tx, edit))

    async def _release(self, tx: Transaction, edit: ReleaseEvacuations) -> int:
        held = [each for each in await stored.evacuations(tx) if each.state == "held"]
        ids = [each.id for each in held if each.root in edit.roots or (edit.cell and each.cell == edit.cell)]
        now = self._needs.clock.now()
        await stored.record(tx, [MaintenanceEvent(subject=id_, at=now, event="released") for id_ in ids])
        return await stored.release(tx, ids)

    async def _add(self, tx: Transaction, window: MaintenanceWindow) -> MaintenanceEdited:
        """Store a window, unless its hosts are unknown or in another window at the same time."""
        now = self._needs.clock.now()
        hosts = {host.uuid: host.host for host in self._needs.source.hosts()}
        if refused := self._unknown(window) or await self._refusal(tx, window):
            return MaintenanceEdited(refused=refused)
        limit, others = self.most_windows, await stored.windows(tx)
        if len(others) >= limit and all(each.state.window.id != window.id for each in others):
            what = "maintenance windows that are not over"
            return MaintenanceEdited(refused=str(LimitReached(setting="max_windows", limit=limit, what=what)))
        rows = [WindowHost(root=root, host=hosts[root], since=now) for root in window.roots]
        added = await stored.add_window(tx, window, rows)
        if added:
            await self._record(tx, window, "added")
        return MaintenanceEdited(changed=int(added))

    def _unknown(self, window: MaintenanceWindow) -> str:
        """Return why a window cannot have its hosts: some do not exist; "" if it can."""
        hosts = {host.uuid for host in self._needs.source.hosts()}
        unknown = [root for root in window.roots if root not in hosts]
        return f"there are no hosts {', '.join(unknown[:5])}" if unknown else ""

    async def _change(self, tx: Transaction, window: MaintenanceWindow) -> MaintenanceEdited:
        known = {each.state.window.id: each.state.window for each in await stored.windows(tx)}
        before = known.get(window.id, window)
        if before.roots != window.roots:
            return MaintenanceEdited(
                refused="the hosts of a window cannot be changed; cancel it, and add one"
            )
        if refused := await self._refusal(tx, window):
            return MaintenanceEdited(refused=refused)
        if not await stored.change_window(tx, window):
            return MaintenanceEdited(refused=f"window {window.id} is over or cancelled, or does not exist")
        if window != before:
            await self._record(tx, window, "changed")
        return MaintenanceEdited(changed=int(window != before))

    async def _record(self, tx: Transaction, window: MaintenanceWindow, event: str) -> None:
        now = self._needs.clock.now()
        made = MaintenanceEvent(subject=window.id, at=now, event=event, detail=window.reason)
        await stored.record(tx, [made])

    async def _refusal(self, tx: Transaction, window: MaintenanceWindow) -> str:
        """Return why a window cannot have its times: they are past or reversed, or at these times a host is
        in another window; "" if it can.
        """
        if not self._needs.clock.now() < window.ends or not window.begins < window.ends:
            return "the window must end after its begin, and after now"
        for each in await stored.windows(tx):
            other = each.state.window
            apart = other.ends <= window.begins or window.ends <= other.begins
            if other.id == window.id or each.state.cancelled or apart:
                continue
            for host in each.state.hosts:
                if host.root in window.roots and host.phase not in OVER:
                    return f"host {host.host} is in window {other.id} at the same time"
        return ""


_encode = msgspec.json.Encoder().encode
