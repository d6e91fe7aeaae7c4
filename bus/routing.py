"""How a message finds its way: what a topic, an address and a query are. Which there are is in `topics`."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from bus.vocabulary import Message

M = TypeVar("M", bound=Message, covariant=True)
A = TypeVar("A", bound=Message, contravariant=True)
R = TypeVar("R", bound=Message, covariant=True)

ANYONE = "anyone"  # who is a source or a target: people and programs outside berth as well

_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, eq=False)
class Topic(Generic[M]):
    """Where one type of message travels. `{fields}` of the pattern are filled from the message.

    `expected`: somebody must hear it; publishing it to nobody is an error.
    `outsiders`: people read it with tools of their own, so it never travels in frames unless `reply_to` asks.
    """

    pattern: str
    message: type[M]
    says: str
    source: str  # who says it, and who hears it, for people
    target: str
    expected: bool = True
    outsiders: bool = False

    def key(self, message: Message) -> str:
        """The routing key of this message."""
        key = _filled(self._parts, message)
        reply_to = getattr(message, "reply_to", "") if self.outsiders else ""
        return f"{key}.{reply_to}" if reply_to else key

    @cached_property
    def _parts(self) -> list[str]:
        return _FIELD.split(self.pattern)

    def framed(self, message: Message) -> bool:
        """May it share a frame with others?"""
        return not self.outsiders or bool(getattr(message, "reply_to", ""))

    def at(self, **fields: str) -> "Address[M]":
        """The topic narrowed to one cell, agent, event or reply_to; what is not named matches any."""
        key = _FIELD.sub(lambda field: fields.get(field[1], "*"), self.pattern)
        if self.outsiders:
            reply_to = fields.get("reply_to")
            key = key if reply_to is None else f"{key}.{reply_to}" if reply_to else key
        return Address(self, key)


@dataclass(frozen=True, eq=False)
class Address(Generic[M]):
    """What a queue binds to: a topic, and a key that may hold * and #."""

    topic: Topic[M]
    key: str


@dataclass(frozen=True, eq=False)
class Query(Generic[A, R]):
    """A question that is answered once, by one of those who can; no answer in time raises NoAnswer.

    `{fields}` of its name are filled from the question: so one cell is asked, or one asks from `within`. Who
    asks for a cell that nobody answers for hears Unroutable; who asks from within one, NoAnswer: not yet.
    """

    name: str
    asks: type[A]
    answer: type[R]
    says: str
    source: str  # who asks, and who answers
    target: str
    within: bool = False
    of_client: bool = False  # each client has a key of its own for it, and answers come below client.NAME

    @property
    def narrowed(self) -> bool:
        """Has every cell a key of its own for it?"""
        return "{" in self.name

    def cell(self, question: Message) -> str:
        """Return the cell that asks or is asked; of a client's question, the client; empty: neither."""
        field = "client" if self.of_client else "cell"
        return str(getattr(question, field, "")) if self.narrowed else ""

    def key(self, question: Message) -> str:
        """What the queue is named by that holds this question."""
        return _filled(self._parts, question)

    @cached_property
    def _parts(self) -> list[str]:
        return _FIELD.split(self.name)

    def at(self, **fields: str) -> str:
        return _FIELD.sub(lambda field: fields[field[1]], self.name) if self.narrowed else self.name


def _filled(parts: list[str], message: Message) -> str:
    """Words of a key and, every other one, a field of the message. Quick: it is done for every message."""
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 3:
        return f"{parts[0]}{getattr(message, parts[1])}{parts[2]}"
    return "".join([str(getattr(message, part)) if at % 2 else part for at, part in enumerate(parts)])
