"""A berth in use moves to another RabbitMQ by the commands of docs/howto/another-broker.md.

The new broker is RabbitMQ 4 where `scripts/install-rabbitmq4` has unpacked it.
"""

import asyncio
import os
import random
import shlex
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aio_pika import ExchangeType, Message, connect
from aio_pika.abc import AbstractChannel

from berth import composition
from berth.loadtest import mixed
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.errors import Unavailable
from bus.messages import BuildDeleted, BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.protocol import Delivery, Envelope, Inbox, QueueSpec
from bus.rabbit import RabbitTransport
from bus.rabbit.topology import BrokerNames
from bus.topics import Address
from deploy.rabbitmq import RabbitMQ, find_rabbitmq
from deploy.servers import private_directory
from tests.support.berth_processes import PatientBus, settled
from tests.support.envelopes import a_letter, an_envelope, number_in, publish, take
from tests.support.replicas import replicated
from tests.support.servers import find_jq, installed
from tests.support.snippets import ROOT, snippets
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.soak]

RABBITMQ4 = ROOT / ".rabbitmq4"
PAGE = [block.text for block in snippets(ROOT / "docs/howto/another-broker.md") if "tested" in block.marks]
ADD_USER, EXPORT, IMPORT, SHOVEL, LEFT, END = PAGE
KEYS = ("build.requested", "build.ended.*")
WORKER, AGENT, IDLE_AGENT = (
    QueueSpec("worker:q", KEYS),
    QueueSpec("agent.c1.a:agent.build.c1.a", ("agent.build.c1.a",)),
    QueueSpec("agent.c1.b:agent.build.c1.b", ("agent.build.c1.b",)),
)
REPEATED = 12  # one of so many requests is published twice
BOOTS, RATE = 12_000, 150.0
DELETED = 10  # one of so many active builds is deleted


@dataclass
class BrokerMove:
    """Runs the page's commands in bash, each at one of the brokers."""

    old: RabbitMQ
    new: RabbitMQ
    directory: Path

    async def run(self, commands: str, at: RabbitMQ) -> str:
        program = self.directory / at.directory.name / "rabbitmqctl"
        if not program.exists():
            program.parent.mkdir()
            program.write_text(self._script(at))
            program.chmod(0o700)
        urls = {
            name: server.url.replace("guest:guest", "berth-move:secret") + "%2F"
            for name, server in (("old", self.old), ("new", self.new))
        }
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        done = await asyncio.to_thread(
            subprocess.run,
            ["bash", "-eu", "-o", "pipefail", "-c", commands],
            env={**os.environ, **urls, "vhost": "/", "password": "secret", "PATH": path},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    @staticmethod
    def _script(server: RabbitMQ) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in server.environment().items()]
        program = server.binaries.server.with_name("rabbitmqctl")
        return f'#!/bin/sh\nexec env {" ".join(variables)} {program} "$@"\n'

    async def copy(self) -> None:
        await self.run(EXPORT, self.old)
        await self.run(IMPORT, self.new)

    async def shovel(self) -> None:
        await self.copy()
        await self.run(SHOVEL, self.new)

    async def is_complete(self) -> bool:
        return not await self.run(LEFT, self.old)

    def back(self) -> "BrokerMove":
        return BrokerMove(self.new, self.old, self.directory)


@pytest.fixture(scope="module")
def move() -> Iterator[BrokerMove]:
    """Two brokers for all tests, which take half a minute to start; the old one has the user of shovels."""
    installed(find_rabbitmq)
    installed(find_jq)
    directory = private_directory("berth-test-")
    unpacked = RABBITMQ4 if RABBITMQ4.exists() else None
    with (
        RabbitMQ(directory / "old", plugins=["rabbitmq_shovel"]) as old,
        RabbitMQ(directory / "new", plugins=["rabbitmq_shovel"], unpacked=unpacked) as new,
    ):
        commands = directory / "commands"
        commands.mkdir()
        move = BrokerMove(old, new, commands)
        asyncio.run(move.run(ADD_USER, old))
        yield move
    shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def opened(server: RabbitMQ, exchange: str) -> AsyncIterator[RabbitTransport]:
    transport = RabbitTransport(server.url, exchange=exchange)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def plain_channel(url: str) -> AsyncIterator[AbstractChannel]:
    connection = await connect(url)
    async with connection:
        yield await connection.channel(publisher_confirms=True)


async def received(inbox: Inbox, count: int) -> list[Delivery]:
    found = []
    for _ in range(count):
        delivery = await take(inbox)
        found.append(delivery)
        delivery.done()
    return found


