"""The page about Nova in the control room, and `berth openstack report`."""

from collections.abc import AsyncIterator

import pytest

from berth.kit import BadSetting
from berth.kit.testing import commands_connect_by
from bus.local import LocalBroker, LocalTransport
from features.nova.with_what_if.core.report_shown import agreement
from features.nova.with_what_if.messages import NOVA_REPORT, FindNovaReport
from features.nova.with_what_if.tests.support.shadow_reports import SHADOWED, a_shadow_worker
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.visited_room import a_visited_room


async def test_the_page_compares_both_schedulers() -> None:
    async with a_visited_room(a_shadow_worker(), answered=(NOVA_REPORT.name,)) as room:
        room.clock.now = 0.0  # the clock of the worker is the machine's
        page = await room.page("/nova?wait=1&since=24h")
        found = await room.bus.asker(NOVA_REPORT)(FindNovaReport(listed=50))
    assert (found.requests, found.nova_refused, found.berth_refused, found.undecided) == (60, 6, 6, 4)
    share = agreement(found)
    assert share is not None and f"{share:.0f} %" in page
    assert page.count(f"/nova/{SHADOWED}") == 1
    assert "zone az9 removed the last 9 of 12 hosts" in page and "No valid host was found." in page
    assert "berth cannot decide about its NUMA topology" in page
    assert page.count("12.3 %") == 2, "the fragmentation of both"
    assert "Notifications of Nova may be missing" in page
    assert "versioned_notifications.info grows without a consumer" in page


async def test_a_period_without_requests_is_named() -> None:
    async with a_visited_room(a_shadow_worker(), answered=(NOVA_REPORT.name,)) as room:
        room.clock.now = 10_000_000_000.0
        assert "No request to Nova" in await room.page("/nova?wait=1&since=1h")
        assert "Last 24 hours" in await room.page("/nova?wait=1&since=nonsense")


async def test_without_shadow_mode_the_page_names_its_worker() -> None:
    async with a_visited_room() as room:
        page = await room.page("/nova?wait=1")
    assert "Shadow mode does not answer" in page and "berth run nova-shadow" in page


async def test_an_instance_shows_why_berth_decided_so() -> None:
    async with a_visited_room(a_shadow_worker(), answered=(NOVA_REPORT.name,)) as room:
        page = await room.page(f"/nova/{SHADOWED}")
        unknown = await room.page(f"/nova/{uid(9, '9')}", 404)
        await room.page("/nova/nonsense", 404)
    assert "berth refused, Nova has a host" in page and "a host with free capacity in zone az9" in page
    assert "There is no such request" in unknown


@pytest.fixture
async def nova(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[CommandLine]:
    broker = LocalBroker()
    commands_connect_by(lambda: LocalTransport(broker), monkeypatch)
    async with serving(lambda: LocalTransport(broker), a_shadow_worker()):
        yield CommandLine("openstack", monkeypatch, capsys)


async def test_the_command_prints_the_comparison(nova: CommandLine) -> None:
    output = await nova("report", "--most", "3")
    assert "60 requests" in output and "of 40 requests got the same hosts" in output
    assert "zone az9 removed the last 9 of 12 hosts" in output
    assert output.count("12.3 %") == 2
    assert "notifications may be missing: 1970-01-01 00:10:00 UTC to 1970-01-01 00:15:00 UTC" in output
    assert "Nova's queue versioned_notifications.info grows without a consumer: 1234 messages" in output
    assert "not decided: 4 requests: berth cannot decide about its NUMA topology" in output


async def test_the_command_prints_a_period_as_json(nova: CommandLine) -> None:
    [found] = await nova.json("report", "--since", "5m", "--most", "0")
    assert (found["requests"], found.get("listed", [])) == (10, [])


async def test_a_period_that_is_no_time_is_refused(nova: CommandLine) -> None:
    with pytest.raises(BadSetting, match="--since yesterday"):
        await nova("report", "--since", "yesterday")
