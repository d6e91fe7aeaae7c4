"""Draws from a reservation and gangs of three roles, while schedulers and placement are killed."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from berth.kit import Settings, boot_request, options_named, parts_given, publish
from berth.kit.testing import audit
from bus import topics
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.parts import RequestParts
from features.reservations.new_reservations import NewReservation, create_reservation, new_reservation
from tests.support.replicas import ReplicatedBerth, replicated
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

SLOTS, SLOT_VCPUS = 6, 8
GANG = ("ps:1,memory_mb=60000", "worker:3,memory_mb=40000", "evaluator:1,memory_mb=10000")
MEMBERS = 5
_SLOTS = """
    SELECT s.uuid, sum(CASE WHEN c.uuid = s.uuid THEN a.used ELSE 0 END) AS held,
           sum(CASE WHEN c.uuid = s.uuid THEN 0 ELSE a.used END) AS drawn
    FROM placement.reservation_slots s JOIN placement.consumers c ON c.uuid = s.uuid OR c.draws_on = s.uuid
    JOIN placement.allocations a ON a.consumer_id = c.id
    JOIN placement.resource_classes k ON k.id = a.resource_class_id AND k.name = 'VCPU' GROUP BY s.uuid
"""
_HOLDING = """
    SELECT DISTINCT c.uuid FROM placement.consumers c JOIN placement.allocations a ON a.consumer_id = c.id
"""


@dataclass
class RequestingClient:
    """Keeps requests open, and deletes a request's instances after all of them have been built."""

    berth: ReplicatedBerth
    make: Callable[[], BuildRequested]
    most: int  # requests that are open at a time
    requests: dict[str, BuildRequested] = field(default_factory=dict)  # not deleted
    ends: dict[str, BuildEnded] = field(default_factory=dict)
    refused: list[BuildUnplaceable] = field(default_factory=list)
    completed: int = 0
    requesting: bool = True

    async def run(self) -> None:
        bus = self.berth.bus
        while self.requesting or self.requests:
            while self.requesting and len(self.requests) < self.most:
                request = self.make()
                parts = request.parts.having(*parts_given(RequestParts, wait="1h"))
                request = msgspec.structs.replace(request, parts=parts, reply_to="client")
                self.requests[request.request] = request
                await publish(bus, request)
            for request in list(self.requests.values()):
                if all(build in self.ends for build in request.instances):
                    del self.requests[request.request]
                    self.completed += 1
                    for build in request.instances:
                        cell = self.ends[build].cell
                        await publish(bus, BuildDeleteRequested(build=build, cell=cell, reply_to="client"))
            await asyncio.sleep(0.05)

    def on_end(self, end: BuildEnded) -> None:
        assert end.status == "active", end
        self.ends[end.build] = end


@asynccontextmanager
async def killed_berth(
    amqp_url: str, database_url: str, exchange: str, directory: Path, simulator: Mapping[str, Any]
) -> AsyncIterator[ReplicatedBerth]:
    settings = Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=exchange,
        cells=("c1",),
        simulator={"build_time": "constant:0.05", **simulator},
        state_dir=str(directory),
        log_level="info",
        log_format="json",
    )
    async with replicated(settings, directory, replicas=2) as berth:
        yield berth


async def check_while_killing(
    client: RequestingClient,
    database_url: str,
    check: Callable[[asyncpg.Connection], Awaitable[None]],
    kills: int,
    requests: int,
) -> None:
    """Check the database repeatedly while the client runs, until all is deleted. A worker is killed each time
    so many more requests were completed.
    """
    chance, berth = random.Random(11), client.berth
    victims = [replica for replica in berth.replicas if replica.role.worker in ("scheduler", "placement")]
    ended = await berth.bus.listen(topics.BUILD_ENDED.at(reply_to="client"))
    refused = await berth.bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to="client"))
    connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
    async with asyncio.TaskGroup() as group:
        listening = [
            group.create_task(receive_all(ended, client.on_end)),
            group.create_task(receive_all(refused, client.refused.append)),
        ]
        running = group.create_task(client.run())

        async def completed(count: int) -> bool:
            await check(connection)
            return client.completed >= count

        for kill in range(1, kills + 1):
            await until(partial(completed, kill * requests), seconds=90)
            victim = chance.choice(victims)
            await victim.stop(signal.SIGKILL)
            await victim.start()
        await until(partial(completed, (kills + 1) * requests), seconds=90)
        client.requesting = False

        async def is_done() -> bool:
            await check(connection)
            return running.done()

        await until(is_done, "every request was placed, and deleted", seconds=90)
        for task in listening:
            task.cancel()
    await connection.close()
    assert client.refused == []


@pytest.mark.soak
@pytest.mark.parametrize("kills", [12])
async def test_slots_are_never_overdrawn(
    kills: int, amqp_url: str, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    chance, drawn_at_once = random.Random(3), list[int]()

    async with killed_berth(amqp_url, database_url, bus_name, tmp_path, simulator={"hosts": 12}) as berth:
        now = berth.bus.clock.now()
        size = NewReservation(vcpus=SLOT_VCPUS, memory_mb=8192, disk_gb=80, count=SLOTS)
        season = new_reservation("season", "shop", size, now)
        assert (await create_reservation(berth.bus, season, now)).missing == 0
        whole = {SLOT_VCPUS}

        def a_draw() -> BuildRequested:
            options = options_named(
                vcpus=chance.randint(2, 5), project="shop", hint=(f"reservation={season.id}",)
            )
            return boot_request(options)

        async def check(connection: asyncpg.Connection) -> None:
            rows = await connection.fetch(_SLOTS)
            assert {row["held"] + row["drawn"] for row in rows} == whole and len(rows) == SLOTS, rows
            drawn_at_once.append(sum(row["drawn"] for row in rows))

        client = RequestingClient(berth, a_draw, most=40)
        await check_while_killing(client, database_url, check, kills, 20)
        assert max(drawn_at_once) > 0.7 * SLOTS * SLOT_VCPUS

        async def all_returned() -> bool:
            connection = await asyncpg.connect(database_url.replace("+asyncpg", ""))
            rows = await connection.fetch(_SLOTS)
            await connection.close()
            return [row["drawn"] for row in rows] == [0] * SLOTS

        await until(all_returned, "the slots got everything back", seconds=60)
        assert (await audit(berth.settings, settled=True)).clean


@pytest.mark.soak
@pytest.mark.parametrize("kills", [1, 12])
async def test_a_gang_of_three_roles_is_never_partial(
    kills: int, amqp_url: str, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    placed_at_once = list[int]()

    def a_gang() -> BuildRequested:
        return boot_request(options_named(role=GANG, pack="rack", spread="host:2"))

    async with killed_berth(
        amqp_url, database_url, bus_name, tmp_path, simulator={"hosts": 12, "labels": {"rack": 4}}
    ) as berth:
        client = RequestingClient(berth, a_gang, most=20)

        async def check(connection: asyncpg.Connection) -> None:
            holders = {str(row["uuid"]) for row in await connection.fetch(_HOLDING)}
            placed = [_placed(request.instances, holders) for request in client.requests.values()]
            assert all(there in (0, MEMBERS) for there in placed), placed
            placed_at_once.append(sum(there > 0 for there in placed))

        await check_while_killing(client, database_url, check, kills, 4)
        assert max(placed_at_once) >= 4


def _placed(instances: Sequence[str], holders: set[str]) -> int:
    return sum(instance in holders for instance in instances)
