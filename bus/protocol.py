"""Defines the interface to message brokers (RabbitMQ or in-process), and the envelopes that they carry."""

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from msgspec import Meta

from bus import parts
from bus.errors import NOT_JSON, AnswerRefused, TooBig, Undecodable
from bus.vocabulary import Message

A = TypeVar("A", bound=Message, contravariant=True)
R = TypeVar("R", bound=Message, covariant=True)

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_FRAME_BYTES = 256 * 1024
MAX_FRAME_ENVELOPES = 256
MAX_PAGE_BYTES = 8 * 1024 * 1024  # size of a page of dead letters
MAX_IN_HAND_BYTES = 16 * 1024 * 1024  # unsettled, of one reader; decoded messages are several times larger
MAX_COUNT = 2**31 - 1  # largest number of tries in an envelope: a signed 32-bit integer
MAX_TIME = 2.0**32  # seconds since the epoch, limited by AMQP: the year 2106

UNVERIFIED = "?"  # `Envelope.client` if nothing proves who has published a message

Short = Annotated[str, Meta(max_length=255)]  # limit of an AMQP short string


class Envelope(msgspec.Struct, kw_only=True, omit_defaults=True, dict=True):
    """A message in transit: its encoded body, with the metadata that delivery needs."""

    id: Short
    type: Short
    key: Short  # the message's routing key, or the name of the queue to which it was sent
    body: msgspec.Raw
    correlation: Short = ""  # id of the first message of this causal chain
    causation: Short = ""  # id of the message that caused this one
    attempt: int = 1  # number of handler calls, without redeliveries
    faults: int = 0  # number of tries that failed by an unexpected exception
    unroutable: int = 0  # number of tries with unroutable emitted messages
    sent_at: float = 0.0
    traceparent: Short = ""
    reply_to: Short = ""  # queue for the answer
    error: str = ""  # in an answer: why the query was refused
    again: bool = False  # in a refusal: a retry may succeed
    first_died: float = 0.0
    framed: bool = True  # the message may share an AMQP message with others
    suspect_of: Short = ""  # while the message is in a suspects' queue: the queue from which it came
    strikes: int = 0  # number of processes that ended while they handled only this message

    def __post_init__(self) -> None:
        """Replace numbers that a broker cannot store by valid numbers: other programs may send any number."""
        if not 1 <= self.attempt <= MAX_COUNT:
            self.attempt = min(max(self.attempt, 1), MAX_COUNT)
        if not 0 <= self.faults <= MAX_COUNT:
            self.faults = min(max(self.faults, 0), MAX_COUNT)
        if not 0 <= self.unroutable <= MAX_COUNT:
            self.unroutable = min(max(self.unroutable, 0), MAX_COUNT)
        if not 0 <= self.strikes <= MAX_COUNT:
            self.strikes = min(max(self.strikes, 0), MAX_COUNT)
        if not 0.0 <= self.sent_at < MAX_TIME:
            self.sent_at = 0.0
        if not 0.0 <= self.first_died < MAX_TIME:
            self.first_died = 0.0

    @property
    def message(self) -> Message | None:
        """Return the message object that `body` encodes, if this process made the envelope; else None.

        Workers of the same process use the object instead of decoding `body`. It is never sent or copied with
        the envelope.
        """
        return self.__dict__.get("message")

    @property
    def client(self) -> str:
        """Return the client that published the message, if the broker has verified the client's name.

        Empty: the routing key proves which users may have published it. UNVERIFIED: the message did not
        arrive by a way that proves its key. As `message`, it is never sent or copied with the envelope.
        """
        return str(self.__dict__.get("client", ""))

    def sent_by(self, client: str) -> None:
        """Record the client that has sent the message, as the broker has verified."""
        self.__dict__["client"] = client

    def keep(self, message: Message) -> None:
        """Keep the message object that `body` encodes. From now on no code may change the object."""
        self.__dict__["message"] = message


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue with the routing keys that are bound to it. If it is not `durable`, it is deleted when the
    connection of its reader closes.

    With `notes_readers`, the in-process broker stores in its file how often each message was delivered. So
    after a crash of the process, `Delivery.crashes` is increased only for messages that had been delivered.
    """

    name: str
    keys: tuple[str, ...] = ()
    durable: bool = True
    notes_readers: bool = False


class Delivery(Protocol):
    """A message delivered to a reader, which must settle it with exactly one call of done or requeue."""

    envelope: Envelope
    problem: str  # why the received bytes are not a valid envelope; empty if they are
    sender: str  # as in DeadLetter
    crashes: int  # number of earlier deliveries that were not settled; some brokers count requeues, too

    def done(self) -> None:
        """Acknowledge the message to the broker: it was handled, and all its results are stored."""

    def requeue(self) -> None:
        """Return the message to its queue, from which it is delivered again to any reader."""


UNCOUNTED = 2  # `crashes` of a redelivered message if the broker does not count deliveries


def is_suspect(delivery: Delivery) -> bool:
    """Return whether this message must be handled alone, because processes that handled it before may have
    crashed because of it.

    A single crash does not make a message a suspect: most processes end for another reason than a message.
    """
    return delivery.crashes >= UNCOUNTED or bool(delivery.envelope.suspect_of)


class Inbox(Protocol):
    """A reader of a queue; pauses while `prefetch` messages or MAX_IN_HAND_BYTES are unsettled."""

    @property
    def buffered(self) -> int:
        """Return how many received messages the caller has not yet got; a RabbitMQ message with several
        envelopes counts as one."""

    async def get(self) -> Delivery:
        """Wait for the next message."""

    def get_nowait(self) -> Delivery | None:
        """Return the next message that has arrived already, or None."""

    async def stop(self) -> None:
        """Stop reading the queue, and requeue the messages that the caller has not received yet."""


class Intake(Inbox, Protocol):
    """An inbox that receives messages from another inbox, and returns them in a different order."""

    async def open(self, inbox: Inbox) -> None:
        """Begin to receive the messages of this inbox."""

    def handled(self, deliveries: Sequence[Delivery]) -> None:
        """Record that a handler call has ended. Its messages, `deliveries`, are settled or requeued, or wait
        only for confirms of clients' queues.
        """


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be handled, stored with the reason."""

    id: str
    queue: str  # queue of the failed worker
    key: str
    type: str
    reason: str
    first_died: float
    died: float
    attempt: int
    correlation: str
    body: bytes
    traceback: str = ""
    cell: str = ""  # cell of the failed worker, verified by the broker; "?": unknown; "": no cell
    # What the broker verified about the sender, if the message was refused because of that: the routing key,
    # queue or exchange of the sender, to which `key` is not permitted; "?": unknown; "": `key` is verified
    sender: str = ""


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The numbers of waiting messages and of consumers of a queue."""

    messages: int  # number of undelivered messages; several envelopes in one AMQP message count as one
    readers: int


@dataclass(frozen=True, slots=True)
class BusDepths:
    """The numbers of messages and consumers of each queue, the number of dead letters, and of delayed
    messages.
    """

    queues: dict[str, QueueDepth]
    dead: int  # dead letters
    delayed: int  # messages that wait for their delay to pass


async def page_of(letters: AsyncGenerator[DeadLetter, None], limit: int) -> list[DeadLetter]:
    """Return the first dead letters of a generator: at most `limit`, and about MAX_PAGE_BYTES in total."""
    page: list[DeadLetter] = []
    size = 0
    async with aclosing(letters):
        async for letter in letters:
            size += len(letter.body)
            if len(page) == limit or (page and size > MAX_PAGE_BYTES):
                break
            page.append(letter)
    return page


class Transport(Protocol):
    """The interface of a connection to a broker. When a method returns, the broker has stored its effect."""

    async def open(self) -> None:
        """Connect to the broker; wait if it is unreachable."""

    async def close(self) -> None:
        """Return unhandled messages to their queues and disconnect."""

    async def declare(self, *queues: QueueSpec) -> None:
        """Create the queues with their bindings, now and after every reconnect."""

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        """Publish envelopes by their routing keys. Raise Unroutable if one marked `expected` has no queue.

        Messages for clients have a time limit: afterwards raise Unconfirmed, when all others are confirmed.
        """

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        """Send an envelope to a queue after at least this many seconds (0: now), with its routing key
        unchanged. Raise Unroutable if the queue does not exist.
        """

    async def store_dead_letter(self, letter: DeadLetter) -> None:
        """Store a dead letter; return when the broker has it."""

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        """Declare the queue and begin to read it, with at most `prefetch` messages unsettled at a time."""

    async def waiting(self, queue: str) -> int:
        """Return how many AMQP messages of a queue are undelivered; each holds one or more envelopes."""

    async def depths(self, queues: Sequence[str]) -> BusDepths:
        """Return message counts of the given queues (if they exist), dead letters and delayed messages."""

    async def dead_letters(self, limit: int = 1000, after: str = "", beginning: str = "") -> list[DeadLetter]:
        """Return the next dead letters, oldest first, without removing them; an empty list at the end.

        At most `limit` letters are returned, and at most MAX_PAGE_BYTES in total. Their ids start with
        `beginning`. With `after`, the list continues after the letter with this id; NoSuchLetter is raised if
        no letter has the id.
        """

    def each_dead_letter(self, *, after: str = "", beginning: str = "") -> AsyncGenerator[DeadLetter, None]:
        """Yield the dead letters after the id `after` with ids that start with `beginning`, oldest first,
        without removing them. To stop early, close the generator.
        """

    async def remove_dead_letters(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[bool]] | None = None
    ) -> int:
        """Remove the dead letters with the given ids (None: all), and return the number of removed letters.
        `rescue` is called with each letter first, and the letter is removed only if `rescue` returns True.
        """


class Ask(Protocol[A, R]):
    """The type of a function that sends a query and returns its answer, made by `Bus.asker`."""

    def __call__(self, question: A, /) -> Awaitable[R]: ...


class AskMany(Protocol[A, R]):
    """Like `Ask`, for several questions of one type: made by `Bus.asker_of_many`."""

    def __call__(self, questions: Sequence[A], /) -> Awaitable[Sequence[R]]: ...


async def ask_each(ask: AskMany[A, R], questions: Sequence[A]) -> Sequence[R | AnswerRefused]:
    """Return the answer to each question, or why it was refused; send each alone if the batch is refused."""
    try:
        return await ask(questions)
    except AnswerRefused as refused:
        if len(questions) == 1:
            return [refused]
    return [answer for question in questions for answer in await ask_each(ask, [question])]


M = TypeVar("M", bound=Message)
T = TypeVar("T", bound=msgspec.Struct)

FRAME_TYPE = "berth.frame"

_encoder = parts.encoder()
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_frame_decoder = msgspec.json.Decoder(list[Envelope])

_ZERO = rb"\u0000"
_zero = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # not \\u0000, a backslash followed by u0000


def encode(message: Message) -> bytes:
    """Return a message as JSON; raise TooBig if the bus does not carry it."""
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooBig(
            f"{type(message).__name__} is {len(data)} bytes; the bus carries at most {MAX_MESSAGE_BYTES}"
        )
    return data


def message_in(envelope: Envelope, kind: type[M]) -> M:
    """Return an envelope's message; raise Undecodable if it is invalid, or of another type than `kind`."""
    known = envelope.message
    if type(known) is kind and not holds_zero(bytes(envelope.body)):
        return known
    return decode(kind, envelope.body, envelope.type)


