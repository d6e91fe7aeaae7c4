"""The scheduler served on the in-process bus, between clients and a placement that answers over it."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from bus.claims import ClaimAnswered, ClaimRequested
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import Chaos, LocalBroker, LocalTransport
from bus.messages import BuildPlaced, BuildUnplaceable
from bus.topics import (
    BUILD_PLACED,
    BUILD_UNPLACEABLE,
    CLAIM,
    PROVIDERS,
    RELEASE,
)
from bus.worker import Worker, answers, answers_many
from scheduler_worker import ChoicePolicy
from scheduler_worker.worker import scheduler_worker
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_heartbeat, a_request

DEADLINE = 60.0


class PlacingCloud:
    def __init__(self, placement: FakePlacement, broker: LocalBroker) -> None:
        self.placement = placement
        self.broker = broker
        self.placed: list[BuildPlaced] = []
        self.unplaceable: list[BuildUnplaceable] = []
        self.bus = Bus(LocalTransport(broker))
        self._heard = asyncio.Condition()

    async def until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE), self._heard:
            await self._heard.wait_for(met)

    async def handle(self, listen: Callable[[], Awaitable[BuildPlaced | BuildUnplaceable]]) -> None:
        while True:
            message = await listen()
            async with self._heard:
                if isinstance(message, BuildPlaced):
                    self.placed.append(message)
                else:
                    self.unplaceable.append(message)
                self._heard.notify_all()


@asynccontextmanager
async def a_cloud(placement: FakePlacement, chaos: Chaos | None = None) -> AsyncIterator[PlacingCloud]:
    broker = LocalBroker(chaos=chaos)
    cloud = PlacingCloud(placement, broker)
    bus = cloud.bus

    async def claim(orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        return await placement.claim_many(orders)

    answering = Worker(
        "placement",
        answers=[
            answers_many(CLAIM, claim),
            answers(RELEASE, placement.release),
            answers(PROVIDERS, placement.providers),
        ],
    )
    scheduling = scheduler_worker(
        placement.source,
        bus.asker_of_many(CLAIM),
        bus.asker(RELEASE),
        bus.asker(PROVIDERS),
        ChoicePolicy.from_names(max_builds=1000),
        Clock(chance=random.Random(1)),
    )
    async with bus, asyncio.TaskGroup() as group:
        placed = await bus.listen(BUILD_PLACED.at())
        unplaceable = await bus.listen(BUILD_UNPLACEABLE.at())
        ears = [group.create_task(cloud.handle(ear.get)) for ear in (placed, unplaceable)]
        stops = [asyncio.Event(), asyncio.Event()]
        serving = [
            group.create_task(bus.serve(worker, stop))
            for worker, stop in zip((scheduling, answering), stops, strict=True)
        ]
        try:
            async with asyncio.timeout(DEADLINE):
                while not any(name.startswith("scheduler:host.reported") for name in broker.queues):
                    await asyncio.sleep(0)  # the scheduler declares its queues as it starts to serve
            yield cloud
        finally:
            for stop, served in zip(stops, serving, strict=True):
                stop.set()
                await served
            for ear in ears:
                ear.cancel()


async def test_requests_are_placed_or_end_with_a_reason() -> None:
    placement = FakePlacement.of(*(a_candidate(number, cell=f"cell{number % 2}") for number in range(20)))
    async with a_cloud(placement) as cloud:
        await cloud.bus.publish(*(a_request(number) for number in range(20)), a_request(99, zone="nowhere"))
        await cloud.until(lambda: len(cloud.placed) == 20 and len(cloud.unplaceable) == 1)
    assert len({message.chosen.root for message in cloud.placed}) == 20
    assert {message.cell for message in cloud.placed} == {"cell0", "cell1"}
    assert cloud.unplaceable[0].request == a_request(99).request
    assert cloud.broker.dead == {}


async def test_heartbeats_over_the_bus_take_a_host_out() -> None:
    placement = FakePlacement.of(a_candidate(1), a_candidate(2))
    async with a_cloud(placement) as cloud:
        await cloud.bus.publish(a_heartbeat(1, enabled=False))
        for number in range(8):
            await cloud.bus.publish(a_request(number))
            await cloud.until(lambda: len(cloud.placed) == number + 1)  # noqa: B023  awaited here
    assert {message.chosen.host for message in cloud.placed[-3:]} == {"host2"}


async def test_placement_away_delays_and_loses_nothing() -> None:
    placement = FakePlacement.of(*(a_candidate(number) for number in range(3)))
    claim_many, failures = placement.claim_many, ["before", "after"]

    async def away(orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        failure = failures.pop(0) if failures else ""
        done = [] if failure == "before" else await claim_many(orders)
        if failure:
            raise Unavailable("placement restarts")
        return done

    placement.claim_many = away  # type: ignore[method-assign, assignment]  # the fault under test
    async with a_cloud(placement) as cloud:
        await cloud.bus.publish(a_request(1), a_request(2))
        await cloud.until(lambda: len({message.build for message in cloud.placed}) == 2)
    assert failures == []
    assert {m.build: m.chosen.choice.allocations for m in cloud.placed} == {
        consumer: holding.allocations for consumer, holding in placement.held.items()
    }


@pytest.mark.parametrize("seed", range(5))
async def test_duplicates_and_disorder_place_each_build_once(seed: int) -> None:
    """Half of all messages come twice and out of order: still one host each, and one verdict per request."""
    placement = FakePlacement.of(*(a_candidate(number) for number in range(6)))
    chaos = Chaos(random.Random(seed), reorder=0.5, duplicate=0.5)
    requests = [a_request(number, instances=1 + number % 4) for number in range(30)]
    async with a_cloud(placement, chaos) as cloud:
        await cloud.bus.publish(*requests)
        await cloud.until(
            lambda: (
                {unplaceable.request for unplaceable in cloud.placed}
                | {unplaceable.request for unplaceable in cloud.unplaceable}
                == {request.request for request in requests}
                and set(placement.held) == {message.build for message in cloud.placed}
            )
        )
    for message in cloud.placed:
        assert placement.held[message.build].allocations == message.chosen.choice.allocations
    placed = {message.request for message in cloud.placed}
    ended = {message.request for message in cloud.unplaceable}
    assert placed
    assert ended
    assert not placed & ended
    assert all(free >= 0 for host in placement.free.values() for free in host.values())
    for request in requests:
        held = {instance for instance in request.instances if instance in placement.held}
        assert held in (set(), set(request.instances))
    assert cloud.broker.dead == {}
