"""Callers are served in batches, and acknowledgements are combined."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import Any

import msgspec
import pytest

from bus import topics
from bus.clock import Clock
from bus.context import envelope_of
from bus.delivery import suspects
from bus.delivery.failed_messages import FAULT_DELAYS, MAX_UNROUTABLE, Again, Dead, verdict
from bus.delivery.runner import Bus
from bus.errors import (
    AnswerRefused,
    AnswerUnreadable,
    BrokerRefused,
    NoAnswer,
    Poison,
    Retry,
    TooBig,
    Unavailable,
    Unroutable,
)
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelRequested, BuildDeleteRequested
from bus.protocol import MAX_COUNT, Envelope, decode_frame, encode_frame
from bus.rabbit import consuming
from bus.rabbit.consuming import Reading
from bus.rabbit.fast_channels.channel import BulkChannel
from bus.worker import Outcome, Worker, on_many, suspects_queue
from placement_worker.transactions import Batched
from tests.support.buses import queues_of
from tests.support.waiting import until


class SentFrames:
    def __init__(self) -> None:
        self.acks: list[tuple[int, bool]] = []
        self.nacks: list[int] = []

    def ack(self, tag: int, *, multiple: bool) -> None:
        self.acks.append((tag, multiple))

    def nack(self, tag: int, *, multiple: bool) -> None:
        self.nacks.append(tag)


@pytest.fixture
async def reading() -> Reading:
    channel = BulkChannel()
    channel._frames = SentFrames()  # type: ignore[assignment]
    made = Reading(channel)
    made.in_advance = 64
    made.unsettled = dict.fromkeys(range(1, 65))
    return made


def sent(reading: Reading) -> Any:
    return reading.channel._frames


async def test_acknowledgements_of_one_moment_are_combined(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "ACKS_WAIT", 0.01)
    started = asyncio.get_running_loop().time()
    reading.ack(1)
    assert not reading.wake.is_set()
    reading.ack(2)
    reading.ack(4)
    await until(reading.wake.is_set)
    assert asyncio.get_running_loop().time() >= started + 0.01
    reading.settle()
    assert sent(reading).acks == [(2, True), (4, False)]


@pytest.mark.parametrize(("in_advance", "enough"), [(64, 16), (4, 1), (1, 1), (0, 1)])
async def test_acknowledgements_are_sent_before_the_prefetch_is_exhausted(
    reading: Reading, in_advance: int, enough: int
) -> None:
    reading.in_advance = in_advance
    for tag in range(1, enough):
        reading.ack(tag)
    assert not reading.wake.is_set()
    reading.ack(enough)
    assert reading.wake.is_set()


class Work:
    def __init__(self) -> None:
        self.lists: list[list[int]] = []
        self.go_on = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> Sequence[int]:
        self.lists.append(list(numbers))
        await self.go_on.wait()
        if 13 in numbers:
            raise ValueError("thirteen")
        return [2 * number for number in numbers]


@asynccontextmanager
async def at_work(work: Work) -> AsyncIterator[Batched[int, int]]:
    together = Batched(work)
    running = asyncio.ensure_future(together.run())
    try:
        yield together
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_an_error_concerns_its_batch_only() -> None:
    work = Work()
    async with at_work(work) as together:
        work.go_on.set()
        with pytest.raises(ValueError, match="thirteen"):
            await together(13)
        assert await together(4) == 8


QUEUE = "scheduler:build.cancel"
SUSPECTS = suspects_queue("scheduler").name


class Handler:
    """Notes the batches it was given; waits in the middle of one while `holding`."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.holding = False
        self.worker = Worker("scheduler", consumes=[on_many(topics.BUILD_CANCEL, self.handle)])

    async def handle(self, requests: Sequence[BuildCancelRequested]) -> Sequence[Outcome]:
        self.batches.append([int(request.build[-12:]) for request in requests])
        while self.holding:
            await asyncio.sleep(0.01)
        return [None] * len(requests)


def cancel(number: int, **more: str | int) -> Envelope:
    made = envelope_of(BuildCancelRequested(build=f"00000000-0000-0000-0000-{number:012d}"), Clock())
    return msgspec.structs.replace(made, **more)


@asynccontextmanager
async def serving(broker: LocalBroker, worker: Worker, drain: float = 5.0) -> AsyncIterator[asyncio.Event]:
    stopping = asyncio.Event()
    async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as group:
        group.create_task(bus.serve(worker, stopping, drain=drain))
        yield stopping
        stopping.set()


@pytest.fixture
def broker() -> LocalBroker:
    return LocalBroker()


@pytest.fixture
async def outside(broker: LocalBroker) -> LocalTransport:
    transport = LocalTransport(broker)
    await transport.declare(*queues_of(Handler().worker), suspects_queue("scheduler"))
    return transport


async def leave_unsettled(broker: LocalBroker, queue: str, count: int) -> None:
    """Take so many messages as a reader that then goes away."""
    reader = LocalTransport(broker)
    inbox = await reader.consume(broker.queues[queue].spec, count)
    for _ in range(count):
        await inbox.get()
    await reader.close()


async def test_messages_that_two_processes_left_are_handled_alone_and_others_share_a_batch(
    broker: LocalBroker, outside: LocalTransport
) -> None:
    await outside.publish([cancel(number) for number in range(3)], expected=[True] * 3)
    await leave_unsettled(broker, QUEUE, 3)
    await outside.publish([cancel(number) for number in range(3, 6)], expected=[True] * 3)
    await leave_unsettled(broker, QUEUE, 3)
    handler = Handler()
    async with serving(broker, handler.worker):
        await until(lambda: sum(map(len, handler.batches)) == 6)
    assert sorted(handler.batches) == [[0], [1], [2], [3, 4, 5]]
    assert not broker.dead


