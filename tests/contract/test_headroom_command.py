"""`berth headroom`: sets, shows and unsets failover headroom."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from berth.commands import headroom
from berth.settings import BadSetting
from bus.errors import OperationRefused
from placement_worker import Placement
from placement_worker.store.audit import holdings
from tests.support.command_line import CommandLine, a_served_placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import report

Run = Callable[..., Awaitable[str]]


@pytest.fixture
async def placement(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    async with a_served_placement(monkeypatch, "c1") as placement:
        assert await report(placement, a_report(1), a_report(2)) == ["", ""]
        await placement.claims.claim_many([an_order(a_claim(2, on_hosts(1, VCPU=4)))])
        yield placement


@pytest.fixture
def run(placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return CommandLine("headroom", headroom, monkeypatch, capsys)


async def test_headroom_is_set_shown_and_unset(placement: Placement, run: Run) -> None:
    assert "headroom is kept for any one host" in await run("set", "host")
    await placement.headroom.adjust()
    assert "any one host: kept; 1 slots for 1 instances in 2 domains" in await run("show")
    assert "already" in await run("set", "host")
    assert "no headroom is kept" in await run("unset")
    assert list(await holdings(placement.database)) == [uid(2)]
    with pytest.raises(OperationRefused, match="no headroom is kept"):
        await run("show")


async def test_a_level_that_no_label_can_have_is_refused_and_changes_nothing(
    placement: Placement, run: Run
) -> None:
    await run("set", "host")
    with pytest.raises(BadSetting, match="'rack 7%': a level is `host`, or a word"):
        await run("set", "rack 7%")
    await placement.headroom.adjust()
    assert "any one host: kept" in await run("show")
