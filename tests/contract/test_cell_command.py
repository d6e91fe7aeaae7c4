"""`berth cell` on either bus: which cells there are, closing and opening one, and seeing it become empty."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from typer.testing import CliRunner

from berth import wiring
from berth.__main__ import app
from berth.commands import cells as commands
from berth.commands.cell_permissions import check_name
from berth.settings import BadSetting
from bus.cells import RegisterCell
from bus.errors import OperationRefused
from bus.host_health import FindHostHealth, HostHealthFound
from bus.queries import FindInstances, Instance, InstancesFound
from bus.topics import FIND_INSTANCES, HOST_HEALTH
from bus.worker import Worker, answers
from placement_worker import Placement
from tests.support.buses import LOCALLY, Connect, serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_release, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, edit_cell, report, silent_placement

GUEST = Instance(
    build=uid(1),
    name="web",
    status="active",
    host="host-1",
    root=uid(1, "a"),
    cell="c1",
    project="p",
    flavor="f",
)


class CellCommand(CommandLine):
    def __init__(self, placement: Placement, patch: pytest.MonkeyPatch, capsys: Any) -> None:
        super().__init__("cell", commands, patch, capsys)
        self.placement = placement
        self.guests: tuple[Instance, ...] = ()

    async def instances(self, question: FindInstances) -> InstancesFound:
        return InstancesFound(instances=self.guests, count=len(self.guests))

    async def listed(self) -> dict[str, dict[str, Any]]:
        return {one.pop("cell"): one for one in await self.json("list")}


@pytest.fixture
async def cell(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[CellCommand]:
    async with a_placement("sqlite+aiosqlite://") as placement:
        assert await report(placement, a_report(1), a_report(2), a_report(3, cell="c2")) == ["", "", ""]

        command = CellCommand(placement, monkeypatch, capsys)
        conductor = Worker("conductor.c1", answers=[answers(FIND_INSTANCES, command.instances, cell="c1")])
        monkeypatch.setenv("BERTH_CELLS", "c1,c2")
        monkeypatch.setattr(commands, "_LOOK_SECONDS", 0.01)
        async with serving(connect, silent_placement(placement, ("c1", "c2")), conductor):
            monkeypatch.setattr(wiring, "transport", lambda settings, name: connect())
            yield command


async def holds(placement: Placement, consumer: int = 1, host: int = 1) -> None:
    await claim(placement, an_order(a_claim(consumer, on_hosts(host))))


@LOCALLY
async def test_every_cell_is_listed_with_what_is_in_it_and_whether_its_conductor_is_heard(
    cell: CellCommand,
) -> None:
    await holds(cell.placement)
    await edit_cell(cell.placement, RegisterCell(cell="c3", enabled=False, note="rack 7"))
    assert await cell.listed() == {
        "c1": {
            "state": "enabled",
            "hosts": 2,
            "instances": 1,
            "host_states": None,
            "conductor": True,
            "note": "",
        },
        "c2": {
            "state": "enabled",
            "hosts": 1,
            "instances": 0,
            "host_states": None,
            "conductor": False,
            "note": "",
        },
        "c3": {
            "state": "disabled",
            "hosts": 0,
            "instances": 0,
            "host_states": None,
            "conductor": False,
            "note": "rack 7",
        },
    }
    table = await cell("list")
    assert [line.split() for line in table.splitlines()][3] == [
        "c3", "disabled", "0", "0", "not", "heard", "rack", "7",
    ]  # fmt: skip


@LOCALLY
async def test_cells_are_listed_with_the_states_of_their_hosts(cell: CellCommand, connect: Connect) -> None:
    async def find(question: FindHostHealth) -> HostHealthFound:
        return HostHealthFound(hosts=(), counts={"c1": {"up": 1, "down": 1}, "c2": {"up": 1}})

    async with serving(connect, Worker("scheduler", answers=[answers(HOST_HEALTH, find)])):
        listed = await cell.listed()
        assert [listed[name]["host_states"] for name in ("c1", "c2")] == [{"up": 1, "down": 1}, {"up": 1}]
        assert "2 (1 down)" in await cell("list")


@LOCALLY
async def test_one_is_closed_and_opened_again_and_said_twice_is_said_so(cell: CellCommand) -> None:
    await holds(cell.placement)
    told = [
        await cell("disable", "c1", "--note", "to be rebuilt"),
        await cell("disable", "c1"),
        await cell("enable", "c1", "--note", ""),
        await cell("enable", "c2"),
    ]
    assert [line.strip() for line in told] == [
        "cell c1 is disabled: 2 hosts, 1 instance, which stay",
        "cell c1 was disabled already: 2 hosts, 1 instance, which stay",
        "cell c1 is enabled: 2 hosts, 1 instance",
        "cell c2 was enabled already: 1 host, 0 instances",
    ]
    [told_again] = await cell.json("disable", "c2")
    assert told_again == {"cell": "c2", "state": "disabled", "hosts": 1, "instances": 0, "note": ""}


@LOCALLY
async def test_a_slip_makes_no_cell(cell: CellCommand) -> None:
    for words in (("disable", "c11"), ("drain", "c11")):
        with pytest.raises(OperationRefused, match="there is no cell c11; there are: c1, c2"):
            await cell(*words)
    assert set(await cell.listed()) == {"c1", "c2"}


@LOCALLY
async def test_one_of_the_settings_that_nobody_reported_is_there(
    cell: CellCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_CELLS", "c1,c7")
    assert (await cell.listed())["c7"]["state"] == "enabled"
    assert await cell("disable", "c7") == "cell c7 is disabled: 0 hosts, 0 instances\n"
    assert (await cell.listed())["c7"]["state"] == "disabled"


async def test_draining_says_what_is_left_and_waits_for_its_end(cell: CellCommand) -> None:
    await holds(cell.placement)
    cell.guests = (GUEST,)
    said = await cell("drain", "c1", ends=1)
    assert "1 instance, or what is left of it, is there" in said and uid(1) in said
    [told] = await cell.json("drain", "c1", ends=1)
    assert (told["left"], [one["name"] for one in told["instances"]]) == (1, ["web"])
    await cell("drain", "c1", "--wait", "--timeout", "0.05", ends=1)

    waiting = asyncio.create_task(cell("drain", "c1", "--wait"))
    await asyncio.sleep(0)
    await cell.placement.claims.release_many([a_release(1, 1)])
    assert await waiting == "cell c1 is disabled, and empty\n"
    assert (await cell.listed())["c1"]["state"] == "disabled"


@LOCALLY
@pytest.mark.parametrize("words", [("add", "c9"), ("remove", "c1")])
async def test_an_embedded_berth_says_whose_its_cells_are(cell: CellCommand, words: tuple[str, ...]) -> None:
    with pytest.raises(OperationRefused, match="has the cells of its settings"):
        await cell(*words)


def test_permissions_are_printed_for_people_shells_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    told = {}
    for form in ("text", "rabbitmqctl", "json"):
        result = CliRunner().invoke(app, ["cell", "permissions", "c9", "--as", form])
        assert result.exit_code == 0, result.output
        told[form] = result.output
    assert "publish\n    agent\\.build\\.c9\\.[A-Za-z0-9_-]+\n" in told["text"]
    made = json.loads(told["json"])
    assert made["users"] == [] and {one["user"] for one in made["topic_permissions"]} == {"berth-c9"}
    [permission] = made["permissions"]
    assert f"rabbitmqctl set_permissions -p / berth-c9 '{permission['configure']}'" in told["rabbitmqctl"]
    assert told["rabbitmqctl"].count("set_topic_permissions") == 4
    assert told["rabbitmqctl"].count("set_policy") == 2
    assert (
        """set_user_limits berth-c9 '{"max-connections": 100, "max-channels": 2000}'""" in told["rabbitmqctl"]
    )
    assert "limits\n  max-connections 100\n  max-channels 2000\n" in told["text"]


@pytest.mark.parametrize(
    ("side", "says", "policies"), [("middle", "host.failed.c9", 1), ("own", "build.placed.c9", 0)]
)
def test_those_of_a_ferrys_two_users_are_printed_too(
    capsys: pytest.CaptureFixture[str], side: str, says: str, policies: int
) -> None:
    result = CliRunner().invoke(app, ["cell", "permissions", "c9", "--ferry", side, "--as", "json"])
    made = json.loads(result.stdout)
    (keys,) = [one for one in made["topic_permissions"] if one["exchange"] == "berth"]
    assert keys["user"] == "berth-c9.ferry" and re.match(keys["write"], says)
    assert len(made["policies"]) == policies


@pytest.mark.parametrize("name", ["-c2", "-", "", "c.2", "c2\n"])
def test_no_cell_is_named_like_the_addresses_of_others(name: str) -> None:
    with pytest.raises(BadSetting, match=r"edit\.cell"):
        check_name(name)
