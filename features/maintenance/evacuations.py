"""Evacuates dead hosts: the rate limit must permit an evacuation, then the operator's hook or agents of other
hosts confirm that the host is off, then its instances are moved away.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from msgspec.structs import replace
from prometheus_client import Counter

from bus.clock import Clock
from bus.domains import ZONE
from bus.errors import UNANSWERED, Unavailable
from bus.host_health import FORCED_DOWN
from bus.sql.database import Database
from bus.sql.statement import Transaction
from bus.vocabulary import Id
from features.maintenance import store as stored
from features.maintenance.core.dead_hosts import (
    EvacuationJudge,
    EvacuationLimits,
    MissingHost,
    domain_sizes,
    domains_of,
)
from features.maintenance.hosts import HostView
from features.maintenance.messages import EvacuationState, HostEvacuation, MaintenanceEvent
from features.moves.emptying import kept_empty
from features.moves.host_traits import force_down_host
from features.moves.messages import EmptiedHost, Emptying, StopPlan
from features.moves.plans import MovePlans
from scheduler_worker.extension import PlacementQueries

MOVES_AT_ONCE = 50  # moves in progress from one host
SAME_LOSS_SECONDS = 30.0  # two schedulers' times of the same loss of a host differ by at most this
RETRY_SECONDS = 60.0  # seconds between two attempts to confirm that a host is off
NOT_FENCED = ("missing", "held", "fencing", "unfenced")
EVACUATIONS = Counter("berth_evacuations", "Automatic evacuations of hosts that began after fencing")

Confirm = Callable[[HostEvacuation], Awaitable[tuple[bool, str]]]  # returns whether the host is off; why
log = logging.getLogger(__name__)


@dataclass
class DeadHosts:
    """Advances the evacuation of every host with missing heartbeats; each step continues the stored state."""

    database: Database
    placement: PlacementQueries
    plans: MovePlans
    clock: Clock
    limits: EvacuationLimits
    level: str  # level of the domains for the limits, in addition to cells, zones and the cloud
    confirm: Confirm | None  # confirms that a host is off; None: no host is evacuated
    held: int = field(default=0, init=False)  # hosts that the limits kept from evacuation in the last step
    unfenced: int = field(default=0, init=False)  # hosts that could not be confirmed as off in the last step
    _first_missed: dict[Id, float] = field(default_factory=dict, init=False)
    _confirming: set[Id] = field(default_factory=set, init=False)  # evacuations being confirmed
    _to_fence: asyncio.Queue[HostEvacuation] = field(default_factory=asyncio.Queue, init=False)

    async def step(self, view: HostView, in_maintenance: frozenset[Id]) -> None:
        """Judge and fence hosts without heartbeats, except hosts in maintenance; empty fenced hosts."""
        if self.confirm is None:
            return
        step = _EvacuationStep(self, view, in_maintenance)
        await step.judge()
        await step.evacuate()
        rows = step.rows.values()
        self.held = sum(row.state == "held" for row in rows)
        self.unfenced = sum(row.state == "unfenced" for row in rows)

    def missing_since(self, view: HostView) -> dict[Id, float]:
        """Return, by root, the time of the last heartbeat of each host that is down or, if unknown, the time
        when this scheduler first found the host down.
        """
        now = self.clock.now()
        self._first_missed = {root: self._first_missed.get(root, now) for root in view.down}
        return {root: health.since or self._first_missed[root] for root, health in view.down.items()}

    def begin_fencing(self, dead: HostEvacuation) -> None:
        """Queue a dead host to be fenced; it is evacuated only after that, so that no guest runs twice."""
        if dead.id not in self._confirming:
            self._confirming.add(dead.id)
            self._to_fence.put_nowait(dead)

    async def run_fencing(self) -> None:
        """Until this scheduler stops, confirm that dead hosts are off. Hooks that are running when it stops
        are killed, and the next scheduler that leads the maintenance work runs them again.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._fence(await self._to_fence.get()))

    async def _fence(self, dead: HostEvacuation) -> None:
        """Request the confirmation that a host is off, and store the result, unless the evacuation has
        changed meanwhile, e.g. because the host sends heartbeats again.
        """
        assert self.confirm is not None
        try:
            async with self.database.read() as tx:
                if await _fencing(tx, dead) is None:  # an earlier attempt has changed the state
                    return
            is_off, output = await self.confirm(dead)
            log.warning("confirmation that host %s is off: %s: %s", dead.host, is_off, output)
            async with self.database.write() as tx:
                now = self.clock.now()
                event = "confirmed off" if is_off else "not confirmed off"
                await stored.record(
                    tx, [MaintenanceEvent(subject=dead.id, at=now, event=event, detail=output)]
                )
                if (row := await _fencing(tx, dead)) is not None:
                    fenced, state = (now, "fenced") if is_off else (0.0, "unfenced")
                    changed = replace(row, state=state, at=now, fenced=fenced, why=output)
                    await stored.put_evacuations(tx, [changed])
        except Unavailable as problem:  # the next step requests the confirmation again
            log.warning("confirmation that host %s is off: %s", dead.host, problem)
        finally:
            self._confirming.discard(dead.id)


