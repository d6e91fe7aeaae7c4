"""A region on three RabbitMQ nodes under load from outside, while nodes are killed, suspended and cut off."""

import asyncio
import os
import random
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from berth.kit.publishing import publish
from berth.loadtest import mixed
from berth.operations.guest_differences import compare_guests
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.messages import BuildDeleted, BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from deploy.rabbitmq import RabbitMQ, RabbitMQCluster
from tests.support.berth_processes import running, settled
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.soak]

RATE = 30.0  # requests a second
DUPLICATES = 0.08  # share of requests that are published twice
REPLY_TO = "outside"
REPORT_SECONDS = 60.0  # after the end of a fault, for the ends of all builds that were accepted before
GAP_SECONDS = 25.0  # without an end, while two nodes work
SUSPENDED_SECONDS = 70.0


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Yield a port of this machine that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server.getsockname()[1]


@dataclass
class OutsideClient:
    """Requests and deletes builds at a fixed rate; records their ends and the longest gap between ends."""

    bus: Bus
    accepted: dict[str, float] = field(default_factory=dict)  # by build, when the broker had its request
    statuses: dict[str, set[str]] = field(default_factory=dict)  # of all ends of a build
    cells: dict[str, str] = field(default_factory=dict)  # of active builds
    deleting: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    gap: float = 0.0
    loads: bool = True
    _last_end: float = field(default_factory=monotonic)
    _chance: random.Random = field(default_factory=lambda: random.Random(1))

    async def run(self, listening: asyncio.Event) -> None:
        ended = await self.bus.listen(topics.BUILD_ENDED.at(reply_to=REPLY_TO))
        refused = await self.bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=REPLY_TO))
        deleted = await self.bus.listen(topics.BUILD_DELETED.at(reply_to=REPLY_TO))
        listening.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(receive_all(ended, self._ended))
            group.create_task(receive_all(refused, self._unplaceable))
            group.create_task(receive_all(deleted, self._deleted))

    def _ended(self, end: BuildEnded) -> None:
        if end.build not in self.statuses:
            self.gap = max(self.gap, monotonic() - self._last_end)
            self._last_end = monotonic()
        self.statuses.setdefault(end.build, set()).add(end.status)
        self.cells[end.build] = end.cell

    def _unplaceable(self, end: BuildUnplaceable) -> None:
        for build in end.instances:
            self.statuses.setdefault(build, set()).add("unplaceable")

    def _deleted(self, end: BuildDeleted) -> None:
        self.deleted.add(end.build)

    async def load(self) -> None:
        """Publish requests at the rate, each in a task, because an unreachable broker delays each of them."""
        flavors = mixed(20)
        async with asyncio.TaskGroup() as group:
            while self.loads:
                build = self.bus.clock.uuid()
                request = BuildRequested(
                    request=build, instances=(build,), flavor=self._chance.choice(flavors), reply_to=REPLY_TO
                )
                group.create_task(self._request(request))
                active = [b for b in self.cells if b not in self.deleting] if len(self.cells) > 200 else []
                if active:
                    self.deleting.add(active[0])
                    group.create_task(self._delete(active[0]))
                await asyncio.sleep(1 / RATE)

    async def _request(self, request: BuildRequested) -> None:
        copies = 2 if self._chance.random() < DUPLICATES else 1
        with suppress(Unavailable, Unroutable):  # it is not accepted, and may be lost
            for _ in range(copies):
                await publish(self.bus, request)
                self.accepted.setdefault(request.request, monotonic())

    async def _delete(self, build: str) -> None:
        order = BuildDeleteRequested(build=build, cell=self.cells[build], reply_to=REPLY_TO)
        while True:
            with suppress(Unavailable, Unroutable):
                await publish(self.bus, order)
                return

    def open(self, before: float) -> list[str]:
        """Return the builds accepted before this time that have no end."""
        return [build for build, at in self.accepted.items() if at < before and build not in self.statuses]

    def begin_gap(self) -> None:
        self.gap, self._last_end = 0.0, monotonic()


