"""`berth delete` cancels a request that waits for a host."""

import asyncio

import pytest

from berth.kit.testing import commands_connect_by
from bus.local import LocalTransport
from tests.support.command_line import CommandLine
from tests.support.instance_cloud import BUILD, a_cloud
from tests.support.scheduler_builders import METAL, a_request
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_waiting_request_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_cloud() as (world, _):
        monkeypatch.setenv("BERTH_CELLS", "c1")
        commands_connect_by(lambda: LocalTransport(world.broker), monkeypatch)
        await world.say(a_request(1, flavor=METAL, wait="30m"))
        await asyncio.sleep(1.0)
        sent = await CommandLine("delete", monkeypatch, capsys)(BUILD, "--wait", "--timeout", "60")
    assert sent == f"{BUILD}: cancelled while it waited for a host\n"
