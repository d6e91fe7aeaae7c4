"""A request with the id of a waiting one: the same content changes nothing, another one is refused."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from bus.messages import BuildCancelRequested
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld, waiting_world

BIG = replace(METAL, name="big", extra_specs={**METAL.extra_specs, "trait:CUSTOM_BIG": "required"})
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("flavor", {"flavor": BIG}),
    ("metadata", {"metadata": {"a": "1"}}),
    ("or_else", {"or_else": (BIG,)}),
    ("parts", {"wait": "12h"}),
    ("parts", {"wait": None}),
]


async def refused(world: WaitingWorld, number: int, **fields: Any) -> tuple[str, ...]:
    """Repeat a request with these fields, and return the differing fields that its refusal names."""
    before = len(world.conflicts)
    await world.ask(number, reply_to="you", **fields)
    await world.until(before + 1, world.conflicts)
    conflict = world.conflicts[-1]
    assert (conflict.request, conflict.reply_to) == (uid(number, "a"), "you")
    return conflict.fields


@pytest.mark.parametrize("schedulers", [("s1",), ("s1", "s2")])
@in_virtual_time
async def test_other_content_is_refused_and_the_first_request_waits_on(schedulers: tuple[str, ...]) -> None:
    async with waiting_world(*schedulers) as world:
        await world.node(1, free=False)
        await world.ask(1)
        await asyncio.sleep(0.5)
        for _ in range(2):  # for each scheduler, by turns
            assert "flavor" in await refused(world, 1, flavor=BIG)
        await world.ask(1)
        await asyncio.sleep(0.5)
        assert (await world.waiting()).count == 1
        await world.node(1)
        await world.until(1, world.placed)
        [(_, placed)] = world.placed
        assert (placed.spec.flavor, placed.reply_to, world.unplaceable) == (METAL, "", [])
        assert len(world.conflicts) == 2


@in_virtual_time
async def test_each_differing_field_is_named() -> None:
    async with waiting_world() as world:
        await world.node(1, free=False)
        await world.ask(1)
        await asyncio.sleep(0.5)
        for field, fields in OTHERS:
            assert await refused(world, 1, **fields) == (field,)


@in_virtual_time
async def test_other_content_is_refused_after_the_wait_was_cancelled() -> None:
    async with waiting_world() as world:
        await world.node(1, free=False)
        await world.ask(1)
        await asyncio.sleep(0.5)
        await world.say(BuildCancelRequested(build=uid(1, "a")))
        await world.until(1, world.unplaceable)
        assert await refused(world, 1, flavor=BIG) == ("flavor",)
        await world.ask(1)
        await world.until(2, world.unplaceable)


@in_virtual_time
async def test_a_repetition_after_a_part_was_cancelled_has_the_same_content() -> None:
    async with waiting_world() as world:
        await world.node(1, free=False)
        await world.ask(1, instances=3, at_least=3)
        await asyncio.sleep(0.5)
        await world.say(BuildCancelRequested(build=uid(1000, "b")))
        await world.until(1, world.unplaceable)
        await world.ask(1, instances=3, at_least=3)
        for number in (1, 2):
            await world.node(number)
        await world.until(2, world.placed)
        await world.ask(1, instances=3, at_least=3)
        await world.until(4, world.placed)
        assert len({placed.content for _, placed in world.placed}) == 1 and not world.conflicts
