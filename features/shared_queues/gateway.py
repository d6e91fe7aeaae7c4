"""The gateway of a cell with agents that share queues: it relays orders to agents, and merges their
heartbeats.

An order stays in the gateway's durable queue until its agent has answered that it is handled. While the agent
works on the order, or does not answer, the order is delayed in the broker, so that it occupies neither the
gateway nor the orders of other agents. The reports of an order are published by the agent, before it answers.
"""

import logging
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Raw

from bus import topics
from bus.clock import Clock
from bus.errors import Poison, Retry, Unavailable
from bus.guests import GuestsAsked
from bus.messages import HostReported
from bus.protocol import Ask, encode
from bus.worker import Worker, every, on
from features.shared_queues.messages import (
    AGENT_BEAT,
    AGENT_ORDER,
    HEARTBEATS_MERGED,
    MOST_MERGED,
    HeartbeatRelayed,
    HeartbeatsMerged,
    OrderAnswered,
    OrderRelayed,
)

log = logging.getLogger(__name__)

CONCURRENCY = 256  # orders of one topic that are relayed at the same time
MOST_OF_AN_AGENT = 16  # orders relayed to one agent at the same time; to an agent that did not answer, one
SOON, LATER = 5.0, 15.0  # seconds until an order in progress is relayed again: at first, later at most
BUSY_PAUSE = 0.1  # seconds until an order is retried because of MOST_OF_AN_AGENT
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 15.0  # seconds until an agent without an answer is tried again
MERGE_SECONDS = 1.0
MERGED_BYTES = 256 * 1024
MOST_PENDING = 100_000  # heartbeats waiting to be published

BeatKey = tuple[str, str, int, str]


class AgentAway(Retry):
    """Raised if the agent of an order does not answer: the order is delivered again later."""


class RelayedOrderFailed(Exception):
    """An agent's handler of an order raised an unexpected exception; the text is its traceback."""


def agent_gateway(
    cell: str,
    relay: Ask[OrderRelayed, OrderAnswered],
    clock: Clock | None = None,
    removed: Container[str] = frozenset(),
) -> Worker:
    """Return the worker of one cell's gateway; several replicas may share the cell's queues. Orders for the
    agents `removed` are dropped.
    """
    orders, beats = RelayingOrders(relay, clock or Clock(), removed), MergingHeartbeats(cell)
    return Worker(
        f"gateway.{cell}",
        consumes=[
            *(
                on(topic.at(cell=cell), orders.relay, concurrency=CONCURRENCY)
                for topic in topics.TOPICS
                if topic.relayed and topic is not topics.AGENT_ASKED
            ),
            on(topics.AGENT_ASKED.at(cell=cell), orders.ask_for_guests, concurrency=CONCURRENCY),
            on(AGENT_BEAT.at(cell=cell), beats.add, private=True),
            on(HEARTBEATS_MERGED.at(cell=cell), beats.drop_merged, private=True),
        ],
        asks=[AGENT_ORDER],
        timers=[every(MERGE_SECONDS, beats.merge, emits=[HEARTBEATS_MERGED])],
    )


