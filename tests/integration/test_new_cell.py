"""A cell from its beginning to its end on a real RabbitMQ and PostgreSQL, while all else runs on as it is."""

import asyncio
import io
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pika
import pytest
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker, NackError
from rich.console import Console
from sqlalchemy.engine import make_url

from berth import composition, worker_roles
from berth.commands.cell_ending import AgentOptions, add_agent, remove
from berth.commands.cell_making import CellOptions, NewCell, add
from berth.commands.cells import disable_command, enable_command
from berth.configuration import read
from berth.kit.broker_users import BrokerTool
from berth.kit.dry_run import ActCli
from berth.kit.terminal import Cli
from berth.settings import Settings
from bus import topics
from bus.cells import FindCells
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.queries import FindDecision
from bus.requests import Flavor
from bus.resources import FindProviders
from deploy.servers import RabbitMQ
from features.shared_queues.messages import HEARTBEATS_MERGED
from features.what_if.messages import WHAT_IF, WhatIf
from tests.support.ids import uid
from tests.support.request_parts import with_parts
from tests.support.servers import ExternalServer, rabbitmqctl_in
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

CELL, AGENT = "c9", "c9-agent1"


@dataclass
class CellMakersSite:
    settings: Settings
    rabbitmqctl: str
    bus: Bus
    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / "c9.toml"

    async def add(self, **limits: int) -> str:
        sent = io.StringIO()
        what = NewCell(self.settings.having(cell_limits=limits), CELL, CellOptions(file=self.file))
        tool = BrokerTool(rabbitmqctl=self.rabbitmqctl)
        assert await add(Cli(self.settings, False, Console(file=sent)), what, tool) == 0
        return sent.getvalue()

    async def add_agent(self, name: str) -> Settings:
        """Create the agent's user, and return the settings that its file makes."""
        file, quiet = self.directory / f"{name}.toml", Console(file=io.StringIO())
        cli, tool = ActCli(self.settings, False, quiet), BrokerTool(rabbitmqctl=self.rabbitmqctl)
        await add_agent(cli, CELL, name, AgentOptions(file=file), tool=tool)
        flags = {
            "simulator.hosts": 2,
            "simulator.build_time": "constant:0.01",
            "state_dir": str(self.directory / name),
        }
        return read(file=file, environment={}, flags=flags).settings

    async def boot(self, number: int, wait: str = "") -> BuildEnded | BuildUnplaceable:
        mine = f"b{number}"
        ends = await self.bus.listen(topics.BUILD_ENDED.at(cell=CELL, reply_to=mine))
        none = await self.bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=mine))
        await self.bus.publish(a_boot(number, reply_to=mine, wait=wait))
        async with asyncio.timeout(60):
            waiting = {asyncio.create_task(one.get()) for one in (ends, none)}
            done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        reply = done.pop().result()
        assert isinstance(reply, BuildEnded | BuildUnplaceable)
        return reply

    async def delete(self, number: int) -> None:
        gone = await self.bus.listen(topics.BUILD_DELETED.at(cell=CELL, reply_to=f"d{number}"))
        await self.bus.publish(BuildDeleteRequested(build=uid(number), cell=CELL, reply_to=f"d{number}"))
        async with asyncio.timeout(60):
            await gone.get()


@pytest.fixture
async def site(
    rabbitmq: RabbitMQ | ExternalServer, amqp_url: str, bus_name: str, database_url: str, tmp_path: Path
) -> AsyncIterator[CellMakersSite]:
    if isinstance(rabbitmq, ExternalServer):
        pytest.skip("users are made with rabbitmqctl, and an external broker was given")
    control = rabbitmqctl_in(tmp_path, rabbitmq)
    settings = Settings().having(
        cells=("c1",),
        simulator={"hosts": 1},
        amqp_url=amqp_url,
        exchange=bus_name,
        database_url=database_url,
        state_dir=str(tmp_path / "state"),
    )
    roles = [worker_roles.Role("placement"), worker_roles.Role("scheduler")]
    async with at_work(settings, *roles), Bus(composition.transport(settings, "test")) as bus:
        await bus.asker(topics.PROVIDERS, timeout=30.0)(FindProviders(limit=1))
        yield CellMakersSite(settings, str(control), bus, tmp_path)


@asynccontextmanager
async def at_work(settings: Settings, *roles: worker_roles.Role) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(stopping.set)
        for role in roles:
            way = composition.transport(settings, str(role), role.cell)
            group.create_task(composition.serve([role], settings, way, stopping))
        yield


