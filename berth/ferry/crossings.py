"""Derives from the workers' tables which messages a ferry forwards between the central broker and a cell's.

A topic is forwarded if one side publishes it and the other side consumes it; a query, with its answers, if
one side sends it and the other side answers it. No message is forwarded in both directions, and every routing
key contains the cell's name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from bus.errors import Undecodable
from bus.protocol import Envelope, QueueSpec, decode
from bus.topics import ANYONE, QUERIES, TOPICS, Query, Topic, matches
from bus.worker import Worker, cell_of, reply_prefix

_OPEN = re.compile(r"\{\w+\}")


class Way(Enum):
    """The direction in which a ferry forwards messages: into the cell, out of it, or not at all."""

    IN = "in"
    OUT = "out"
    WITHIN = "within"  # not forwarded: used only inside the cell


class InvalidCrossing(TypeError):
    """The error that a topic or query in the workers' tables cannot be forwarded in just one direction."""


@dataclass(frozen=True)
class Crossing:
    """A topic, a query or the answers that a ferry forwards in one direction, through one queue."""

    cell: str
    way: Way
    name: str  # the routing key up to its first field other than the cell
    keys: tuple[str, ...]  # the binding keys of the queue
    of: "Topic[Any] | Query[Any, Any] | None" = None  # the forwarded topic or query; None: answers

    @cached_property
    def queue(self) -> QueueSpec:
        """Return the ferry's queue, declared on the broker where the messages to forward are published."""
        return QueueSpec(f"ferry.{self.cell}:{self.name}", self.keys)

    @property
    def asked(self) -> bool:
        """Return whether a query crosses, and not a message."""
        return isinstance(self.of, Query)

    @property
    def is_for_clients(self) -> bool:
        """Return whether programs outside berth may receive the forwarded messages."""
        return isinstance(self.of, Topic) and self.of.outsiders

    @property
    def replies(self) -> str:
        """Return the prefix of the reply addresses of the forwarded query; empty for a topic or answers."""
        return reply_prefix(self.of, self.cell) if isinstance(self.of, Query) else ""

    @property
    def expected(self) -> bool:
        """Return whether a forwarded message without a consumer at the receiving broker is an error."""
        return self.of.expected if isinstance(self.of, Topic) else self.asked

    def key_of(self, envelope: Envelope) -> str:
        """Return the routing key with which the ferry publishes a message at the other broker. Raise
        Undecodable if the key is not one of this crossing.

        For a replayed dead letter, which was sent to the queue by name, the key is derived from its content.
        """
        key = envelope.key
        if key == self.queue.name:
            key = self._key_of_message(envelope)
        if key not in self.keys and not any(matches(pattern, key) for pattern in self.keys):
            raise Undecodable(f"it came by the key {key}, and {self.name} is forwarded here")
        return key

    def framed(self, key: str) -> bool:
        """Return whether a message with this routing key may share one AMQP message with other messages."""
        return not self.is_for_clients or key != self.keys[0]

    def _key_of_message(self, envelope: Envelope) -> str:
        if isinstance(self.of, Topic):
            return self.of.key(decode(self.of.message, envelope.body, envelope.type))
        if isinstance(self.of, Query):
            return f"ask.{self.of.key(decode(self.of.asks, envelope.body, envelope.type))}"
        raise Undecodable("an answer is sent once, to the requester")


def ways(cell: str, workers: Sequence[Worker]) -> dict[Topic[Any] | Query[Any, Any], Way]:
    """Return for each topic and query of a cell whether the ferry forwards it into the cell, out of the cell,
    or not at all. The direction follows from the tables of `workers`, one worker of each type.
    """
    inside = [worker for worker in workers if cell_of(f"{worker.name}:") == cell]
    outside = [worker for worker in workers if not cell_of(f"{worker.name}:")]
    found: dict[Topic[Any] | Query[Any, Any], Way] = {}
    for topic in TOPICS:
        way = _direction(
            topic.pattern,
            said_within=any(topic.message in worker.emits for worker in inside),
            heard_within=any(row.address.topic is topic for worker in inside for row in worker.consumes),
            said_outside=topic.source == ANYONE or any(topic.message in worker.emits for worker in outside),
            heard_outside=topic.outsiders
            or any(row.address.topic is topic for worker in outside for row in worker.consumes),
        )
        if way is not None:
            found[topic] = way
    for query in QUERIES:
        way = _direction(
            query.name,
            said_within=any(query in worker.asks for worker in inside),
            heard_within=any(row.query is query for worker in inside for row in worker.answers),
            said_outside=query.source == ANYONE or any(query in worker.asks for worker in outside),
            heard_outside=any(row.query is query for worker in outside for row in worker.answers),
        )
        if way is not None:
            found[query] = way
            if way not in (Way.OUT if query.within else Way.IN, Way.WITHIN):
                raise InvalidCrossing(f"{query.name} is asked in the opposite direction of its table")
    return found


def crossings(cell: str, workers: Sequence[Worker]) -> tuple[Crossing, ...]:
    """Return the crossings of a cell's ferry: the topics, queries and answers that it has to forward."""
    found: list[Crossing] = []
    answered: set[Way] = set()
    for of, way in ways(cell, workers).items():
        if way is Way.WITHIN:
            continue
        if isinstance(of, Query):
            key = f"ask.{of.at(cell=cell)}"
            found.append(Crossing(cell, way, key, (key,), of))
            answered.add(Way.IN if way is Way.OUT else Way.OUT)
        else:
            key = of.at(cell=cell).key
            name = _OPEN.split(of.pattern.replace("{cell}", cell))[0].rstrip(".")
            found.append(Crossing(cell, way, name, (key, f"{key}.*") if of.outsiders else (key,), of))
    for way in sorted(answered, key=lambda way: way.value):
        name = f"reply.{cell}" if way is Way.IN else f"reply.-{cell}"
        found.append(Crossing(cell, way, name, (f"{name}.*.*",)))
    return tuple(found)


def _direction(
    pattern: str, *, said_within: bool, heard_within: bool, said_outside: bool, heard_outside: bool
) -> Way | None:
    if not said_within and not heard_within:
        return None
    if "{cell}" not in pattern:
        raise InvalidCrossing(f"{pattern} is used within a cell, and its key does not contain the cell")
    out, into = said_within and heard_outside, heard_within and said_outside
    if out and into:
        raise InvalidCrossing(f"{pattern} would be forwarded in both directions, and endlessly")
    return Way.OUT if out else Way.IN if into else Way.WITHIN
