"""How messages are delivered, whichever bus carries them: envelopes, and what a transport must do."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta

from bus.vocabulary import Message

A = TypeVar("A", bound=Message, contravariant=True)
R = TypeVar("R", bound=Message, covariant=True)

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_FRAME_BYTES = 256 * 1024
MAX_FRAME_ENVELOPES = 256
MAX_PAGE_BYTES = 8 * 1024 * 1024  # of dead letters that are looked at together
MAX_IN_HAND_BYTES = 16 * 1024 * 1024  # of one reader: decoded they are several times as much
MAX_COUNT = 2**31 - 1  # of tries: AMQP headers, and every language, have room for it
MAX_TIME = 2.0**32  # seconds since the epoch, as AMQP tells them: the year 2106

Short = Annotated[str, Meta(max_length=255)]  # as in AMQP; what strangers give goes on in all that follows


class Envelope(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message on its way: its bytes, and what the bus must know to carry it."""

    id: Short
    type: Short
    key: Short  # the routing key it was published to, or the queue it was sent to
    body: msgspec.Raw
    correlation: Short = ""  # the first message of the story
    causation: Short = ""  # the message this one answers to
    attempt: int = 1  # how many times it was handed to a handler on purpose
    faults: int = 0  # how many of those ended in a bug
    unheard: int = 0  # ... and in words of the handler that nobody heard
    sent_at: float = 0.0
    traceparent: Short = ""
    reply_to: Short = ""  # queue that awaits the answer
    error: str = ""  # an answer that is a refusal
    again: bool = False  # ... for now only: the same question may be answered later
    first_died: float = 0.0
    framed: bool = True  # may travel in a frame
    suspect_of: Short = ""  # the queue it came from, while it is among the suspects
    strikes: int = 0  # processes that ended while they handled this message alone

    def __post_init__(self) -> None:
        """Clamp the numbers, wherever it was read from: a stranger's must not be what nobody can send on."""
        if not 1 <= self.attempt <= MAX_COUNT:
            self.attempt = min(max(self.attempt, 1), MAX_COUNT)
        if not 0 <= self.faults <= MAX_COUNT:
            self.faults = min(max(self.faults, 0), MAX_COUNT)
        if not 0 <= self.unheard <= MAX_COUNT:
            self.unheard = min(max(self.unheard, 0), MAX_COUNT)
        if not 0 <= self.strikes <= MAX_COUNT:
            self.strikes = min(max(self.strikes, 0), MAX_COUNT)
        if not 0.0 <= self.sent_at < MAX_TIME:
            self.sent_at = 0.0
        if not 0.0 <= self.first_died < MAX_TIME:
            self.first_died = 0.0


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue and the keys bound to it. Unless `durable`, it lives as long as its reader's connection.

    With `notes_readers`, a broker whose readers die with it (the embedded one) writes down what is delivered,
    so that `Delivery.crashes` counts only deliveries that were made.
    """

    name: str
    keys: tuple[str, ...] = ()
    durable: bool = True
    notes_readers: bool = False


class Delivery(Protocol):
    """An envelope handed to a reader, who must settle it by exactly one of done and requeue."""

    envelope: Envelope
    problem: str  # why the bytes are no envelope; empty when they are
    crashes: int  # deliveries of it that ended unsettled; brokers may count requeues, or only say whether

    def done(self) -> None:
        """Handled, and everything it led to is safe: forget it."""

    def requeue(self) -> None:
        """Not handled: deliver it again, to anyone."""


class Inbox(Protocol):
    """A queue being read. While `prefetch` envelopes are unsettled, or MAX_IN_HAND_BYTES, none is given."""

    async def get(self) -> Delivery: ...

    def get_nowait(self) -> Delivery | None: ...

    async def stop(self) -> None:
        """Take no more, and put back what was not taken yet."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be handled, kept with its reason."""

    id: str
    queue: str  # who could not handle it
    key: str
    type: str
    reason: str
    first_died: float
    died: float
    attempt: int
    correlation: str
    body: bytes
    traceback: str = ""
    cell: str = ""  # whose workers could not, as the broker verified; ?: nobody knows; empty: of no cell


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How a queue stands at this moment."""

    messages: int  # that no reader has taken yet; over AMQP several that travel as one frame are one
    readers: int


@dataclass(frozen=True, slots=True)
class BusDepths:
    """What waits on a bus at this moment."""

    queues: dict[str, QueueDepth]
    dead: int  # letters that nobody is looking at just now
    delayed: int  # put off: they come to their queues when their time has passed


class Transport(Protocol):
    """What a broker must do. Everything awaited here is safe on disk (or its like) when it returns."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def declare(self, *queues: QueueSpec) -> None:
        """Make sure these queues exist and hear their keys, now and after every reconnect."""

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        """To every queue that hears the envelope's key. Expected to be heard, and is not: Unroutable."""

    async def send(self, queue: str, envelope: Envelope, *, expected: bool = False) -> None:
        """To one queue by its name. One that is gone swallows it, or is Unroutable when it is expected."""

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        """To one queue, under the envelope's own key, after these seconds (rounded up by some brokers)."""

    async def bury(self, letter: DeadLetter) -> None:
        """To the dead-letter queue."""

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox: ...

    async def waiting(self, queue: str) -> int:
        """Return how many messages of a queue are not delivered to a reader. On AMQP, a frame counts as one
        message.
        """

    async def depths(self, queues: Sequence[str]) -> BusDepths:
        """How these queues stand, those that are not there left out. Nothing is taken, made or bound."""

    async def dead_letters(
        self, limit: int = 1000, *, after: str = "", beginning: str = ""
    ) -> list[DeadLetter]:
        """A page of dead letters, oldest first; they stay where they are. An empty page is the end.

        At most so many, and no more than fit into memory, from behind the one with the id `after` (which
        raises NoSuchLetter when it is gone), and only those whose id begins with `beginning`.
        """

    def each_dead_letter(self, *, after: str = "", beginning: str = "") -> AsyncGenerator[DeadLetter, None]:
        """The same one by one, all in one look; to be closed by who does not want them all."""

    async def exhume(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[bool]] | None = None
    ) -> int:
        """Take these letters, or all, out of the dead-letter queue for good, and say how many they were.

        Each goes when `rescue` has returned; one of which it returned False stays.
        """


class Ask(Protocol[A, R]):
    """A question as a function. Bound to a bus by `Bus.asker`; in tests any coroutine function will do."""

    def __call__(self, question: A, /) -> Awaitable[R]: ...