class RelayingOrders:
    """Relays each order to its agent; raises Retry for an order that the agent has not handled yet.

    An order for a removed agent is dropped, because the conductor itself ends the orders that it waits for.
    """

    def __init__(
        self, relay: Ask[OrderRelayed, OrderAnswered], clock: Clock, removed: Container[str] = frozenset()
    ) -> None:
        self._relay_to_agent = relay
        self._clock = clock
        self._removed = removed
        self._relaying: Counter[str] = Counter()  # number of orders being relayed, by agent
        self._silent: dict[str, float] = {}  # agent that did not answer → since when

    async def ask_for_guests(self, asked: GuestsAsked) -> None:
        """Relay a query for an agent's guests. If the agent does not answer, drop the query: the client stops
        waiting for the answer.
        """
        try:
            await self.relay(asked)
        except (AgentAway, Poison) as unanswered:
            log.info("agent %s is not asked for its guests: %s", asked.agent, unanswered)

    async def relay(self, order: Any) -> None:
        """Relay an order, of any topic of orders to agents."""
        agent = order.agent
        if agent in self._removed:
            log.info("an order for the removed agent %s is dropped", agent)
            return
        if self._relaying[agent] >= (1 if agent in self._silent else MOST_OF_AN_AGENT):
            raise Retry(self._pause(agent))
        self._relaying[agent] += 1
        try:
            answer = await self._relay_to_agent(relayed(order))
        except Unavailable as away:
            if agent not in self._silent:
                log.info("agent %s does not answer; its orders wait: %s", agent, away)
                self._silent[agent] = self._clock.monotonic()
            raise AgentAway(self._pause(agent), str(away)) from None
        finally:
            self._relaying[agent] -= 1
            if not self._relaying[agent]:
                del self._relaying[agent]
        if self._silent.pop(agent, None) is not None:
            log.info("agent %s answers again", agent)
        _raise_if_unhandled(answer)

    def _pause(self, agent: str) -> float:
        since = self._silent.get(agent)
        if since is None:
            return BUSY_PAUSE
        return min(max((self._clock.monotonic() - since) / 4, SHORTEST_PAUSE), LONGEST_PAUSE)


def relayed(order: Any) -> OrderRelayed:
    """Return the query that relays an order of any topic of orders to agents."""
    return OrderRelayed(
        cell=order.cell, agent=order.agent, type=type(order).__name__, order=Raw(encode(order))
    )


def _raise_if_unhandled(answer: OrderAnswered) -> None:
    """Raise Retry if the order must be relayed again later, Poison if the agent refused the order, or
    RelayedOrderFailed if the agent's handler failed.
    """
    match answer.state:
        case "working":
            raise Retry(SOON if answer.seconds < SOON else LATER)
        case "later":
            raise Retry(min(answer.seconds, LATER), answer.why)
        case "refused":
            raise Poison(answer.why)
        case "failed":
            raise RelayedOrderFailed(answer.why)


class MergingHeartbeats:
    """Collects the heartbeats of a cell's agents, and publishes them together every second.

    Every replica of the gateway receives all heartbeats. A replica drops the heartbeats that another replica
    has published.
    """

    def __init__(self, cell: str) -> None:
        self._cell = cell
        self._pending: dict[BeatKey, HeartbeatRelayed] = {}

    async def add(self, beat: HeartbeatRelayed) -> None:
        self._pending[_key_of(beat)] = beat
        if len(self._pending) > MOST_PENDING:
            del self._pending[next(iter(self._pending))]

    async def drop_merged(self, merged: HeartbeatsMerged) -> None:
        for report in merged.reports:
            self._pending.pop(_key_of(report), None)

    async def merge(self) -> Sequence[HeartbeatsMerged]:
        """Return the collected heartbeats that no replica has published, merged into messages of limited
        size.
        """
        beats, self._pending = self._pending, {}
        return [HeartbeatsMerged(cell=self._cell, reports=some) for some in _portions(beats.values())]


def _key_of(report: HostReported) -> BeatKey:
    # A heartbeat with many hosts is sent as several messages with the same sequence number, which the first
    # host distinguishes.
    return report.agent, report.run, report.sequence, report.hosts[0].root if report.hosts else ""


def _portions(reports: Iterable[HostReported]) -> Iterator[tuple[HostReported, ...]]:
    """Split heartbeats into portions of at most MOST_MERGED hosts and about MERGED_BYTES, one for each
    message; a heartbeat above these limits is a portion alone.
    """
    some: list[HostReported] = []
    hosts = size = 0
    for report in reports:
        more, bytes_ = max(1, len(report.hosts)), len(encode(report))
        if some and (hosts + more > MOST_MERGED or size + bytes_ > MERGED_BYTES):
            yield tuple(some)
            some, hosts, size = [], 0, 0
        some.append(report)
        hosts, size = hosts + more, size + bytes_
    if some:
        yield tuple(some)
