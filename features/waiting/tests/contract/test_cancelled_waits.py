"""`berth delete` cancels a request that waits for a host."""

import asyncio
import io

import pytest
from rich.console import Console

from berth.commands.builds import delete
from berth.kit import Cli, Settings
from berth.kit.testing import commands_connect_by
from bus.local import LocalTransport
from tests.contract.test_instances import BUILD, a_cloud
from tests.support.command_line import plainly
from tests.support.scheduler_builders import METAL, a_request
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_waiting_request_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = io.StringIO()
    async with a_cloud() as (world, _):
        commands_connect_by(lambda: LocalTransport(world.broker), monkeypatch)
        await world.say(a_request(1, flavor=METAL, wait="30m"))
        await asyncio.sleep(1.0)
        cli = Cli(Settings(), False, Console(file=sent, width=200))
        await plainly(delete(cli, BUILD, "", True, timeout=60.0))
    assert sent.getvalue() == f"{BUILD}: cancelled while it waited for a host\n"