async def _fencing(tx: Transaction, dead: HostEvacuation) -> HostEvacuation | None:
    """Return the stored row of an evacuation if the host is still being fenced and its count of tries is
    unchanged; else None.
    """
    for row in await stored.evacuations(tx, begin=dead.id):
        if row.state == "fencing" and row.tries == dead.tries:
            return row
    return None


class _EvacuationStep:
    def __init__(self, dead: DeadHosts, view: HostView, in_maintenance: frozenset[Id]) -> None:
        self.dead, self.view, self.in_maintenance = dead, view, in_maintenance
        self.now = dead.clock.now()
        self.hosts = view.guest_hosts()
        self.since = dead.missing_since(view)
        self.rows: dict[Id, HostEvacuation] = {}  # open evacuations by root
        self.over: dict[Id, list[float]] = {}  # root → times of losses with a completed evacuation
        self.changed: dict[Id, HostEvacuation] = {}
        self.events: list[MaintenanceEvent] = []

    async def judge(self) -> None:
        """Begin and end evacuations, and decide which hosts are fenced now."""
        async with self.dead.database.read() as tx:
            known = await stored.evacuations(tx, over=True)
        self.rows = {row.root: row for row in known if not row.is_over}
        for row in known:
            if row.is_over:
                self.over.setdefault(row.root, []).append(row.missing_since)
        for row in list(self.rows.values()):
            self._check_return(row)
        judge = self._judge(known)
        missing = sorted(judge.missing, key=lambda host: (host.since, host.root))
        for host in missing:
            if host.root in self.view.down and judge.is_candidate(host):
                self._decide(judge, host)
        await self._store()
        for row in self.rows.values():
            if row.state == "fencing":
                self.dead.begin_fencing(row)

    def _check_return(self, row: HostEvacuation) -> None:
        placed = self.view.hosts.get(row.root)
        if placed is None:
            self._put(row, "undone", "placement no longer has the host")
        elif row.root not in self.view.down and row.state in (*NOT_FENCED, "fenced"):
            self._put(row, "returned", "it sends heartbeats again")
        elif row.state in NOT_FENCED and row.root in self.in_maintenance:
            self._put(row, "undone", "it is in a maintenance window")
        elif row.state in NOT_FENCED and FORCED_DOWN in placed.traits:
            self._put(row, "undone", "an operator has forced it down")

    def _judge(self, known: Sequence[HostEvacuation]) -> EvacuationJudge:
        limits, level = self.dead.limits, self.dead.level
        labels, zones = self.view.labels(level), self.view.labels(ZONE)  # zones by aggregates, too
        domains = {
            root: domains_of(host.cell, zones.get(root, ""), level, labels.get(root, ""))
            for root, host in self.hosts.items()
        }
        fenced = {row.root: row for row in known if row.fenced > self.now - limits.within}
        lost = {root: row.missing_since for root, row in fenced.items()} | self.since
        missing = []
        for root in lost.keys() & domains.keys():
            row = self.rows.get(root)
            evacuated = fenced[root].fenced if root in fenced else 0.0
            if row is not None and row.state == "fencing":
                evacuated = self.now
            released = row is not None and row.released
            missing.append(MissingHost(root, lost[root], domains[root], released, evacuated))
        return EvacuationJudge(limits, missing, domain_sizes(domains.values()), self.now)

    def _decide(self, judge: EvacuationJudge, host: MissingHost) -> None:
        placed, row = self.view.hosts[host.root], self.rows.get(host.root)
        if row is None:
            is_over = any(
                abs(since - host.since) < SAME_LOSS_SECONDS for since in self.over.get(host.root, ())
            )
            if is_over or FORCED_DOWN in placed.traits or host.root in self.in_maintenance:
                return
            id_ = str(uuid5(UUID(host.root), f"evacuation {host.since:.3f}"))
            row = HostEvacuation(
                id=id_, root=host.root, host=placed.host, cell=placed.cell, missing_since=host.since
            )
        may_retry = row.state == "unfenced" and self.now - row.at >= RETRY_SECONDS
        if row.state not in ("missing", "held") and not may_retry:
            return
        if why := judge.why_held(host):
            self._put(row, "held", why)
        else:
            self._put(replace(row, tries=row.tries + 1), "fencing", "no heartbeat; it is being fenced")

    async def evacuate(self) -> None:
        """Mark fenced hosts as forced down, and let plans of moves empty them."""
        for row in list(self.rows.values()):
            try:
                if row.state == "fenced":
                    await force_down_host(self.dead.placement, row.root)
                    EVACUATIONS.inc()
                    self._put(row, "evacuating", row.why)
                elif row.state == "evacuating":
                    await self._move(row)
            except UNANSWERED as problem:
                log.warning("evacuation of host %s: %s", row.host, problem)
        await self._store()

    async def _move(self, row: HostEvacuation) -> None:
        if FORCED_DOWN not in self.view.hosts[row.root].traits:
            self._put(row, "undone", "an operator has removed the mark that it is forced down")
            return
        host = EmptiedHost(root=row.root, host=row.host, cell=row.cell)
        goal = Emptying(hosts=(host,), kind="evacuate", keeps_on=True)
        states = await kept_empty(self.dead.plans, row.id, goal, MOVES_AT_ONCE, "evacuation")
        left = states.get(row.root)
        if left is None:
            return
        if not left.memory_mb and not left.in_progress:
            self._put(row, "done", "all instances have left it")
        elif left.failed:
            build, why = min(left.failed.items())
            self._put(row, "evacuating", f"{len(left.failed)} could not be moved; {build}: {why}")

    def _put(self, row: HostEvacuation, state: EvacuationState, why: str) -> None:
        at = self.now if state != row.state else row.at
        new = replace(row, state=state, at=at, why=why)
        if new == self.rows.get(row.root):
            return
        if state != row.state or state == "held":
            event = MaintenanceEvent(subject=row.id, at=at, event=state, detail=why[:1000])
            self.events.append(event)
            log.warning("evacuation of host %s: %s: %s", row.host, state, why)
        self.changed[row.id] = self.rows[row.root] = new

    async def _store(self) -> None:
        for row in self.changed.values():
            if row.is_over:
                await self.dead.plans.stop(StopPlan(plan=row.id))
        if self.changed or self.events:
            async with self.dead.database.write() as tx:
                await stored.put_evacuations(tx, self.changed.values())
                await stored.record(tx, self.events)
        self.changed.clear()
        self.events.clear()
        self.rows = {root: row for root, row in self.rows.items() if not row.is_over}
