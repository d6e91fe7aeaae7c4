"""The types of topics and queries: how a routing key is formed from a message, and matched to patterns."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Generic, Literal, TypeVar

from bus.vocabulary import Message

M = TypeVar("M", bound=Message, covariant=True)
A = TypeVar("A", bound=Message, contravariant=True)
R = TypeVar("R", bound=Message, covariant=True)

ANYONE = "anyone"  # a sender or receiver: any worker, or a client outside berth

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, eq=False)
class Topic(Generic[M]):
    """A topic for one type of message. Its pattern contains fields of the message, such as `{cell}`.

    `expected`: a message without a consumer is an error. `outsiders`: AMQP clients outside berth subscribe to
    the topic too. Then the routing key of a message with `reply_to` ends with its `reply_to`, and a message
    without `reply_to` is sent as a separate AMQP message.

    `direct`: messages to a worker of the publisher's process bypass the broker. With "handled", the publisher
    waits until the message is handled; with "stored", the publisher has stored the data from which it can
    send the message again.

    `relayed`: an order to one agent; if agents share queues, the gateway of their cell relays it.
    """

    pattern: str
    message: type[M]
    says: str
    source: str  # who publishes, and in `target` who consumes: for documentation only
    target: str
    expected: bool = True
    outsiders: bool = False
    clients: bool = False  # registered clients may bind the topic
    direct: Literal["", "handled", "stored"] = ""
    relayed: bool = False

    def key(self, message: Message) -> str:
        """Return the routing key of a message of this topic."""
        key = self._key_of(message)
        reply_to = getattr(message, "reply_to", "") if self.outsiders else ""
        return f"{key}.{reply_to}" if reply_to else key

    @cached_property
    def _key_of(self) -> Callable[[Message], str]:
        return _filling(self.pattern)

    def framed(self, message: Message) -> bool:
        """Return whether a message of this topic may share one AMQP message with other messages."""
        return not self.outsiders or bool(getattr(message, "reply_to", ""))

    def at(self, **fields: str) -> "Address[M]":
        """Return an Address of the topic: a binding key with the given values of fields, and `*` for each
        omitted field.
        """
        key = _FIELD.sub(lambda field: fields.get(field[1], "*"), self.pattern)
        if self.outsiders:
            reply_to = fields.get("reply_to")
            key = key if reply_to is None else f"{key}.{reply_to}" if reply_to else key
        return Address(self, key)


@dataclass(frozen=True, eq=False)
class Address(Generic[M]):
    """A topic with a binding key, which may contain the wildcards * and #."""

    topic: Topic[M]
    key: str


@dataclass(frozen=True, eq=False)
class Query(Generic[A, R]):
    """A query, which one of several workers answers once. If no answer arrives in time, NoAnswer is raised.

    A query's name may contain fields of its message in braces, such as `{cell}`: the cell to which the query
    is sent. If `within` is true, `{cell}` is the cell that sends the query. If no worker consumes a query,
    NoAnswer is raised, or Unroutable if the name has a field and `within` is false.
    """

    name: str
    asks: type[A]
    answer: type[R]
    says: str
    source: str  # who sends the query, and in `target` who answers it: for documentation only
    target: str
    within: bool = False
    of_client: bool = False  # each client has its own routing key; keys of answers begin with client.NAME
    to_agents: bool = False  # agents answer the query; reply addresses have a prefix for such queries only

    @property
    def narrowed(self) -> bool:
        """Return whether the query has a separate routing key for each cell."""
        return "{" in self.name

    def cell(self, question: Message) -> str:
        """Return the cell (or client) in the routing key for a message of this query; empty if all cells
        share one key.
        """
        field = "client" if self.of_client else "cell"
        return str(getattr(question, field, "")) if self.narrowed else ""

    def key(self, question: Message) -> str:
        """Return the routing key for a message of this query, without the prefix `ask.`."""
        return self._key_of(question)

    @cached_property
    def _key_of(self) -> Callable[[Message], str]:
        return _filling(self.name)

    def at(self, **fields: str) -> str:
        return _FIELD.sub(lambda field: fields[field[1]], self.name) if self.narrowed else self.name


def _filling(pattern: str) -> Callable[[Message], str]:
    """Return a function that makes the routing key of a message: `pattern`, such as `agent.{cell}`, with the
    message's value in place of each field in braces.
    """
    fields = _FIELD.findall(pattern)
    if not fields:
        return lambda message: pattern
    template, values = _FIELD.sub("%s", pattern), attrgetter(*fields)
    return lambda message: template % values(message)


def matches(pattern: str, key: str) -> bool:
    """Return whether a routing key matches an AMQP topic pattern: `*` is exactly one word, `#` any number."""
    if "*" not in pattern and "#" not in pattern:  # the most common case
        return pattern == key
    return _segments_match(pattern.split(".") if pattern else [], key.split(".") if key else [])


def _segments_match(pattern: list[str], segments: list[str]) -> bool:
    if not pattern:
        return not segments
    if pattern[0] == "#":
        return any(_segments_match(pattern[1:], segments[skip:]) for skip in range(len(segments) + 1))
    return bool(segments) and pattern[0] in ("*", segments[0]) and _segments_match(pattern[1:], segments[1:])
