"""Leases of agents and ownership of bare-metal nodes, in the cell's database.

Any number of conductors may run this. Decisions are made under the lock of a pool, and rights follow from
stored data. Clocks of different machines are never compared (`Sightings` in `core/ring.py`).
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from bus.clock import Clock
from bus.leases import LeaseAnswered, LeaseAsked, NodeLent, NodesReported, NodesTaken
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.sql.database import Database
from bus.sql.failures import Conflict, retrying
from bus.sql.transaction import Transaction
from bus.vocabulary import Message
from cell_conductor import ring_store as store
from cell_conductor.core.build import Build
from cell_conductor.core.ring import RingMember, Sightings, forgotten, moves

log = logging.getLogger(__name__)

LEASE_SECONDS = 2.0
CHECKS_PER_LEASE = 8  # checks of agents in the duration of a lease
IDLE_SECONDS = 1.0  # between checks without agents that share nodes
STRAYS_EVERY = 5.0  # seconds between checks for free nodes at disabled agents
REST = 50  # as a multiple of the last check's duration, if that is longer
PAGE = 5000  # nodes in one answer
FORGOTTEN_AFTER = 7 * 86400.0


class Ring:
    """The agents and bare-metal nodes of one cell."""

    def __init__(
        self, database: Database, *, clock: Clock | None = None, lease: float = LEASE_SECONDS
    ) -> None:
        self.database = database
        self.clock = clock or Clock()
        self.lease = lease
        self.moved: set[str] = set()  # nodes with a new owner, which needs all open orders again
        self._sightings = Sightings(lease / 2)
        self._pools: set[str] | None = None  # pools with agents; unknown until the first check
        self._settled: dict[str, object] = {}  # pool → agents at the last deal
        self._strays_at = self._look_at = float("-inf")
        # A transaction that lost a race is retried.
        self._lend = retrying(self.clock, otherwise=_not_lent)(self._lend_once)
        self.settle = retrying(self.clock, otherwise=_not_settled)(self._settle_once)

    async def lend(self, asked: LeaseAsked) -> LeaseAnswered:
        """Return a lease, and the changes of the agent's nodes."""
        now = self.clock.monotonic()
        self._sightings.renewed(now)
        return await self._lend(asked)

    async def _lend_once(self, asked: LeaseAsked) -> LeaseAnswered:
        agent, pool = asked.agent, asked.pool
        async with self.database.write() as tx:
            if asked.leaves:
                await store.left(tx, agent, asked.run)
                return LeaseAnswered(refused="it has left")
            member = await store.renew(tx, agent, pool, asked.run, asked.epoch, asked.seen, self.clock.now())
            if member is None:
                joined = await self._join(tx, asked)
                if isinstance(joined, str):
                    return LeaseAnswered(refused=joined)
                member = joined
                self._pools = {*(self._pools or ()), pool}
                self._look_at = float("-inf")
                self._settled.pop(pool, None)
            seen = asked.seen if asked.epoch == member.epoch else 0
            version = await store.version(tx, pool)
            nodes: list[NodeLent] = []
            if version > seen:
                nodes, last = await store.changed(tx, pool, agent, seen, PAGE)
                version = last if len(nodes) == PAGE else max(version, last)
            alive = [member.agent for member in await store.members(tx, pool) if member.alive]
        return LeaseAnswered(
            epoch=member.epoch,
            seconds=member.lease,
            version=version,
            nodes=tuple(nodes),
            more=len(nodes) == PAGE,
            tells=agent == min(alive),
        )

    async def _join(self, tx: Transaction, asked: LeaseAsked) -> RingMember | str:
        """Return a new lease, or why there is none."""
        now = self.clock.now()
        before = await store.member(tx, asked.agent)
        if before is None:
            made = await store.join(tx, asked.agent, asked.pool, asked.run, self.lease, now)
        else:
            if before.alive:
                left = self._sightings.left(
                    before.agent, (before.epoch, before.beat), before.lease, self.clock.monotonic()
                )
                if left > 0:
                    return f"another process of this name may act, for at most {left:.1f} s more"
            made = await store.succeed(tx, before, asked.pool, asked.run, self.lease, now)
        if made is None:
            raise Conflict(f"agent {asked.agent} has just joined, or was heard of")
        log.info("agent %s has a lease, its %d. of pool %s", made.agent, made.epoch, made.pool)
        return made

    async def report_nodes(self, told: NodesReported) -> NodesTaken:
        """Apply a list of existing nodes."""
        named = set(told.nodes)
        async with self.database.write() as tx:
            version = await store.lock(tx, told.pool)
            known = await store.nodes(tx, told.pool)
            uses = await store.uses(tx, told.pool)
            gone = [
                replace(node, leaving="gone")
                for node in known
                if told.after < node.root
                and (not told.upto or node.root <= told.upto)
                and not {node.root} & (named | uses.keys())
                and not node.leaving
            ]
            if gone:
                await store.save(tx, told.pool, version, gone)
            new = await store.add(tx, told.pool, named.difference(node.root for node in known))
        if new:
            await self.settle(told.pool)
        return NodesTaken(new=new, gone=len(gone))

    async def check_leases(self) -> None:
        """End expired leases, and deal their nodes."""
        now = self.clock.monotonic()
        if now < self._look_at:
            return
        async with self.database.read_single() as tx:
            members = await store.members(tx)
        self._pools = {member.pool for member in members}
        if not members:
            self._look_at = now + IDLE_SECONDS
            return
        marks = {member.agent: (member.epoch, member.beat) for member in members if member.alive}
        self._sightings.note(marks, now)
        for member in members:
            if (
                member.alive
                and self._sightings.left(member.agent, marks[member.agent], member.lease, now) <= 0
            ):
                async with self.database.write() as tx:
                    if await store.expire(tx, member):
                        log.warning("agent %s is not heard: its lease is over", member.agent)
                        self._settled.pop(member.pool, None)
        async with self.database.read_single() as tx:
            stopped = await store.stopped(tx)
        there: dict[str, list[tuple[str, int, bool, bool]]] = defaultdict(list)
        for member in members:
            there[member.pool].append((member.agent, member.epoch, member.alive, member.disabled))
        strays = now >= self._strays_at
        for pool, who in there.items():
            if strays or pool in stopped or self._settled.get(pool) != who:
                await self.settle(pool)
                self._settled[pool] = who
        if strays:
            took = self.clock.monotonic() - now
            self._strays_at = now + max(STRAYS_EVERY, REST * took)

    async def _settle_once(self, pool: str) -> None:
        """Distribute the nodes of a pool over its agents."""
        async with self.database.write() as tx:
            version = await store.lock(tx, pool)
            members, nodes = await store.members(tx, pool), await store.nodes(tx, pool)
            changed = moves(nodes, members, await store.uses(tx, pool))
            gone = forgotten(nodes, members)
            if not changed and not gone:
                return
            await store.save(tx, pool, version, changed)
            await store.drop(tx, gone)
        before = {node.root: node.epoch for node in nodes}
        moved = {node.root for node in changed if node.epoch != before[node.root]}
        self.moved |= moved
        log.info(
            "pool %s: %d nodes have another owner, %d are to have",
            pool,
            len(moved),
            len(changed) - len(moved),
        )

    async def prune(self) -> None:
        """Delete agents that have been absent for long."""
        async with self.database.write() as tx:
            await store.forget(tx, self.clock.now() - FORGOTTEN_AFTER)

    async def addressed(self, said: Sequence[Message]) -> list[Message]:
        """Address orders to the current owners, whichever agent was named when the host was chosen."""
        orders = [message for message in said if isinstance(message, BuildOrdered | DestroyOrdered)]
        pools = await self._known_pools() if orders else None
        if not pools:
            return list(said)
        owners = await self._owners({order.root for order in orders})
        unknown = defaultdict(set)
        for order in orders:
            if order.agent in pools and order.root not in owners:
                unknown[order.agent].add(order.root)
        for pool, roots in unknown.items():
            async with self.database.write() as tx:
                await store.lock(tx, pool)
                await store.add(tx, pool, roots)
            await self.settle(pool)
            owners |= await self._owners(roots)
        return [
            replace(message, agent=owners[message.root][0], epoch=owners[message.root][1])
            if isinstance(message, BuildOrdered | DestroyOrdered) and owners.get(message.root, ("", 0))[0]
            else message
            for message in said
        ]

    async def _known_pools(self) -> set[str]:
        if self._pools is None:
            async with self.database.read_single() as tx:
                self._pools = {member.pool for member in await store.members(tx)}
        return self._pools

    async def outdated(self, reports: Sequence[AgentReported]) -> set[int]:
        """Return the positions of reports by agents that do not own the node any more."""
        fenced = {report.root for report in reports if report.epoch}
        if not fenced:
            return set()
        owners = await self._owners(fenced)
        return {
            position
            for position, report in enumerate(reports)
            if report.epoch and report.root in owners and report.epoch < owners[report.root][1]
        }

    async def owned(self, roots: Iterable[str]) -> set[str]:
        """Return which of these are bare-metal nodes that agents share."""
        return set(await self._owners(set(roots))) if await self._known_pools() else set()

    async def _owners(self, roots: Iterable[str]) -> dict[str, tuple[str, int]]:
        async with self.database.read_single() as tx:
            return await store.owners(tx, sorted(roots))

    async def builds_moved(self) -> list[Build]:
        """Return builds on nodes with another owner since the last call."""
        roots, self.moved = self.moved, set()
        if not roots:
            return []
        try:
            async with self.database.read() as tx:
                return await store.builds_on(tx, roots)
        except BaseException:
            self.moved |= roots
            raise


# Results if every attempt lost a race


def _not_lent(asked: LeaseAsked) -> LeaseAnswered:
    return LeaseAnswered(refused="others change it all the time")


def _not_settled(pool: str) -> None:
    """Leave the work to the next check."""
