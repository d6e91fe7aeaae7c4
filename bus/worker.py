"""A worker's table: the topics that it consumes, the queries that it answers, its timers, and what it may
publish. A handler may return only messages that its row declares: its return type is checked when the row is
made, each returned message before it is published.
"""

import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Union

from bus.errors import Poison, Retry
from bus.protocol import Intake, QueueSpec
from bus.topics import TOPIC_OF, TOPICS, Address, Query, Topic
from bus.vocabulary import Message

M = TypeVar("M", bound=Message)
A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)

Emits = Message | Sequence[Message] | None
Outcome = Message | Sequence[Message] | Retry | Poison | None  # a handler's result for one message of a list


class Undeclared(TypeError):
    """Raised if a handler returns a message that its row of the worker's table does not declare."""


@dataclass(frozen=True)
class On:
    """A row of a worker's table: a topic to consume, its handler, and the messages that the handler emits."""

    address: Address[Any]
    handler: Callable[[Any], Awaitable[Any]]
    emits: frozenset[type[Message]]
    batch: int | None  # None: the handler takes one message; else a list of at most this length
    concurrency: int  # concurrent handler calls
    linger: float  # seconds to wait for further messages under load
    private: bool  # every process of the worker receives every message while it runs
    # returns replacements of an unroutable message
    on_unroutable: Callable[[Any], Awaitable[Emits]] | None = None
    undeliverable_after: int = 0  # number of tries before `on_unroutable` is called
    intake: Intake | None = None  # returns the messages of the queue in another order
    prefetch: int = 0  # maximum of unsettled messages; 0: twice as many as all handler calls take
    slow: Callable[[Any], bool] | None = None  # whether a message is handled in a separate call

    @property
    def name(self) -> str:
        return self.address.topic.pattern

    @property
    def message(self) -> type[Message]:
        return self.address.topic.message

    def queue(self, worker: str, replica: str) -> QueueSpec:
        """Return the queue of this row: one per worker and topic, from which all processes of the worker
        consume, or one per process if `private`.
        """
        name = f"{worker}:{self.address.key}"
        if self.private:
            return QueueSpec(f"{name}:{replica}", (self.address.key,), durable=False)
        return QueueSpec(name, (self.address.key,))


@dataclass(frozen=True)
class Answers:
    """A row of a worker's table: a query to answer, and its handler."""

    query: Query[Any, Any]
    handler: Callable[[Any], Awaitable[Any]]
    batch: int | None
    concurrency: int
    linger: float = 0.0
    key: str = ""  # routing key of the query for this cell, if each cell has a separate key
    cell: str = ""  # the cell of `key`
    private: bool = False  # only one process answers, and its queue is deleted when the process ends

    @property
    def name(self) -> str:
        return self.query.name

    @property
    def message(self) -> type[Message]:
        return self.query.asks

    def queue(self, worker: str, replica: str) -> QueueSpec:
        """Return the queue of this query: shared by all workers that answer the query, or one per process if
        `private`.
        """
        shared = query_queue(self.key or self.query.name)
        return QueueSpec(f"{shared.name}:{replica}", shared.keys, durable=False) if self.private else shared


@dataclass(frozen=True)
class Every:
    """A row of a worker's table: a timer, with a handler that is called periodically."""

    seconds: float
    handler: Callable[[], Awaitable[Emits]]
    emits: frozenset[type[Message]]
    at_once: bool  # True: the first call is when the worker starts; False: a period later


Narrow = Callable[[], Awaitable[None]]
Widen = Callable[[Sequence[On | Answers]], Awaitable[Narrow]]
"""Starts to read further rows; the function it returns stops that."""


Starts = Sequence[Callable[[], Awaitable[None]]]
Runs = Sequence[Callable[[], Coroutine[Any, Any, None]]]


@dataclass(frozen=True, kw_only=True)
class WorkerRows:
    """The rows that a feature adds to the table of a worker; the fields are those of Worker."""

    consumes: Sequence[On] = ()
    answers: Sequence[Answers] = ()
    asks: Sequence[Query[Any, Any]] = ()
    timers: Sequence[Every] = ()
    starts: Starts = ()
    runs: Runs = ()
    stops: Starts = ()
    announces: frozenset[type[Message]] = frozenset()


