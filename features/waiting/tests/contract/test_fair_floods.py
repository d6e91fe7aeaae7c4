"""The shares of projects whose floods begin together, over ten seconds, in virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import cast

import pytest

from berth.features import packages
from bus.clock import Clock
from bus.context import envelope_of
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildRequested
from bus.protocol import Delivery, QueueSpec, decode
from bus.requests import Flavor
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.sql.statement import Transaction
from features.quotas.messages import EDIT_QUOTA, WEIGHT, QuotaEditRequested, SetQuota
from features.waiting.core.fair_queue import requested_amounts
from features.waiting.request_backlog import (
    CALLS_OF_LIGHT,
    LEAST_BATCH,
    PREFETCH,
    YOUNG_SECONDS,
    RequestBacklog,
)
from features.waiting.request_sizes import RequestSizes
from features.waiting.store import WaitingStore
from features.waiting.tables import queued
from tests.support.scheduler_builders import a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import waiting_world

QUEUE = QueueSpec("scheduler:build.requested", ("build.requested",))
SHARING = {"bronze": (1, 1), "silver": (2, 2), "gold": (4, 1)}  # project → weight, VCPU of its requests
WEIGHTS = {project: float(weight) for project, (weight, _) in SHARING.items()}
SECONDS = 10.0
CALLS = 2
MOST = 1280  # requests in a batch
A_SECOND = 300.0  # requests that all calls together place in a second
LEAST_SECONDS = 0.02  # of a batch

SIZES = cast(
    RequestSizes,
    SimpleNamespace(
        of=lambda body: {"VCPU": requested_amounts(decode(BuildRequested, body))["VCPU"] / 10_000}
    ),
)
Served = list[tuple[float, str]]  # when requests were placed, and their projects


class Flooded:
    """A scheduler's backlog, with handlers that place A_SECOND requests in a second."""

    def __init__(self, database: Database) -> None:
        loop = asyncio.get_running_loop()
        self.database = database
        self.clock = Clock(lambda: 1e9 + loop.time(), random.Random(3), loop.time)
        self.transport = LocalTransport(LocalBroker())
        self.served: Served = []
        self.batches: list[tuple[float, int]] = []  # when batches began, and their numbers of requests
        self._number = 0

    @asynccontextmanager
    async def backlog(self) -> AsyncIterator[RequestBacklog]:
        async def live(tx: Transaction) -> None:
            await queued.beat(tx, "s1", "{}", 0)

        await self.transport.declare(QUEUE)
        one = SimpleNamespace(
            database=self.database, name="s1", live=live, noting_unknown_commits=nullcontext
        )
        store = cast(WaitingStore, one)
        backlog = RequestBacklog(store, self.clock, SIZES, CALLS)
        await backlog.open(await self.transport.consume(QUEUE, PREFETCH))
        tasks = [asyncio.create_task(backlog.run()), asyncio.create_task(self._serve(backlog))]
        try:
            yield backlog
        finally:
            await backlog.stop()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _serve(self, backlog: RequestBacklog) -> None:
        slots = asyncio.Semaphore(CALLS + CALLS_OF_LIGHT)
        async with asyncio.TaskGroup() as group:
            while True:
                await slots.acquire()
                batch = [await backlog.get()]
                while len(batch) < MOST and (delivery := backlog.get_nowait()) is not None:
                    batch.append(delivery)
                self.batches.append((self.clock.monotonic(), len(batch)))
                group.create_task(self._place(backlog, batch)).add_done_callback(lambda _: slots.release())

    async def _place(self, backlog: RequestBacklog, batch: Sequence[Delivery]) -> None:
        await asyncio.sleep(max(len(batch) * CALLS / A_SECOND, LEAST_SECONDS))
        for delivery in batch:
            project = decode(BuildRequested, delivery.envelope.body).project
            self.served.append((self.clock.monotonic(), project))
            delivery.done()
        backlog.handled(batch)

    async def publish(self, project: str, several: int) -> None:
        flavor = Flavor(name=project, vcpus=SHARING[project][1], memory_mb=1, disk_gb=1)
        envelopes = []
        for _ in range(several):
            self._number += 1
            request = a_request(self._number, flavor=flavor, project=project)
            envelopes.append(envelope_of(request, self.clock))
        await self.transport.publish(envelopes, expected=[True] * several)

    async def flood(self, several: int, chunk: int, order: Sequence[str]) -> None:
        """Publish `several` requests of each project, in chunks, the projects in turns."""
        for _ in range(0, several, chunk):
            for project in order:
                await self.publish(project, chunk)
                await asyncio.sleep(0.01)


def shares_of(served: Served, began: float) -> Mapping[str, float]:
    """Return each project's part of the VCPU placed in SECONDS, divided by its part of the weights."""
    vcpus = Counter[str]()
    for at, project in served:
        if began <= at < began + SECONDS:
            vcpus[project] += SHARING[project][1]
    due = {project: weight / sum(WEIGHTS.values()) for project, weight in WEIGHTS.items()}
    return {project: vcpus[project] / vcpus.total() / due[project] for project in SHARING}


@pytest.mark.parametrize("order", [("bronze", "silver", "gold"), ("gold", "silver", "bronze")])
@pytest.mark.parametrize("chunk", [20, 250, 1000, 3000])
@in_virtual_time
async def test_shares_are_within_10_percent_over_ten_seconds_from_the_first_second(
    chunk: int, order: tuple[str, ...]
) -> None:
    database = Database("sqlite+aiosqlite://", inline=True)
    await migrate(database, *packages("scheduler"))
    flooded = Flooded(database)
    async with flooded.backlog() as backlog:
        backlog.set_weights(WEIGHTS)
        began = flooded.clock.monotonic()
        await flooded.flood(3000, chunk, order)
        await asyncio.sleep(began + SECONDS + 5.5 - flooded.clock.monotonic())
    await database.close()
    for first in (0.0, 0.5, 1.0, 5.0):
        shares = shares_of(flooded.served, began + first)
        assert {project: share for project, share in shares.items() if abs(share - 1) > 0.1} == {}, first


@in_virtual_time
async def test_batches_are_limited_only_in_the_first_seconds_of_a_flood_with_short_breaks() -> None:
    database = Database("sqlite+aiosqlite://", inline=True)
    await migrate(database, *packages("scheduler"))
    flooded = Flooded(database)
    async with flooded.backlog():
        began = flooded.clock.monotonic()
        for _ in range(2):
            await flooded.publish("gold", 1000)
            await asyncio.sleep(3.5)
    await database.close()
    first = [size for at, size in flooded.batches if at < began + YOUNG_SECONDS]
    second = [size for at, size in flooded.batches if 3.5 <= at - began < 3.5 + YOUNG_SECONDS]
    assert max(first) <= 2 * LEAST_BATCH
    assert max(second) > 10 * LEAST_BATCH


@in_virtual_time
async def test_weights_are_known_before_the_first_request_of_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Mapping[str, float]] = []
    monkeypatch.setattr(RequestBacklog, "set_weights", lambda self, weights: known.append(weights))
    async with waiting_world() as world:
        edit = SetQuota(project="gold", limits={WEIGHT: 4})
        await world.bus.asker(EDIT_QUOTA)(QuotaEditRequested(edit=edit))
        await asyncio.sleep(2.5)
        assert known[-1] == {"gold": 4.0}