async def test_a_cell_is_created_used_disabled_enabled_emptied_and_deleted(site: CellMakersSite) -> None:
    reply = await site.add()
    own = read(file=site.file, environment={}).settings
    of_agent = await site.add_agent(AGENT)
    assert stat.S_IMODE(site.file.stat().st_mode) == 0o600
    secrets = {make_url(url).password for url in (own.bus.amqp_url, own.database.url)}
    assert len(secrets) == 2 and not any(str(secret) in reply for secret in secrets)
    assert site.settings.database.url not in site.file.read_text()

    own = own.having(state_dir=str(site.directory / "cell"))
    conductor, agent = worker_roles.Role("conductor", CELL), worker_roles.Role("compute", CELL, AGENT)
    async with at_work(own, conductor), at_work(of_agent, agent):
        await until(lambda: fits(site))
        before = site.file.read_text()
        await site.add()
        assert site.file.read_text() == before
        end = await site.boot(1)
        assert isinstance(end, BuildEnded) and (end.status, end.cell) == ("active", CELL)

        quiet = Console(file=io.StringIO())
        await disable_command(ActCli(site.settings, False, quiet), CELL, None, False, None)
        await until(lambda: fits(site, False))
        refused = await site.boot(2)
        assert isinstance(refused, BuildUnplaceable) and refused.decision.code == "cell_disabled"
        why = await site.bus.asker(topics.DECISION)(FindDecision(id=uid(2)))
        assert f"in a disabled cell ({CELL}): 2 hosts" in why.reason

        waiting = asyncio.create_task(site.boot(3, wait="1m"))
        await until(lambda: waits(site))
        await enable_command(ActCli(site.settings, False, quiet), CELL, None)
        woken = await waiting
        assert isinstance(woken, BuildEnded) and woken.status == "active"

        assert await disable_command(ActCli(site.settings, False, quiet), CELL, None, True, 0.0) == 1
        await site.delete(1)
        await site.delete(3)
        assert await disable_command(ActCli(site.settings, False, quiet), CELL, None, True, 30) == 0
    sent = io.StringIO()
    await remove(
        ActCli(site.settings, False, Console(file=sent, width=200)),
        CELL,
        False,
        True,
        False,
        tool=BrokerTool(rabbitmqctl=site.rabbitmqctl),
    )
    assert "still read" not in sent.getvalue()
    found = await site.bus.asker(topics.CELLS)(FindCells())
    assert (found.cells, (await site.bus.asker(topics.PROVIDERS)(FindProviders())).providers) == ((), ())
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(own.bus.amqp_url))
    with pytest.raises(AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(of_agent.bus.amqp_url))
    with pytest.raises(asyncpg.PostgresError):
        await asyncpg.connect(_dsn(own.database.url))


@pytest.mark.soak
async def test_agents_that_share_queues_need_no_more_than_the_permissions_of_their_users(
    site: CellMakersSite,
) -> None:
    site.settings = site.settings.having(agent_queues="shared")
    await site.add()
    of_cell = read(file=site.file, environment={}).settings.having(state_dir=str(site.directory / "cell"))
    of_agent = await site.add_agent(AGENT)
    assert (of_cell.cells.agent_queues, of_agent.cells.agent_queues) == ("shared", "shared")
    beats = await site.bus.listen(HEARTBEATS_MERGED.at(cell=CELL))
    conductor, agent = worker_roles.Role("conductor", CELL), worker_roles.Role("compute", CELL, AGENT)
    async with at_work(of_cell, conductor), at_work(of_agent, agent):
        await until(lambda: fits(site))
        end = await site.boot(1)
        assert isinstance(end, BuildEnded) and (end.status, end.cell) == ("active", CELL)
        await site.delete(1)
        async with asyncio.timeout(60):
            assert {report.agent for report in (await beats.get()).reports} == {AGENT}


async def test_a_cell_uses_no_more_connections_channels_and_bytes_than_its_limits(
    site: CellMakersSite,
) -> None:
    await site.add(connections=3, channels=10, queue_bytes=1024**2, database_connections=5)
    own = read(file=site.file, environment={}).settings
    broker, login = pika.URLParameters(own.bus.amqp_url), _dsn(own.database.url)
    with ExitStack() as opened:
        connections = [opened.enter_context(pika.BlockingConnection(broker)) for _ in range(3)]
        with pytest.raises(AMQPConnectionError):
            opened.enter_context(pika.BlockingConnection(broker))
        channel = connections[0].channel()
        channel.confirm_delivery()
        queue = f"{own.bus.exchange}:conductor.{CELL}:build.placed.{CELL}"
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
        channel.queue_bind(queue, f"{own.bus.exchange}.queues", f"*.{queue}")
        with pytest.raises(NackError):
            for _ in range(40):
                channel.basic_publish(f"{own.bus.exchange}.queues", f"0.{queue}", b" " * 100_000)
        with pytest.raises((ConnectionClosedByBroker, ChannelClosedByBroker)):
            for _ in range(10):
                connections[1].channel()
    async with AsyncExitStack() as entered:
        for _ in range(5):
            entered.push_async_callback((await asyncpg.connect(login)).close)
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await asyncpg.connect(login)
    connection = await asyncpg.connect(login)
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "temp_file_limit")
    shown = [await connection.fetchval(f"SHOW {name}") for name in limits]
    await connection.close()
    assert shown == ["5min", "1min", "1min", "1GB"]


def a_boot(number: int, **reply: Any) -> BuildRequested:
    flavor = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)
    return BuildRequested(request=uid(number), instances=(uid(number),), flavor=flavor, **with_parts(reply))


async def fits(site: CellMakersSite, does: bool = True) -> bool:
    answer = await site.bus.asker(WHAT_IF)(WhatIf(request=a_boot(99)))
    return len(answer.best) == 2 if does else not answer.fits


async def waits(site: CellMakersSite) -> bool:
    return (await site.bus.asker(topics.DECISION)(FindDecision(id=uid(3)))).waits


def _dsn(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
