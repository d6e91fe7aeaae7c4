"""A worker is a table: what it hears, answers, asks and may emit. It never holds the bus.

Handlers take a message and return what they emit. `on` refuses, when the table is built, a return type that
`emits` does not declare; the runner refuses, when it happens, a message that was not declared.
"""

import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

from bus.errors import Poison, Retry
from bus.protocol import QueueSpec
from bus.routing import Address, Query, Topic
from bus.topics import TOPIC_OF, TOPICS
from bus.vocabulary import Message

M = TypeVar("M", bound=Message)
A = TypeVar("A", bound=Message)
R = TypeVar("R", bound=Message)

Emits = Message | Sequence[Message] | None
Outcome = Message | Sequence[Message] | Retry | Poison | None  # one message's fate in a list form


class Undeclared(TypeError):
    """A worker's table and its handlers disagree about what is emitted."""


@dataclass(frozen=True)
class On:
    """One row: a topic, who handles it, and what may come of it."""

    address: Address[Any]
    handler: Callable[[Any], Awaitable[Any]]
    emits: frozenset[type[Message]]
    batch: int | None  # None: one at a time; else the handler takes a list of at most so many
    concurrency: int  # handlers (or lists) at work at once
    linger: float  # seconds to wait for company, while messages come one upon the other
    private: bool  # every replica hears every message, while it lives
    unheard: Callable[[Any], Awaitable[Emits]] | None = None  # says what else, of what nobody would hear
    unheard_after: int = 0  # so many tries

    @property
    def name(self) -> str:
        return self.address.topic.pattern

    @property
    def message(self) -> type[Message]:
        return self.address.topic.message

    def queue(self, worker: str, replica: str) -> QueueSpec:
        """One durable queue per worker and topic, shared by its replicas, unless it is private."""
        name = f"{worker}:{self.address.key}"
        if self.private:
            return QueueSpec(f"{name}:{replica}", (self.address.key,), durable=False)
        return QueueSpec(name, (self.address.key,))


@dataclass(frozen=True)
class Answers:
    """One row: a query and who answers it."""

    query: Query[Any, Any]
    handler: Callable[[Any], Awaitable[Any]]
    batch: int | None
    concurrency: int
    linger: float = 0.0  # who asks waits for the answer, not for company
    key: str = ""  # of a query of which every cell has its own: this one's
    cell: str = ""  # which is that

    @property
    def name(self) -> str:
        return self.query.name

    @property
    def message(self) -> type[Message]:
        return self.query.asks

    def queue(self, worker: str, replica: str) -> QueueSpec:
        """One queue per query, shared by all who answer it."""
        return query_queue(self.key or self.query.name)


@dataclass(frozen=True)
class Every:
    """One row: something done again and again."""

    seconds: float
    handler: Callable[[], Awaitable[Emits]]
    emits: frozenset[type[Message]]
    at_once: bool  # the first time when the worker starts


Narrow = Callable[[], Awaitable[None]]
Widen = Callable[[Sequence[On | Answers]], Awaitable[Narrow]]
"""Reads these rows as well, from when it returns until what it gives is called."""


@dataclass(frozen=True)
class Worker:
    name: str
    consumes: Sequence[On] = ()
    answers: Sequence[Answers] = ()
    asks: Sequence[Query[Any, Any]] = ()
    timers: Sequence[Every] = ()
    starts: Sequence[Callable[[], Awaitable[None]]] = ()  # before anything is consumed, in order
    runs: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()  # as long as it lives (a relay)
    # The same of who knows of rows that come and go; these emit nothing
    widens: Sequence[Callable[[Widen], Coroutine[Any, Any, None]]] = ()
    stops: Sequence[Callable[[], Awaitable[None]]] = ()  # after everything has drained
    announces: frozenset[type[Message]] = field(default_factory=frozenset)  # as it tells by itself

    @property
    def emits(self) -> frozenset[type[Message]]:
        heard = [row.emits for row in self.consumes]
        timed = [row.emits for row in self.timers]
        return self.announces.union(*heard, *timed)

    def queue_of(self, row: "On | Answers", replica: str = "") -> QueueSpec:
        """The queue this row of it reads."""
        return row.queue(self.name, replica)