def decode(kind: type[T], body: bytes | msgspec.Raw, named: str = "", *, most: int = MAX_MESSAGE_BYTES) -> T:
    """Decode bytes to a message of the type `kind`, or raise Undecodable with the name of the wrong field.

    `named` is the message type that the sender stated; empty if it stated no type, as plain AMQP clients do.
    `most`: the largest number of bytes.
    """
    if named and named != kind.__name__:
        raise Undecodable(f"type: {named!r} is unknown on this topic, which carries {kind.__name__}")
    size = memoryview(body).nbytes
    if size > most:
        raise Undecodable(f"the message is {size} bytes; the bus carries at most {most}")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = parts.decoder(kind)
    try:
        message: T = decoder.decode(body)
    except msgspec.ValidationError as problem:
        raise Undecodable(f"{kind.__name__}: {_located(parts.problem_of(problem), body)}") from None
    except NOT_JSON as problem:
        raise Undecodable(f"{kind.__name__}: not JSON: {problem}") from None
    if holds_zero(bytes(body)):
        why = "it contains the character U+0000, which PostgreSQL cannot store"
        raise Undecodable(f"{kind.__name__}: {why}{_zero_at(body)}")
    return message


def _zero_at(body: bytes | msgspec.Raw) -> str:
    """Return the path of the text with the character U+0000 in a JSON value, as in decoding errors."""
    try:
        path = _path_of(msgspec.json.decode(body), lambda value: isinstance(value, str) and "\0" in value)
    except NOT_JSON:
        path = None
    return f" - at `${path}`" if path else ""


