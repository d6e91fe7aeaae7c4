"""Redelivered messages are handled alone, and get a strike only if their process ended meanwhile."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain

import msgspec
import pytest

from bus import topics
from bus.clock import Clock
from bus.context import envelope_of
from bus.delivery import suspects
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelRequested
from bus.protocol import Envelope
from bus.worker import Outcome, Worker, on_many, suspects_queue
from tests.support.buses import queues_of
from tests.support.waiting import until

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


async def test_first_deliveries_share_a_batch_and_redelivered_ones_are_handled_alone(
    broker: LocalBroker, outside: LocalTransport
) -> None:
    await outside.publish([cancel(number) for number in range(3)], expected=[True] * 3)
    await leave_unsettled(broker, QUEUE, 3)
    await outside.publish([cancel(number) for number in range(3, 6)], expected=[True] * 3)
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
async def test_a_suspect_is_buried_at_its_second_strike(
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


async def test_a_suspect_in_hand_at_a_shutdown_gets_no_strike(
    broker: LocalBroker, outside: LocalTransport
) -> None:
    await outside.delay(SUSPECTS, cancel(1, suspect_of=QUEUE, strikes=1), 0)
    handler = Handler()
    handler.holding = True
    async with serving(broker, handler.worker, drain=0.05):
        await until(lambda: handler.batches)
    (item,) = broker.queues[SUSPECTS].items
    assert (item.envelope.strikes, item.crashes) == (1, 0)


async def test_a_suspect_whose_handler_takes_long_stops_no_other_and_returns_to_its_queue(
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


async def test_a_suspect_whose_handler_asks_for_another_try_is_no_suspect_any_more(
    broker: LocalBroker, outside: LocalTransport
) -> None:
    async def refuse(requests: Sequence[BuildCancelRequested]) -> Sequence[Outcome]:
        raise RuntimeError("a bug")

    await outside.delay(SUSPECTS, cancel(1, suspect_of=QUEUE, strikes=1), 0)
    async with serving(broker, Worker("scheduler", consumes=[on_many(topics.BUILD_CANCEL, refuse)])):
        await until(lambda: broker.dead)
    (letter,) = broker.dead.values()
    assert letter.reason == "RuntimeError: a bug"  # after its tries, as of any other message
    assert letter.attempt == 6


async def test_a_message_that_strangers_put_among_the_suspects_is_buried(
    broker: LocalBroker, outside: LocalTransport
) -> None:
    await outside.delay(SUSPECTS, cancel(1), 0)
    handler = Handler()
    async with serving(broker, handler.worker):
        await until(lambda: broker.dead)
    assert not handler.batches
    assert [letter.reason for letter in broker.dead.values()] == ["it does not name the queue it came from"]


async def test_two_workers_of_one_process_do_not_handle_suspects_at_the_same_time(
    broker: LocalBroker,
) -> None:
    turns = asyncio.Lock()
    handlers = Handler(), Handler()
    workers = [
        Worker(name, consumes=[on_many(topics.BUILD_CANCEL, handler.handle)])
        for name, handler in zip(("one", "other"), handlers, strict=True)
    ]
    outside = LocalTransport(broker)
    for worker in workers:
        await outside.declare(suspects_queue(worker.name))
        suspect = cancel(1, suspect_of=f"{worker.name}:build.cancel")
        await outside.delay(suspects_queue(worker.name).name, suspect, 0)
    for handler in handlers:
        handler.holding = True
    stopping = asyncio.Event()
    async with Bus(LocalTransport(broker), turns=turns) as bus, asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(bus.serve(worker, stopping))
        await until(lambda: handlers[0].batches or handlers[1].batches)
        await asyncio.sleep(0)
        assert [handlers[0].batches, handlers[1].batches].count([]) == 1
        for handler in handlers:
            handler.holding = False
        await until(lambda: handlers[0].batches and handlers[1].batches)
        stopping.set()
