"""An Ironic that counts how it is read, and a reader before it, in virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from typing import Any

from bus.clock import Clock
from ironic_sync.api import IronicRefused, IronicUnavailable
from ironic_sync.core.known_state import Moment
from ironic_sync.core.node import FIELDS
from ironic_sync.reader import NodeRead, Reader
from tests.support.ids import uid
from tests.support.virtual_time import run

READING = 0.01  # seconds


class CountingIronic:
    def __init__(self) -> None:
        self.away = False
        self.refused: set[str] = set()
        self.nonsense: set[str] = set()
        self.missing: set[str] = set()
        self.reads: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.most_of_one = 0
        self.most = 0
        self.listed: list[str] = []
        self.pages = 0
        self.asked_for: dict[str, Any] = {}
        self.page_takes = READING

    async def node(self, uuid: str, fields: Sequence[str] | None = None) -> dict[str, Any] | None:
        assert fields == FIELDS
        self.reads[uuid] += 1
        self.under_way[uuid] += 1
        self.most_of_one = max(self.most_of_one, self.under_way[uuid])
        self.most = max(self.most, self.under_way.total())
        await asyncio.sleep(READING)
        self.under_way[uuid] -= 1
        if self.away:
            raise IronicUnavailable("away")
        if uuid in self.refused:
            raise IronicRefused(403, "not yours")
        if uuid in self.missing:
            return None
        return {"uuid": "?" if uuid in self.nonsense else uuid, "provision_state": "available"}

    async def nodes(
        self, *, fields: Sequence[str], limit: int, **filters: Any
    ) -> AsyncIterator[list[dict[str, Any]]]:
        self.asked_for = filters
        for start in range(0, len(self.listed), limit):
            self.pages += 1
            await asyncio.sleep(self.page_takes)
            if self.away:
                raise IronicUnavailable("away")
            if self.refused:
                raise IronicRefused(406, "no such filter")
            yield [
                {"uuid": uuid, "provision_state": "available"} for uuid in self.listed[start : start + limit]
            ]


class ReaderCase:
    def __init__(self, at_once: int = 4, closed: Collection[str] = ()) -> None:
        self.ironic = CountingIronic()
        clock = Clock(lambda: 0.0, random.Random(1), lambda: 0.0)
        self.reader = Reader(self.ironic, clock, at_once=at_once, closed=closed.__contains__)
        self.found: list[NodeRead] = []
        self.received = 0

    def moment(self) -> Moment:
        return Moment(asyncio.get_running_loop().time(), self.received)

    async def take(self, found: Sequence[NodeRead]) -> None:
        self.found += found

    def play(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def playing() -> None:
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(self.reader.run(self.moment, self.take))
                await story()
                reading.cancel()

        run(playing())

    @property
    def found_nodes(self) -> list[str]:
        return [uuid for uuid, _, _ in self.found]


def nodes(count: int) -> list[str]:
    return [uid(number, "c") for number in range(count)]
