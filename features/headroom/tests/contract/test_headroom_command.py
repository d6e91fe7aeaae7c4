"""`berth headroom` sets, shows and unsets failover headroom; `berth what-if` shows whether it would end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from berth import composition
from berth.commands import what_if
from berth.settings import BadSetting, Settings
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.messages import HostReported
from bus.reports import HostState
from bus.worker import Worker, answers
from features.headroom import commands as headroom
from features.headroom.controller import HeadroomController
from features.what_if.messages import WHAT_IF
from features.what_if.questions import WhatIfs
from placement_worker import Placement
from placement_worker.store.audit import holdings
from tests.support.command_line import CommandLine, a_served_placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import report
from tests.support.schedulers import scheduler_of

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
    await placement.of(HeadroomController).adjust()
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
    await placement.of(HeadroomController).adjust()
    assert "any one host: kept" in await run("show")


async def test_a_level_of_which_no_host_has_a_label_is_set_with_a_warning(run: Run) -> None:
    text = await run("set", "host", "rack")
    assert "no host has a label of level rack: headroom is not kept" in text and "level host" not in text


@pytest.fixture
async def what_would(
    placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[CommandLine]:
    """Run `berth what-if` for instances without memory and disk, with a scheduler that answers."""
    scheduler, stopping = scheduler_of(placement), asyncio.Event()
    for host in (1, 2):
        states = (HostState(root=uid(host, "a"), host=f"host-{host}"),)
        await scheduler.handle(HostReported(cell="c1", agent=f"agent-{host}", sequence=1, hosts=states))
    worker = Worker("scheduler", answers=[answers(WHAT_IF, WhatIfs(scheduler).answer)])
    async with Bus(composition.transport(Settings(), "scheduler")) as bus, asyncio.TaskGroup() as running:
        running.create_task(bus.serve(worker, stopping))
        yield CommandLine("what-if", what_if, monkeypatch, capsys)
        stopping.set()


async def test_what_if_says_whether_the_headroom_would_end(
    placement: Placement, run: Run, what_would: CommandLine
) -> None:
    sized = "--memory-mb", "0", "--disk-gb", "0", "--vcpus"
    assert "headroom" not in await what_would(*sized, "4")  # no headroom is set
    await run("set", "host")
    await placement.of(HeadroomController).adjust()
    assert "failover headroom for any one host would still be kept" in await what_would(*sized, "4")
    why = "host host-1: no host outside of it has free capacity for 4 VCPU"
    ends = await what_would(*sized, "4", "--count", "2")
    assert f"failover headroom for any one host would end: {why}" in ends
    [answer] = await what_would.json(*sized, "4", "--count", "2")
    assert answer["headroom"] == [{"levels": ["host"], "state": "ends", "reasons": [why]}]
    assert "headroom" not in await what_would(*sized, "8", ends=1)  # the request does not fit
    await placement.claims.claim_many(
        [an_order(a_claim(3, on_hosts(1, VCPU=3)), a_claim(4, on_hosts(2, VCPU=3)))]
    )
    assert "any one host is already not kept: host host-1" in await what_would(*sized, "1")
