"""Waiting moves: stored, woken, looked up again, ended; at most one per instance."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bus.errors import Unavailable
from bus.messages import BuildCancelRequested
from bus.requests import Flavor
from features.moves.messages import MovePlaced
from features.moves.tests.support.move_builders import MOVE
from features.waiting.results import Ended
from features.waiting.suspects import MAX_STRIKES, WHY
from features.waiting.tables import queued
from features.waiting.with_moves.placing import WaitingMoves
from features.waiting.with_moves.tests.support.waiting_movers import WaitingMovers, waiting_movers
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import waiting_world

TWO = Flavor(name="two", vcpus=2)


ROOMY = 8


@asynccontextmanager
async def a_cell(*schedulers: str) -> AsyncIterator[WaitingMovers]:
    async with waiting_world(*schedulers) as world, waiting_movers(world) as movers:
        yield movers


async def waits(movers: WaitingMovers, several: int = 1) -> None:
    await asyncio.sleep(1.0)
    assert len(await movers.waiting()) == several
    assert (movers.placed, movers.refused) == ([], [])


def went(placed: MovePlaced) -> str:
    assert placed.chosen is not None
    return placed.chosen.host


@in_virtual_time
async def test_a_waiting_move_begins_after_the_answer_to_its_claim_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluate, lost = WaitingMoves.evaluate, [Unavailable("the answer was lost after the claim")]

    async def claimed(self: WaitingMoves, woken: Any) -> Any:
        results = await evaluate(self, woken)
        if lost and any(isinstance(result, Ended) for result in results):
            raise lost.pop()
        return results

    monkeypatch.setattr(WaitingMoves, "evaluate", claimed)
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build)
        await waits(movers)
        await movers.host(2, TWO.vcpus)  # no capacity is left after the claim
        await movers.world.until(1, movers.placed)
        assert not lost and went(movers.placed[0]) == "host-2"
        movers.has_moved(movers.placed[0])
        await asyncio.sleep(5.0)
        assert ((await movers.world.waiting()).count, len(movers.placed), movers.refused) == (0, 1, [])


@pytest.mark.parametrize("schedulers", [("s1",), ("s1", "s2")])
@in_virtual_time
async def test_a_repeated_request_with_other_content_is_refused_and_the_first_move_waits_on(
    schedulers: tuple[str, ...],
) -> None:
    async with a_cell(*schedulers) as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build, reply_to="me")
        await waits(movers)
        others: list[tuple[str, dict[str, Any]]] = [
            ("kind", {"kind": "live"}),
            ("parts", {"wait": "12h"}),
            ("wanted_host", {"wanted_host": "host-2"}),
            ("note", {"note": "another"}),
        ]
        for field, fields in others * 2:  # for each scheduler, by turns
            several = len(movers.conflicts)
            await movers.ask(build, reply_to="you", **fields)
            await movers.world.until(several + 1, movers.conflicts)
            conflict = movers.conflicts[-1]
            assert (conflict.move, conflict.reply_to, conflict.fields) == (MOVE, "you", (field,))
            await movers.ask(build, reply_to="you")
            await waits(movers)
        assert len(movers.conflicts) == 2 * len(others)
        await movers.host(2, ROOMY)
        await movers.world.until(1, movers.placed)
        assert (movers.placed[0].kind, movers.placed[0].reply_to) == ("migrate", "me")


@in_virtual_time
async def test_a_waiting_move_is_cancelled_by_its_id() -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build)
        await waits(movers)
        await movers.world.say(BuildCancelRequested(build=build))
        await movers.world.until(1, movers.world.cancelled)
        assert not movers.world.cancelled[0].waited
        await waits(movers)
        await movers.world.say(BuildCancelRequested(build=MOVE, reply_to="me"))
        await movers.world.until(2, movers.world.cancelled)
        assert (movers.world.cancelled[1].waited, movers.world.cancelled[1].reply_to) == (True, "me")
        await movers.world.until(1, movers.refused)
        assert movers.refused[0].code == "cancelled"
        await movers.host(2, ROOMY)
        await asyncio.sleep(1.0)
        await movers.ask(build)
        await movers.world.until(2, movers.refused)
        assert (movers.refused[1].reason, movers.refused[1].code) == (movers.refused[0].reason, "cancelled")
        assert (movers.placed, await movers.waiting()) == ([], [])
        await movers.ask(build, 2)
        await movers.world.until(1, movers.placed)


@in_virtual_time
async def test_one_move_of_an_instance_waits_at_a_time() -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build, 1)
        await movers.ask(build, 1)  # the client repeats its request
        await asyncio.sleep(0.5)
        await movers.ask(build, 2, "live")
        await movers.world.until(1, movers.refused)
        reply = movers.refused[0]
        assert (reply.move, reply.code) == (uid(2, "e"), "moving")
        assert reply.reason == f"another move of it waits for room: {MOVE}"
        await movers.world.say(BuildCancelRequested(build=MOVE))
        await movers.world.until(2, movers.refused)
        await movers.ask(build, 3)
        await asyncio.sleep(0.5)
        assert [request.request for request in await movers.waiting()] == [uid(3, "e")]


async def deleted(movers: WaitingMovers, build: str) -> None:
    await movers.is_deleted(build)


async def forgotten(movers: WaitingMovers, build: str) -> None:
    await movers.is_deleted(build)
    del movers.stands[build]


async def in_another_move(movers: WaitingMovers, build: str) -> None:
    movers.change(build, status="moving", move=uid(7, "e"))


async def shelved(movers: WaitingMovers, build: str) -> None:
    movers.change(build, status="shelved", generation=None, chosen=None)


ENDS = [
    (deleted, "status", "it is deleted; this move needs an instance that is active: migrate"),
    (forgotten, "unknown", "cell 'c1' does not know of such a build, and it holds nothing"),
    (in_another_move, "moving", f"it is in another move, {uid(7, 'e')}"),
    (shelved, "status", "it is shelved; this move needs an instance that is active: migrate"),
]


@pytest.mark.parametrize(("happens", "code", "why"), ENDS, ids=[row[0].__name__ for row in ENDS])
@in_virtual_time
async def test_the_end_of_the_instance_ends_the_wait(
    happens: Callable[[WaitingMovers, str], Awaitable[None]], code: str, why: str
) -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build)
        await waits(movers)
        await happens(movers, build)
        await asyncio.sleep(3.0)
        assert [(move.code, move.reason) for move in movers.refused] == [(code, why)]
        assert (movers.placed, await movers.waiting()) == ([], [])


@in_virtual_time
async def test_a_waiting_move_whose_evaluation_ended_four_schedulers_is_refused() -> None:
    async with a_cell("s1") as movers:
        move = await movers.ask(await movers.boot(1, on=1))
        await waits(movers)
        await movers.world.kill("s1")
        async with movers.world.kept.write() as tx:
            [ended] = await queued.roster(tx)
            await queued.strike(tx, ended.owner, {(move.move, queued.NO_DIGEST): MAX_STRIKES})
        await movers.host(2, ROOMY)
        await movers.world.scheduler("s2")
        await movers.world.until(1, movers.refused)
        assert [(move.code, move.reason) for move in movers.refused] == [("crashed", WHY)]
        assert (movers.placed, await movers.waiting()) == ([], [])


@in_virtual_time
async def test_an_instance_that_moved_can_return_to_its_former_host() -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.host(3, 0)
        await movers.ask(build)
        await waits(movers)
        await movers.was_moved(build, 3)
        await movers.world.until(1, movers.placed)
        assert (went(movers.placed[0]), movers.placed[0].attempt) == ("host-1", 2)


@in_virtual_time
async def test_a_move_continues_to_wait_while_its_cell_does_not_answer() -> None:
    async with a_cell() as movers:
        build = await movers.boot(1, on=1)
        await movers.ask(build)
        await waits(movers)
        movers.deaf = True
        await movers.host(2, ROOMY)
        await movers.events(20.0, of=2)
        assert (movers.placed, movers.refused) == ([], [])
        movers.deaf = False
        await movers.events(20.0, of=2)
        assert [went(placed) for placed in movers.placed] == ["host-2"]


@in_virtual_time
async def test_waiting_moves_of_a_dead_scheduler_are_adopted() -> None:
    async with a_cell("s1") as movers:
        builds = [await movers.boot(number, on=1) for number in (1, 2)]
        for index, build in enumerate(builds, 1):
            await movers.ask(build, index, wait="60s" if index == 2 else "30m")
        await waits(movers, 2)
        await movers.world.kill("s1")
        await movers.world.scheduler("s2")
        await asyncio.sleep(10.0)
        await movers.host(2, 2)
        await movers.world.until(1, movers.placed)
        assert movers.placed[0].move == uid(1, "e")
        await asyncio.sleep(60.0)
        assert [(move.move, move.code) for move in movers.refused] == [(uid(2, "e"), "waited")]
