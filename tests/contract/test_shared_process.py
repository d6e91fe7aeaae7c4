"""Workers that share a process: which messages they exchange in memory, and that none of them can be lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from bus import topics
from bus.delivery.runner import Bus
from bus.direct import PATIENCE, DirectTransport
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported, BuildPlaced, BuildRequested, DestroyOrdered
from bus.protocol import Envelope
from bus.requests import Flavor
from bus.worker import Worker, on
from tests.support.buses import queues_of, serving
from tests.support.conductor_builders import a_destroy_order, a_placed, an_agent_report
from tests.support.waiting import DEADLINE, patience, until

PLACED = a_placed()
ORDER = a_destroy_order(PLACED)
REPORT = an_agent_report(ORDER, "destroyed")
CELL, AGENT = ORDER.cell, ORDER.agent


class RecordingTransport(LocalTransport):
    """A connection to a broker that records what it carries."""

    def __init__(self, broker: LocalBroker, carried: list[str]) -> None:
        super().__init__(broker)
        self.carried = carried

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        self.carried += [envelope.type for envelope in envelopes]
        await super().publish(envelopes, expected=expected)

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        self.carried.append(envelope.type)
        await super().delay(queue, envelope, seconds)


class SharedProcess:
    def __init__(self) -> None:
        self.broker = LocalBroker()
        self.carried: list[str] = []  # messages that the broker carried

    def connect(self) -> DirectTransport:
        return DirectTransport(self.connect_alone())

    def connect_alone(self) -> RecordingTransport:
        return RecordingTransport(self.broker, self.carried)

    @asynccontextmanager
    async def running(self, *workers: Worker, shared: bool = True) -> AsyncIterator[Bus]:
        """Run the workers in one process; yield its bus once they read their queues."""
        async with serving(self.connect if shared else self.connect_alone, *workers) as bus:
            queues = [spec.name for worker in workers for spec in queues_of(worker, bus.replica)]
            await until(lambda: all(self.broker.queues[name].readers for name in queues))
            yield bus

    def waiting(self, queue: str) -> int:
        return len(self.broker.queues[queue].items)


@pytest.fixture
def process() -> SharedProcess:
    return SharedProcess()


def conductor(handler: Callable[[BuildPlaced], Awaitable[None]]) -> Worker:
    row = on(topics.BUILD_PLACED.at(cell=CELL), handler, concurrency=1)
    return Worker(f"conductor.{CELL}", consumes=[row])


def agent(handler: Callable[[DestroyOrdered], Awaitable[AgentReported | None]]) -> Worker:
    address = topics.AGENT_DESTROY.at(cell=CELL, agent=AGENT)
    return Worker(f"agent.{CELL}.{AGENT}", consumes=[on(address, handler, emits=[topics.AGENT_REPORT])])


async def killed_at(moment: asyncio.Event, life: Coroutine[Any, Any, None]) -> None:
    """Run a process until `moment` is set, then kill it."""
    killed = asyncio.create_task(life)
    async with patience():
        await moment.wait()
    killed.cancel()
    await asyncio.wait([killed])


async def test_a_message_to_the_same_process_is_not_decoded_again(process: SharedProcess) -> None:
    received: list[BuildPlaced] = []

    async def keep(placed: BuildPlaced) -> None:
        received.append(placed)

    async with process.running(conductor(keep)) as bus:
        await bus.publish(PLACED)
    assert received[0] is PLACED


async def test_a_message_with_a_character_no_database_stores_is_refused_in_the_same_process_too(
    process: SharedProcess,
) -> None:
    async def keep(placed: BuildPlaced) -> None:
        raise AssertionError("it was handled")

    host = replace(PLACED.chosen, host="a\0b")
    async with process.running(conductor(keep)) as bus:
        await bus.publish(replace(PLACED, chosen=host))
    (letter,) = process.broker.dead.values()
    assert "U+0000" in letter.reason


async def test_a_message_for_a_worker_in_another_process_goes_to_the_broker(process: SharedProcess) -> None:
    async def refuse(placed: BuildPlaced) -> None:
        raise AssertionError

    async with process.running(conductor(refuse)) as bus, Bus(LocalTransport(process.broker)) as other:
        ordered = await other.listen(topics.AGENT_DESTROY.at(cell=CELL, agent=AGENT))
        await bus.publish(ORDER)
        assert await ordered.get() == ORDER
    assert process.carried == ["DestroyOrdered"]


async def test_a_message_that_a_busy_reader_does_not_take_goes_to_the_broker(process: SharedProcess) -> None:
    release = asyncio.Event()
    received: list[str] = []

    async def hold(placed: BuildPlaced) -> None:
        received.append(placed.build)
        await release.wait()

    async with process.running(conductor(hold)) as bus:
        first = asyncio.create_task(bus.publish(PLACED))
        await until(lambda: received)
        second = a_placed(build=2)
        async with asyncio.timeout(PATIENCE + DEADLINE):
            await bus.publish(second)
        assert process.carried == ["BuildPlaced"] and not first.done()
        release.set()
        await first
        await until(lambda: received == [PLACED.build, second.build])


async def test_a_report_stays_at_the_broker_until_its_consequence_is_published(
    process: SharedProcess,
) -> None:
    """The order was handed over in memory, and is not repeated once the conductor has stored its outcome: a
    crash after that, before the end of the build is published, would lose the end.
    """
    handling = asyncio.Event()

    async def report(order: DestroyOrdered) -> AgentReported:
        return REPORT

    async def hold(report: AgentReported) -> None:
        handling.set()
        await asyncio.Event().wait()

    row = on(topics.AGENT_REPORT.at(cell=CELL), hold)
    conductor = Worker(f"conductor.{CELL}", consumes=[row])

    async def life() -> None:
        async with process.running(conductor, agent(report)) as bus:
            await bus.publish(ORDER)
            await asyncio.Event().wait()

    await killed_at(handling, life())
    assert process.carried == ["AgentReported"]
    assert process.waiting(conductor.queue_of(row).name) == 1


async def test_messages_not_handled_when_the_process_stops_stay_at_the_broker(process: SharedProcess) -> None:
    async def hold(order: DestroyOrdered) -> None:
        await asyncio.Event().wait()

    stopping = asyncio.Event()
    worker = agent(hold)
    async with Bus(process.connect()) as bus:
        serving_it = asyncio.create_task(bus.serve(worker, stopping, drain=0.05))
        queue = worker.queue_of(worker.consumes[0])
        await until(lambda: queue.name in process.broker.queues and process.broker.queues[queue.name].readers)
        await bus.publish(ORDER)
        stopping.set()
        await serving_it
    assert process.waiting(queue.name) == 1


async def test_a_request_stays_at_the_broker_until_its_consequence_is_handled(process: SharedProcess) -> None:
    """A crash before the resulting message is handled loses nothing."""
    handling = asyncio.Event()

    async def place(request: BuildRequested) -> BuildPlaced:
        return PLACED

    async def hold(placed: BuildPlaced) -> None:
        handling.set()
        await asyncio.Event().wait()

    row = on(topics.BUILD_REQUESTED, place, emits=[topics.BUILD_PLACED])
    scheduler = Worker("scheduler", consumes=[row])

    async def life() -> None:
        async with process.running(scheduler, conductor(hold)):
            await asyncio.Event().wait()

    async with Bus(LocalTransport(process.broker)) as client:
        await client.transport.declare(scheduler.queue_of(row))
        await client.publish(a_small_request())
        await killed_at(handling, life())
    assert process.waiting("scheduler:build.requested") == 1


def a_small_request() -> BuildRequested:
    id_ = "00000000-0000-0000-0000-000000000001"
    return BuildRequested(request=id_, instances=(id_,), flavor=Flavor(name="small", vcpus=1))