async def test_every_accepted_build_ends_whatever_happens_to_the_nodes(
    brokers: RabbitMQCluster, silent_port: int, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    one, two, three = brokers.nodes
    addresses = [silent_port, one.port, two.port, three.port]
    hosts = ",".join(f"127.0.0.1:{port}" for port in addresses)
    settings = Settings().having(
        amqp_url=f"amqp://guest:guest@{hosts}/",
        database_url=database_url,
        exchange=bus_name,
        cells=("c1", "c2"),
        simulator={"hosts": 400, "fail": 0.05, "build_time": "exponential:0.3"},
        heartbeat=2.0,
        state_dir=str(tmp_path),
        log_level="warning",
    )

    async def kill_and_start(*nodes: RabbitMQ) -> None:
        for node in nodes:
            await asyncio.to_thread(node.kill)
        await asyncio.sleep(10.0)  # the duration of the fault
        await asyncio.to_thread(brokers.start)

    async def suspend(node: RabbitMQ) -> None:
        assert node.pid is not None
        os.kill(node.pid, signal.SIGSTOP)
        await asyncio.sleep(SUSPENDED_SECONDS)
        os.kill(node.pid, signal.SIGCONT)

    async def cut(*cuts: tuple[RabbitMQ, Sequence[RabbitMQ]]) -> None:
        """Separate nodes from others for 30 s."""
        for node, peers in cuts:
            await separate(node, peers, apart=True)
        await asyncio.sleep(30.0)
        for node, peers in cuts:
            await separate(node, peers, apart=False)

    async def rolling_restart() -> None:
        for node in brokers.nodes:
            await asyncio.to_thread(node.stop)
            await asyncio.to_thread(brokers.start)

    # name → the fault, and whether two nodes work all the time
    faults: dict[str, tuple[Callable[[], Awaitable[None]], bool]] = {
        "kill n1": (lambda: kill_and_start(one), True),
        "kill n2": (lambda: kill_and_start(two), True),
        "kill n3": (lambda: kill_and_start(three), True),
        "kill n1 and n2": (lambda: kill_and_start(one, two), False),
        "suspend n3": (lambda: suspend(three), True),
        "isolate n1": (lambda: cut((one, (two, three))), True),
        # RabbitMQ stops both of them
        "cut n2 from n3": (lambda: cut((two, (three,))), False),
        "cut all": (lambda: cut((one, (two, three)), (two, (three,))), False),
        "rolling restart": (rolling_restart, True),
    }
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        client, listening = OutsideClient(berth.bus), asyncio.Event()
        receiving = group.create_task(client.run(listening))
        await listening.wait()
        loading = group.create_task(client.load())
        await until(lambda: len(client.statuses) > 300)
        late: list[str] = []
        for name, (happen, has_quorum) in faults.items():
            client.begin_gap()
            await happen()
            healed = monotonic()
            await until(lambda at=healed: not client.open(at), seconds=300.0)  # type: ignore[misc]
            sent, gap = monotonic() - healed, client.gap
            restarted = await make_whole(brokers)
            await until(lambda: not client.open(monotonic() - REPORT_SECONDS))
            print(
                f"{name}: {len(client.accepted)} accepted, ended {sent:.1f} s after it, gap {gap:.1f} s;"
                f" restarted {restarted}"
            )
            if sent > REPORT_SECONDS or (has_quorum and gap > GAP_SECONDS):
                late.append(f"{name}: {sent:.1f} s, gap {gap:.1f} s")
        client.loads = False
        await loading
        now = monotonic()
        await until(lambda: not client.open(now) and client.deleting <= client.deleted)
        receiving.cancel()
        ends = {build: statuses for build, statuses in client.statuses.items() if len(statuses) > 1}
        found, guests = await settled(settings), await compare_guests(settings)
        assert (ends, found.breaches, guests.differences) == ({}, [], [])
        assert max(berth.starts().values()) == 1  # no worker was restarted
        assert late == []


async def make_whole(cluster: RabbitMQCluster) -> list[str]:
    """Restart the nodes that RabbitMQ itself leaves partitioned, as an operator must; return their names.

    A node that was suspended resumes as a separate cluster, because it noticed no partition.
    """
    restarted = []
    for node in reversed(cluster.nodes):
        if await asyncio.to_thread(node.control, "eval", "rabbit_node_monitor:partitions().") != "[]\n":
            restarted.append(node.node_name)
            await asyncio.to_thread(node.stop)
            await asyncio.to_thread(cluster.start)
    return restarted


async def separate(node: RabbitMQ, peers: Sequence[RabbitMQ], *, apart: bool) -> None:
    """Make a node refuse the Erlang connections of some others, at the same time, or accept them again."""
    cookie = "other" if apart else "erlang:get_cookie()"  # expected and sent for the connection to a peer
    words = [
        f"erlang:set_cookie('{peer.node_name}', {cookie}), erlang:disconnect_node('{peer.node_name}')"
        for peer in peers
    ]
    await asyncio.to_thread(node.control, "eval", f"{', '.join(words)}.")
