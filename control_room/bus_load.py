"""Describes the load of the bus: every topic and query, with the durable queues that carry its messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from bus.protocol import BusDepths
from bus.topics import QUERIES, TOPICS


class Route(NamedTuple):
    """A topic or a query of the bus, with the type of its message, its sender and its receiver."""

    name: str
    is_query: bool
    message: str
    description: str
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """A worker's durable queue, with its numbers of messages and consumers if it exists in the broker."""

    name: str
    worker: str
    messages: int = 0
    consumers: int = 0
    exists: bool = False


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic or query with the depths of its queues."""

    route: Route
    queues: Sequence[QueueLoad]  # the fullest first

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @property
    def consumers(self) -> int:
        return sum(queue.consumers for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class BusLoad:
    """The depths of all queues, by topic."""

    topics: Sequence[TopicLoad]
    queues: Sequence[QueueLoad]  # the fullest first
    dead: int
    delayed: int

    def topic(self, name: str) -> TopicLoad | None:
        return next((topic for topic in self.topics if topic.route.name == name), None)

    @property
    def messages(self) -> int:
        return sum(queue.messages for queue in self.queues)

    @property
    def existing(self) -> int:
        """Return the number of queues that exist at the broker."""
        return sum(queue.exists for queue in self.queues)

    @property
    def fullest(self) -> list[QueueLoad]:
        """Return the queues that contain messages, the queue with the most messages first."""
        return [queue for queue in self.queues if queue.messages]


@cache
def all_routes() -> tuple[Route, ...]:
    """Return the topics and queries of all workers."""
    routes = [
        Route(topic.pattern, False, topic.message.__name__, topic.says, topic.source, topic.target)
        for topic in TOPICS
    ]
    for query in QUERIES:
        message = f"{query.asks.__name__} → {query.answer.__name__}"
        routes.append(Route(query.name, True, message, query.says, query.source, query.target))
    return tuple(routes)


@cache
def route_of(queue: str) -> Route | None:
    """Return the topic or query whose messages a queue holds; None if no such topic or query is known. The
    queue's name is `reader:key` for a topic, `ask:key` for a query.
    """
    reader, _, key = queue.partition(":")
    parts = key.split(".")
    for route in all_routes():
        pattern = route.name.split(".")
        if route.is_query != (reader == "ask") or len(pattern) != len(parts):
            continue
        if all(part.startswith("{") or part == this for part, this in zip(pattern, parts, strict=True)):
            return route
    return None


def bus_load(queues: Sequence[QueueLoad], depths: BusDepths) -> BusLoad:
    """Return queue depths by topic and query."""
    by_route: dict[Route | None, list[QueueLoad]] = {route: [] for route in (*all_routes(), None)}
    loads = []
    for queue in queues:
        found = depths.queues.get(queue.name)
        counts = (found.messages, found.readers, True) if found is not None else ()
        loads.append(QueueLoad(queue.name, queue.worker, *counts))
    loads.sort(key=lambda load: (-load.messages, load.name))
    for load in loads:
        by_route[route_of(load.name)].append(load)
    topics = [TopicLoad(route, by_route[route]) for route in all_routes()]
    return BusLoad(topics=topics, queues=loads, dead=depths.dead, delayed=depths.delayed)
