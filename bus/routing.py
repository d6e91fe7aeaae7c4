"""Topics, addresses and queries: how a message gets its routing key. `bus.topics` lists all of them."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from bus.vocabulary import Message

M = TypeVar("M", bound=Message, covariant=True)
A = TypeVar("A", bound=Message, contravariant=True)
R = TypeVar("R", bound=Message, covariant=True)

ANYONE = "anyone"  # a source or target: also clients outside berth

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, eq=False)
class Topic(Generic[M]):
    """A topic for one type of message. The `{fields}` of its pattern are filled from the message.

    `expected`: publishing without a subscriber is an error. `outsiders`: clients with tools of their own
    subscribe, so the message travels in frames only if `reply_to` is set, which is added to the key.
    """

    pattern: str
    message: type[M]
    says: str
    source: str  # senders and receivers, for documentation
    target: str
    expected: bool = True
    outsiders: bool = False

    def key(self, message: Message) -> str:
        """Return the routing key of a message of this topic."""
        key = _filled(self._parts, message)
        reply_to = getattr(message, "reply_to", "") if self.outsiders else ""
        return f"{key}.{reply_to}" if reply_to else key

    @cached_property
    def _parts(self) -> list[str]:
        return _FIELD.split(self.pattern)

    def framed(self, message: Message) -> bool:
        """Return whether a message of this topic may be sent together with others in one AMQP message."""
        return not self.outsiders or bool(getattr(message, "reply_to", ""))

    def at(self, **fields: str) -> "Address[M]":
        """Return the address of a topic's messages with these field values; other fields match any value."""
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
    """A query, answered once by one of the workers that can. Without an answer in time, NoAnswer is raised.

    The `{fields}` of its name are filled from the question, such as the cell that is asked, or the asking
    cell if `within`. A query to a cell without workers raises Unroutable; one from `within` a cell raises
    NoAnswer.
    """

    name: str
    asks: type[A]
    answer: type[R]
    says: str
    source: str  # askers and answering worker
    target: str
    within: bool = False
    of_client: bool = False  # each client has its own key, and answers have keys below client.NAME

    @property
    def narrowed(self) -> bool:
        """Return whether every cell has its own key for this query."""
        return "{" in self.name

    def cell(self, question: Message) -> str:
        """Return the cell that sends or answers a query, or the client that sends it, or ""."""
        field = "client" if self.of_client else "cell"
        return str(getattr(question, field, "")) if self.narrowed else ""

    def key(self, question: Message) -> str:
        """Return the routing key of the queue for this question."""
        return _filled(self._parts, question)

    @cached_property
    def _parts(self) -> list[str]:
        return _FIELD.split(self.name)

    def at(self, **fields: str) -> str:
        return _FIELD.sub(lambda field: fields[field[1]], self.name) if self.narrowed else self.name


def _filled(parts: list[str], message: Message) -> str:
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 3:
        return f"{parts[0]}{getattr(message, parts[1])}{parts[2]}"
    return "".join([str(getattr(message, part)) if at % 2 else part for at, part in enumerate(parts)])


def matches(pattern: str, key: str) -> bool:
    """Return whether an AMQP topic pattern matches: `*` is exactly one word, `#` any number of words."""
    if "*" not in pattern and "#" not in pattern:  # the most common case
        return pattern == key
    return _segments_match(pattern.split(".") if pattern else [], key.split(".") if key else [])


def _segments_match(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_segments_match(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _segments_match(pattern[1:], words[1:])
