"""`berth cell add` and `remove` can be repeated: user, password and cell stay the same."""

import io
import re
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from berth import broker_inspection, broker_users, composition
from berth.broker_inspection import DeletedQueues
from berth.cell_file import password_of, read_cell_file
from berth.commands import cell_making
from berth.commands.cell_ending import AgentOptions, add_agent, remove, remove_agent
from berth.commands.cell_making import CellOptions, NewCell, add
from berth.commands.cell_permissions import BrokerTool, ferry_user_of, user_of
from berth.commands.clients import PASSWORD, ClientOptions, given_password, permit
from berth.commands.clients import add as add_client
from berth.commands.clients import remove as remove_client
from berth.commands.terminal import Cli
from berth.operations.publishing import checked
from berth.settings import BadSetting, Settings
from bus import topics
from bus.clients import ClientEditAnswered, ClientEditRequested, ClientsFound, FindClients, RegisteredClient
from bus.errors import BrokerRefused, OperationRefused, Unavailable
from bus.leases import AgentEditAnswered, AgentEditRequested
from bus.local import LocalBroker, LocalTransport
from bus.worker import Worker, answers
from placement_worker import Placement
from tests.support.buses import Connect, serving
from tests.support.command_line import plainly
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, silent_placement

SETTINGS = Settings().having(amqp_url="amqp://guest:guest@mq/", cells=("c1",))


class FakeBroker:
    by = "a fake"
    refuses = False

    def __init__(self, *queues: str) -> None:
        self.known: dict[str, str] = {}
        self.closed: list[str] = []
        self.may_write: dict[str, str] = {}
        self.exchanges: list[str] = []
        self.forwarding = ("client.shop.4", "client.shop2.4")
        self._queues = queues

    async def users(self) -> set[str]:
        return set(self.known)

    async def take(self, definitions: Mapping[str, Any]) -> None:
        if self.refuses:
            raise BrokerRefused("no")
        self.known |= {definition["name"]: definition["password_hash"] for definition in definitions["users"]}
        self.may_write |= {each["user"]: each["write"] for each in definitions["permissions"]}

    async def drop(self, user: str, *policies: str) -> None:
        if self.known.pop(user, None):
            self.closed.append(user)

    async def queues(self) -> list[str]:
        return list(self._queues)

    async def writers(self) -> dict[str, str]:
        return self.may_write

    async def forwarders(self) -> tuple[list[str], list[str]]:
        return self.exchanges, list(self.forwarding)

    async def close_connections(self, user: str) -> None:
        self.closed.append(user)


def replace_broker(patch: pytest.MonkeyPatch, broker: FakeBroker, deleted: list[str]) -> Connect:
    """Make the commands use a fake of RabbitMQ's users and queues, and return connections to a local bus."""
    local = LocalBroker()

    async def fake(*_: Any) -> FakeBroker:
        return broker

    async def delete(url: str, names: Sequence[str], **_: Any) -> DeletedQueues:
        deleted.extend(names)
        return DeletedQueues(messages=len(names))

    patch.setattr(broker_users, "broker_users", fake)
    patch.setattr(broker_inspection, "delete_queues", delete)
    patch.setattr(broker_inspection, "delete_exchanges", delete)
    patch.setattr(composition, "transport", lambda settings, name: LocalTransport(local))
    return lambda: LocalTransport(local)


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

    async def remove(self, *, force: bool = False, keep_user: bool = False) -> str:
        sent = io.StringIO()
        cli = Cli(SETTINGS, False, Console(file=sent, width=200))
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


