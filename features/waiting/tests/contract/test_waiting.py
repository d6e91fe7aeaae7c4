"""Requests that wait for capacity, from the request to its host, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from bus import topics
from bus.aggregates import ChangeAggregate, MakeAggregate
from bus.claims import (
    Choice,
    ClaimAnswered,
    Claimed,
    ClaimRequested,
    ClaimResult,
    ConsumerClaim,
    Moved,
    Refused,
    ReleaseRequested,
)
from bus.errors import Unavailable
from bus.messages import BuildCancelRequested
from bus.reports import Inventory
from bus.requests import Flavor
from bus.resources import SetTraits
from bus.vocabulary import Contended
from features.waiting.core.reserved_hosts import StoredHold
from features.waiting.store import WaitingStore
from features.waiting.tables import queued
from scheduler_worker.extension import Order, events
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import METAL, SMALL, a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld, waiting_world

ROOM = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=8192), "DISK_GB": Inventory(total=80)}


VM = SMALL


@in_virtual_time
async def test_a_new_request_never_takes_capacity_freed_for_a_waiting_one() -> None:
    async with waiting_world() as world:
        for index in range(1, 41):
            await world.node(index, free=False)
            await world.ask(index)
            await asyncio.sleep(0.2)
            asking = world.bus.publish(a_request(1000 + index, flavor=METAL))
            freeing = world.node(index)
            await asyncio.gather(*((asking, freeing) if index % 2 else (freeing, asking)))
            await world.until(index, world.placed)
        assert world.requests() == [uid(index, "a") for index in range(1, 41)]


@in_virtual_time
async def test_released_capacity_goes_to_the_project_that_was_served_least() -> None:
    async with waiting_world() as world:
        await world.report(100, ROOM)
        await world.report(50, {"CUSTOM_BAREMETAL": Inventory(total=2)})
        for number in (21, 22):
            await world.ask(number, project="earlier")  # so one node is at most half of the capacity
        await world.until(2, world.placed)
        for number in range(1, 7):
            await world.node(number, free=False)
        for number in range(1, 5):
            await world.ask(number, project="flood")
        await asyncio.sleep(1.0)
        for number in range(11, 16):  # new requests that get hosts count, too: 5 of 8 VCPU
            await world.ask(number, flavor=VM, project="lab")
        await world.until(7, world.placed)
        for number in (5, 6):
            await world.ask(number, project="lab")
        await asyncio.sleep(1.0)
        for released in range(1, 7):
            await world.node(released)
            await world.until(7 + released, world.placed)
        # The dominant share of the project lab is that of VCPU until it has a second node.
        assert world.requests()[7:] == [uid(number, "a") for number in (1, 2, 5, 6, 3, 4)]


Deed = Callable[[WaitingWorld], Awaitable[object]]
LARGE, SMALL = Flavor(name="large", vcpus=8), Flavor(name="small", vcpus=1)
MARKED = Flavor(name="t", vcpus=1, extra_specs={"trait:CUSTOM_X": "required"})
RACK = uid(7, "e")


def reports(inventories: dict[str, Inventory] = ROOM, **given: Any) -> Deed:
    return lambda world: world.report(1, inventories, **given)


def beats(**state: Any) -> Deed:
    return lambda world: world.host_says(1, **state)


def traits(*names: str) -> Deed:
    return lambda world: world.edit(SetTraits(provider=uid(1, "a"), traits=names))


async def uses_a_processor(world: WaitingWorld) -> None:
    await asyncio.sleep(0.5)
    await world.ask(50, flavor=SMALL, wait="")
    await world.until(1, world.placed)


async def releases_it(world: WaitingWorld) -> None:
    [(_, blocker)] = world.placed
    world.placed.clear()
    release = ReleaseRequested(consumer=blocker.build, generation=blocker.generation)
    await world.bus.asker(topics.RELEASE)(release)


async def falls_silent(world: WaitingWorld) -> None:
    await world.host_says(1)
    for _ in range(20):
        await asyncio.sleep(3.0)
        await world.host_says(9)


async def in_a_western_rack(world: WaitingWorld) -> None:
    west = {"availability_zone": "west"}
    await world.edit_aggregate(MakeAggregate(aggregate=RACK, name="rack", metadata=west))
    await world.report(1, ROOM, aggregates=(RACK,))


async def the_rack_moves_east(world: WaitingWorld) -> None:
    await world.edit_aggregate(ChangeAggregate(aggregate=RACK, set={"availability_zone": "east"}))


async def disables_its_cell(world: WaitingWorld) -> None:
    await world.cell(enabled=False)


async def enables_its_cell(world: WaitingWorld) -> None:
    assert "or cell c1 enabled" in (await world.waiting()).waiting[0].wakes
    await world.cell(enabled=True)


async def nothing(world: WaitingWorld) -> None: ...


# Missing condition → host 1 before or after its report, the request, and the change that wakes the request
WAKES: dict[str, tuple[Deed, Deed, dict[str, Any], Deed]] = {
    "usage is freed": (reports(), uses_a_processor, {"flavor": LARGE}, releases_it),
    "the inventory grows": (reports({"VCPU": Inventory(total=4)}), nothing, {"flavor": LARGE}, reports()),
    "a trait comes": (reports(), nothing, {"flavor": MARKED}, reports(traits=("CUSTOM_X",))),
    "a host comes": (nothing, nothing, {}, reports()),
    "it is enabled": (reports(), beats(enabled=False), {}, beats()),
    "it is no longer forced down": (reports(), beats(forced_down=True), {}, beats()),
    "it builds less": (reports(), beats(building=20), {}, beats()),
    "its agent is heard again": (reports(), falls_silent, {}, beats()),
    "an aggregate gets it": (reports(), nothing, {"aggregates": ((RACK,),)}, reports(aggregates=(RACK,))),
    "its cell is enabled": (reports(), disables_its_cell, {}, enables_its_cell),
    "an operator takes a trait off": (reports(), traits("COMPUTE_STATUS_DISABLED"), {}, traits()),
    "its aggregate changes": (in_a_western_rack, nothing, {"zone": "east"}, the_rack_moves_east),
}


@pytest.mark.parametrize(("before", "then", "asked", "change"), WAKES.values(), ids=WAKES)
@in_virtual_time
async def test_every_relevant_change_wakes_a_waiting_request(
    before: Deed, then: Deed, asked: dict[str, Any], change: Deed
) -> None:
    async with waiting_world() as world:
        await before(world)
        await asyncio.sleep(0.2)
        await then(world)
        await asyncio.sleep(0.5)
        await world.ask(1, **{"flavor": VM, **asked})
        await asyncio.sleep(2.0)
        assert (await world.waiting()).count == 1
        started = world.clock.monotonic()
        await change(world)
        await world.until(1, world.placed)
        assert world.placed[0][0] - started < 0.1


@in_virtual_time
async def test_a_changed_grouping_key_keeps_the_position_in_the_queue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add_once = WaitingStore._add_once

    async def meanwhile(self: WaitingStore, keeping: Any) -> Any:
        if any(kept.request != uid(1, "a") for kept in keeping):
            make = MakeAggregate(aggregate=uid(7, "e"), name="rack")
            await world.edit_aggregate(make)
            await asyncio.sleep(0.5)
        return await add_once(self, keeping)

    monkeypatch.setattr(WaitingStore, "_add_once", meanwhile)
    async with waiting_world() as world:
        await world.node(1, free=False)
        await world.ask(1)
        await asyncio.sleep(0.5)
        await world.ask(2, flavor=VM)
        third = await world.ask(3, flavor=Flavor(name="monster", vcpus=1000))
        await asyncio.sleep(5.0)
        await world.say(BuildCancelRequested(build=third))
        await world.until(1, world.cancelled)
        await world.report(2, ROOM)
        await world.until(1, world.placed)
        assert world.requests() == [uid(2, "a")]
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@in_virtual_time
async def test_a_request_whose_storing_was_uncertain_waits_once_when_redelivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_once, lost = WaitingStore._add_once, [Unavailable("the connection was lost while it was committed")]

    async def committed(self: WaitingStore, keeping: Any) -> Any:
        ours = await add_once(self, keeping)
        if lost:
            raise lost.pop()
        return ours

    monkeypatch.setattr(WaitingStore, "_add_once", committed)
    async with waiting_world() as world:
        await world.node(1, free=False)
        await world.ask(1)
        await asyncio.sleep(5.0)
        assert not lost and (await world.waiting()).count == 1
        await world.node(1)
        await world.until(1, world.placed)


@in_virtual_time
async def test_cancelling_one_build_keeps_the_rest_of_its_request_waiting() -> None:
    async with waiting_world() as world:
        await world.node(1, free=False)
        await world.ask(1, instances=2)
        await asyncio.sleep(0.5)
        await world.say(BuildCancelRequested(build=uid(1000, "b")))
        await world.until(1, world.cancelled)
        assert world.unplaceable[0].instances == (uid(1000, "b"),)
        await world.node(1)
        await world.until(1, world.placed)
        assert world.placed[0][1].build == uid(1001, "b")


@in_virtual_time
async def test_a_waiting_request_whose_evaluation_ends_its_scheduler_fails_after_four_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended, place = asyncio.Event(), Scheduler.place

    async def deadly(self: Scheduler, orders: Sequence[Order]) -> list[events.End]:
        if any(order.request.request == uid(2, "a") and not order.verdict.reason for order in orders):
            ended.set()
            await asyncio.Event().wait()  # until the scheduler is killed
        return await place(self, orders)

    async with waiting_world("s0") as world:
        for number in (1, 2, 3):
            await world.node(number, free=False)
            await world.ask(number)
        await asyncio.sleep(1.0)
        monkeypatch.setattr(Scheduler, "place", deadly)
        for number in (1, 2, 3):
            await world.node(number)
        for number in range(4):
            await asyncio.wait_for(ended.wait(), 60.0)
            ended.clear()
            await world.kill(f"s{number}")
            await world.scheduler(f"s{number + 1}")
        await world.until(1, world.unplaceable)
        await world.until(2, world.placed)
        assert [(end.request, end.decision.code) for end in world.unplaceable] == [(uid(2, "a"), "crashed")]
        assert {*world.requests()} == {uid(1, "a"), uid(3, "a")}
        assert (await world.waiting()).count == 0
        assert not ended.is_set()


@in_virtual_time
async def test_a_build_that_a_killed_scheduler_claimed_is_published_although_it_fits_nowhere_else() -> None:
    async with waiting_world("s1") as world:
        await world.node(1, free=False)
        build = await world.ask(1)
        await asyncio.sleep(1.0)
        await world.kill("s1")
        await world.node(1)
        choice = Choice({uid(1, "a"): {"CUSTOM_BAREMETAL": 1}})
        claim = ConsumerClaim(
            consumer=build, generation=None, choices=(choice,), project=a_request(1).project, type="INSTANCE"
        )
        [result] = (await world.bus.asker(topics.CLAIM)(ClaimRequested(claims=(claim,)))).results
        assert isinstance(result, Claimed)  # and the scheduler is killed before it publishes the host
        await world.scheduler("s2")
        await asyncio.sleep(10.0)
        assert [(placed.build, placed.chosen.root) for _, placed in world.placed] == [(build, uid(1, "a"))]
        assert (await world.waiting()).count == 0


@in_virtual_time
async def test_the_last_host_of_a_zone_is_not_kept_from_a_new_request_that_names_it() -> None:
    async with waiting_world("s1") as world:
        await in_zone(world, 1, "east")
        await in_zone(world, 2, "west")
        await asyncio.sleep(0.5)
        await world.ask(1, flavor=SMALL, wait="", zone="east")
        await world.ask(2, flavor=Flavor(name="most", vcpus=7), wait="", zone="west")
        await world.until(2, world.placed)
        await world.ask(3, flavor=LARGE, project="p1")
        await asyncio.sleep(2.0)
        [waits] = (await world.waiting()).waiting
        assert [held.host for held in waits.held] == ["host-1"]
        await world.ask(4, flavor=SMALL, wait="", project="p2")  # it may use host-2
        await world.ask(5, flavor=Flavor(name="half", vcpus=4), wait="", project="p2")  # only host-1 fits
        await world.ask(6, flavor=SMALL, wait="", zone="east", project="p2")
        await world.until(4, world.placed)
        await world.until(1, world.unplaceable)
        assert sorted(zip(world.hosts()[2:], world.requests()[2:], strict=True)) == [
            ("host-1", uid(6, "a")), ("host-2", uid(4, "a")),
        ]  # fmt: skip
        assert [end.request for end in world.unplaceable] == [uid(5, "a")]


@in_virtual_time
async def test_a_host_that_several_other_schedulers_hold_is_held_for_the_oldest_request() -> None:
    async with waiting_world() as world:
        await world.report(1, ROOM)
        async with world.kept.write() as tx:
            for number, since in enumerate((1.2e9, 1.1e9, 1.3e9)):
                hold = StoredHold(uid(1, "a"), (0, since, uid(number, "d")), "p", since, 2e9)
                await queued.beat(tx, f"other-{number}", 0, holds=queued.encode_holds([hold]))
        await asyncio.sleep(2.0)
        await world.ask(1, flavor=VM, wait="", project="p")
        await world.until(1, world.unplaceable)
        assert [miss.code for miss in world.unplaceable[0].decision.nearest] == ["reserved"]
        held = f"reserved for waiting request {uid(1, 'd')} of project p since 2004-11-09"
        assert held in world.unplaceable[0].decision.nearest[0].lacks


async def in_zone(world: WaitingWorld, number: int, zone: str) -> None:
    reported = a_report(number, inventories={"VCPU": Inventory(total=8)})
    await world.bus.publish(msgspec.structs.replace(reported, zone=zone))


@pytest.mark.parametrize(
    ("refused", "rounds"),
    [(Contended(), 1), (Refused(refusals=(Moved(provider=uid(1, "a")),)), 5)],
    ids=["contended", "moved"],
)
@in_virtual_time
async def test_a_request_that_is_refused_repeatedly_is_retried_less_often_until_a_change(
    refused: ClaimResult, rounds: int
) -> None:
    async with waiting_world() as world:
        tried: list[float] = []

        async def claim_many(orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
            tried.append(world.clock.monotonic())
            return [ClaimAnswered(results=(refused,)) for _ in orders]

        await world.kill("s1")
        await world.scheduler("s2", claim_many=claim_many)
        await world.node(1, free=False)
        await asyncio.sleep(1.0)
        await world.ask(1)
        await asyncio.sleep(1.0)
        assert tried == []
        await world.node(1)
        await asyncio.sleep(20.0)
        assert 4 * rounds <= len(tried) <= 10 * rounds
        pauses = [after - before for before, after in pairwise(tried) if after - before > 0.01]
        assert pauses[0] < 0.5
        assert 2.0 < max(pauses) < 11.0
        several, now = len(tried), world.clock.monotonic()
        await world.node(2)
        await asyncio.sleep(0.1)
        assert len(tried) > several and tried[several] - now < 0.1
