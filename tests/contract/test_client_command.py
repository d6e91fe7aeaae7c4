"""`berth client add` and `remove`: the user, its password and its projects, and what a failed step leaves."""

import asyncio
import io
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from berth import broker_users, wiring
from berth.commands.cell_permissions import BrokerTool
from berth.commands.clients import PASSWORD, NewClient, add, given_password, remove
from berth.commands.terminal import Cli
from berth.operations.publishing import checked
from berth.settings import BadSetting, Settings
from bus import topics
from bus.clients import ClientEditAnswered, ClientEditRequested, ClientsFound, FindClients, RegisteredClient
from bus.delivery.runner import Bus
from bus.errors import BrokerRefused, OperationRefused
from bus.local import LocalBroker, LocalTransport
from bus.rabbit import inspection
from bus.worker import Worker, answers
from tests.support.command_line import plainly

SETTINGS = Settings().having(amqp_url="amqp://guest:guest@mq/", cells=("c1",))
USER = "berth.client.shop"


class FakeBroker:
    by = "a fake"
    refuses = False

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.closed: list[str] = []

    async def users(self) -> set[str]:
        return set(self.known)

    async def take(self, definitions: Mapping[str, Any]) -> None:
        if self.refuses:
            raise BrokerRefused("no")
        self.known |= {one["name"]: one["password_hash"] for one in definitions["users"]}

    async def drop(self, user: str, *policies: str) -> None:
        if self.known.pop(user, None):
            self.closed.append(user)

    async def queues(self) -> list[str]:
        return ["client.shop.1", "client.shop2.1", "scheduler:client.+"]


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
        return ClientEditAnswered(
            before=RegisteredClient(name=order.client, projects=before) if before else None
        )

    async def find(self, question: FindClients) -> ClientsFound:
        found = [project for project in self.projects if not question.names or project in question.names]
        return ClientsFound(
            clients=tuple(RegisteredClient(name=one, projects=self.projects[one]) for one in found)
        )

    async def add(self, *projects: str, file: bool = False, **given: Any) -> str:
        out = io.StringIO()
        order = ClientEditRequested(client="shop", projects=projects)
        what = NewClient(SETTINGS, order, url_file=self.file if file else None, **given)
        assert await plainly(add(Cli(SETTINGS, False, Console(file=out, width=300)), what, BrokerTool())) == 0
        return out.getvalue()

    async def remove(self) -> None:
        order, out = ClientEditRequested(client="shop"), Console(file=io.StringIO())
        assert await plainly(remove(Cli(SETTINGS, False, out), order, BrokerTool())) == 0


@pytest.fixture
async def clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Clients]:
    bus, broker, stopping = LocalBroker(), FakeBroker(), asyncio.Event()
    made = Clients(broker, tmp_path)

    async def fake(*_: Any) -> FakeBroker:
        return broker

    async def deleted(url: str, names: Sequence[str], **_: Any) -> list[str]:
        made.deleted += names
        return []

    monkeypatch.setattr(broker_users, "broker_users", fake)
    monkeypatch.setattr(wiring, "transport", lambda settings, name: LocalTransport(bus))
    monkeypatch.setattr(inspection, "delete_queues", deleted)
    rows = [answers(topics.EDIT_CLIENT, made.edit), answers(topics.CLIENTS, made.find)]
    async with Bus(LocalTransport(bus)) as own, asyncio.TaskGroup() as running:
        running.create_task(own.serve(Worker("scheduler", answers=rows), stopping))
        yield made
        stopping.set()


async def test_a_new_clients_password_is_printed_once(clients: Clients) -> None:
    printed = await clients.add("web")
    assert f"amqp://{USER}:" in printed
    before = clients.broker.known[USER]
    assert "amqp://" not in await clients.add("web", "batch")
    assert clients.projects == {"shop": ("web", "batch")}
    assert clients.broker.known[USER] == before


async def test_the_url_goes_to_a_file_that_only_its_owner_can_read(clients: Clients) -> None:
    assert "amqp://" not in await clients.add("web", file=True)
    assert stat.S_IMODE(clients.file.stat().st_mode) == 0o600
    assert urlsplit(clients.file.read_text()).username == USER
    with pytest.raises(OperationRefused, match="--rotate makes a new one"):
        await clients.add("web", file=True)


async def test_agiven_password_is_not_printed(clients: Clients) -> None:
    assert "correct-horse" not in await clients.add("web", password="correct-horse-battery")


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
async def test_a_step_that_fails_undoes_those_before_it(clients: Clients, before: tuple[str, ...]) -> None:
    if before:
        await clients.add(*before)
    known, clients.broker.refuses = dict(clients.broker.known), True
    with pytest.raises(BrokerRefused):
        await clients.add("web")
    assert clients.projects == ({"shop": before} if before else {})
    assert clients.broker.known == known


async def test_a_removal_ends_its_user_and_its_own_queues_only(clients: Clients) -> None:
    await clients.add("web")
    await clients.remove()
    assert (clients.projects, clients.broker.known, clients.deleted) == ({}, {}, ["client.shop.1"])
    with pytest.raises(OperationRefused, match="not registered"):
        await clients.remove()


@pytest.mark.parametrize("name", ["", "c1.ferry", "a_b", "-x", "x" * 33, "a b", "shop.1", "ä"])
def test_a_name_that_might_be_of_another_is_refused(name: str) -> None:
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
