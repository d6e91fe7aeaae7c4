"""The registry of cells: registration, disabling, publication, removal."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from berth import composition
from berth.__main__ import app
from berth.commands import cells as commands
from berth.commands.cell_permissions import check_name
from berth.settings import BadSetting
from bus.cells import CellEdited, CellInUse, DropCell, FindCells, RegisterCell, RegisteredCell
from bus.claims import Claimed
from bus.errors import OperationRefused
from bus.host_health import FindHostHealth, HostHealthFound
from bus.queries import FindInstances, Instance, InstancesFound
from bus.topics import FIND_INSTANCES, HOST_HEALTH
from bus.vocabulary import Missing
from bus.worker import Worker, answers
from placement_worker import Placement
from placement_worker.store import changes, hosts
from tests.support.buses import LOCALLY, Connect, serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_release,
    a_report,
    an_order,
    looking_for,
    on_hosts,
)
from tests.support.placement_calls import claim, edit_cell, find_providers, report, silent_placement


async def done(placement: Placement, cell: RegisterCell | DropCell) -> CellEdited:
    result = await edit_cell(placement, cell)
    assert isinstance(result, CellEdited), result
    return result


async def has_hosts(placement: Placement, cell: str, *hosts: int, sequence: int = 1) -> None:
    reports = [a_report(host, cell=cell, sequence=sequence) for host in hosts]
    assert await report(placement, *reports) == ["" for _ in hosts]


async def boots(placement: Placement, consumer: int, host: int) -> int:
    [result] = await claim(placement, an_order(a_claim(consumer, on_hosts(host))))
    assert isinstance(result, Claimed)
    return result.generation


async def there(placement: Placement) -> dict[str, tuple[bool, int, int]]:
    """Return for each cell whether it is enabled, and its numbers of hosts and instances."""
    found = await placement.cells.find(FindCells())
    return {
        cell.name: (cell.enabled, found.hosts.get(cell.name, 0), found.instances.get(cell.name, 0))
        for cell in found.cells
    }


async def open_hosts(placement: Placement, *closed: str) -> set[str]:
    query = replace(looking_for({"VCPU": 1}), not_cells=closed)
    found = await placement.find_candidates(query)
    return {candidate.host for candidate in found.candidates}


async def test_concurrent_edits_of_a_cell_lose_nothing(url: str, placement: Placement) -> None:
    async with a_placement(url) as other:
        edits = [RegisterCell(cell="c1", enabled=False), RegisterCell(cell="c1", note="new")] * 4
        await asyncio.gather(
            *(done(which, cell) for which, cell in zip((placement, other) * 4, edits, strict=True))
        )
        await placement.memory.fresh()
        reply = RegisteredCell(name="c1", enabled=False, note="new")
        assert placement.memory.index.cell_facts == {"c1": reply}


async def test_a_cell_that_is_dropped_while_it_is_registered_is_registered_again(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await done(placement, RegisterCell(cell="c1", note="first"))
    lock, dropped = hosts.LOCK_CELL, list[str]()

    async def lock_after_a_drop(tx: Any, *, cell: str) -> Any:
        if not dropped:  # as another process does between the statements of the registration
            dropped.append(cell)
            await hosts.DROP_CELL(tx, cell=cell)
        return await lock(tx, cell=cell)

    monkeypatch.setattr(hosts, "LOCK_CELL", lock_after_a_drop)
    edited = await done(placement, RegisterCell(cell="c1", enabled=False))
    assert edited.cell is not None and not edited.cell.enabled


async def test_cell_changes_received_in_any_order_leave_the_latest_state(
    url: str, placement: Placement
) -> None:
    async with a_placement(url) as other:
        for enabled in (False, True, False):
            await done(placement, RegisterCell(cell="c1", enabled=enabled))
        await done(placement, RegisterCell(cell="c2"))
        await done(placement, DropCell(cell="c2"))
        async with placement.database.read() as tx:
            log = (await changes.since(tx, 0, 100)).changes
        assert all(message.cells and not message.changes for message in log)
        for message in reversed(log):
            await other.memory.handle_many([message])
        assert other.memory.index.cell_facts == {"c1": RegisteredCell(name="c1", enabled=False)}
        assert not other.memory.index._described_at


# Removal


async def test_a_dropped_cell_is_deleted_with_its_hosts_only(placement: Placement) -> None:
    await has_hosts(placement, "c1", 1, 2)
    await has_hosts(placement, "c2", 3)
    await done(placement, RegisterCell(cell="c1"))
    gone = await done(placement, DropCell(cell="c1"))
    assert gone.cell == RegisteredCell(name="c1", gone=True)
    assert await there(placement) == {"c2": (True, 1, 0)}
    assert [provider.name for provider in await find_providers(placement)] == ["host-3"]
    assert await edit_cell(placement, DropCell(cell="c1")) == Missing(what="cell", names=("c1",))
    await has_hosts(placement, "c1", 1, sequence=2)  # the registered cell's reports are accepted again
    assert await there(placement) == {"c1": (True, 1, 0), "c2": (True, 1, 0)}


async def test_a_cell_with_instances_stays_and_is_closed(placement: Placement) -> None:
    await has_hosts(placement, "c1", 1, 2)
    await boots(placement, 1, 1)
    assert await edit_cell(placement, DropCell(cell="c1")) == CellInUse(cell="c1", instances=1)
    assert await there(placement) == {"c1": (False, 2, 1)}
    assert await open_hosts(placement) == {"host-1", "host-2"}  # enabling restores the former state


async def test_a_cell_dropped_by_force_leaves_its_allocations_to_be_released(placement: Placement) -> None:
    await has_hosts(placement, "c1", 1, 2)
    generation = await boots(placement, 1, 1)
    await done(placement, DropCell(cell="c1", force=True))
    assert (await placement.cells.find(FindCells())).cells == (RegisteredCell(name="c1", gone=True),)
    assert await open_hosts(placement) == set()
    await placement.claims.release_many([a_release(1, generation)])
    await placement.reports.sweep()
    assert await find_providers(placement) == [] and await there(placement) == {}


async def test_a_host_reported_while_its_cell_is_dropped_is_not_lost(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await has_hosts(placement, "c1", 1, 2)
    end = placement.reports.end

    async def after_it(*given: Any, **named: Any) -> None:
        await boots(placement, 1, 1)
        await end(*given, **named)

    monkeypatch.setattr(placement.reports, "end", after_it)
    assert await edit_cell(placement, DropCell(cell="c1")) == CellInUse(cell="c1", instances=1, hosts=1)
    [host] = await find_providers(placement, parts=("inventories",))
    assert (host.id, host.used) == (uid(1, "a"), {"VCPU": 1})


GUEST = Instance(
    build=uid(1), name="web", status="active", host="host-1", root=uid(1, "a"), cell="c1", project="p",
    flavor="f",
)  # fmt: skip


class CellCommand(CommandLine):
    def __init__(self, placement: Placement, patch: pytest.MonkeyPatch, capsys: Any) -> None:
        super().__init__("cell", patch, capsys)
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
        monkeypatch.setattr(commands, "_POLL_SECONDS", 0.01)
        async with serving(connect, silent_placement(placement, ("c1", "c2")), conductor):
            monkeypatch.setattr(composition, "transport", lambda settings, name: connect())
            yield command


async def holds(placement: Placement, consumer: int = 1, host: int = 1) -> None:
    await claim(placement, an_order(a_claim(consumer, on_hosts(host))))


@LOCALLY
async def test_cells_are_listed_with_the_states_of_their_hosts(cell: CellCommand, connect: Connect) -> None:
    async def find(question: FindHostHealth) -> HostHealthFound:
        return HostHealthFound(hosts=(), counts={"c1": {"up": 1, "down": 1}, "c2": {"up": 1}})

    async with serving(connect, Worker("scheduler", answers=[answers(HOST_HEALTH, find)])):
        listed = await cell.listed()
        assert [listed[name]["host_states"] for name in ("c1", "c2")] == [{"up": 1, "down": 1}, {"up": 1}]
        assert "2 (1 down)" in await cell("list")


@LOCALLY
async def test_disabling_and_enabling_a_cell_reports_repetitions(cell: CellCommand) -> None:
    await holds(cell.placement)
    sent = [
        await cell("disable", "c1", "--note", "to be rebuilt"),
        await cell("disable", "c1"),
        await cell("enable", "c1", "--note", ""),
        await cell("enable", "c2"),
    ]
    assert [line.strip() for line in sent] == [
        "cell c1 is disabled: 2 hosts, 1 instance, which stay",
        "cell c1 was disabled already: 2 hosts, 1 instance, which stay",
        "cell c1 is enabled: 2 hosts, 1 instance",
        "cell c2 was enabled already: 1 host, 0 instances",
    ]
    [disabled_again] = await cell.json("disable", "c2")
    assert disabled_again == {"cell": "c2", "state": "disabled", "hosts": 1, "instances": 0, "note": ""}


@LOCALLY
@pytest.mark.usefixtures("no_scheduler")
async def test_a_misspelled_cell_name_creates_no_cell(cell: CellCommand) -> None:
    for words in (("disable", "c11"), ("disable", "c11", "--wait"), ("disable", "c11", "--dry-run")):
        with pytest.raises(OperationRefused, match="there is no cell c11; there are: c1, c2"):
            await cell(*words)
    assert set(await cell.listed()) == {"c1", "c2"}


@pytest.mark.usefixtures("no_scheduler")
async def test_disabling_a_cell_waits_until_it_is_empty_and_lists_the_remaining_instances(
    cell: CellCommand,
) -> None:
    await holds(cell.placement)
    cell.guests = (GUEST,)
    reply = await cell("disable", "c1", "--wait", "--dry-run", ends=1)
    assert reply.startswith("cell c1 would be disabled: 2 hosts, 1 instance, which stay\n")
    assert (await cell.listed())["c1"]["state"] == "enabled"
    reply = await cell("disable", "c1", "--wait", "--timeout", "0", ends=1)
    assert "1 instance, or its leftovers, remain" in reply and uid(1) in reply
    [_, sent] = await cell.json("disable", "c1", "--wait", "--timeout", "0.05", ends=1)
    assert (sent["left"], [one["name"] for one in sent["instances"]]) == (1, ["web"])
    with pytest.raises(BadSetting, match="--timeout limits --wait"):
        await cell("disable", "c1", "--timeout", "1")

    waiting = asyncio.create_task(cell("disable", "c1", "--wait"))
    await asyncio.sleep(0)
    await cell.placement.claims.release_many([a_release(1, 1)])
    assert (await waiting).endswith("cell c1 is empty\n")
    assert (await cell.listed())["c1"]["state"] == "disabled"


@LOCALLY
@pytest.mark.parametrize("words", [("create", "c9"), ("delete", "c1")])
async def test_an_embedded_berth_refuses_to_edit_cells_of_its_settings(
    cell: CellCommand, words: tuple[str, ...]
) -> None:
    with pytest.raises(OperationRefused, match="has the cells of its settings"):
        await cell(*words)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("text", "publish\n    agent\\.build\\.c9\\.[A-Za-z0-9_-]+\n"),
        ("rabbitmqctl", 'set_user_limits berth-c9 \'{"max-connections": 100, "max-channels": 2000}\''),
        ("json", '"user": "berth-c9"'),
    ],
)
def test_permissions_are_printed_for_people_shells_and_programs(form: str, says: str) -> None:
    result = CliRunner().invoke(app, ["cell", "permissions", "c9", "--as", form])
    assert (result.exit_code, says in result.output) == (0, True), result.output


@pytest.mark.parametrize(
    ("side", "says", "policies"), [("middle", "host.failed.c9", 1), ("own", "build.placed.c9", 0)]
)
def test_the_permissions_of_both_ferry_users_are_printed(side: str, says: str, policies: int) -> None:
    result = CliRunner().invoke(app, ["cell", "permissions", "c9", "--ferry", side, "--as", "json"])
    made = json.loads(result.stdout)
    (keys,) = [one for one in made["topic_permissions"] if one["exchange"] == "berth"]
    assert keys["user"] == "berth-c9.ferry" and re.match(keys["write"], says)
    assert len(made["policies"]) == policies


@pytest.mark.parametrize("name", ["-c2", "-", "", "c.2", "c2\n"])
def test_cell_names_that_equal_other_addresses_are_refused(name: str) -> None:
    with pytest.raises(BadSetting, match=r"edit\.cell"):
        check_name(name)
