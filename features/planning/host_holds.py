"""Closes hosts while a plan of moves is executed, and opens them when the plan ends or its time has passed.

A closed host is disabled with the cause `make_room`. So claims that were prepared before are refused in their
transaction, because the shape of the host has changed. A row is stored before a host is disabled, and deleted
after it is enabled: if the client of the plan or this scheduler stops, any scheduler opens the host.
"""

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.sql.database import Database
from bus.sql.statement import sql
from bus.vocabulary import Id
from features.moves.host_traits import cause_trait, close_host, open_host
from features.planning.messages import HoldHosts, HostsHeld
from scheduler_worker.extension import PlacementQueries

CAUSE = "make_room"
TRAIT = cause_trait(CAUSE)
OPEN_SECONDS = 5.0  # seconds between two searches for expired holds


class HostHolds:
    """Answers the query to close hosts for a plan (HoldHosts), and opens hosts when their plans are over."""

    def __init__(
        self, database: Database, placement: PlacementQueries, source: CandidateSource, clock: Clock
    ) -> None:
        self._database = database
        self._placement = placement
        self._source = source
        self._clock = clock

    async def hold(self, asked: HoldHosts) -> HostsHeld:
        if not asked.seconds:
            async with self._database.write() as tx:
                await _RELEASE(tx, plan=asked.plan)
            await self.open_expired()
            return HostsHeld()
        roots, until = sorted({*asked.roots}), self._clock.now() + asked.seconds
        async with self._database.write() as tx:
            before = {row["root"] for row in await _OF_PLAN(tx, plan=asked.plan)}
            kept_roots = [root for root in roots if not asked.renew or root in before]
            await _HOLD(tx, [(root, asked.plan, until) for root in kept_roots])
            plans = {row["root"]: row["plan"] for row in await _OF_ROOTS(tx, [(root,) for root in roots])}
        taken = [root for root in kept_roots if plans.get(root) != asked.plan]
        new = [root for root in kept_roots if root not in before and root not in taken]
        for root in () if taken else new:
            await self._edit(root, closing=True)
        if before:
            await self._source.fresh()
        opened = {root for root in before.intersection(roots) if not self._is_closed(root)}
        opened |= {*roots}.difference(kept_roots)
        if taken:
            async with self._database.write() as tx:
                await _DROP(tx, [(root, asked.plan) for root in new])
        return HostsHeld(taken=tuple(taken), opened=tuple(sorted(opened)))

    async def open_expired(self) -> None:
        """Open the hosts of plans that have ended, or of clients that did not report in time."""
        async with self._database.read() as tx:
            due = await _DUE(tx, now=self._clock.now())
        if not due:
            return
        async with self._database.write() as tx:
            await _EXPIRE(tx, now=self._clock.now())
            roots = sorted(row["root"] for row in await _OF_PLAN(tx, plan=""))
        for root in roots:
            await self._edit(root, closing=False)
        async with self._database.write() as tx:
            await _DROP(tx, [(root, "") for root in roots])

    def _is_closed(self, root: Id) -> bool:
        """Return whether the host is still disabled for the plan: an operator may have enabled it to stop the
        plan.
        """
        return any(host.uuid == root and TRAIT in host.traits for host in self._source.hosts())

    async def _edit(self, root: Id, *, closing: bool) -> None:
        await (close_host if closing else open_host)(self._placement, root, CAUSE)


_HOLD = sql("""
    INSERT INTO held_hosts (root, plan, until) SELECT n.root, n.plan, n.until
    FROM {n: root str, plan str, until float} WHERE true
    ON CONFLICT (root) DO UPDATE SET until = excluded.until WHERE held_hosts.plan = excluded.plan
    RETURNING root
""")
_OF_PLAN = sql("SELECT root FROM held_hosts WHERE plan = :plan")
_OF_ROOTS = sql("SELECT root, plan FROM held_hosts WHERE root IN (SELECT n.root FROM {n: root str})")
_DUE = sql("SELECT root FROM held_hosts WHERE plan = '' OR until < :now LIMIT 1")
_EXPIRE = sql("UPDATE held_hosts SET plan = '' WHERE until < :now RETURNING root")
_RELEASE = sql("UPDATE held_hosts SET plan = '' WHERE plan = :plan RETURNING root")
_DROP = sql("""
    DELETE FROM held_hosts WHERE (root, plan) IN (SELECT n.root, n.plan FROM {n: root str, plan str})
    RETURNING root
""")
