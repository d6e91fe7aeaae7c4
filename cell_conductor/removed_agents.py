"""Ends the orders for agents that an operator removed from the cell.

An operator who removes an agent states that no guest runs on its hosts. So the conductor publishes, in place
of an order for the agent, a report that ends the order: a build failed, a guest is destroyed, a phase of a
move got no answer. Each guest whose destruction was assumed is stored, and `berth audit check` lists it.

Shared nodes are exempt: the orders wait until another agent gets the node.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bus.agent_builds import report
from bus.clock import Clock
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.removed_agents import AgentEditAnswered, AgentEditRequested
from bus.sql.database import Database
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Compact, Message
from cell_conductor.node_sharing import NodeSharing

log = logging.getLogger(__name__)

_REMOVED = sql("SELECT agent FROM removed_agents")
_REMOVE = sql("""
    INSERT INTO removed_agents (agent, since) VALUES (:agent, CAST(:now AS double precision))
    ON CONFLICT (agent) DO NOTHING RETURNING agent
""")
_RESTORE = sql("DELETE FROM removed_agents WHERE agent = :agent RETURNING agent")
_ASSUME = sql("""
    INSERT INTO assumed_guests (build, attempt, root, host, agent, since)
    SELECT n.build, n.attempt, n.root, n.host, n.agent, n.since
    FROM {n: build str, attempt int, root str, host str, agent str, since float} WHERE true
    ON CONFLICT (build, attempt, root) DO NOTHING RETURNING build
""")
_ASSUMED = sql("SELECT build, attempt, host, agent, since FROM assumed_guests ORDER BY agent, build, attempt")
_FORGET = sql("DELETE FROM assumed_guests WHERE agent = :agent RETURNING build")
_PRUNE_ASSUMED = sql("""
    DELETE FROM assumed_guests WHERE build IN (SELECT build FROM assumed_guests
    WHERE since < :before ORDER BY since LIMIT :most) AND since < :before RETURNING build
""")


@dataclass(frozen=True)
class EndedOrders:
    """The orders of a feature that the removal of an agent ends, and the report that ends one."""

    order: type[Message]
    report: type[Message]
    end: Callable[[Any, str], Message]  # returns the report that ends an order, with the cause


class AssumedGuest(Compact, frozen=True):
    """A guest of a removed agent, which the cell treats as destroyed without a report."""

    build: str
    attempt: int
    host: str
    agent: str
    since: float


class RemovedAgents:
    """The agents that operators removed from one cell, as last read from the cell's database."""

    def __init__(self, database: Database, clock: Clock, of_features: Sequence[EndedOrders] = ()) -> None:
        self._database = database
        self._clock = clock
        self._ends = {ended.order: ended.end for ended in of_features}
        self._orders: tuple[type[Any], ...] = (BuildOrdered, DestroyOrdered, *self._ends)
        self._reports: tuple[type[Message], ...] = (AgentReported, *(ended.report for ended in of_features))
        self._agents: frozenset[str] | None = None  # None: not read yet
        self.unended: frozenset[str] = frozenset()  # agents whose orders are still to be ended

    def __contains__(self, agent: object) -> bool:
        return self._agents is not None and agent in self._agents

    async def refresh(self) -> None:
        """Read the removed agents again, and note those that were removed since the last read."""
        async with self._database.read_single() as tx:
            agents = frozenset(row["agent"] for row in await _REMOVED(tx))
        before, self._agents = self._agents or frozenset(), agents
        self.unended = (self.unended & agents) | (agents - before)

    async def edit(self, request: AgentEditRequested, sharing: NodeSharing) -> AgentEditAnswered:
        """Record that an operator removed or restored an agent; give the shared nodes of a removed agent to
        other agents.
        """
        async with self._database.write() as tx:
            if request.edit == "remove":
                await _REMOVE(tx, agent=request.agent, now=self._clock.now())
                assumed = 0
            else:
                restored = await _RESTORE(tx, agent=request.agent)
                assumed = len(await _FORGET(tx, agent=request.agent)) if restored else 0
        nodes = 0
        if request.edit == "remove":
            nodes = await sharing.removed(request.agent)
        else:
            await sharing.restored(request.agent)
        log.info("agent %s: %sd by an operator", request.agent, request.edit)
        return AgentEditAnswered(nodes=nodes, assumed=assumed)

    def reports(self, messages: Iterable[Message]) -> list[Message]:
        """Return, of the given messages, only the reports that the conductor made for removed agents."""
        reports = (message for message in messages if isinstance(message, self._reports))
        return [report for report in reports if getattr(report, "agent", "") in self]

    async def addressed(self, messages: Sequence[Message], sharing: NodeSharing) -> list[Message | None]:
        """Return the messages, with each order addressed to the node's present agent, and each order for a
        removed agent replaced by the report that ends it. None replaces an order that needs no report: about
        an adopted guest, or about a shared node.
        """
        messages = await sharing.addressed(messages)
        if self._agents is None:
            await self.refresh()
        positions = [
            at for at, order in enumerate(messages) if isinstance(order, self._orders) and order.agent in self
        ]
        if not positions:
            return list(messages)
        found: list[Any] = list(messages)
        shared = await sharing.shared({found[at].root for at in positions})
        for at in positions:
            order = found[at]
            found[at] = None if order.epoch or order.root in shared else self._report_instead(order)
        now = self._clock.now()
        assumed = {
            (order.build, order.attempt, order.root, order.host, order.agent, now)
            for at in positions
            if isinstance(order := messages[at], DestroyOrdered) and found[at] is not None
        }
        if assumed:
            async with self._database.write() as tx:
                await _ASSUME(tx, sorted(assumed))
        return found

    def _report_instead(self, order: Any) -> Message | None:
        """Return the report that ends an order for a removed agent; None if nothing waits for the order."""
        cause = f"its agent {order.agent} was removed"
        match order:
            case BuildOrdered(adopt=True):
                return None
            case BuildOrdered():
                return report(order, "failed", cause=cause)
            case DestroyOrdered():
                return report(order, "destroyed", cause=cause)
            case _:
                return self._ends[type(order)](order, cause)


async def assumed_guests(database: Database) -> list[AssumedGuest]:
    """Return the guests of removed agents that the cell treats as destroyed, for `berth audit check`."""
    async with database.read() as tx:
        return [AssumedGuest(*row) for row in await _ASSUMED(tx)]


async def prune_assumed(tx: Transaction, before: float, most: int) -> int:
    """Delete at most `most` records of guests assumed destroyed before a time; return how many."""
    return len(await _PRUNE_ASSUMED(tx, before=before, most=most))
