"""What-if answers about requests that wait."""

import asyncio

import msgspec
import pytest

from bus import topics
from bus.context import envelope_of
from bus.messages import BuildCancelRequested
from bus.queries import FindDecision
from bus.requests import Flavor
from features.quotas.messages import EDIT_QUOTA, WEIGHT, QuotaEditRequested, SetQuota
from features.waiting.core.start_times import EVALUATION, MEMORIES, ClassHistory, new_kind
from features.waiting.owner import SILENT_SECONDS
from features.waiting.tables import queued
from features.waiting.tests.contract.test_waiting import LARGE, in_zone
from features.what_if.messages import WHAT_IF, WhatIf
from scheduler_worker.core.order import CANCELLED
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL, a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import waiting_world

SMALL = Flavor(name="small", vcpus=1)


@in_virtual_time
async def test_a_held_host_says_for_whom_before_the_zone() -> None:
    """The only host of zone east is held for a request of p1 that names the zone itself."""
    async with waiting_world("s1") as world:
        await in_zone(world, 1, "east")
        await in_zone(world, 2, "west")
        await asyncio.sleep(0.5)
        await world.ask(1, flavor=SMALL, wait="", zone="east")
        await world.until(1, world.placed)
        await world.ask(2, flavor=LARGE, zone="east", project="p1")
        await asyncio.sleep(2.0)
        await world.scheduler("s2")
        await asyncio.sleep(2.0)
        builds = [
            await world.ask(number, flavor=SMALL, wait="", zone="east", project="p2")
            for number in range(3, 9)
        ]
        await world.until(6, world.unplaceable)
        for end in world.unplaceable:
            assert end.decision.code == "reserved"
            [first, *_] = end.decision.nearest
            assert (first.host, first.code) == ("host-1", "reserved")
            reply = (
                f"it fits host-1 (reserved for waiting request {uid(2, 'a')} of another project since 2023-"
            )
            assert 0 < end.reason.index(reply) < end.reason.index("zone east")
            assert "p1" not in end.reason, "clients read it"
        [waits] = (await world.waiting()).waiting
        assert waits.wakes.endswith("; held for it: host-1 since 2023-11-14 22:13:20 UTC")
        [held] = waits.held
        known = (held.root, held.host, held.request, held.project, held.until)
        assert known == (uid(1, "a"), "host-1", uid(2, "a"), "p1", waits.until)
        assert waits.since <= held.since < waits.since + 1
        ended = await world.bus.asker(topics.DECISION)(FindDecision(id=builds[0]))
        asked = await world.bus.asker(WHAT_IF)(WhatIf(request=a_request(9, zone="east", flavor=SMALL)))
        assert ended.held == asked.held == (held,)
        assert asked.decision.code == "reserved"
        assert (await world.bus.asker(topics.DECISION)(FindDecision(id=uid(2, "a")))).held == ()
        assert (await world.waiting(on=(uid(1, "a"), uid(2, "a")), limit=1)).holds == (held,)
        assert (await world.waiting(on=(uid(2, "a"),))).holds == ()


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
        weight = SetQuota(project="p", limits={WEIGHT: 3})
        await world.bus.asker(EDIT_QUOTA)(QuotaEditRequested(edit=weight))
        request = a_request(1, flavor=METAL, project="p")
        row = queued.new(request.request, "p", 0, envelope_of(request, world.clock))
        advances, seconds = [10.0] * len(MEMORIES), [50.0] * len(MEMORIES)
        history = ClassHistory(lacks=EVALUATION, advances=advances, seconds=seconds, unstored=3)
        starts = msgspec.json.encode({new_kind("p"): history}).decode()
        async with world.kept.write() as tx:
            await queued.beat(tx, "killed", "{}", 0, starts)
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