@dataclass(frozen=True)
class Worker:
    """A worker as a table: what it consumes, answers, asks and publishes, its timers and its start."""

    name: str
    consumes: Sequence[On] = ()
    answers: Sequence[Answers] = ()
    asks: Sequence[Query[Any, Any]] = ()
    timers: Sequence[Every] = ()
    starts: Starts = ()  # called in order before anything is consumed
    runs: Runs = ()  # background tasks
    # background tasks that add and remove rows at run time; such rows emit nothing
    widens: Sequence[Callable[[Widen], Coroutine[Any, Any, None]]] = ()
    stops: Starts = ()  # called after everything has drained
    announces: frozenset[type[Message]] = frozenset()  # messages that its background tasks publish

    @property
    def emits(self) -> frozenset[type[Message]]:
        """Return the types of all messages that the worker may publish."""
        consumed = (row.emits for row in self.consumes)
        return self.announces.union(*consumed, *(row.emits for row in self.timers))

    def with_rows(self, added: Sequence[WorkerRows]) -> "Worker":
        """Return the worker with further rows, such as those of features. A query that several of them ask is
        named once.
        """
        return replace(
            self,
            consumes=[*self.consumes, *(row for rows in added for row in rows.consumes)],
            answers=[*self.answers, *(row for rows in added for row in rows.answers)],
            asks=tuple(dict.fromkeys([*self.asks, *(query for rows in added for query in rows.asks)])),
            timers=[*self.timers, *(row for rows in added for row in rows.timers)],
            starts=[*self.starts, *(start for rows in added for start in rows.starts)],
            runs=[*self.runs, *(run for rows in added for run in rows.runs)],
            stops=[*self.stops, *(stop for rows in added for stop in rows.stops)],
            announces=self.announces.union(*(rows.announces for rows in added)),
        )

    def queue_of(self, row: "On | Answers", replica: str = "") -> QueueSpec:
        """Return the queue from which this row of the worker's table gets its messages."""
        return row.queue(self.name, replica)


_ORDERS = "orders-"


def reply_prefix(query: Query[Any, Any], cell: str) -> str:
    """Return the prefix of the reply addresses of this query, which states in which direction answers travel.

    `reply.c1.` is for queries from inside cell c1, `reply.-c1.` for queries to cell c1 from outside, and
    `reply.-.` for all queries without a cell. The prefix for queries to agents is `reply.c1.orders-`, so that
    an agent cannot answer any other query. Answers to a client have keys below `client.NAME.`, which only
    that client may bind.
    """
    if query.of_client:
        return f"client.{cell}."
    if query.to_agents:
        return f"reply.{cell}.{_ORDERS}"
    return f"reply.{cell}." if query.within and cell else f"reply.-{cell}."


def asks_as(worker: str) -> str:
    """Return the word after the prefix in the reply addresses of a cell's worker: `conductor`, `agent-NAME`,
    or `orders-conductor` for the gateway, which runs in the conductor's process.
    """
    kind, _, *agent = worker.split(".", 2)
    return f"{_ORDERS}conductor" if kind == "gateway" else "-".join([kind, *agent])


def cell_of(queue: str) -> str:
    """Return the cell of the workers that consume the queue of this name; empty if they are in no cell."""
    reader, _, key = queue.partition(":")
    if reader == "ask":
        asked = key.split(".")
        return asked[2] if (asked[0], len(asked)) in (("cell", 3), ("agent", 4)) else ""
    return reader.partition(".")[2].partition(".")[0]


def central_queues() -> list[QueueSpec]:
    """Return the scheduler's queues. Every installation declares them together with the exchanges, so that
    requests published before the first scheduler starts are not lost.
    """
    rows = [topic.at() for topic in TOPICS if topic.expected and topic.target == "scheduler"]
    return [QueueSpec(f"scheduler:{row.key}", (row.key,)) for row in rows]


def suspects_queue(worker: str) -> QueueSpec:
    """Return the queue for a worker's suspects, which are handled one at a time."""
    return QueueSpec(f"{worker}:suspects", notes_readers=True)


def may_lack_consumer(queue: str, messages: int) -> bool:
    """Return whether a queue needs no consumer now: workers consume suspects only while there are some."""
    return not messages and queue.endswith(suspects_queue("").name)


def query_queue(key: str) -> QueueSpec:
    """Return the queue of a query, which all replicas of the answering worker share."""
    return QueueSpec(f"ask:{key}", (f"ask.{key}",))


def on(
    topic: Topic[M] | Address[M],
    handler: Callable[[M], Awaitable[Emits]],
    *,
    emits: Iterable[Topic[Any]] = (),
    concurrency: int = 64,
    private: bool = False,
) -> On:
    """Return a table row that consumes a topic and calls the handler with one message at a time, in at most
    `concurrency` calls at once. `private`: every process of the worker receives every message.
    """
    declared = frozenset(topic.message for topic in emits)
    _check(handler, declared)
    return On(_address(topic), handler, declared, None, concurrency, 0.0, private)