async def forge(server: RabbitMQ, names: BrokerNames) -> None:
    """Publish messages of a client that workers refuse, and one with a false key that they do not believe."""
    queue = names.queue(WORKER.name)
    async with plain_channel(server.url) as channel:
        foreign = await channel.declare_exchange(
            f"{names.exchange}:client.shop.1", ExchangeType.TOPIC, durable=True
        )
        berth = await channel.get_exchange(names.exchange, ensure=False)
        await berth.bind(foreign, "#")
        await foreign.publish(Message(b"{}", message_id="by an exchange"), "build.requested")
        dead: dict[str, Any] = {
            "x-dead-letter-exchange": names.exchange,
            "x-dead-letter-routing-key": "build.requested",
        }
        dying = await channel.declare_queue(f"{names.exchange}:client.shop.2", durable=True, arguments=dead)
        await channel.default_exchange.publish(Message(b"{}", message_id="by a queue"), dying.name)
        await (await dying.get()).reject()
        queues = await channel.get_exchange(names.queues, ensure=False)
        additional: dict[str, Any] = {"CC": [f"0.{queue}"], "key": "build.ended.c9"}
        await queues.publish(Message(b"{}", message_id="by a key", headers=additional), "0.mine")
        forged: dict[str, Any] = {"key": "build.ended.c9", "suspect-of": queue, "strikes": 2}
        await berth.publish(Message(b"{}", message_id="with a key", headers=forged), "build.requested")


async def test_messages_arrive_where_they_were_and_forged_ones_stay_refused(
    move: BrokerMove, bus_name: str
) -> None:
    old, new, names = move.old, move.new, BrokerNames(bus_name)
    await asyncio.to_thread(old.control, "add_user", f"{bus_name}.client.shop", "secret")
    await asyncio.to_thread(old.control, "set_permissions", f"{bus_name}.client.shop", ".*", ".*", ".*")
    async with opened(old, bus_name) as transport:
        for queue in (WORKER, AGENT, IDLE_AGENT):
            await transport.declare(queue)
        await transport.consume(QueueSpec("worker:private", ("build.#",), durable=False), 1)
        await transport._link.declare_dead()
        await transport._link.declare_delay(1000)
        await move.copy()
        sent = [an_envelope(n, key=("build.requested", "build.ended.c1")[n % 2]) for n in range(300)]
        for start in range(0, len(sent), 50):  # some share an AMQP message, others do not
            await publish(transport, *sent[start : start + 50])
        returned = [an_envelope(n, key="build.ended.c2", attempt=2) for n in range(300, 304)]
        await transport._put_back(WORKER.name, returned[:1])
        await transport._put_back(WORKER.name, returned[1:])  # which share an AMQP message
        delayed = an_envelope(304, key="build.ended.c1")
        await transport.delay(WORKER.name, delayed, 1.0)
        await publish(transport, an_envelope(305, key="agent.build.c1.a"))
        for letter in (a_letter(1), a_letter(2, queue="conductor.c1:build.placed")):
            await transport.store_dead_letter(letter)
        letters = await transport.dead_letters()
        await forge(old, names)
        results = names.queue("client.shop.0")
        async with plain_channel(old.url.replace("guest:guest", f"{bus_name}.client.shop:secret")) as channel:
            outcomes = await channel.declare_queue(results, durable=True)
            berth = await channel.get_exchange(bus_name, ensure=False)
            await outcomes.bind(berth, "build.ended.*.shop")
            headers: dict[str, Any] = {"a": [1, {"b": 2}]}
            user = f"{bus_name}.client.shop"
            await berth.publish(
                Message(b"{}", headers=headers, message_id="m", user_id=user), "build.ended.c1.shop"
            )
            await berth.publish(Message(b"{}", message_id="by a user", user_id=user), "build.requested")
    await move.shovel()
    await until(move.is_complete)
    shovels = await asyncio.to_thread(new.control, "list_parameters", "-p", "berth-move")
    assert names.queue(WORKER.name) in shovels and names.queue(AGENT.name) in shovels
    assert names.queue(IDLE_AGENT.name) not in shovels
    await move.run(END, new)
    async with opened(new, bus_name) as transport:
        found = await received(await transport.consume(WORKER, 100), len(sent) + 4 + 1 + 5)
        assert await transport.dead_letters() == letters
        assert {letter.cell for letter in letters} == {"", "c1"}
        [order] = await received(await transport.consume(AGENT, 1), 1)
        assert number_in(order) == 305
    async with plain_channel(new.url) as channel:
        result = await (await channel.get_queue(results)).get(no_ack=True)
        assert (result.message_id, result.user_id, result.headers["a"]) == ("m", user, headers["a"])
    assert_as_sent(found, [*sent, *returned, delayed])