def reply_prefix(query: Query[Any, Any], cell: str) -> str:
    """What addresses for answers begin with: `reply.c1.` of who asks from within a cell, `reply.-c1.` of who
    asks one from outside, `reply.-.` of others. So an address says which way its answer goes. Answers to a
    client have keys below `client.NAME.`, which no other client may bind.
    """
    if query.of_client:
        return f"client.{cell}."
    return f"reply.{cell}." if query.within and cell else f"reply.-{cell}."


def asks_as(worker: str) -> str:
    """Return what the reply addresses of a cell's worker begin with: `conductor`, or `agent-NAME`."""
    kind, _, *agent = worker.split(".", 2)
    return "-".join([kind, *agent])


def cell_of(queue: str) -> str:
    """The cell whose workers read a queue of this name; empty: it is nobody's within a cell."""
    reader, _, key = queue.partition(":")
    if reader == "ask":
        asked = key.split(".")
        return asked[2] if asked[0] == "cell" and len(asked) == 3 else ""
    return reader.partition(".")[2].partition(".")[0]


def central_queues() -> list[QueueSpec]:
    """Return the queues of the scheduler, which every berth has, whichever cells it has.

    They are declared with the exchanges: a request published before the first scheduler started waits there.
    """
    rows = [topic.at() for topic in TOPICS if topic.expected and topic.target == "scheduler"]
    return [QueueSpec(f"scheduler:{row.key}", (row.key,)) for row in rows]


def suspects_queue(worker: str) -> QueueSpec:
    """Return the queue of a worker's messages that were delivered before and are handled one at a time."""
    return QueueSpec(f"{worker}:suspects", notes_readers=True)


def query_queue(key: str) -> QueueSpec:
    """Where questions of this key wait."""
    return QueueSpec(f"ask:{key}", (f"ask.{key}",))


def on(
    topic: Topic[M] | Address[M],
    handler: Callable[[M], Awaitable[Emits]],
    *,
    emits: Iterable[Topic[Any]] = (),
    concurrency: int = 64,
    private: bool = False,
) -> On:
    """Handle this topic one message at a time."""
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
    unheard: Callable[[Any], Awaitable[Emits]] | None = None,
    unheard_after: int = 20,
) -> On:
    """Handle what is waiting on this topic together; the handler returns one outcome for each message.

    What is emitted and heard by nobody is tried again, and in the end a dead letter; unless `unheard`, given
    that emitted message after so many tries, undoes what it stood for and says so.

    `linger` is for handlers whose cost is by the list (a transaction): while messages keep coming, a list
    waits so long for company; the first after a quiet moment never waits.
    """
    declared = frozenset(topic.message for topic in emits)
    _check(handler, declared)
    if unheard is not None:
        _check(unheard, declared)
    return On(_address(topic), handler, declared, batch, concurrency, linger, private, unheard, unheard_after)


def answers(
    query: Query[A, R], handler: Callable[[A], Awaitable[R]], *, concurrency: int = 64, **of: str
) -> Answers:
    """Answer this query one question at a time; `of` says for which cell, where each has its own key."""
    return Answers(query, handler, None, concurrency, key=query.at(**of), cell=of.get("cell", ""))


def answers_many(
    query: Query[A, R],
    handler: Callable[[Sequence[A]], Awaitable[Sequence[R]]],
    *,
    batch: int = 200,
    concurrency: int = 2,
    **of: str,
) -> Answers:
    """Answer what is waiting of this query together, one answer for each question."""
    return Answers(query, handler, batch, concurrency, key=query.at(**of), cell=of.get("cell", ""))


def every(
    seconds: float,
    handler: Callable[[], Awaitable[Emits]],
    *,
    emits: Iterable[Topic[Any]] = (),
    at_once: bool = False,
) -> Every:
    declared = frozenset(topic.message for topic in emits)
    _check(handler, declared)
    return Every(seconds, handler, declared, at_once)


def messages_of(result: Any) -> Sequence[Message]:
    """A handler's result as a flat list."""
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
    """The message types named anywhere in a return annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return () if annotation is Message else (annotation,)
    if isinstance(annotation, typing.TypeAliasType) if hasattr(typing, "TypeAliasType") else False:
        return _messages_in(annotation.__value__)
    if typing.get_origin(annotation) in (Union, types.UnionType) or typing.get_args(annotation):
        return [kind for part in typing.get_args(annotation) for kind in _messages_in(part)]
    return ()
