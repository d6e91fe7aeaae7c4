"""Reads what programs and users write, for every interface, and answers invalid requests: for each kind of
request, the message that refuses it, and the sender's reply address, as far as the broker has verified it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import structs

from bus import parts, topics
from bus.decisions import INVALID, Decision
from bus.errors import NOT_JSON, Undecodable
from bus.messages import BuildCancelled, BuildDeleted, BuildUnplaceable
from bus.parts import TYPES, RequestParts, converted, problem_of
from bus.protocol import MAX_MESSAGE_BYTES, UNVERIFIED, Envelope, M, decode, message_in
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
        return Decision(code=self.code, notes=self.notes)

    def id(self, name: str) -> Id:
        """Return the id in a field, or the id of zeros if the field has no valid id."""
        return self.valid(Id, name, UNSAID_ID)

    def ids(self, name: str) -> tuple[Id, ...]:
        values = self.fields.get(name)
        found = values[:SHORT] if isinstance(values, list) else ()
        return tuple([value for value in found if _valid(Id, value, "")])

    def cell_of(self) -> str:
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


def _in_words(problem: object, kind: type[Any]) -> str:
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


# Section: reads a message, and what decoding a request skips: the fields of features that a client may write
# like fields of the kernel, and fields that berth does not know, such as misspelled ones.


Place = tuple[type[RequestParts], str]  # type of the parts of a request, and its field that has an object
MAX_NOTES = 20
_LONGEST = 100  # characters of an unknown name in a note


def read(kind: type[T], body: bytes | msgspec.Raw, named: str = "", *, most: int = MAX_MESSAGE_BYTES) -> T:
    """Decode bytes that a program or user has written to a value of the type `kind`. A request gets notes
    about the fields that its type does not have. Raise Undecodable, with the wrong field first, also for such
    a note if the request is `strict`. `named` and `most` as in `bus.protocol.decode`.
    """
    try:
        message = decode(kind, body, named, most=most)
        return _as_written(message, msgspec.json.decode(body)) if _is_request(kind) else message
    except Undecodable as problem:
        raise Undecodable(_in_words(problem, kind)) from None


def read_envelope(kind: type[M], envelope: Envelope) -> M:
    """Return an envelope's message, read like `read` unless it comes from this process."""
    if envelope.message is not None:
        return message_in(envelope, kind)
    return read(kind, envelope.body, envelope.type)


def read_object(kind: type[M], given: Any, within: str) -> M:
    """Return a message that is given as a JSON value in the field `within` of another one, or as a message;
    raise Undecodable like `read`.
    """
    if isinstance(given, kind):
        return given
    try:
        return _as_written(converted(kind, given), given, f".{within}")
    except msgspec.ValidationError as problem:
        raise Undecodable(_in_words(problem_of(problem, within), kind)) from None
    except Undecodable as problem:
        raise Undecodable(_in_words(problem, kind)) from None


@cache
def _is_request(kind: type[Message]) -> bool:
    return kind in KINDS or _owner(kind) is not None or bool(_with_requests(kind))


def _as_written(message: T, fields: Any, where: str = "") -> T:
    """Return a message with the parts whose fields are written like fields of the kernel in its JSON object
    `fields`, such as `wait`, and with notes about unknown fields. Raise Undecodable if a part is invalid, or
    if a request is `strict` and has unknown fields.
    """
    kind = type(message)
    if not isinstance(fields, dict):
        return message
    changes: dict[str, Any] = {}
    if (owner := _owner(kind)) is not None:
        try:
            found = TYPES.read_flat(owner, fields, message.parts)  # type: ignore[attr-defined]
        except ValueError as problem:
            text, _, path = str(problem).partition("`$")
            raise Undecodable(f"{text}`${where}{path}") from None
        if found:
            changes["parts"] = message.parts.having(*found)  # type: ignore[attr-defined]
    for name in _with_requests(kind):
        value, inner = getattr(message, name), fields.get(name)
        if isinstance(value, Message):
            read_ = _as_written(value, inner, f"{where}.{name}")
            if read_ is not value:
                changes[name] = read_
        elif isinstance(value, tuple) and isinstance(inner, list):
            changes[name] = tuple(
                [
                    _as_written(each, raw, f"{where}.{name}[{at}]")
                    for at, (each, raw) in enumerate(zip(value, inner, strict=True))
                ]
            )
    written = structs.replace(message, **changes) if changes else message
    notes: list[str] = []
    if kind in KINDS:
        _look_in(kind, None, fields, "", notes)
    return with_notes(written, notes, where) if notes else written


