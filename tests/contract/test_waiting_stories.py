"""The end of a waiting request has the correlation and trace of its request."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bus import topics
from bus.context import current
from bus.delivery.runner import Bus
from bus.local import LocalTransport
from bus.messages import BuildCancelRequested, BuildPlaced, BuildRequested, BuildUnplaceable
from bus.protocol import Envelope
from bus.vocabulary import Message
from bus.worker import Worker, on
from tests.contract.test_waiting import a_world
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL, a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld

SEVERAL = 3


class Stories:
    def __init__(self) -> None:
        self.asked: dict[str, Envelope] = {}
        self.said: dict[str, Envelope] = {}

    async def handle(self, message: Message) -> None:
        envelope = current.get()
        assert envelope is not None
        assert isinstance(message, BuildRequested | BuildPlaced | BuildUnplaceable)
        (self.asked if isinstance(message, BuildRequested) else self.said)[message.request] = envelope

    async def live(self, world: WaitingWorld) -> None:
        rows = (topics.BUILD_REQUESTED, topics.BUILD_PLACED, topics.BUILD_UNPLACEABLE)
        worker = Worker("stories", consumes=[on(topic, self.handle, private=True) for topic in rows])
        async with Bus(LocalTransport(world.broker), world.clock) as bus:
            await bus.serve(worker, asyncio.Event())


async def a_node_each(world: WaitingWorld) -> None:
    for number in range(1, SEVERAL + 1):
        await world.node(number)


async def by_another(world: WaitingWorld) -> None:
    await world.kill("s1")
    await world.scheduler("s2")
    await asyncio.sleep(20.0)
    await a_node_each(world)


async def in_vain(world: WaitingWorld) -> None:
    await asyncio.sleep(100.0)


async def cancelled(world: WaitingWorld) -> None:
    for number in range(1, SEVERAL + 1):
        await world.bus.publish(BuildCancelRequested(build=uid(number, "a")))


@pytest.mark.parametrize("then", [a_node_each, by_another, in_vain, cancelled], ids=lambda one: one.__name__)
@in_virtual_time
async def test_its_end_goes_on_with_its_story(then: Callable[[WaitingWorld], Awaitable[None]]) -> None:
    async with a_world() as world:
        stories = Stories()
        world.lives["stories"] = world.group.create_task(stories.live(world))
        await asyncio.sleep(1.0)  # now it listens
        await world.node(1, free=False)
        numbers = range(1, SEVERAL + 1)
        await world.bus.publish(*(a_request(number, flavor=METAL, wait="90s") for number in numbers))
        await asyncio.sleep(1.0)
        assert (await world.waiting()).count == SEVERAL
        await then(world)
        await asyncio.sleep(5.0)
        requests = {uid(number, "a") for number in numbers}
        assert stories.asked.keys() == stories.said.keys() == requests
        for request in requests:
            asked, said = stories.asked[request], stories.said[request]
            assert (said.correlation, said.causation) == (asked.id, asked.id)
            assert said.traceparent.split("-")[1] == asked.traceparent.split("-")[1]
            assert said.traceparent != asked.traceparent