def assert_as_sent(found: list[Delivery], sent: list[Envelope]) -> None:
    of_berth = {delivery.envelope.id: delivery for delivery in found if "y a" not in delivery.envelope.id}
    forged = {delivery.envelope.id: delivery for delivery in found if delivery.envelope.id not in of_berth}
    believed = of_berth.pop("with a key").envelope
    assert (believed.key, believed.suspect_of, believed.strikes) == ("build.requested", "", 0)
    assert {id_: delivery.envelope for id_, delivery in of_berth.items()} == {each.id: each for each in sent}
    assert not any(delivery.problem for delivery in of_berth.values())
    for key in {envelope.key for envelope in sent}:
        order = [envelope.id for envelope in sent if envelope.key == key]
        arrived = [delivery.envelope.id for delivery in found if delivery.envelope.id in order]
        assert arrived == order
    assert forged["by a user"].envelope.client == "shop" and not forged["by a user"].problem
    assert "to the exchange" in forged["by an exchange"].problem
    assert "forwarded by the queue" in forged["by a queue"].problem
    assert "additional key" in forged["by a key"].problem
    assert len(forged) == 4


@asynccontextmanager
async def written(transport: RabbitTransport, arrived: set[int]) -> AsyncIterator[list[int]]:
    """Publish messages continuously, also after a crash of the broker, but at most 2,000 that have not yet
    arrived: a shovel is slower than this writer. Yield the numbers of stored messages.
    """
    stored: list[int] = []

    async def write() -> None:
        while True:
            await until(lambda: len(stored) < len(arrived) + 2000, seconds=600)
            numbers = range(len(stored), len(stored) + 20)
            try:
                await publish(transport, *(an_envelope(number, framed=False) for number in numbers))
            except Unavailable:
                continue
            stored.extend(numbers)

    writing = asyncio.create_task(write())
    try:
        yield stored
    finally:
        writing.cancel()
        await asyncio.wait([writing])


async def read(inbox: Inbox, numbers: set[int]) -> None:
    while True:
        delivery = await inbox.get()
        numbers.add(number_in(delivery))
        delivery.done()


async def test_no_message_is_lost_if_a_broker_is_killed_or_the_move_is_undone(
    move: BrokerMove, bus_name: str
) -> None:
    old, new, arrived, returned = move.old, move.new, set[int](), set[int]()
    async with opened(old, bus_name) as at_old, asyncio.TaskGroup() as group:
        await at_old.declare(WORKER)
        await move.copy()
        async with opened(new, bus_name) as at_new:
            reading = group.create_task(read(await at_new.consume(WORKER, 1000), arrived))
            async with written(at_old, arrived) as stored:
                await until(lambda: len(stored) > 1000)
                await move.shovel()
                for killed in (new, old):
                    before = len(arrived)
                    await until(lambda before=before: len(arrived) > before + 1000)  # type: ignore[misc]
                    await asyncio.to_thread(killed.kill)
                    await asyncio.to_thread(killed.start)
                before = len(arrived)
                await until(lambda: len(arrived) > before + 1000)
            await until(move.is_complete)
            await until(lambda: arrived >= set(stored), picture=lambda: len(set(stored) - arrived))
            reading.cancel()
            await publish(at_new, *map(an_envelope, range(1000)))
        await move.run(END.splitlines()[0], new)
        back = move.back()
        await back.shovel()
        await until(back.is_complete)
        reading = group.create_task(read(await at_old.consume(WORKER, 1000), returned))
        await until(lambda: returned >= set(range(1000)))
        reading.cancel()


