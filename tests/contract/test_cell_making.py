"""`berth cell create` and `delete` can be repeated: user, password and cell stay the same."""

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from berth.cell_file import password_of, read_cell_file
from berth.commands import cell_making
from berth.commands.cell_ending import AgentOptions, add_agent, remove, remove_agent
from berth.commands.cell_making import CellOptions, NewCell, add
from berth.commands.cell_permissions import ferry_user_of, user_of
from berth.kit.broker_users import BrokerTool
from berth.kit.dry_run import ActCli
from berth.kit.terminal import Cli
from berth.settings import BadSetting, Settings
from bus import topics
from bus.errors import OperationRefused, Unavailable
from bus.removed_agents import AgentEditAnswered, AgentEditRequested
from bus.worker import Worker, answers
from placement_worker import Placement
from tests.support.broker_fakes import SETTINGS, FakeBroker, replace_broker
from tests.support.buses import Connect, serving
from tests.support.command_line import plainly
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, silent_placement


class Making:
    def __init__(self, placement: Placement, broker: FakeBroker, directory: Path) -> None:
        self.placement = placement
        self.broker = broker
        self.file = directory / "c9.toml"
        self.deleted: list[str] = []

    async def add(
        self, *, ends: int = 0, settings: Settings = SETTINGS, cell: str = "c9", **reply: Any
    ) -> str:
        sent = io.StringIO()
        what = NewCell(settings, cell, CellOptions(file=self.file, **reply))
        out = Console(file=sent, width=200)
        assert await plainly(add(Cli(settings, False, out), what, BrokerTool())) == ends
        return sent.getvalue()

    async def remove(self, *, force: bool = False, keep_user: bool = False, dry_run: bool = False) -> str:
        sent = io.StringIO()
        cli = ActCli(SETTINGS, False, Console(file=sent, width=200), dry_run=dry_run)
        await plainly(remove(cli, "c9", force, False, keep_user, tool=BrokerTool()))
        return sent.getvalue()

    @property
    def password(self) -> str:
        found = read_cell_file(self.file, "c9")
        assert found is not None
        return password_of(found.broker, "berth-c9")


@pytest.fixture
async def making(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Making]:
    broker = FakeBroker(
        "conductor.c9:agent.report.c9", "ask:placement.claim.c9", "conductor.c91:x", "ask:cell.builds.c1"
    )
    async with a_placement("sqlite+aiosqlite://", inline=True) as placement:
        made = Making(placement, broker, tmp_path)
        connect = replace_broker(monkeypatch, broker, made.deleted)
        async with serving(connect, silent_placement(placement)):
            yield made


@pytest.mark.parametrize(
    ("name", "user"), [("c1-ferry", "berth-c1-ferry"), ("c1", "berth-c1"), ("ferry", "berth-ferry")]
)
def test_no_cell_has_the_same_user_as_a_ferry(name: str, user: str) -> None:
    assert user_of(SETTINGS, name) == user
    assert user not in {ferry_user_of(SETTINGS, cell) for cell in ("c1", "c1-ferry", "ferry")}


@pytest.mark.parametrize(("length", "fits"), [(57, True), (58, False), (64, False)])
async def test_a_name_too_long_for_postgresql_is_refused_before_anything_is_created(
    making: Making, length: int, fits: bool
) -> None:
    settings = SETTINGS.having(database_url="postgresql://u:p@127.0.0.1:9/berth")
    refused = "Connect call failed" if fits else "take a name of at most 57 characters"
    with pytest.raises((BadSetting, Unavailable), match=refused):
        await making.add(settings=settings, cell="c" * length)
    assert not making.file.exists() and not making.broker.known


