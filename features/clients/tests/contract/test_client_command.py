"""`berth access client create`, `permit` and `delete` can be repeated: user, password and projects stay the
same.
"""

import io
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from berth.kit import ActCli, BadSetting, BrokerTool, checked
from bus.errors import BrokerRefused, OperationRefused
from bus.worker import Worker, answers
from features.clients.commands import PASSWORD, ClientOptions, add, given_password, permit, remove
from features.clients.messages import (
    CLIENTS,
    EDIT_CLIENT,
    ClientEditAnswered,
    ClientEditRequested,
    ClientsFound,
    FindClients,
    RegisteredClient,
)
from tests.support.broker_fakes import SETTINGS, FakeBroker, replace_broker
from tests.support.buses import serving
from tests.support.command_line import plainly

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
        cli = ActCli(SETTINGS, False, Console(file=out, width=300))
        await plainly(add(cli, "shop", options, tool=BrokerTool()))
        return out.getvalue()

    async def permit(self, *names: str) -> None:
        cli = ActCli(SETTINGS, False, Console(file=io.StringIO()))
        await plainly(permit(cli, list(names), tool=BrokerTool()))

    async def remove(self, *, dry_run: bool = False) -> str:
        out = io.StringIO()
        cli = ActCli(SETTINGS, False, Console(file=out, width=300), dry_run=dry_run)
        await plainly(remove(cli, "shop", tool=BrokerTool()))
        return out.getvalue()


@pytest.fixture
async def clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Clients]:
    broker = FakeBroker("client.shop.1", "client.shop2.1", "scheduler:client.+")
    made = Clients(broker, tmp_path)
    rows = [answers(EDIT_CLIENT, made.edit), answers(CLIENTS, made.find)]
    connect = replace_broker(monkeypatch, broker, made.deleted)
    async with serving(connect, Worker("scheduler", answers=rows)):
        yield made


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


@pytest.mark.parametrize("names", [(), ("shop",)], ids=["all", "named"])
async def test_permissions_of_another_version_are_made_anew(clients: Clients, names: tuple[str, ...]) -> None:
    await clients.add("web")
    before = clients.broker.known[USER]
    clients.broker.may_write[USER] = "^berth$"
    await clients.permit(*names)
    assert may_write(clients, "berth.clients") and not may_write(clients, "berth")
    assert clients.broker.known[USER] == before, "its password stays"


async def test_permissions_of_an_unknown_client_are_refused(clients: Clients) -> None:
    with pytest.raises(OperationRefused, match="client shop is not registered"):
        await clients.permit("shop")


async def test_a_removal_deletes_the_user_and_the_queues_of_the_client(clients: Clients) -> None:
    await clients.add("web")
    would = await clients.remove(dry_run=True)
    assert would.startswith("client shop would be removed: RabbitMQ user berth.client.shop, by ")
    assert would.endswith("; 1 queues\n")
    assert (clients.projects, [*clients.broker.known], clients.deleted) == ({"shop": ("web",)}, [USER], [])
    await clients.remove()
    assert (clients.projects, clients.broker.known, clients.deleted) == ({}, {}, ["client.shop.1"])
    for dry_run in (True, False):
        with pytest.raises(OperationRefused, match="not registered"):
            await clients.remove(dry_run=dry_run)


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