@cache
def _owner(kind: type[Any]) -> type[RequestParts] | None:
    """Return the type of the parts of a request; None for other messages."""
    parts = get_type_hints(kind).get("parts") if issubclass(kind, Message) else None
    return parts if isinstance(parts, type) and issubclass(parts, RequestParts) else None


@cache
def _with_requests(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields of a message that may hold requests with parts."""
    return tuple(
        name
        for name, annotation in get_type_hints(kind).items()
        if any(_owner(inner) is not None or _with_requests(inner) for inner in _messages_in(annotation))
    )


def _messages_in(annotation: Any) -> Iterator[type[Message]]:
    if isinstance(annotation, type) and issubclass(annotation, Message):
        yield annotation
    for inner in get_args(annotation):
        yield from _messages_in(inner)


# Unknown fields


def with_notes(request: Any, notes: Sequence[str], where: str = "") -> Any:
    """Return a request with notes about its unknown fields; raise Undecodable if it is `strict`. `where`: the
    path of the request in a message.
    """
    if getattr(request, "strict", False):
        raise Undecodable(f"{where}.{notes[0]}".removeprefix("."))
    return structs.replace(request, unknown_fields=tuple(notes[:MAX_NOTES]))


def _look_in(kind: Any, of: Place | None, fields: Any, where: str, notes: list[str]) -> None:
    """Add a note for each unknown field of a JSON object, or of each of a list of JSON objects. `of`: the
    place of the object in a request, where features may have fields.
    """
    if isinstance(fields, list):
        for position, item in enumerate(fields):
            _look_in(kind, of, item, f"{where.removesuffix('.')}[{position}].", notes)
    if not isinstance(fields, dict) or len(notes) >= MAX_NOTES:
        return
    owner = _owner(kind)
    known, with_objects = _fields_of(kind, of)
    if not fields.keys() <= known:
        for name in [name for name in fields if name not in known][:MAX_NOTES]:
            like = get_close_matches(name[:_LONGEST], known, n=1)
            meant = f"; did you mean {like[0]}?" if like else ""
            notes.append(f"{where}{name[:_LONGEST]}: not known here{meant}")
    if owner is not None and isinstance(given := fields.get("parts"), dict):
        for feature, part in TYPES.of(owner).items():
            _look_in(part, None, given.get(feature), f"{where}parts.{feature}.", notes)
    for name, inner in with_objects.items():
        if value := fields.get(name):
            _look_in(inner, (owner, name) if owner is not None else None, value, f"{where}{name}.", notes)


@cache
def _fields_of(kind: Any, of: Place | None) -> tuple[frozenset[str], Mapping[str, Any]]:
    """Return the names of the fields of a type, and the types of JSON objects in fields that hold objects."""
    hints = get_type_hints(kind)
    objects = {name: _object_in(hints[name]) for name in kind.__struct_fields__}
    names = frozenset(objects)
    if of is None and (owner := _owner(kind)) is not None:
        of = owner, ""
    if of is not None:
        flat = TYPES.flat_parts(*of)
        names |= flat.keys()
        objects |= {name: _object_in(annotation) for name, annotation in flat.items()}
    return names, {name: inner for name, inner in objects.items() if inner is not None}


def _object_in(annotation: Any) -> type[Any] | None:
    """Return the only type of JSON objects that a field or its list may hold; None if there is no such type,
    or several."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        config = annotation.__struct_config__
        return None if config.array_like or config.tag is not None else annotation
    origin = get_origin(annotation)
    if origin not in (Union, UnionType, tuple, Annotated):
        return None
    found = {_object_in(inner) for inner in get_args(annotation)} - {None}
    return found.pop() if len(found) == 1 else None
