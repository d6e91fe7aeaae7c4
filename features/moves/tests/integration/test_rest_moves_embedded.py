"""Moves over the REST API of a running berth."""

from pathlib import Path

import pytest

from berth.client import RestRefusal
from bus.clock import Clock
from features.moves.messages import MoveRequested
from features.moves.rest_client import MovesClient
from tests.support.rest_berth import a_boot, a_rest_berth
from tests.support.waiting import in_time, until


async def test_an_instance_is_moved_over_http(tmp_path: Path) -> None:
    clock = Clock()
    async with a_rest_berth(tmp_path) as berth, MovesClient(berth.url, "token of ann") as ann:
        built = a_boot(clock.uuid())
        await ann.boot(built)
        await ann.ended(built.request)
        first = await ann.newest_event()
        move = MoveRequested(move=clock.uuid(), build=built.request, kind="migrate", verify=True)
        assert await ann.move(move) == await ann.move(move)

        async def has_status(status: str) -> bool:
            return (await ann.shown_move(move.move)).status == status

        await until(lambda: has_status("verify"), "the move waits for its confirmation")
        await ann.steer(move.move, "confirm")
        await until(lambda: has_status("done"), "the move is done")
        events = ann.events(after=first)
        assert [(await in_time(anext(events))).event for _ in range(2)] == ["move.progressed", "move.ended"]
        with pytest.raises(RestRefusal, match="404: no cell"):
            await ann.steer(clock.uuid(), "abort")
        with pytest.raises(RestRefusal, match=r"400: .*to: "):
            await ann.steer(move.move, "left")  # type: ignore[arg-type]
