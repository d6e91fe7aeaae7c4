"""Waiting requests: events other than free capacity wake them; their end has the request's correlation."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from bus import topics
from bus.aggregates import AggregateEditRequested, ChangeAggregate, MakeAggregate
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim, ReleaseRequested
from bus.context import current
from bus.delivery.runner import Bus
from bus.groups import DropGroup, GroupEditRequested, MakeGroup
from bus.local import LocalTransport
from bus.messages import BuildCancelRequested, BuildPlaced, BuildRequested, BuildUnplaceable
from bus.protocol import Envelope
from bus.reports import Inventory
from bus.requests import Flavor, Hints
from bus.resources import EditRequested, SetTraits
from bus.vocabulary import Message
from bus.worker import Worker, on
from tests.contract.test_waiting import a_world
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.scheduler_builders import METAL, a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import ROOM, VM, WaitingWorld

GROUP = uid(1, "9")
SMALL, LARGE = Flavor(name="small", vcpus=1), Flavor(name="large", vcpus=4)
DISABLED = "COMPUTE_STATUS_DISABLED"


async def a_member(world: WaitingWorld) -> BuildPlaced:
    make = MakeGroup(group=GROUP, name="together", policy="affinity")
    await world.bus.asker(topics.EDIT_GROUP)(GroupEditRequested(edit=make))
    await world.report(1, {"VCPU": Inventory(total=2)})
    await asyncio.sleep(0.2)
    await world.ask(1, flavor=SMALL, hints=Hints(group=GROUP), wait="")
    await world.until(1, world.placed)
    await world.report(2, {"VCPU": Inventory(total=8)})
    await asyncio.sleep(0.2)
    return world.placed.pop()[1]


async def moves(world: WaitingWorld, member: BuildPlaced) -> None:
    claim = ConsumerClaim(
        consumer=member.build, generation=member.generation, choices=(Choice({uid(2, "a"): {"VCPU": 1}}),)
    )
    answer = await world.bus.asker(topics.CLAIM)(ClaimRequested(claims=(claim,)))
    assert isinstance(answer.results[0], Claimed)


async def leaves(world: WaitingWorld, member: BuildPlaced) -> None:
    release = ReleaseRequested(consumer=member.build, generation=member.generation)
    await world.bus.asker(topics.RELEASE)(release)


@pytest.mark.parametrize("goes", [moves, leaves])
@in_virtual_time
async def test_a_member_that_goes_elsewhere_calls_who_is_to_be_beside_it(goes) -> None:  # type: ignore[no-untyped-def]
    async with a_world() as world:
        member = await a_member(world)
        await world.ask(2, flavor=LARGE, hints=Hints(group=GROUP))
        await asyncio.sleep(5.0)
        assert world.placed == []
        before = world.clock.monotonic()
        await goes(world, member)
        await world.until(1, world.placed)
        assert world.hosts() == ["host-2"]
        assert world.placed[0][0] - before < 0.1
        assert (await world.waiting()).rescued == 0


@in_virtual_time
async def test_an_instance_that_comes_calls_who_is_to_be_beside_it() -> None:
    async with a_world() as world:
        for number in (1, 2):
            await world.report(number, {"VCPU": Inventory(total=8)})
        await world.ask(2, flavor=SMALL, hints=Hints(same_host=(uid(1000, "b"),)))
        await asyncio.sleep(5.0)
        assert world.placed == []
        await world.ask(1, flavor=SMALL, wait="")
        await world.until(2, world.placed)
        assert world.placed[1][0] - world.placed[0][0] < 1.2
        assert len(set(world.hosts())) == 1


@in_virtual_time
async def test_a_request_waiting_for_a_deleted_group_ends() -> None:
    async with a_world() as world:
        await a_member(world)
        await world.ask(2, flavor=LARGE, hints=Hints(group=GROUP))
        await asyncio.sleep(5.0)
        assert world.unplaceable == []
        before = world.clock.monotonic()
        drop = GroupEditRequested(edit=DropGroup(group=GROUP, force=True))
        await world.bus.asker(topics.EDIT_GROUP)(drop)
        await world.until(1, world.unplaceable)
        assert world.clock.monotonic() - before < 1.5
        assert "there is no server group" in world.unplaceable[0].reason
        assert (await world.waiting()).count == 0


async def enabled(world: WaitingWorld) -> None:
    edit = EditRequested(edit=SetTraits(provider=uid(1, "a"), traits=()))
    await world.bus.asker(topics.EDIT)(edit)


async def zoned(world: WaitingWorld) -> None:
    change = ChangeAggregate(aggregate=uid(7, "e"), set={"availability_zone": "east"})
    await world.bus.asker(topics.EDIT_AGGREGATE)(AggregateEditRequested(edit=change))


@pytest.mark.parametrize(
    ("alternative", "change"),
    [({}, enabled), ({"zone": "east"}, zoned)],
    ids=["a trait that an operator took off", "what is said of its aggregate"],
)
@in_virtual_time
async def test_a_host_report_wakes_requests_that_it_now_suits(alternative, change) -> None:  # type: ignore[no-untyped-def]
    async with a_world() as world:
        make = MakeAggregate(aggregate=uid(7, "e"), name="rack", metadata={"availability_zone": "west"})
        await world.bus.asker(topics.EDIT_AGGREGATE)(AggregateEditRequested(edit=make))
        await world.report(1, ROOM, aggregates=(uid(7, "e"),))
        if change is enabled:
            edit = EditRequested(edit=SetTraits(provider=uid(1, "a"), traits=(DISABLED,)))
            await asyncio.sleep(0.2)
            await world.bus.asker(topics.EDIT)(edit)
        await asyncio.sleep(0.5)
        await world.ask(1, flavor=VM, **alternative)
        await asyncio.sleep(5.0)
        assert (world.placed, (await world.waiting()).count) == ([], 1)
        before = world.clock.monotonic()
        await change(world)
        await world.until(1, world.placed)
        assert world.placed[0][0] - before < 0.1


async def called(world: WaitingWorld, name: str, sequence: int, **given: Any) -> None:
    """Host 1, under this name."""
    await world.bus.publish(msgspec.structs.replace(a_report(1, sequence=sequence, **given), host=name))


@in_virtual_time
async def test_a_host_that_lost_its_name_disturbs_nobody_and_is_taken_when_it_has_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_world() as world:
        await called(world, "east-1", 1, inventories={"VCPU": Inventory(total=1)})
        await asyncio.sleep(0.5)
        await world.ask(1, flavor=LARGE, forced_host="east-1")
        await world.ask(2)
        await asyncio.sleep(2.0)
        await called(world, "west-1", 2, inventories={"VCPU": Inventory(total=8)})
        await asyncio.sleep(2.0)
        await world.node(50)
        await world.until(1, world.placed)
        assert world.requests() == [uid(2, "a")]
        await called(world, "east-1", 3, inventories={"VCPU": Inventory(total=8)})
        await world.until(2, world.placed)
        assert world.requests()[1] == uid(1, "a")
        assert [record.message for record in caplog.records if record.exc_info] == []


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
async def test_the_end_of_a_wait_has_the_correlation_and_trace_of_the_request(
    then: Callable[[WaitingWorld], Awaitable[None]],
) -> None:
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