def on_many(
    topic: Topic[M] | Address[M],
    handler: Callable[[Sequence[M]], Awaitable[Sequence[Outcome]]],
    *,
    emits: Iterable[Topic[Any]] = (),
    batch: int = 128,
    concurrency: int = 2,
    linger: float = 0.0,
    private: bool = False,
    on_unroutable: Callable[[Any], Awaitable[Emits]] | None = None,
    undeliverable_after: int = 20,
    intake: Intake | None = None,
    prefetch: int = 0,
    slow: Callable[[M], bool] | None = None,
) -> On:
    """Return a table row that consumes a topic and calls the handler with lists of messages. The handler
    returns for each message one outcome, which can contain messages to publish.

    If no worker consumes a published message, publishing is retried, and finally the handled message is
    dead-lettered. If `on_unroutable` is given, it is called instead, after `undeliverable_after` tries, with
    the unconsumed message. The messages that it returns, which undo the work, are published.

    `linger` is for handlers with a cost per list (a transaction): if messages have arrived while the handler
    was busy, their list waits this long for further messages. A message for an idle handler never waits.

    `private`: every process of the worker receives every message. `prefetch` limits the unsettled messages
    (0: twice as many as the handler calls take). `intake` reorders the messages of the queue before the
    handler gets them.

    `slow` returns whether the handler needs another worker's answer for a message. The slow messages of a
    list are handled in a separate call, for which neither its other messages nor the next list wait.
    """
    declared = frozenset(topic.message for topic in emits)
    _check(handler, declared)
    if on_unroutable is not None:
        _check(on_unroutable, declared)
    return On(
        _address(topic),
        handler,
        declared,
        batch,
        concurrency,
        linger,
        private,
        on_unroutable,
        undeliverable_after,
        intake,
        prefetch,
        slow,
    )


def answers(
    query: Query[A, R],
    handler: Callable[[A], Awaitable[R]],
    *,
    concurrency: int = 64,
    private: bool = False,
    **fields: str,
) -> Answers:
    """Return a table row that answers a query, calling the handler once for each message. `fields`, such as
    cell="c1", fill the braces in the query's name, so the row answers only queries with the given values.
    `private`: only one process answers, and its queue is deleted when the process ends.
    """
    cell = fields.get("cell", "")
    return Answers(query, handler, None, concurrency, key=query.at(**fields), cell=cell, private=private)


def answers_many(
    query: Query[A, R],
    handler: Callable[[Sequence[A]], Awaitable[Sequence[R]]],
    *,
    batch: int = 200,
    concurrency: int = 2,
    **fields: str,
) -> Answers:
    """Return a table row that answers a query, calling the handler with lists of messages. The handler
    returns one answer for each message.
    """
    return Answers(query, handler, batch, concurrency, key=query.at(**fields), cell=fields.get("cell", ""))


def every(
    seconds: float,
    handler: Callable[[], Awaitable[Emits]],
    *,
    emits: Iterable[Topic[Any]] = (),
    at_once: bool = False,
) -> Every:
    """Return the row of a timer that calls the handler every so many seconds, with `at_once` also at the
    start.
    """
    declared = frozenset(topic.message for topic in emits)
    _check(handler, declared)
    return Every(seconds, handler, declared, at_once)


def prune_period(*kept_for: float) -> float:
    """Return the seconds between two deletions of old records: a tenth of the shortest time for which records
    are stored, at most an hour.
    """
    return min([3600.0, *(seconds / 10 for seconds in kept_for)])


def messages_of(result: Any) -> Sequence[Message]:
    """Return a handler's result (None, one message or several messages) as a sequence of messages."""
    if result is None:
        return ()
    return (result,) if isinstance(result, Message) else result


def _address(topic: Topic[M] | Address[M]) -> Address[M]:
    return topic.at() if isinstance(topic, Topic) else topic


def _check(handler: Callable[..., Any], declared: frozenset[type[Message]]) -> None:
    returns = typing.get_type_hints(handler).get("return", type(None))
    undeclared = {kind for kind in _messages_in(returns) if kind not in declared}
    if undeclared:
        names = ", ".join(sorted(kind.__name__ for kind in undeclared))
        topics = ", ".join(sorted(t.pattern for k, t in TOPIC_OF.items() if k in undeclared))
        where = getattr(handler, "__qualname__", repr(handler))
        raise Undeclared(f"{where} returns {names}, but its row does not declare emits=[{topics}]")


def _messages_in(annotation: Any) -> Iterable[type[Message]]:
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return () if annotation is Message else (annotation,)
    if isinstance(annotation, typing.TypeAliasType) if hasattr(typing, "TypeAliasType") else False:
        return _messages_in(annotation.__value__)
    if typing.get_origin(annotation) in (Union, types.UnionType) or typing.get_args(annotation):
        return [kind for part in typing.get_args(annotation) for kind in _messages_in(part)]
    return ()
