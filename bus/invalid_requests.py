"""Answers to invalid requests: for each kind of request, the message that refuses a request that cannot be
read, and the reply address of the sender, as far as the broker has verified it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import msgspec

from bus import parts, topics
from bus.addressing import Topic, matches
from bus.clients import ClientName, ClientRequested, client_key
from bus.decisions import INVALID, Decision
from bus.errors import NOT_JSON
from bus.messages import BuildCancelled, BuildDeleted, BuildUnplaceable
from bus.protocol import MAX_MESSAGE_BYTES, UNVERIFIED, Envelope
from bus.vocabulary import MAX_CAUSE, SHORT, UNSAID_ID, ClassName, Id, Message, ReplyTo, TraitName, Wait, Word

T = TypeVar("T")

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
        return Decision(code=self.code, notes=self.notes)

    def id(self, name: str) -> Id:
        """Return the id in a field, or the id of zeros if the field has no valid id."""
        return self._valid(Id, name, UNSAID_ID)

    def ids(self, name: str) -> tuple[Id, ...]:
        values = self.fields.get(name)
        found = values[:SHORT] if isinstance(values, list) else ()
        return tuple([value for value in found if _valid(Id, value, "")])

    def cell_of(self) -> str:
        return self.cell or self._valid(Word, "cell", NO_CELL)

    def _valid(self, kind: Any, name: str, default: str) -> str:
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
ACTIONS: dict[str, RequestKind] = {}


def add(kinds: Iterable[RequestKind]) -> None:
    """Add kinds of requests, such as those of a feature."""
    for kind in kinds:
        KINDS[kind.topic.message] = kind
        if kind.action:
            ACTIONS[kind.action] = kind


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
    invalid = InvalidRequest("", reply_to, why[:MAX_CAUSE], fields, code, notes)
    return KINDS[type(request)].refused(invalid)


def refusal_of(topic: Topic[Any], bound: str, key: str, envelope: Envelope, why: str) -> Message | None:
    """Return the answer to an invalid request of this topic, or None if the topic has no requests, or if the
    sender is unknown. `bound` is the routing key by which the consumer's queue is bound, and `key` the
    routing key of the message; both are the same if the message was sent to the queue by its name.
    """
    kind = KINDS.get(topic.message)
    if topic is not topics.CLIENT_REQUESTED and kind is None:
        return None
    fields, reason, cell = _fields_in(envelope), in_words(why), ""
    if kind is None:
        action, inner = fields.get("do"), fields.get("message")
        kind = ACTIONS.get(action if isinstance(action, str) else "", ACTIONS["boot"])
        reason = reason.removeprefix("message.")
        fields = inner if isinstance(inner, dict) else {}
    elif topic.pattern.endswith(".{cell}"):
        cell = bound.rpartition(".")[2]
    reply_to = _reply_address(bound, key, envelope.client, fields.get("reply_to"))
    if reply_to is None:
        return None
    return kind.refused(InvalidRequest(cell=cell, reply_to=reply_to, why=reason[:MAX_CAUSE], fields=fields))


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


_ACTION = re.compile(rb'"do"\s*:\s*"([a-z_]{1,64})"')
_STATED = re.compile(rb'"(request|build|move|cell|kind|reply_to)"\s*:\s*"([A-Za-z0-9_-]{0,64})"')


def _fields_in(envelope: Envelope) -> Mapping[str, Any]:
    """Return the fields of an invalid message. If the message is not JSON, return the ids, names and the
    action that its text contains, so that the sender can assign the answer to its request.
    """
    body = bytes(envelope.body)
    if len(body) > MAX_MESSAGE_BYTES:
        return {}
    try:
        fields = msgspec.json.decode(body)
    except NOT_JSON:
        stated = {name.decode(): value.decode() for name, value in reversed(_STATED.findall(body))}
        action = _ACTION.search(body)
        return stated if action is None else {"do": action[1].decode(), "message": stated}
    return fields if isinstance(fields, dict) else {}


_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`$")


# text of a decoding error about a regular expression → description of the type
_DESCRIBED = {
    f"`str` matching regex {meta.pattern!r}": str(meta.description)
    for kind in (Id, Word, ClassName, TraitName, ReplyTo, Wait, ClientName)
    for meta in get_args(kind)[1:]
    if isinstance(meta, msgspec.Meta) and meta.description
}


def in_words(problem: str) -> str:
    """Return the text of a decoding error with the field first: `flavor.vcpus: Expected `int` >= 0`."""
    text = problem
    for regex, description in _DESCRIBED.items():
        text = text.replace(regex, description)
    for name in (ClientRequested.__name__, *(each.__name__ for each in KINDS)):
        text = text.removeprefix(f"{name}: ")
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
