"""A sweep never overwrites changes made during it; a failure ends only one sweep."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from bus.errors import NoAnswer, Unavailable
from bus.resources import FindProviders
from tests.support.fake_ironic import fault, node_number
from tests.support.swept_ironic import SweptIronic


def when_listed(world: SweptIronic, page: int, then: Callable[[], object]) -> None:
    """Call `then` after Ironic made the page with this number and before the sweep receives the page."""
    answer, pages = world.ironic._list, [0]

    def listing(params: dict[str, str], fields: list[str] | None) -> httpx.Response:
        answered = answer(params, fields)
        answered.read()
        if "sort_key" not in params:
            pages[0] += 1
            if pages[0] == page:
                then()
        return answered

    world.ironic._list = listing  # type: ignore[method-assign]


@pytest.mark.parametrize("skew", [0.0, 3600.0], ids=["clocks agree", "Ironic's is an hour ahead"])
async def test_an_event_during_the_sweep_is_not_undone_by_an_older_page(skew: float) -> None:
    async with SweptIronic(full_every=1) as world:
        world.ironic.have(1, provision_state="active")
        world.ironic.have(2)
        await world.sweep.round()
        world.event(1, world.now + 5 + skew, provision_state="cleaning")
        world.ironic.change(1, provision_state="available")  # no event
        when_listed(world, 1, lambda: world.event(1, world.now + 10 + skew, maintenance=True))
        await world.sweep.round()
        assert world.placed.open() == {2}
        await world.sweep.round()
        assert await world.differences() == []


async def test_a_node_missing_in_the_list_is_read_before_it_is_removed() -> None:
    async with SweptIronic(full_every=1) as world:
        world.ironic.have(1)
        await world.sweep.round()
        listing = world.ironic._list
        world.ironic._list = (  # type: ignore[method-assign]
            lambda params, fields: (
                httpx.Response(200, json={"nodes": []})
                if "sort_key" not in params
                else listing(params, fields)
            )
        )
        await world.sweep.round()
        assert world.placed.open() == {1}


AWAY = {"Ironic, at once": 1, "Ironic, in the middle": 3}


@pytest.mark.parametrize("page", AWAY.values(), ids=AWAY.keys())
async def test_an_unreachable_ironic_ends_the_round_and_the_next_reads_all_nodes(
    page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_sleep(seconds: float) -> None: ...

    async with SweptIronic(page=3, full_every=99) as world:
        await world.swept(12)
        for number in range(12):
            world.ironic.change(number, maintenance=True)
        for number in range(12, 14):
            world.ironic.have(number)
        asked: list[str] = []

        def before(request: httpx.Request) -> httpx.Response | None:
            if request.url.path == "/v1/nodes":
                asked.append(request.url.path)
            return fault(503, "away") if len(asked) >= page else None

        world.sweep._rounds_to_full = 0
        world.ironic.before = before
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", no_sleep)
            with pytest.raises(Unavailable):
                await world.sweep.round()
        assert len(world.placed.open()) == 12 - 3 * (page - 1)
        assert len(world.placed.trees) == 12
        world.ironic.before = lambda request: None
        await world.sweep.round()
        assert await world.differences() == [] and len(world.placed.trees) == 14


async def test_the_sweep_after_a_failure_reads_everything() -> None:
    async with SweptIronic(full_every=99) as world:
        await world.swept(3)
        world.placed.before = _away
        world.ironic.change(2, maintenance=True)
        with pytest.raises(Unavailable):
            await world.sweep.round()
        world.placed.before = lambda query: None
        del world.ironic.nodes[node_number(1)]
        await world.sweep.round()
        assert world.placed.open() == {0} and await world.differences() == []


def _away(query: FindProviders) -> None:
    raise NoAnswer("nobody")
