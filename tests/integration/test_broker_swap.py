"""A running berth moves to another RabbitMQ under load, as features/broker_forwarding/README.md describes.

The new broker is RabbitMQ 4 where `scripts/install-rabbitmq4` has unpacked it. One client moves to the new
broker a few seconds after the workers; another stays at the old one. The forwarder is killed once.
"""

import asyncio
import os
import random
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from berth import composition
from berth.loadtest import mixed
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.messages import BuildDeleted, BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.topics import Address
from deploy.rabbitmq import RabbitMQ, find_rabbitmq
from tests.support.berth_processes import ROOT, PatientBus, run_berth, settled
from tests.support.replicas import ReplicatedBerth, replicated
from tests.support.servers import installed
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.soak]

RABBITMQ4 = ROOT / ".rabbitmq4"
REPEATED = 12  # one of so many requests is published twice
BOOTS, RATE = 20_000, 300.0
DELETED = 10  # one of so many active builds is deleted


@pytest.fixture
def old(directory: Path) -> Iterator[RabbitMQ]:
    installed(find_rabbitmq)
    with RabbitMQ(directory / "old") as server:
        yield server


@pytest.fixture
def new(directory: Path) -> Iterator[RabbitMQ]:
    with RabbitMQ(directory / "new", unpacked=RABBITMQ4 if RABBITMQ4.exists() else None) as server:
        yield server


@dataclass
class SwapClient:
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

    def queues(self, exchange: str) -> list[str]:
        return [f"{exchange}:client.{address.key}".replace("*", "+") for address in self.addresses]

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


@dataclass
class ForwarderProcess:
    """A process of `berth broker forward`."""

    directory: Path
    exchange: str
    arguments: tuple[str, ...]

    async def start(self, *more: str) -> asyncio.subprocess.Process:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
        with (self.directory / "forward.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "berth", "broker", "forward", *self.arguments, *more,
                cwd=self.directory, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env=environment | {"PYTHONPATH": str(ROOT), "BERTH_EXCHANGE": self.exchange},
            )  # fmt: skip

    async def until_empty(self) -> None:
        process = await self.start("--until-empty", "1")
        assert await process.wait() == 0, (self.directory / "forward.log").read_text()


@dataclass
class Swap:
    """The move of a region's workers from one broker to another."""

    region: ReplicatedBerth
    old: RabbitMQ
    new: RabbitMQ
    directory: Path
    settings: Settings  # with the URL of the new broker
    staying: SwapClient
    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        for server, name in ((self.old, "old"), (self.new, "new")):
            path = self.directory / f"{name}.url"
            path.write_text(server.url)
            path.chmod(0o600)

    def note(self, step: str) -> None:
        self.seconds[step] = round(monotonic() - self._began, 1)

    def forwarder(self, source: str, target: str, *arguments: str) -> ForwarderProcess:
        urls = ("--from", f"{source}.url", "--to", f"{target}.url")
        return ForwarderProcess(self.directory, self.settings.bus.exchange, (*urls, *arguments))

    @property
    def staying_queues(self) -> list[str]:
        return self.staying.queues(self.settings.bus.exchange)

    @property
    def there(self) -> ForwarderProcess:
        excluded = [word for name in self.staying_queues for word in ("--except", name)]
        return self.forwarder("old", "new", "--definitions", "old.json", *excluded)

    @property
    def back(self) -> ForwarderProcess:
        return self.forwarder(
            "new", "old", *(word for name in self.staying_queues for word in ("--queue", name))
        )

    async def move(self) -> list[asyncio.subprocess.Process]:
        """Follow the page until the workers serve at the new broker; return the two forwarders."""
        await asyncio.to_thread(self.old.control, "export_definitions", str(self.directory / "old.json"))
        prepared = await asyncio.to_thread(
            run_berth, ["broker", "definitions", "old.json", "new.json"], self.directory, os.environ
        )
        assert prepared.returncode == 0, prepared.stderr
        await asyncio.to_thread(self.new.control, "import_definitions", str(self.directory / "new.json"))
        self.note("definitions imported")
        await asyncio.gather(*(replica.stop(signal.SIGTERM) for replica in self.region.replicas))
        self.note("workers stopped")
        forwarders = [await self.there.start(), await self.back.start()]
        for replica in self.region.replicas:
            replica.settings = self.settings
            await replica.start()
        for replica in self.region.replicas:
            await until(replica.serves, f"{replica.role} serves at the new broker")
        self.note("workers serve")
        return forwarders