async def test_adding_a_cell_again_repairs_missing_parts(making: Making) -> None:
    reply = await making.add(note="rack 7")
    assert "RabbitMQ user berth-c9, by a fake" in reply and "has its secrets" in reply
    assert "registered, and placement consumes its reports" in reply
    password = making.password
    assert len(password) >= 32 and password not in reply
    assert password not in making.broker.known["berth-c9"]
    again = await making.add()
    assert "has as before its secrets" in again and making.password == password
    assert making.placement.memory.index.cell_facts["c9"].note == "rack 7"
    making.broker.known.clear()
    await making.add(disabled=True)
    assert making.broker.known.keys() == {"berth-c9"} and making.password == password
    assert not making.placement.memory.index.cell_facts["c9"].enabled


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
    with pytest.raises(OperationRefused, match=r"is not empty: 1 consumer.*drain c9 --wait"):
        await making.remove()
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

    async def remove(self, *, no_user: bool = False) -> str:
        out = io.StringIO()
        cli = Cli(SETTINGS, False, Console(file=out, width=300))
        await plainly(remove_agent(cli, "c9", "a1", no_user, tool=BrokerTool()))
        return out.getvalue()


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ManagedAgents:
    broker, deleted = FakeBroker(AGENT_QUEUE, "agent.c9.a11:agent.build.c9.a11"), list[str]()
    return ManagedAgents(replace_broker(monkeypatch, broker, deleted), broker, tmp_path, deleted)


async def test_a_removed_agent_loses_its_user_its_queues_and_its_orders(agents: ManagedAgents) -> None:
    async with serving(agents.connect, agents.conductor()):
        assert "assumed" not in await agents.add()
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


USER = "berth.client.shop"


class Clients:
    def __init__(self, broker: FakeBroker, directory: Path) -> None:
        self.broker = broker
        self.file = directory / "shop.url"
        self.projects: dict[str, tuple[str, ...]] = {}
        self.deleted: list[str] = []

    async def edit(self, order: ClientEditRequested) -> ClientEditAnswered:
        before = self.projects.pop(order.client, None)
        if order.projects:
            self.projects[order.client] = order.projects
        known = RegisteredClient(name=order.client, projects=before) if before else None
        return ClientEditAnswered(before=known)

    async def find(self, question: FindClients) -> ClientsFound:
        found = [name for name in self.projects if not question.names or name in question.names]
        rows = (RegisteredClient(name=name, projects=self.projects[name]) for name in found)
        return ClientsFound(clients=tuple(rows))

    async def add(self, *projects: str, file: bool = False, **given: Any) -> str:
        out = io.StringIO()
        options = ClientOptions(project=list(projects), url_file=self.file if file else None, **given)
        cli = Cli(SETTINGS, False, Console(file=out, width=300))
        await plainly(add_client(cli, "shop", options, tool=BrokerTool()))
        return out.getvalue()

    async def permit(self, *names: str, former: bool = False) -> str:
        out = io.StringIO()
        cli = Cli(SETTINGS, False, Console(file=out, width=300))
        await plainly(permit(cli, list(names), former, tool=BrokerTool()))
        return out.getvalue()

    async def remove(self) -> None:
        cli = Cli(SETTINGS, False, Console(file=io.StringIO()))
        await plainly(remove_client(cli, "shop", tool=BrokerTool()))


@pytest.fixture
async def clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Clients]:
    broker = FakeBroker("client.shop.1", "client.shop2.1", "scheduler:client.+")
    made = Clients(broker, tmp_path)
    rows = [answers(topics.EDIT_CLIENT, made.edit), answers(topics.CLIENTS, made.find)]
    connect = replace_broker(monkeypatch, broker, made.deleted)
    async with serving(connect, Worker("scheduler", answers=rows)):
        yield made


async def test_a_new_clients_password_is_printed_once(clients: Clients) -> None:
    printed = await clients.add("web")
    assert f"amqp://{USER}:" in printed
    before = clients.broker.known[USER]
    assert "amqp://" not in await clients.add("web", "batch")
    assert clients.projects == {"shop": ("web", "batch")}
    assert clients.broker.known[USER] == before


async def test_the_url_is_written_to_a_private_file(clients: Clients) -> None:
    assert "amqp://" not in await clients.add("web", file=True)
    assert stat.S_IMODE(clients.file.stat().st_mode) == 0o600
    assert urlsplit(clients.file.read_text()).username == USER
    with pytest.raises(OperationRefused, match="--rotate makes a new one"):
        await clients.add("web", file=True)