@pytest.mark.parametrize(
    "strikes, unsettled, buried",
    [
        (0, 0, False),
        (0, 1, False),  # the first strike
        (1, 0, False),
        (1, 1, True),  # the second
        (suspects.MAX_STRIKES, 0, True),
    ],
)
async def test_a_suspect_becomes_a_dead_letter_at_its_second_strike(
    broker: LocalBroker, outside: LocalTransport, strikes: int, unsettled: int, buried: bool
) -> None:
    suspect = cancel(1, suspect_of=QUEUE, strikes=strikes)
    await outside.delay(SUSPECTS, suspect, 0)
    for _ in range(unsettled):
        await leave_unsettled(broker, SUSPECTS, 1)
    handler = Handler()
    async with serving(broker, handler.worker):
        await until(lambda: handler.batches or broker.dead)
    assert handler.batches == ([] if buried else [[1]])
    assert [(letter.queue, letter.key) for letter in broker.dead.values()] == (
        [(QUEUE, "build.cancel")] if buried else []
    )


async def test_a_slow_suspect_returns_to_its_queue_and_does_not_block(
    broker: LocalBroker, outside: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "ALONE_SECONDS", 0.05)
    for number in (1, 2):
        await outside.delay(SUSPECTS, cancel(number, suspect_of=QUEUE), 0)
    handler = Handler()
    handler.holding = True  # as an agent that settles an order when its work has ended
    async with serving(broker, handler.worker, drain=0.05):
        await until(lambda: Counter(chain(*handler.batches)) >= Counter({1: 2, 2: 1}))
    assert not broker.dead


async def test_a_forged_suspect_becomes_a_dead_letter(broker: LocalBroker, outside: LocalTransport) -> None:
    await outside.delay(SUSPECTS, cancel(1), 0)
    handler = Handler()
    async with serving(broker, handler.worker):
        await until(lambda: broker.dead)
    assert not handler.batches
    assert [letter.reason for letter in broker.dead.values()] == ["it does not name the queue it came from"]


CLOCK = Clock(now=lambda: 1_700_000_000.0, chance=random.Random(1))
MESSAGE = BuildDeleteRequested(build="00000000-0000-0000-0000-000000000001", cell="c1")


def a_cause(**reply: str) -> Envelope:
    return msgspec.structs.replace(Envelope(id="cause", type="T", key="k", body=msgspec.Raw(b"{}")), **reply)


def test_any_foreign_correlation_gives_readable_consequences() -> None:
    long = 255 * "x"
    causes = [
        a_cause(traceparent=f"-{'z' * 32}--{'f' * 220}"),
        a_cause(correlation=long),
        a_cause(id=long),
        a_cause(traceparent=long),
    ]
    sent = [envelope_of(MESSAGE, CLOCK, cause) for cause in causes]
    assert decode_frame(encode_frame(sent)) == sent


def tried(attempt: int = 1, faults: int = 0, unroutable: int = 0) -> Envelope:
    return Envelope(
        id="m",
        type="T",
        key="k",
        body=msgspec.Raw(b"{}"),
        attempt=attempt,
        faults=faults,
        unroutable=unroutable,
    )


@pytest.mark.parametrize(
    ("problem", "tries", "expected"),
    [
        (Retry(2.5), 1, Again(2.5)),
        (Retry(2.5), 1000, Again(2.5)),
        (Poison("no"), 1, Dead("no", invalid=True)),
        (TooBig("2 MB"), 1, Dead("2 MB")),
        (AnswerRefused("no such class"), 1, Dead("no such class")),
        (BrokerRefused("no right to write"), 1, Dead("no right to write")),
        (Unavailable("away"), 1, Again(0.5, "away", away=True)),
        (NoAnswer("away"), 4, Again(2.0, "away", away=True)),
        (Unavailable("away"), MAX_COUNT, Again(5.0, "away", away=True)),
    ],
    ids=repr,
)
def test_the_verdict_of_each_exception(problem: Exception, tries: int, expected: Again | Dead) -> None:
    assert verdict(problem, tried(attempt=tries)) == expected


@pytest.mark.parametrize(
    ("envelope", "expected"),
    [
        (tried(), Again(0.5, "nobody", unroutable=True)),
        (tried(1000), Again(5.0, "nobody", unroutable=True)),  # it waited for something else until now
        (tried(MAX_UNROUTABLE - 1, unroutable=MAX_UNROUTABLE - 2), Again(5.0, "nobody", unroutable=True)),
        (tried(MAX_UNROUTABLE, unroutable=MAX_UNROUTABLE - 1), Dead("nobody")),
    ],
)
def test_a_missing_consumer_is_waited_for_some_minutes(envelope: Envelope, expected: Again | Dead) -> None:
    assert verdict(Unroutable("nobody"), envelope) == expected


@pytest.mark.parametrize(
    "bug", [KeyError("three"), AnswerUnreadable("of an answer"), TimeoutError()], ids=repr
)
def test_other_exceptions_are_retried_five_times(bug: Exception) -> None:
    found = [verdict(bug, tried(faults=faults)) for faults in range(len(FAULT_DELAYS) + 1)]
    assert [one.after for one in found[:-1] if isinstance(one, Again) and one.fault] == list(FAULT_DELAYS)
    assert isinstance(found[-1], Dead)
    assert found[-1].reason == f"{type(bug).__name__}: {bug}"
    assert type(bug).__name__ in found[-1].trace
    assert isinstance(verdict(bug, tried(faults=MAX_COUNT)), Dead)


def test_other_tries_do_not_count_as_bugs() -> None:
    assert verdict(KeyError(), tried(attempt=500)) == verdict(KeyError(), tried())
