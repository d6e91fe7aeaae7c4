"""Requests that wait for their project's quota, from the request to its host, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest
from prometheus_client import REGISTRY

from bus import topics
from bus.claims import ReleaseRequested
from bus.messages import BuildCancelRequested
from bus.queries import FindDecision
from bus.requests import Flavor
from features.tests.support.quota_world import CAPACITY, SOON, a_world, boot, limit
from features.waiting.placing import WaitingBuilds
from features.waiting.results import Evaluated, Woken
from features.waiting.with_moves.tests.support.waiting_movers import waiting_movers
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld


async def release(world: WaitingWorld, build: str) -> None:
    order = ReleaseRequested(consumer=build, generation=1, retire="deleted")
    await world.bus.asker(topics.RELEASE)(order)


@pytest.mark.parametrize("kind", ["unshelve", "resize"])
@in_virtual_time
async def test_a_waiting_move_begins_when_its_project_releases_something(kind: str) -> None:
    async with a_world(VCPU=3) as world, waiting_movers(world) as movers:
        other = await movers.boot(1, on=1, project="p1", flavor=Flavor(name="one", vcpus=1))
        moved = await movers.boot(2, on=1, project="p1")
        flavor = Flavor(name="three", vcpus=3) if kind == "resize" else None
        if kind == "unshelve":
            await world.bus.asker(topics.RELEASE)(ReleaseRequested(consumer=moved, generation=1))
            movers.change(moved, status="shelved", generation=None, chosen=None)
            await limit(world, VCPU=2)
        await movers.host(2, 8)
        await movers.ask(moved, kind=kind, flavor=flavor)
        await asyncio.sleep(SOON)
        [waits] = await movers.waiting()
        used, more = ("1", "2") if kind == "unshelve" else ("3", "1")
        assert waits.lacks.endswith(f"{used} used, {more} more asked") and not movers.placed
        await release(world, other)
        await asyncio.sleep(SOON)
        assert [placed.build for placed in movers.placed] == [moved]


@in_virtual_time
async def test_a_quota_that_is_raised_during_an_evaluation_lets_the_request_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_world(VCPU=0) as world:
        await boot(world, 1)
        await asyncio.sleep(SOON)
        evaluated = at_the_end_of_an_evaluation(monkeypatch, lambda: limit(world, VCPU=2))
        await limit(world, VCPU=0, MEMORY_MB=8192)
        await asyncio.sleep(3 * SOON)
        assert evaluated.is_set() and world.requests() == [uid(1, "a")]


def at_the_end_of_an_evaluation(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[None]]
) -> asyncio.Event:
    """Act once, before the result of the next evaluation is handled; return the event that it has ended."""
    evaluate, ended = WaitingBuilds.evaluate, asyncio.Event()

    async def evaluate_and_act(self: WaitingBuilds, woken: Sequence[Woken]) -> Sequence[Evaluated]:
        results = await evaluate(self, woken)
        if not ended.is_set():
            ended.set()
            await act()
            await asyncio.sleep(SOON)
        return results

    monkeypatch.setattr(WaitingBuilds, "evaluate", evaluate_and_act)
    return ended


@in_virtual_time
async def test_a_request_that_is_cancelled_during_its_evaluation_delays_no_other_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_world(VCPU=0) as world:
        cancelled = await boot(world, 1)
        await asyncio.sleep(SOON)
        cancel = BuildCancelRequested(build=cancelled)
        evaluated = at_the_end_of_an_evaluation(monkeypatch, lambda: world.say(cancel))
        await limit(world, VCPU=0, MEMORY_MB=8192)
        await asyncio.sleep(3 * SOON)
        assert evaluated.is_set() and len(world.cancelled) == 1
        await boot(world, 2)
        await asyncio.sleep(SOON)
        await limit(world, VCPU=2)
        await asyncio.sleep(SOON)
        assert world.requests() == [uid(2, "a")]


@in_virtual_time
async def test_a_limit_that_was_lifted_is_no_reason_any_more() -> None:
    """The host is full meanwhile: the requests wait for capacity, all of them."""
    async with a_world(VCPU=2) as world:
        for number in (1, 2):
            await boot(world, number)
        await world.until(2, world.placed)
        for number in (3, 4, 5):
            await boot(world, number)
        await asyncio.sleep(SOON)
        lacks = {waits.request: waits.lacks for waits in (await world.waiting()).waiting}
        assert len(lacks) == 3 and all("quota of project p1" in each for each in lacks.values())
        full = {name: msgspec.structs.replace(stock, total=2) for name, stock in CAPACITY.items()}
        await world.report(1, {**CAPACITY, "VCPU": full["VCPU"]})
        await asyncio.sleep(SOON)
        await limit(world, VCPU=100)
        await asyncio.sleep(SOON)
        found = (await world.waiting()).waiting
        assert len(found) == 3 and not world.unplaceable
        for waits in found:
            assert "quota" not in waits.lacks and "VCPU" in waits.lacks
            assert "VCPU free on one host" in waits.wakes or "MEMORY_MB free on one host" in waits.wakes
            decided = await world.bus.asker(topics.DECISION)(FindDecision(id=waits.request))
            assert "quota" not in decided.reason and decided.decision.code != "quota"
        await world.report(1, CAPACITY)
        await world.until(5, world.placed)
        assert sorted(world.requests()[2:]) == [uid(3, "a"), uid(4, "a"), uid(5, "a")]
        assert (await world.waiting()).rescued == 0


@in_virtual_time
async def test_another_project_is_not_delayed_by_a_project_at_its_limit() -> None:
    async with a_world(VCPU=0) as world:
        await boot(world, 1)
        await boot(world, 2, project="p2", wait="")
        await asyncio.sleep(SOON)
        assert world.requests() == [uid(2, "a")]


@in_virtual_time
async def test_all_waiting_requests_that_fit_are_placed_in_order() -> None:
    async with a_world(VCPU=0) as world:
        for number in range(1, 6):
            await boot(world, number, priority=9 if number == 5 else 0)
            await asyncio.sleep(0.1)
        await limit(world, VCPU=3)
        await asyncio.sleep(SOON)
        assert world.requests() == [uid(number, "a") for number in (5, 1, 2)]
        assert (await world.waiting()).count == 2
        assert REGISTRY.get_sample_value("berth_scheduler_waiting_for_quota") == 2


@in_virtual_time
async def test_a_request_that_waits_for_quota_expires() -> None:
    async with a_world(VCPU=0) as world:
        await boot(world, 1, wait="30s")
        await asyncio.sleep(32.0)
        [ended] = world.unplaceable
        assert ended.reason.startswith(
            "it has waited 30s, the longest that it requested: quota of project p1"
        )
