"""Grants leases to agents, and stores in the cell's database which agent owns each bare-metal node.

Several conductors may run this at a time. Each decides under the lock of a pool, from stored data. Clocks of
different machines are never compared (`LastRenewals` in `core/ring.py`).
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.sql.failures import Conflict, retrying
from bus.sql.statement import Transaction
from bus.vocabulary import Message
from bus.worker import WorkerRows, answers, every
from cell_conductor.extension import CellBuilds, NodeSharing
from features.shared_nodes import store
from features.shared_nodes.core.ring import LastRenewals, RingMember, forgotten, moves, refusal
from features.shared_nodes.messages import (
    EDIT_SHARING,
    FIND_AGENTS,
    LEASE,
    REPORT_NODES,
    AgentsFound,
    AgentStands,
    FindAgents,
    LeaseAnswered,
    LeaseAsked,
    NodeLent,
    NodesReported,
    NodesTaken,
    SharingEditAnswered,
    SharingEditRequested,
)

log = logging.getLogger(__name__)

LEASE_SECONDS = 2.0  # duration of a lease
CHECKS_PER_LEASE = 8  # number of lease checks in the duration of a lease
IDLE_SECONDS = 1.0  # seconds between lease checks if no agents share nodes
STRAYS_EVERY = 5.0  # seconds between checks for free nodes that disabled agents still have
REST = 50  # minimum pause between lease checks, as a multiple of the last check's duration
PAGE = 5000  # bare-metal nodes in one answer
SHOWN = ("agent", "pool", "alive", "disabled", "epoch", "lease", "asked_at")  # shown to operators
FORGOTTEN_AFTER = 7 * 86400.0


class Ring(NodeSharing):
    """Assigns a cell's bare-metal nodes to agents by leases, and executes operators' commands about nodes."""

    def __init__(self, cell: str, builds: CellBuilds) -> None:
        self.cell = cell
        self.builds = builds
        self.database = builds.database
        self.clock = builds.clock
        self.moved: set[str] = set()  # roots of nodes whose new owner needs all unanswered orders
        self._renewals = LastRenewals(LEASE_SECONDS / 2)
        self._pools: set[str] | None = None  # names of the pools with agents; None: not read yet
        self._settled: dict[str, object] = {}  # pool → its agents when its nodes were last distributed
        self._strays_at = self._look_at = float("-inf")
        # `retrying` repeats a transaction that conflicts with another one. After too many attempts, the next
        # check makes the changes.
        busy = LeaseAnswered(refused="other processes change it all the time")
        self.lend = retrying(self.clock, otherwise=lambda asked: busy)(self._lend_once)
        again = SharingEditAnswered(refused="other processes keep changing it: try again")
        self._edit = retrying(self.clock, otherwise=lambda request: again)(self._edit_once)
        self.settle = retrying(self.clock, otherwise=lambda pool: None)(self._settle_once)
        self.database.on_new_history(self.forget)

    def rows(self) -> WorkerRows:
        period = LEASE_SECONDS / CHECKS_PER_LEASE
        return WorkerRows(
            answers=[
                answers(LEASE, self.lend, cell=self.cell),
                answers(REPORT_NODES, self.report_nodes, cell=self.cell),
                answers(FIND_AGENTS, self.find, cell=self.cell),
                answers(EDIT_SHARING, self.edit, cell=self.cell),
            ],
            timers=[
                every(period, self.check_leases, at_once=True),
                every(period, self.remind, emits=self.builds.repeated),
                every(3600.0, self.prune),
            ],
        )

    def forget(self) -> None:
        """Clear the cached pools and agents, to read them again: a fail-over of the database may have lost
        changes."""
        self._pools = None
        self._settled.clear()

    async def _lend_once(self, asked: LeaseAsked) -> LeaseAnswered:
        """Grant or extend an agent's lease; return the lease, with the nodes of the agent's pool that changed
        since its last query.
        """
        agent, pool = asked.agent, asked.pool
        self._renewals.renewed(self.clock.monotonic())
        async with self.database.write() as tx:
            if asked.leaves:
                await store.LEFT(tx, agent=agent, run=asked.run)
                return LeaseAnswered(refused="it has left")
            member = await store.renew(tx, asked, self.clock.now())
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
        members = await store.members(tx)
        before = next((member for member in members if member.agent == asked.agent), None)
        if before is not None and before.alive:
            mark = (before.epoch, before.beat)
            left = self._renewals.left(before.agent, mark, before.lease, self.clock.monotonic())
            if left > 0:
                return f"another process of this name may act, for at most {left:.1f} s more"
        made = await store.join(tx, asked, before, LEASE_SECONDS, self.clock.now())
        if made is None:
            raise Conflict(f"agent {asked.agent} has just joined or sent a heartbeat")
        log.info("agent %s has a lease, its %d. of pool %s", made.agent, made.epoch, made.pool)
        return made

    async def report_nodes(self, report: NodesReported) -> NodesTaken:
        """Apply a report of all nodes of a pool, or of the nodes in a range of root ids: add new nodes, and
        mark as deleted the free nodes of the pool or range that the report lacks. Return the numbers of new
        and of deleted nodes.
        """
        pool, named = report.pool, set(report.nodes)
        async with self.database.write() as tx:
            version = await store.lock(tx, pool)
            known = await store.nodes(tx, pool)
            stay = named | (await store.uses(tx, pool)).keys()
            removed = [
                replace(node, leaving="gone")
                for node in known
                if not node.leaving
                and node.root not in stay
                and report.after < node.root
                and (not report.upto or node.root <= report.upto)
            ]
            if removed:
                await store.save(tx, pool, version, removed)
            new = await store.add(tx, pool, named.difference(node.root for node in known))
        if new:
            await self.settle(pool)
        return NodesTaken(new=new, gone=len(removed))

    async def check_leases(self) -> None:
        """End the expired leases of agents, and distribute their nodes over the other agents."""
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
        self._renewals.note(marks, now)
        for member in members:
            mark = marks.get(member.agent)
            if mark and self._renewals.left(member.agent, mark, member.lease, now) <= 0:
                async with self.database.write() as tx:
                    if await store.EXPIRE(tx, agent=member.agent, epoch=member.epoch, beat=member.beat):
                        log.warning("agent %s is silent: its lease has expired", member.agent)
                        self._settled.pop(member.pool, None)
        async with self.database.read_single() as tx:
            stopped = {row["pool"] for row in await store.STOPPED(tx)}
        leases: dict[str, list[tuple[str, int, bool, bool]]] = defaultdict(list)
        for member in members:
            leases[member.pool].append((member.agent, member.epoch, member.alive, member.disabled))
        strays = now >= self._strays_at
        for pool, leases_of_pool in leases.items():
            if strays or pool in stopped or self._settled.get(pool) != leases_of_pool:
                await self.settle(pool)
                self._settled[pool] = leases_of_pool
        if strays:
            self._strays_at = now + max(STRAYS_EVERY, REST * (self.clock.monotonic() - now))

    async def _settle_once(self, pool: str) -> None:
        async with self.database.write() as tx:
            version = await store.lock(tx, pool)
            members, nodes = await store.members(tx, pool), await store.nodes(tx, pool)
            changed = moves(nodes, members, await store.uses(tx, pool))
            removed = forgotten(nodes, members)
            if not changed and not removed:
                return
            await store.save(tx, pool, version, changed)
            await store.DROP(tx, [(root,) for root in removed])
        before = {node.root: node.epoch for node in nodes}
        moved = {node.root for node in changed if node.epoch != before[node.root]}
        self.moved |= moved
        waiting = len(changed) - len(moved)
        log.info("pool %s: %d nodes have another owner, %d are to have", pool, len(moved), waiting)

    async def prune(self) -> None:
        async with self.database.write() as tx:
            await store.FORGET(tx, before=self.clock.now() - FORGOTTEN_AFTER)

    async def addressed(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, with each build and destroy order about a bare-metal node addressed to the
        agent that owns the node now."""
        orders = [message for message in messages if isinstance(message, BuildOrdered | DestroyOrdered)]
        pools = await self._read_pools() if orders else None
        if not pools:
            return list(messages)
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
            for message in messages
        ]

    async def _read_pools(self) -> set[str]:
        """Return the pools with bare-metal nodes that agents share."""
        if self._pools is None:
            async with self.database.read_single() as tx:
                self._pools = {member.pool for member in await store.members(tx)}
        return self._pools

    async def outdated(self, reports: Sequence[AgentReported]) -> set[int]:
        """Return the positions of reports with an old epoch: the agent no longer owns the reported node."""
        fenced = {report.root for report in reports if report.epoch}
        if not fenced:
            return set()
        owners = await self._owners(fenced)
        return {
            position
            for position, report in enumerate(reports)
            if report.epoch and report.root in owners and report.epoch < owners[report.root][1]
        }

    async def shared(self, roots: Collection[str]) -> Collection[str]:
        """Return which of the given root providers are bare-metal nodes of a pool."""
        return await self._owners(roots) if roots and await self._read_pools() else ()

    async def _owners(self, roots: Iterable[str]) -> dict[str, tuple[str, int]]:
        async with self.database.read_single() as tx:
            return await store.owners(tx, sorted(roots))

    async def remind(self) -> Sequence[Message]:
        """Return again the unanswered orders about the nodes to which this conductor gave a new agent since
        the last call.
        """
        roots, self.moved = self.moved, set()
        if not roots:
            return []
        try:
            return await self.builds.remind(roots)
        except BaseException:
            self.moved |= roots
            raise

    async def removed(self, agent: str) -> int:
        edited = await self.edit(SharingEditRequested(cell=self.cell, agent=agent, edit="disable"))
        if not edited.refused:
            edited = await self.edit(SharingEditRequested(cell=self.cell, agent=agent, edit="rehome"))
        return edited.moved + edited.waiting

    async def restored(self, agent: str) -> None:
        await self.edit(SharingEditRequested(cell=self.cell, agent=agent, edit="enable"))

    async def find(self, question: FindAgents) -> AgentsFound:
        async with self.database.read() as tx:
            members = sorted(await store.members(tx), key=lambda member: member.pool)
            pools = {member.pool for member in members}
            nodes = {pool: await store.nodes(tx, pool) for pool in pools}
            uses = {pool: await store.uses(tx, pool) for pool in pools}
        found = []
        for member in members:
            mine = [node for node in nodes[member.pool] if node.owner == member.agent]
            occupied = sum(node.root in uses[member.pool] for node in mine)
            state = AgentStands(
                **{name: getattr(member, name) for name in SHOWN},
                free=len(mine) - occupied,
                occupied=occupied,
                leaving=sum(bool(node.leaving) for node in mine),
            )
            found.append(state)
        return AgentsFound(agents=tuple(found), nodes=sum(map(len, nodes.values())))

    async def edit(self, request: SharingEditRequested) -> SharingEditAnswered:
        answer = await self._edit(request)
        if answer.refused:
            return answer
        async with self.database.read() as tx:
            pool = next(member.pool for member in await store.members(tx) if member.agent == request.agent)
            mine = {node.root for node in await store.nodes(tx, pool) if node.owner == request.agent}
        await self.settle(pool)
        async with self.database.read() as tx:
            after = [node for node in await store.nodes(tx, pool) if node.root in mine]
        moved = sum(node.owner != request.agent for node in after)
        waiting = sum(node.leaving in ("free", "all") for node in after)
        return SharingEditAnswered(moved=moved, waiting=waiting)

    async def _edit_once(self, request: SharingEditRequested) -> SharingEditAnswered:
        async with self.database.write() as tx:
            members = {member.agent: member for member in await store.members(tx)}
            if why := refusal(request, members):
                return SharingEditAnswered(refused=why)
            member = members[request.agent]
            if request.edit != "rehome":
                await store.DISABLE(tx, agent=member.agent, disabled=request.edit == "disable")
                return SharingEditAnswered()
            version = await store.lock(tx, member.pool)
            nodes = await store.nodes(tx, member.pool)
            mine = {node.root: node for node in nodes if node.owner == member.agent}
            if strange := sorted(set(request.nodes) - mine.keys()):
                return SharingEditAnswered(refused=f"{strange[0]} is no node of {member.agent}'s")
            chosen = [mine[root] for root in request.nodes] if request.nodes else list(mine.values())
            leaving = [
                replace(node, leaving="all", to=request.to) for node in chosen if node.leaving != "gone"
            ]
            await store.save(tx, member.pool, version, leaving)
        return SharingEditAnswered()
