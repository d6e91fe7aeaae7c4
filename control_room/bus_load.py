"""Load of the bus: every topic and query, with the queues that carry it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from bus.protocol import BusDepths, QueueDepth
from bus.topics import QUERIES, TOPICS


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A durable queue, and the worker that reads it."""

    name: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A topic or a query."""

    name: str
    asked: bool  # it is a query
    message: str
    says: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class QueueShown:
    name: str
    worker: str
    messages: int
    readers: int
    there: bool

    @property
    def unread(self) -> bool:
        return self.there and not self.readers


@dataclass(frozen=True, slots=True)
class TopicShown:
    carried: Carried
    queues: Sequence[QueueShown]  # the fullest first

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @property
    def readers(self) -> int:
        return sum(queue.readers for queue in self.queues)

    @property
    def unread(self) -> int:
        return sum(queue.unread for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class BusShown:
    topics: Sequence[TopicShown]
    others: Sequence[QueueShown]  # of no topic that is known here
    messages: int
    dead: int
    delayed: int
    queues: int
    unread: Sequence[QueueShown]  # queues without a consumer, the fullest first

    def topic(self, name: str) -> TopicShown | None:
        return next((topic for topic in self.topics if topic.carried.name == name), None)

    @property
    def fullest(self) -> list[QueueShown]:
        """Return the queues that hold messages."""
        every = [*(queue for topic in self.topics for queue in topic.queues), *self.others]
        return sorted((queue for queue in every if queue.messages), key=_fullest_first)


@cache
def carried() -> tuple[Carried, ...]:
    topics = [
        Carried(
            name=topic.pattern,
            asked=False,
            message=topic.message.__name__,
            says=topic.says,
            source=topic.source,
            target=topic.target,
        )
        for topic in TOPICS
    ]
    queries = [
        Carried(
            name=query.name,
            asked=True,
            message=f"{query.asks.__name__} → {query.answer.__name__}",
            says=query.says,
            source=query.source,
            target=query.target,
        )
        for query in QUERIES
    ]
    return (*topics, *queries)


def carried_by(queue: str) -> Carried | None:
    """Return what a queue of this name carries: `reader:key`, or `ask:key` of a query."""
    reader, _, key = queue.partition(":")
    words = key.split(".")
    for one in carried():
        if one.asked == (reader == "ask") and _alike(one.name.split("."), words):
            return one
    return None


def bus_shown(queues: Sequence[KnownQueue], depths: BusDepths) -> BusShown:
    of: dict[str, list[QueueShown]] = {}
    for queue in queues:
        topic = _topic_of(queue.name)
        of.setdefault(topic.name if topic else "", []).append(_shown(queue, depths.queues))
    topics = [TopicShown(one, sorted(of.get(one.name, ()), key=_fullest_first)) for one in carried()]
    every = [queue for some in of.values() for queue in some]
    return BusShown(
        topics=topics,
        others=of.get("", []),
        messages=sum(queue.messages for queue in every),
        dead=depths.dead,
        delayed=depths.delayed,
        queues=sum(queue.there for queue in every),
        unread=sorted((queue for queue in every if queue.unread), key=_fullest_first),
    )


_topic_of = cache(carried_by)


def _shown(queue: KnownQueue, depths: Mapping[str, QueueDepth]) -> QueueShown:
    found = depths.get(queue.name)
    if found is None:
        return QueueShown(queue.name, queue.worker, 0, 0, False)
    return QueueShown(queue.name, queue.worker, found.messages, found.readers, True)


def _fullest_first(queue: QueueShown) -> tuple[int, str]:
    return -queue.messages, queue.name


def _alike(pattern: Sequence[str], key: Sequence[str]) -> bool:
    return len(pattern) == len(key) and all(
        word.startswith("{") or word == there for word, there in zip(pattern, key, strict=True)
    )
