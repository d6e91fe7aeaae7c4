"""Lets an agent carry out orders that the gateway of its cell relays from queues shared by all agents.

The gateway keeps an order in its durable queue until the agent has answered that the order is handled. An
order may take hours, but a query times out in seconds. So the agent soon answers that the order is in
progress, and the gateway repeats its query later. Until the gateway has received the final answer, a repeated
query finds the running or ended task of the order, and no order runs twice. A restarted agent has lost its
tasks: the handlers find the progress of a repeated order in the agent's stored records.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from bus.clock import Clock
from bus.errors import AnswerRefused, BrokerRefused, Poison, Retry, TooBig, Unavailable, Unroutable
from bus.messages import HostReported
from bus.protocol import decode, encode
from bus.topics import HOST_REPORTED
from bus.vocabulary import MAX_CAUSE, Message, cause_of
from bus.worker import Every, On, Worker, answers, messages_of
from features.shared_queues.messages import AGENT_ORDER, HeartbeatRelayed, OrderAnswered, OrderRelayed

PATIENCE = 0.05  # seconds until the answer that an order is still in progress
AGAIN_SECONDS = 1.0  # until an order is relayed again, if a service was unreachable for its handler
CONCURRENCY = 256  # queries at a time; each takes at most PATIENCE

Publish = Callable[..., Awaitable[None]]


def with_shared_queues(worker: Worker, publish: Publish, clock: Clock) -> Worker:
    """Return a copy of an agent's worker that has no queues of its own for orders: the cell's gateway sends
    each order as a query, and receives the agent's heartbeats.
    """
    _, cell, agent = worker.name.split(".", 2)
    orders = RelayedOrders(worker.consumes, publish, clock)
    published = frozenset[type[Message]]().union(*(row.emits for row in worker.consumes))
    return replace(
        worker,
        consumes=(),
        answers=[
            *worker.answers,
            answers(
                AGENT_ORDER, orders.answer, concurrency=CONCURRENCY, private=True, cell=cell, agent=agent
            ),
        ],
        timers=[_to_gateway(row) if HOST_REPORTED.message in row.emits else row for row in worker.timers],
        runs=[*worker.runs, orders.run],
        announces=worker.announces | published,
    )


class RelayedOrders:
    """Starts the handler of each relayed order once, and answers whether the order is handled."""

    def __init__(self, rows: Sequence[On], publish: Publish, clock: Clock) -> None:
        self._rows = {row.message.__name__: row for row in rows}
        self._slots = {row.message.__name__: asyncio.Semaphore(row.concurrency) for row in rows}
        self._publish = publish
        self._clock = clock
        # For each order, its start time and its task; removed when the gateway has received the result.
        self._work: dict[bytes, tuple[float, asyncio.Task[OrderAnswered]]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._running = asyncio.Event()

    async def run(self) -> None:
        """Run the tasks of orders in progress until cancelled, which cancels the tasks, too."""
        async with asyncio.TaskGroup() as self._group:
            self._running.set()
            await asyncio.Event().wait()

    async def answer(self, relayed: OrderRelayed) -> OrderAnswered:
        """Execute an agent's order that a gateway sent as a query, once. Return its result if it ends within
        PATIENCE seconds, else the state `working`.
        """
        await self._running.wait()
        assert self._group is not None
        key = encode(relayed)
        if key not in self._work:
            self._work[key] = self._clock.monotonic(), self._group.create_task(self._carry_out(relayed))
        started, work = self._work[key]
        await asyncio.wait([work], timeout=PATIENCE)
        if not work.done():
            return OrderAnswered(state="working", seconds=self._clock.monotonic() - started)
        self._work.pop(key, None)
        return work.result()

    async def _carry_out(self, relayed: OrderRelayed) -> OrderAnswered:
        row = self._rows.get(relayed.type)
        if row is None:
            return OrderAnswered(state="refused", why=f"agent {relayed.agent} takes no {relayed.type}")
        try:
            order = decode(row.message, relayed.order)
            async with self._slots[relayed.type]:
                await self._publish(*messages_of(await row.handler(order)))
        except Retry as later:
            return OrderAnswered(state="later", seconds=later.after, why=_text(later))
        except (Unavailable, Unroutable) as missing:
            return OrderAnswered(state="later", seconds=AGAIN_SECONDS, why=_text(missing))
        except (Poison, AnswerRefused, BrokerRefused, TooBig) as refused:
            return OrderAnswered(state="refused", why=_text(refused))
        except Exception:
            return OrderAnswered(state="failed", why=traceback.format_exc()[-MAX_CAUSE:])
        return OrderAnswered(state="handled")


def _text(problem: Exception) -> str:
    return cause_of(str(problem))


def _to_gateway(row: Every) -> Every:
    """Return a copy of a timer that publishes heartbeats; the copy sends the heartbeats to the gateway."""

    async def relayed() -> list[Message]:
        return [_relayed(message) for message in messages_of(await row.handler())]

    kinds = (row.emits - {HostReported}) | {HeartbeatRelayed}
    return replace(row, handler=relayed, emits=kinds)


def _relayed(message: Message) -> Message:
    if type(message) is not HostReported:
        return message
    return HeartbeatRelayed(**{name: getattr(message, name) for name in message.__struct_fields__})
