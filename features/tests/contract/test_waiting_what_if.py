"""What-if answers about requests that wait."""

import asyncio

import msgspec
import pytest

from bus import topics
from bus.context import envelope_of
from bus.messages import BuildCancelRequested
from bus.queries import FindDecision
from features.waiting.core.start_times import EVALUATION, MEMORIES, ClassHistory, new_kind
from features.waiting.owner import SILENT_SECONDS
from features.waiting.shares import set_weight
from features.waiting.tables import queued
from features.what_if.messages import WHAT_IF, WhatIf
from scheduler_worker.extension import CANCELLED
from tests.support.scheduler_builders import METAL, a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import waiting_world


@in_virtual_time
async def test_every_scheduler_estimates_the_start_of_waiting_requests() -> None:
    async with waiting_world("s1", "s2") as world:
        for number in range(1, 41):
            await world.node(number, free=False)
            await world.ask(number, wait="7d")
        await asyncio.sleep(2.0)
        assert all(request.start_p50 is None for request in (await world.waiting()).waiting)
        for number in range(1, 21):  # a node every second
            await world.node(number)
            await world.until(number, world.placed)
            await asyncio.sleep(1.0)
        for _ in range(4):  # both schedulers answer
            now = world.clock.now()
            *_, last = found = (await world.waiting()).waiting
            assert len(found) == 20
            for request in found:
                assert request.start_p50 is not None and request.start_p90 is not None
                assert now < request.start_p50 < request.start_p90
            assert last.start_p50 is not None and 8.0 < last.start_p50 - now < 40.0
            question = WhatIf(request=a_request(99, flavor=METAL, wait="7d"))
            next_one = await world.bus.asker(WHAT_IF)(question)
            assert not next_one.fits and next_one.start_p50 is not None and next_one.start_p90 is not None
            assert last.start_p50 - 15.0 < next_one.start_p50 < next_one.start_p90
            decided = await world.bus.asker(topics.DECISION)(FindDecision(id=last.request))
            assert decided.start_p50 == pytest.approx(last.start_p50, abs=15.0)
        await world.kill("s1")
        await asyncio.sleep(10.0)
        assert all(request.start_p90 is not None for request in (await world.waiting()).waiting)


@in_virtual_time
async def test_a_request_in_the_backlog_is_explained_cancelled_and_ends_the_same_when_taken_over() -> None:
    async with waiting_world() as world:
        await world.node(1, free=False)
        await set_weight(world.bus, "p", 3)
        request = a_request(1, flavor=METAL, project="p")
        row = queued.new(request.request, "p", 0, envelope_of(request, world.clock))
        advances, seconds = [10.0] * len(MEMORIES), [50.0] * len(MEMORIES)
        history = ClassHistory(lacks=EVALUATION, advances=advances, seconds=seconds, unstored=3)
        starts = msgspec.json.encode({new_kind("p"): history}).decode()
        async with world.kept.write() as tx:
            await queued.beat(tx, "killed", 0, starts)
            await queued.add_new(tx, "killed", [row])
        assert (await world.waiting()).backlog == {"p": 1}
        [build] = request.instances
        found = await world.bus.asker(topics.DECISION)(FindDecision(id=build))
        assert (found.waits, found.decision.code) == (True, "backlog")
        assert "with 0 requests of its project before it" in found.reason
        assert found.start_p50 is not None and found.start_p90 is not None
        assert 10.0 < found.start_p50 - world.clock.now() < 25.0  # 4 requests at 0.2 a second
        for priority, before in ((0, 1), (1, None)):
            question = WhatIf(request=a_request(2, flavor=METAL, project="p", priority=priority))
            place = (await world.bus.asker(WHAT_IF)(question)).backlog
            assert (place and place.before) == before
            if place is not None:
                assert place.weight == 3.0 and place.start_p50 is not None and place.start_p90 is not None
                assert found.start_p50 < place.start_p50 < place.start_p90
        await world.say(BuildCancelRequested(build=build))
        await world.until(1, world.cancelled)
        assert world.cancelled[0].waited
        await world.until(2, world.unplaceable)
        assert world.clock.monotonic() > SILENT_SECONDS
        assert [end.reason for end in world.unplaceable] == [CANCELLED, CANCELLED]
        assert not (await world.waiting()).backlog
