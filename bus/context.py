"""The causal context of messages: which message caused which, and the trace of each. If tracing is off, each
message costs only one additional comparison.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import msgspec

from bus.causes import may_have_long_cause, with_short_causes
from bus.clock import Clock
from bus.protocol import Envelope, encode
from bus.topics import TOPIC_OF
from bus.vocabulary import Message

# Only messages of these types begin a trace; if all did, most traces would be about heartbeats.
BEGINNINGS = {
    "BuildRequested", "BuildDeleteRequested", "BuildCancelRequested", "NodeChanged", "InventoryReported",
}  # fmt: skip


class Span(Protocol):
    """A measured piece of work in a trace."""

    def end(self, problem: BaseException | None = None) -> None:
        """End the measurement; with a problem, mark the work as failed."""


class Tracer(Protocol):
    """The interface of a tracer, which creates the spans of traces and exports them."""

    def handling(self, worker: str, row: str, envelope: Envelope) -> Span | None:
        """Return a tracing span for the handling of a message: the parent span of what the handler publishes.
        Return None if the message is not traced.
        """

    def asking(self, query: str, causes: Sequence[Envelope]) -> tuple[Span, str] | None:
        """Return a tracing span for a query, and the traceparent to send with the query; None if the query is
        not traced.

        `causes` are the messages being handled when the query is sent. The span is a child of the span of the
        first traced cause.
        """

    def beginning(self, type_: str) -> str:
        """Return the traceparent of a new root span for the first message of a trace, of the type `type_`."""


_tracer: Tracer | None = None


def current_tracer() -> Tracer | None:
    """Return the tracer of this process, or None if traces are disabled."""
    return _tracer


def trace_by(tracer: Tracer | None) -> None:
    """Set the tracer of this process; None disables traces."""
    global _tracer
    _tracer = tracer


_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(?:-|\Z)")

current: ContextVar[Envelope | None] = ContextVar("berth_current_envelope", default=None)
_arrived: ContextVar[Mapping[int, Envelope]] = ContextVar("berth_arrived_envelopes")
_repeated: ContextVar[Collection[int]] = ContextVar("berth_repeated_messages", default=())


class StoredContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tracing data of a message, stored with work that continues after the message was acknowledged."""

    id: str = ""
    correlation: str = ""
    traceparent: str = ""


NO_CONTEXT = StoredContext()


@contextmanager
def handling(
    envelopes: Iterable[tuple[Envelope, Message]], repeated: Iterable[Message] = ()
) -> Iterator[None]:
    """Record, while the `with` block runs, which messages the current asyncio task handles. If there is only
    one, it is recorded as the cause of all messages that are published in the block. `repeated`: the messages
    that were delivered before.
    """
    arrived = {id(message): envelope for envelope, message in envelopes}
    alone = next(iter(arrived.values())) if len(arrived) == 1 else None
    tokens = current.set(alone), _arrived.set(arrived)
    before = _repeated.set({id(message) for message in repeated})
    try:
        yield
    finally:
        _repeated.reset(before)
        current.reset(tokens[0])
        _arrived.reset(tokens[1])


def envelopes_handled() -> Sequence[Envelope]:
    """Return the envelopes of the messages that the current task handles. If there is only one message, it is
    also the cause of all messages that the task publishes.
    """
    alone = current.get()
    return (alone,) if alone is not None else tuple(_arrived.get({}).values())


def stored_context(message: Message) -> StoredContext:
    """Return the tracing data of a message, to be stored with the message; empty if the message is not being
    handled now.
    """
    envelope = _arrived.get({}).get(id(message))
    if envelope is None:
        return NO_CONTEXT
    return StoredContext(envelope.id, envelope.correlation, envelope.traceparent)


def is_repeated(message: Message) -> bool:
    """Return whether a message that is being handled now was delivered to a handler before."""
    return id(message) in _repeated.get()


def sent_at(message: Message) -> float:
    """Return when a message that is being handled now was published, or 0 if that is unknown."""
    envelope = _arrived.get({}).get(id(message))
    return envelope.sent_at if envelope is not None else 0.0


@contextmanager
def resumed(context: StoredContext) -> Iterator[None]:
    """Mark messages published within the `with` block as caused by the message that `context` describes."""
    if context == NO_CONTEXT:
        yield
        return
    envelope = Envelope(
        id=context.id,
        type="",
        key="",
        body=msgspec.Raw(b""),
        correlation=context.correlation,
        traceparent=context.traceparent,
    )
    token = current.set(envelope)
    try:
        yield
    finally:
        current.reset(token)


def follow(
    message: Message, key: str, clock: Clock, *, framed: bool = True, cause: Envelope | None = None
) -> Envelope:
    """Return an envelope in which to publish a message with the routing key `key`. `framed`: the envelope may
    share an AMQP message with others. `cause`: the causing message, by default the only message being handled
    now.
    """
    cause = cause or current.get()
    if cause is None:
        correlation, causation = "", ""
    else:
        correlation, causation = cause.correlation or cause.id, cause.id
    type_ = type(message).__name__
    body = encode(message)
    if may_have_long_cause(body) and (short := with_short_causes(message)) is not message:
        message, body = short, encode(short)
    envelope = Envelope(
        id=clock.uuid(),
        type=type_,
        key=key,
        body=msgspec.Raw(body),
        correlation=correlation,
        causation=causation,
        sent_at=clock.now(),
        traceparent=_passed_on(cause, type_, clock),
        framed=framed,
    )
    envelope.keep(message)
    return envelope


def _passed_on(cause: Envelope | None, type_: str, clock: Clock) -> str:
    """Return the traceparent for a new message: in the trace of its cause, or else in a new trace."""
    parent = cause.traceparent if cause else ""
    if (tracer := current_tracer()) is None:
        return _child(parent, clock)
    if _TRACEPARENT.match(parent) is not None:
        return parent
    return tracer.beginning(type_) if type_ in BEGINNINGS else f"{_child('', clock)[:-2]}00"


def _child(traceparent: str, clock: Clock) -> str:
    """Return a W3C traceparent: a new span in the given trace, or in a new trace if the value is invalid."""
    span = f"{clock.chance.getrandbits(64):016x}"
    found = _TRACEPARENT.match(traceparent)
    if found is None:
        return f"00-{clock.chance.getrandbits(128):032x}-{span}-01"
    trace, flags = found.groups()
    return f"00-{trace}-{span}-{flags}"


def envelope_of(message: Message, clock: Clock, cause: Envelope | None = None) -> Envelope:
    """Return an envelope for a message, with the routing key from the message's topic."""
    topic = TOPIC_OF[type(message)]
    return follow(message, topic.key(message), clock, framed=topic.framed(message), cause=cause)
