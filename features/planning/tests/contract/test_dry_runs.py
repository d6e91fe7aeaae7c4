"""Commands about moves with `--dry-run`: they show destinations, and request nothing."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from bus.decisions import Decision, Removal
from bus.worker import Worker, answers
from features.moves.messages import MoveRequested
from features.moves.tests.support.hosts_to_empty import HostsToEmpty, hosts_to_empty
from features.planning.messages import WHAT_IF_MOVES, WhatIfMoves, WhatIfMovesAnswered
from features.what_if.messages import PlacedThere, WhatIfAnswered
from tests.support.command_line import CommandLine
from tests.support.ids import uid

Berth = Callable[..., Coroutine[Any, Any, str]]

THERE = PlacedThere(root=uid(9, "a"), host="host-9", cell="c1")


@dataclass
class Forecasts:
    """Scripted answers about moves, and the questions."""

    would: Callable[[MoveRequested], WhatIfAnswered] = lambda move: WhatIfAnswered(fits=True, placed=(THERE,))
    asked: list[WhatIfMoves] = field(default_factory=list)

    def worker(self) -> Worker:
        return Worker("forecasts", answers=[answers(WHAT_IF_MOVES, self._answer)])

    async def _answer(self, asked: WhatIfMoves) -> WhatIfMovesAnswered:
        self.asked.append(asked)
        return WhatIfMovesAnswered(answers=tuple(map(self.would, asked.moves)))


@pytest.fixture
def forecasts() -> Forecasts:
    return Forecasts()


@pytest.fixture
async def cloud(monkeypatch: pytest.MonkeyPatch, forecasts: Forecasts) -> AsyncIterator[HostsToEmpty]:
    async with hosts_to_empty(monkeypatch, forecasts.worker()) as cloud:
        yield cloud


@pytest.fixture
def berth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Berth:
    async def command(word: str, *words: str, ends: int = 0) -> str:
        return await CommandLine(word, monkeypatch, capsys)(*words, ends=ends)

    return command


B1, B2, B3 = uid(1), uid(2), uid(3)
ROOM = Removal(constraint="room", removed=3, left=0)
NONE = WhatIfAnswered(fits=False, decision=Decision(considered=3, code="class", removals=(ROOM,)))


async def test_a_dry_run_shows_destinations_and_requests_nothing(
    cloud: HostsToEmpty, forecasts: Forecasts, berth: Berth
) -> None:
    assert await berth("instance", "move", B1, "--dry-run") == f"{B1}: migrate to host-9 in cell c1\n"
    no = WhatIfAnswered(fits=False, refusal="it is building", decision=Decision(code="status"))
    forecasts.would = lambda asked: no if asked.build == B1 else NONE
    sent = await berth("instance", "move", B1, B2, "--live", "--dry-run", ends=1)
    assert f"{B1}: no live: [status] it is building" in sent
    assert f"{B2}: no live: [class] no host would do" in sent and "−3" in sent
    assert [move.kind for move in forecasts.asked[-1].moves] == ["live", "live"]
    assert cloud.movers.asked == []


async def test_a_dry_run_of_evacuate_changes_nothing(
    cloud: HostsToEmpty, forecasts: Forecasts, berth: Berth
) -> None:
    assert (await berth("host", "evacuate", "host-1", "--dry-run")).splitlines() == [
        "host-1: would be forced down, and 2 instances moved",
        f"  {B1} → host-9",
        f"  {B2} → host-9",
    ]
    [asked] = forecasts.asked
    assert ({move.kind for move in asked.moves}, asked.closed) == ({"migrate"}, (uid(1, "a"),))
    assert (cloud.movers.asked, await cloud.state(1)) == ([], "open")


async def test_a_dry_run_lists_instances_without_a_host_and_the_reason(
    cloud: HostsToEmpty, forecasts: Forecasts, berth: Berth
) -> None:
    fitting = forecasts.would
    forecasts.would = lambda asked: NONE if asked.build in (B1, B3) else fitting(asked)
    sent = (await berth("host", "drain", "host-1", "host-2", "--cold", "--dry-run", ends=1)).splitlines()
    assert sent[:5] == [
        "host-1: would be disabled, and 2 instances moved, of which 1 find no host now",
        "host-2: would be disabled, and 1 instances moved, of which 1 find no host now",
        f"  {B2} → host-9",
        "  would stay: [class] no host would do",
        f"    {B1}, {B3}",
    ]
    assert any("room" in line and "−3" in line for line in sent[5:])
    [asked] = forecasts.asked
    assert ({move.kind for move in asked.moves}, asked.closed) == ({"migrate"}, (uid(1, "a"), uid(2, "a")))
    in_json = await berth("host", "drain", "host-1", "--dry-run", "--json", ends=1)
    assert json.loads(in_json) == {
        "dry_run": True, "host": "host-1", "instances": {"active": 2}, "moves": {B2: "host-9"},
        "stay": {B1: "[class] no host would do"},
    }  # fmt: skip
    assert (cloud.movers.asked, await cloud.state(1)) == ([], "open")