@asynccontextmanager
async def client_at(settings: Settings, name: str, rate: float) -> AsyncIterator[SwapClient]:
    async with PatientBus(composition.transport(settings, name)) as bus:
        yield SwapClient(name, bus, rate)


async def waiting_at(server: RabbitMQ) -> dict[str, int]:
    """Return the number of messages of each queue that is not empty."""
    listed = await asyncio.to_thread(server.control, "list_queues", "name", "messages")
    lines = (line.rpartition("\t") for line in listed.splitlines())
    return {name: int(count) for name, _, count in lines if count.isdigit() and int(count)}


async def test_no_build_is_lost_or_doubled_while_the_broker_is_replaced(
    old: RabbitMQ, new: RabbitMQ, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    before = Settings().having(
        amqp_url=old.url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1", "c2"),
        simulator={"hosts": 2_000, "fail": 0.05, "build_time": "exponential:0.2"},
        heartbeat=2.0,
        state_dir=str(tmp_path / "state"),
        log_level="info",
        log_format="json",
    )
    after = before.having(amqp_url=new.url)
    async with (
        replicated(before, tmp_path, replicas=1) as region,
        client_at(before, "moving", RATE) as moving,
        client_at(before, "staying", RATE / 20) as staying,
        asyncio.TaskGroup() as group,
    ):
        listening = [*await moving.listen(moving.bus, group), *await staying.listen(staying.bus, group)]
        requesting = group.create_task(moving.request(BOOTS))
        staying_requests = group.create_task(staying.request(BOOTS // 20))
        await until(lambda: len(moving.asked) > BOOTS / 4)
        swap = Swap(region, old, new, tmp_path, after, staying)
        there, back = await swap.move()
        there.send_signal(signal.SIGKILL)
        await there.wait()
        there = await swap.there.start()
        seen = len(staying.outcomes)

        async def picture() -> object:
            clients = [(len(client.asked), sorted(client.missing)[:5]) for client in (moving, staying)]
            return swap.seconds, clients, await waiting_at(old), await waiting_at(new)

        await until(lambda: len(staying.outcomes) > seen + BOOTS / 600, "requests are built", picture=picture)
        swap.note("a client at the old broker receives outcomes")
        at_old = len(moving.asked)
        await until(lambda: len(moving.asked) > at_old + BOOTS / 10 or requesting.done())
        async with PatientBus(composition.transport(after, "moved")) as bus:
            listening += await moving.listen(bus, group)
            moving.bus = bus
            await asyncio.gather(requesting, staying_requests)
            for client in (moving, staying):
                await until(
                    lambda client=client: not client.missing,  # type: ignore[misc]
                    picture=lambda client=client: (client.name, len(client.missing), swap.seconds),  # type: ignore[misc]
                    seconds=300,
                )
            swap.note("all have ended")
            for forwarder in (there, back):
                forwarder.send_signal(signal.SIGTERM)
                assert await forwarder.wait() == 0, (tmp_path / "forward.log").read_text()
            await swap.there.until_empty()
            for task in listening:
                task.cancel()
            letters = await bus.transport.dead_letters(10)
        print((tmp_path / "forward.log").read_text())
        late = sorted(moving.late)
        print(f"{swap.seconds}; slowest {late[-1]:.1f} s, median {late[len(late) // 2]:.2f} s")
        await assert_all_ended_once([moving, staying], after)
        assert letters == []
        assert await waiting_at(old) == {}


async def assert_all_ended_once(clients: Iterable[SwapClient], settings: Settings) -> None:
    asked = deleted = 0
    for client in clients:
        assert client.changed == []
        assert set(client.asked) == client.outcomes.keys()
        asked, deleted = asked + len(client.asked), deleted + len(client.deleted)
    found = await settled(settings)
    assert found.breaches == []
    print(found.builds, found.consumers, f"asked {asked}, deleted {deleted}")
    active = [
        build
        for client in clients
        for build, outcomes in client.outcomes.items()
        if {status for status, _ in outcomes} == {"active"} and build not in client.deleted
    ]
    assert found.builds.get("active", 0) == len(active) == found.consumers