_UNLOCATED = re.compile(r"(Number out of range - at `\$)[^`]*\[\.\.\.\][^`]*`$")


def _located(text: str, body: bytes | msgspec.Raw) -> str:
    """Return the text of a decoding error. If a number in an untyped field is too large, add its path."""
    if not _UNLOCATED.search(text):
        return text
    try:
        path = _path_of(json.loads(bytes(body)), lambda value: value in (math.inf, -math.inf))
    except (ValueError, RecursionError):
        return text
    return text if path is None else _UNLOCATED.sub(lambda found: f"{found[1]}{path}`", text)


def _path_of(value: Any, is_wrong: Callable[[Any], bool]) -> str | None:
    """Return the path of the first wrong value in a JSON value, or of the object with a wrong key; None if
    there is none. The path ends before a key that is not a plain name.
    """
    found: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        if any(map(is_wrong, value)):
            return ""
        found = ((f".{key}", each) for key, each in value.items())
    elif isinstance(value, list):
        found = ((f"[{position}]", each) for position, each in enumerate(value))
    for step, each in found:
        if is_wrong(each):
            return step if _STEP.fullmatch(step) else ""
        if (path := _path_of(each, is_wrong)) is not None:
            return step + path if _STEP.fullmatch(step) else ""
    return None


_STEP = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,100}")  # a name or position in a path


