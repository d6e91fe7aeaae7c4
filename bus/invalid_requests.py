"""Reads what programs and users write, for every interface, and answers invalid requests: for each kind of
request, the message that refuses it, and the sender's reply address, as far as the broker has verified it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from bus import parts, topics
from bus.decisions import INVALID, Decision
from bus.errors import NOT_JSON
from bus.messages import BuildCancelled, BuildDeleted, BuildUnplaceable
from bus.parts import TYPES
from bus.protocol import MAX_MESSAGE_BYTES, UNVERIFIED, Envelope
from bus.topics import Topic, client_key, matches
from bus.vocabulary import SHORT, UNSAID_ID, ClientName, Id, Message, ReplyTo, Word, cause_of

T = TypeVar("T", bound=msgspec.Struct)

NO_CELL = "-"  # in an answer with a field `cell`, if the request names no cell


@dataclass(frozen=True)
class InvalidRequest:
    """An invalid request: its fields as far as they are valid JSON, the cell of its consumer, the reply
    address of its sender, and why it is invalid.
    """

    cell: str
    reply_to: str
    why: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    code: str = INVALID
    notes: tuple[str, ...] = ()  # about unknown fields

    @property
    def decision(self) -> Decision:
        """Return the decision that a client receives: the reason code and the unknown fields."""
        return Decision(code=self.code, notes=self.notes)

    def id(self, name: str) -> Id:
        """Return the id in a field, or the id of zeros if the field has no valid id."""
        return self.valid(Id, name, UNSAID_ID)

    def ids(self, name: str) -> tuple[Id, ...]:
        """Return the valid ids in a list field of the request; other elements are left out."""
        values = self.fields.get(name)
        found = values[:SHORT] if isinstance(values, list) else ()
        return tuple([value for value in found if _valid(Id, value, "")])

    def cell_of(self) -> str:
        """Return the cell of the consumer, or the one that the request names; NO_CELL if neither is valid."""
        return self.cell or self.valid(Word, "cell", NO_CELL)

    def valid(self, kind: Any, name: str, default: str) -> str:
        """Return the text in a field, or the default if the text is not of this type."""
        return _valid(kind, self.fields.get(name), default)


def _unplaceable(request: InvalidRequest) -> Message:
    return BuildUnplaceable(
        request=request.id("request"),
        instances=request.ids("instances"),
        reason=request.why,
        decision=request.decision,
        reply_to=request.reply_to,
    )


def _not_cancelled(request: InvalidRequest) -> Message:
    return BuildCancelled(
        build=request.id("build"),
        waited=False,
        why=request.why,
        code=request.code,
        known=False,
        reply_to=request.reply_to,
    )


def _not_deleted(request: InvalidRequest) -> Message:
    return BuildDeleted(
        build=request.id("build"),
        cell=request.cell_of(),
        known=False,
        refused=request.why,
        code=request.code,
        reply_to=request.reply_to,
    )


@dataclass(frozen=True)
class RequestKind:
    """A kind of request: its topic, the message that refuses it, and the action of clients for it."""

    topic: Topic[Any]
    refused: Callable[[InvalidRequest], Message]
    action: str = ""  # in a client's request; empty: clients cannot request it


KINDS: dict[type[Message], RequestKind] = {}  # by the message of the topic; filled by `add`


def add(kinds: Iterable[RequestKind]) -> None:
    """Add kinds of requests, such as those of a feature."""
    for kind in kinds:
        KINDS[kind.topic.message] = kind


add(
    (
        RequestKind(topics.BUILD_REQUESTED, _unplaceable, "boot"),
        RequestKind(topics.BUILD_CANCEL, _not_cancelled, "delete"),
        RequestKind(topics.BUILD_DELETE, _not_deleted),
    )
)


def refused(request: Message, why: str, code: str, reply_to: str) -> Message:
    """Return the refusal of a valid request."""
    fields = parts.builtins_of(request)
    notes = getattr(request, "unknown_fields", ())
    invalid = InvalidRequest("", reply_to, cause_of(why), fields, code, notes)
    return KINDS[type(request)].refused(invalid)


def refusal_of(topic: Topic[Any], bound: str, key: str, envelope: Envelope, why: str) -> Message | None:
    """Return the answer to an invalid request of this topic, or None if the topic has no requests, or if the
    sender is unknown. `bound` is the routing key by which the consumer's queue is bound, and `key` the
    routing key of the message; both are the same if the message was sent to the queue by its name.
    """
    kind = KINDS.get(topic.message)
    if kind is None:
        return None
    fields = _fields_in(envelope)
    cell = bound.rpartition(".")[2] if topic.pattern.endswith(".{cell}") else ""
    reply_to = _reply_address(bound, key, envelope.client, fields.get("reply_to"))
    if reply_to is None:
        return None
    return kind.refused(InvalidRequest(cell=cell, reply_to=reply_to, why=cause_of(why), fields=fields))


def _reply_address(bound: str, key: str, sender: str, named: object) -> str | None:
    """Return the reply address of the sender of an invalid message; None if the sender is unknown.

    The sender is the client whose RabbitMQ user published the message or, if the message arrived by a way
    that proves its routing key, the client in the key. Without a client in the key, only berth's own users
    may publish it, and get the answer at the address that the message names.
    """
    address = _valid(ReplyTo, named, "")
    if sender == UNVERIFIED:
        return None
    if sender:
        return client_key(sender, address)
    word, _, client = key.partition(".")
    if word == "client":
        return client_key(client, address) if _valid(ClientName, client, "") else None
    return address if matches(bound, key) else None


_STATED = re.compile(rb'"(request|build|move|cell|kind|do|reply_to)"\s*:\s*"([A-Za-z0-9_-]{0,64})"')


def _fields_in(envelope: Envelope) -> Mapping[str, Any]:
    """Return the fields of an invalid message. If the message is not JSON, return the ids and names that its
    text contains, so that the sender can assign the answer to its request.
    """
    body = bytes(envelope.body)
    if len(body) > MAX_MESSAGE_BYTES:
        return {}
    try:
        fields = msgspec.json.decode(body)
    except NOT_JSON:
        return {name.decode(): value.decode() for name, value in reversed(_STATED.findall(body))}
    return fields if isinstance(fields, dict) else {}


_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`$")


_REGEX = "`str` matching regex "  # in the text of a decoding error


def patterns_in(annotation: Any, seen: set[Any]) -> Iterator[msgspec.Meta]:
    """Yield the regular expressions of texts in a type of messages or fields, also in parts of features.
    `seen`: types that are done.
    """
    if isinstance(annotation, msgspec.Meta):
        if annotation.pattern is not None:
            yield annotation
        return
    if isinstance(annotation, type) and issubclass(annotation, parts.Parts):
        inner: Iterable[Any] = TYPES.of(annotation).values()
    elif isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        inner = get_type_hints(annotation, include_extras=True).values() if annotation not in seen else ()
        seen.add(annotation)
    else:
        inner = (*get_args(annotation), *getattr(annotation, "__metadata__", ()))
    for each in inner:
        yield from patterns_in(each, seen)


@cache
def _descriptions(kind: type[Any]) -> Mapping[str, str]:
    """Return the texts about regular expressions in decoding errors of a type of messages, each with the
    description of the type of the field.
    """
    return {f"{_REGEX}{meta.pattern!r}": str(meta.description) for meta in patterns_in(kind, set())}


def in_words(problem: object, kind: type[Any]) -> str:
    """Return the text of a decoding error with the field first: `flavor.vcpus: Expected `int` >= 0`."""
    text = str(problem).removeprefix(f"{kind.__name__}: ")
    if _REGEX in text:
        for regex, description in _descriptions(kind).items():  # type: ignore[arg-type]
            text = text.replace(regex, description)
    found = _AT.search(text)
    where, text = (found[1], text[: found.start()]) if found else ("", text)
    if missing := _MISSING.match(text):
        where, text = ".".join([part for part in (where, missing[1]) if part]), "the field is missing"
    return f"{where}: {text}" if where else text


def _valid(kind: Any, value: object, default: str) -> str:
    try:
        return str(msgspec.convert(value, kind))
    except msgspec.ValidationError:
        return default