@dataclass
class SwitchingClient:
    """A client that requests builds at a steady rate, and records all outcomes that it receives."""

    name: str
    bus: PatientBus
    rate: float
    asked: list[str] = field(default_factory=list)  # ids whose request the broker has confirmed
    outcomes: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    late: list[float] = field(default_factory=list)  # seconds from a request to its outcome
    to_delete: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    _began: dict[str, float] = field(default_factory=dict)

    @property
    def addresses(self) -> list[Address[Any]]:
        outcomes = topics.BUILD_ENDED, topics.BUILD_UNPLACEABLE, topics.BUILD_DELETED
        return [topic.at(reply_to=self.name) for topic in outcomes]

    async def request(self, boots: int) -> None:
        began, chance, flavors = monotonic(), random.Random(self.name), mixed(20)
        while len(self.asked) < boots:
            due = min(int(self.rate * (monotonic() - began)) + 1, boots) - len(self.asked)
            builds = [self.bus.clock.uuid() for _ in range(min(due, 128))]
            requests = [
                BuildRequested(
                    request=build, instances=(build,), flavor=chance.choice(flavors), reply_to=self.name
                )
                for build in builds
            ]
            self._began |= dict.fromkeys(builds, monotonic())
            repeated = [request for request in requests if not chance.randrange(REPEATED)]
            if requests:
                await self.bus.publish(*requests, *repeated)
            self.asked += builds
            await asyncio.sleep(0.01)

    async def listen(self, bus: PatientBus, group: asyncio.TaskGroup) -> list["asyncio.Task[None]"]:
        """Bind the client's durable queues at this broker, and record outcomes until cancelled."""
        ended, unplaceable, deleted = [await bus.listen(address, 5000) for address in self.addresses]
        ends = asyncio.Queue[BuildEnded]()
        readers = (
            receive_all(ended, ends.put_nowait),
            self._delete_some(ends),
            receive_all(unplaceable, self._on_unplaceable),
            receive_all(deleted, self._on_deleted),
        )
        return [group.create_task(reader) for reader in readers]

    async def _delete_some(self, ends: "asyncio.Queue[BuildEnded]") -> None:
        while True:
            end = await ends.get()
            is_first = end.build not in self.outcomes
            self._record(end.build, end.status, end.host)
            if is_first and end.status == "active" and int(end.build[:8], 16) % DELETED == 0:
                self.to_delete.add(end.build)
                await self.bus.publish(
                    BuildDeleteRequested(build=end.build, cell=end.cell, reply_to=self.name)
                )

    def _on_unplaceable(self, refused: BuildUnplaceable) -> None:
        for build in refused.instances:
            self._record(build, "unplaceable", "")

    def _on_deleted(self, deletion: BuildDeleted) -> None:
        self.deleted.add(deletion.build)

    def _record(self, build: str, status: str, host: str) -> None:
        if build not in self.outcomes:
            self.late.append(monotonic() - self._began[build])
        self.outcomes[build].add((status, host))

    @property
    def missing(self) -> set[str]:
        return set(self.asked) - self.outcomes.keys() | self.to_delete - self.deleted

    @property
    def changed(self) -> list[str]:
        return [build for build, found in self.outcomes.items() if len(found) > 1]


@asynccontextmanager
async def client_at(settings: Settings, name: str) -> AsyncIterator[PatientBus]:
    async with PatientBus(composition.transport(settings, name)) as bus:
        yield bus


async def test_no_build_is_lost_or_doubled_while_the_broker_is_replaced(
    move: BrokerMove, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    old, new = move.old, move.new
    before = Settings().having(
        amqp_url=old.url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1", "c2"),
        simulator={"hosts": 1_000, "fail": 0.05, "build_time": "exponential:0.2"},
        heartbeat=2.0,
        state_dir=str(tmp_path / "state"),
        log_level="info",
        log_format="json",
    )
    after = before.having(amqp_url=new.url)
    seconds, began = dict[str, float](), monotonic()

    def note(step: str) -> None:
        seconds[step] = round(monotonic() - began, 1)

    async with (
        replicated(before, tmp_path, replicas=1) as region,
        client_at(before, "moving") as bus,
        asyncio.TaskGroup() as group,
    ):
        client = SwitchingClient("moving", bus, RATE)
        listening = await client.listen(bus, group)
        requesting = group.create_task(client.request(BOOTS))
        await until(lambda: len(client.asked) > BOOTS / 6)
        await move.copy()
        note("prepared")
        await asyncio.gather(*(replica.stop(signal.SIGTERM) for replica in region.replicas))
        note("workers stopped")
        await move.shovel()
        note("shovels started")
        for replica in region.replicas:
            replica.settings = after
            await replica.start()
        for replica in region.replicas:
            await until(replica.serves, f"{replica.role} serves at the new broker")
        note("workers serve")
        async with client_at(after, "moved") as moved:
            listening += await client.listen(moved, group)  # while it still requests at the old broker
            for killed in (old, new):
                ended = len(client.outcomes)
                await until(lambda ended=ended: len(client.outcomes) > ended + BOOTS / 30)  # type: ignore[misc]
                await asyncio.to_thread(killed.kill)
                await asyncio.to_thread(killed.start)
                note(f"the {killed.directory.name} broker runs again")
            client.bus = moved
            await requesting
            await until(
                lambda: not client.missing, picture=lambda: (len(client.missing), seconds), seconds=300
            )
            note("all have ended")
            await until(move.is_complete)
            await move.run(END, new)
            for task in listening:
                task.cancel()
            letters = await moved.transport.dead_letters(10)
        late = sorted(client.late)
        print(f"{seconds}; slowest {late[-1]:.1f} s, median {late[len(late) // 2]:.2f} s")
        await assert_all_ended_once(client, after)
        assert letters == []


async def assert_all_ended_once(client: SwitchingClient, settings: Settings) -> None:
    assert client.changed == []
    assert set(client.asked) == client.outcomes.keys()
    found = await settled(settings)
    assert found.breaches == []
    print(found.builds, found.consumers, f"asked {len(client.asked)}, deleted {len(client.deleted)}")
    active = [
        build
        for build, outcomes in client.outcomes.items()
        if {status for status, _ in outcomes} == {"active"} and build not in client.deleted
    ]
    assert found.builds.get("active", 0) == len(active) == found.consumers