def holds_zero(body: bytes) -> bool:
    """Return whether a JSON text contains the character U+0000, which databases cannot store."""
    return _ZERO in body and _zero.search(body) is not None


def encode_frame(envelopes: Sequence[Envelope]) -> bytes:
    """Return several envelopes as one AMQP body."""
    return _encoder.encode(envelopes)


def decode_frame(body: bytes) -> list[Envelope]:
    """Return the envelopes of a frame; raise Undecodable if the body is no frame or has too many."""
    try:
        envelopes = _frame_decoder.decode(body)
    except NOT_JSON as problem:
        raise Undecodable(f"not a frame: {problem}") from None
    if len(envelopes) > MAX_FRAME_ENVELOPES:
        raise Undecodable(
            f"not a frame: it holds {len(envelopes)} envelopes; the bus carries at most {MAX_FRAME_ENVELOPES}"
        )
    return envelopes


# Receipt: lets a publisher wait until all messages of a call are stored at the broker, or handled by a worker
# of the same process.


class Receipt:
    """Counts messages that are neither stored (or handled) nor failed. When none is left, the future `done`
    is completed, with an exception if a message failed.
    """

    __slots__ = ("done", "missing", "problem", "unconfirmed")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.problem: Exception | None = None
        self.unconfirmed: list[Envelope] = []  # messages for clients that were not confirmed in time
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, problem: Exception | None) -> None:
        """Count one message as stored or handled, or with `problem` as failed."""
        self.problem = self.problem or problem
        self.missing -= 1
        if self.missing or self.done.done():
            return
        if self.problem is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self.problem)
            self.done.exception()  # asyncio logs exceptions that are not retrieved: the call may have ended