async def test_a_given_password_is_not_printed(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "correct-horse-battery")
    assert "correct-horse" not in await clients.add("web")


async def test_a_rotation_closes_the_connections_of_the_old_password(clients: Clients) -> None:
    await clients.add("web")
    before = clients.broker.known[USER]
    assert f"amqp://{USER}:" in await clients.add("web", rotate=True)
    assert clients.broker.closed == [USER]
    assert clients.broker.known[USER] != before


async def test_a_user_of_no_registered_client_is_not_taken(clients: Clients) -> None:
    clients.broker.known[USER] = "another's"
    with pytest.raises(OperationRefused, match="of no registered client"):
        await clients.add("web")
    assert (clients.broker.known, clients.projects) == ({USER: "another's"}, {})


@pytest.mark.parametrize("before", [(), ("old",)], ids=["new", "registered"])
async def test_a_failed_step_undoes_the_previous_steps(clients: Clients, before: tuple[str, ...]) -> None:
    if before:
        await clients.add(*before)
    known, clients.broker.refuses = dict(clients.broker.known), True
    with pytest.raises(BrokerRefused):
        await clients.add("web")
    assert clients.projects == ({"shop": before} if before else {})
    assert clients.broker.known == known


def may_write(clients: Clients, exchange: str) -> bool:
    return re.search(clients.broker.may_write[USER], exchange) is not None


async def test_a_client_may_write_to_the_exchange_of_clients_only(clients: Clients) -> None:
    await clients.add("web")
    assert may_write(clients, "berth.clients")
    assert not any(may_write(clients, f"berth{other}") for other in ("", ".queues", ".delay", ".dead"))


async def test_a_client_with_former_permissions_keeps_them_until_it_is_permitted_anew(
    clients: Clients,
) -> None:
    await clients.add("web")
    assert "may still publish" in await clients.permit(former=True)
    assert may_write(clients, "berth") and may_write(clients, "berth.clients")
    assert "berth client permit shop" in await clients.add("web", "batch")
    assert may_write(clients, "berth") and clients.broker.closed == []
    await clients.permit("shop")
    assert not may_write(clients, "berth")
    assert clients.broker.closed == [USER]


async def test_permissions_made_anew_delete_what_forwards_messages(clients: Clients) -> None:
    await clients.add("web")
    await clients.permit(former=True)
    clients.broker.exchanges = ["berth", "client.shop.3", "client.shop2.3"]
    await clients.permit()
    assert clients.deleted == ["client.shop.3", "client.shop.4"]
    await clients.permit()
    assert clients.broker.closed == [USER], "it had nothing left to lose"


async def test_permissions_of_an_unknown_client_are_refused(clients: Clients) -> None:
    with pytest.raises(OperationRefused, match="client shop is not registered"):
        await clients.permit("shop")


async def test_a_removal_deletes_the_user_and_the_queues_of_the_client(clients: Clients) -> None:
    await clients.add("web")
    await clients.remove()
    assert (clients.projects, clients.broker.known, clients.deleted) == ({}, {}, ["client.shop.1"])
    with pytest.raises(OperationRefused, match="not registered"):
        await clients.remove()


@pytest.mark.parametrize("name", ["", "c1.ferry", "a_b", "-x", "x" * 33, "a b", "shop.1", "ä"])
def test_an_invalid_client_name_is_refused(name: str) -> None:
    with pytest.raises(BadSetting, match="client"):
        checked(ClientEditRequested(client=name, projects=("p",)))


@pytest.mark.parametrize("text", ["short", "with a tab\tin the middle", "ümlaut-password"])
def test_a_password_that_cannot_be_used_is_refused_without_naming_it(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, text)
    with pytest.raises(BadSetting) as refused:
        given_password(None)
    assert text not in str(refused.value)


def test_the_password_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "from-the-environment")
    assert given_password(None) == "from-the-environment"
    file = tmp_path / "password"
    file.write_text("from-the-file\n")
    assert given_password(file) == "from-the-file"