async def test_a_failed_step_removes_a_new_cell_and_leaves_an_existing_one(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> bool:
        raise Unavailable("placement")

    with monkeypatch.context() as patch:
        patch.setattr(cell_making, "_reaches_placement", fail)
        with pytest.raises(Unavailable):
            await making.add()
        assert not making.file.exists() and not making.broker.known
    await making.add()
    monkeypatch.setattr(cell_making, "_reaches_placement", fail)
    password = making.password
    with pytest.raises(Unavailable):
        await making.add()
    assert making.password == password and set(making.broker.known) == {"berth-c9"}


async def test_a_lost_password_is_replaced_only_on_request(making: Making) -> None:
    await making.add()
    before = making.password
    making.file.unlink()
    refused = r"berth-c9 is there already, and .* does not have its password"
    with pytest.raises(OperationRefused, match=refused):
        await making.add()
    assert not making.file.exists()
    await making.add(rotate=True)
    after = making.password
    await making.add(rotate=True)
    assert len({before, after, making.password}) == 3


async def test_a_placement_that_does_not_receive_the_registration_is_reported(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(*_: Any) -> bool:
        return False

    monkeypatch.setattr(cell_making, "_reaches_placement", deaf)
    assert "and placement consumes its reports" not in await making.add(ends=1)


async def test_only_an_empty_cell_is_removed_together_with_its_queues(making: Making) -> None:
    await making.add()
    await making.placement.reports.report_many([a_report(1, cell="c9")], cell="c9")
    await claim(making.placement, an_order(a_claim(1, on_hosts(1))))
    for dry_run in (True, False):
        with pytest.raises(OperationRefused, match=r"is not empty: 1 consumer.*disable c9 --wait"):
            await making.remove(dry_run=dry_run)
    would = (await making.remove(force=True, dry_run=True)).splitlines()
    assert would[0].endswith(
        "its 1 host would be deleted, and its registration; 1 instance would stay until released"
    )
    assert would[1].endswith(": berth-c9") and would[2] == "cell c9: 2 queues would be deleted"
    assert making.placement.memory.index.cell_facts and not making.deleted
    assert "berth-c9" in making.broker.known  # nothing was removed
    reply = await making.remove(force=True)
    assert "RabbitMQ user berth-c9 is deleted" in reply and "its hosts are deleted" in reply
    assert not making.broker.known and not making.placement.memory.index.cell_facts
    assert making.deleted == ["conductor.c9:agent.report.c9", "ask:placement.claim.c9"]
    assert "it was not registered" in await making.remove(force=True)


async def test_the_removal_of_a_cell_can_keep_the_broker_user(making: Making) -> None:
    await making.add()
    await making.remove(keep_user=True)
    assert "berth-c9" in making.broker.known and not making.deleted


AGENT_USER, AGENT_QUEUE = "berth-c9.agent.a1", "agent.c9.a1:agent.build.c9.a1"


class ManagedAgents:
    def __init__(self, connect: Connect, broker: FakeBroker, directory: Path, deleted: list[str]) -> None:
        self.connect = connect
        self.broker = broker
        self.file = directory / "a1.toml"
        self.deleted = deleted
        self.edits: list[str] = []

    async def edit(self, request: AgentEditRequested) -> AgentEditAnswered:
        self.edits.append(f"{request.edit} {request.agent}")
        return AgentEditAnswered(assumed=4 if request.edit == "restore" and len(self.edits) > 1 else 0)

    def conductor(self) -> Worker:
        return Worker("conductor.c9", answers=[answers(topics.EDIT_AGENT, self.edit, cell="c9")])

    async def add(self) -> str:
        out = io.StringIO()
        cli, options = Cli(SETTINGS, False, Console(file=out, width=300)), AgentOptions(file=self.file)
        await plainly(add_agent(cli, "c9", "a1", options, tool=BrokerTool()))
        return out.getvalue()

    async def remove(self, *, no_user: bool = False, dry_run: bool = False) -> str:
        out = io.StringIO()
        cli = ActCli(SETTINGS, False, Console(file=out, width=300), dry_run=dry_run)
        await plainly(remove_agent(cli, "c9", "a1", no_user, tool=BrokerTool()))
        return out.getvalue()


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ManagedAgents:
    broker, deleted = FakeBroker(AGENT_QUEUE, "agent.c9.a11:agent.build.c9.a11"), list[str]()
    return ManagedAgents(replace_broker(monkeypatch, broker, deleted), broker, tmp_path, deleted)


async def test_a_removed_agent_loses_its_user_its_queues_and_its_orders(agents: ManagedAgents) -> None:
    async with (
        a_placement("sqlite+aiosqlite://") as placement,
        serving(agents.connect, agents.conductor(), silent_placement(placement)),
    ):
        assert "assumed" not in await agents.add()
        would = (await agents.remove(dry_run=True)).splitlines()
        assert would[0].startswith(f"agent a1 of cell c9: RabbitMQ user {AGENT_USER} would be deleted, by ")
        assert would[1:] == [
            "agent a1 of cell c9: 1 queue of its would be deleted",
            "agent a1 of cell c9: its conductor would end its orders on 0 hosts",
        ]
        assert (agents.deleted, agents.edits) == ([], ["restore a1"])
        reply = await agents.remove()
        assert "1 queues of its with 1 messages are deleted" in reply and "ends its orders" in reply
        assert (agents.broker.closed, agents.deleted) == ([AGENT_USER], [AGENT_QUEUE])
        assert agents.edits == ["restore a1", "remove a1"]
        with pytest.raises(OperationRefused, match=r"no RabbitMQ user berth-c9.agent.a1: .* --no-user"):
            await agents.remove()
        await agents.remove(no_user=True)
        assert "4 of its guests were assumed to be destroyed" in await agents.add()


async def test_a_removal_that_the_cell_did_not_receive_is_reported(agents: ManagedAgents) -> None:
    assert "The conductor of c9 did not answer" in await agents.add()
    with pytest.raises(
        OperationRefused, match=r"orders continue, because the cell did not answer.*--no-user"
    ):
        await agents.remove()
    assert agents.broker.closed == [AGENT_USER]
