"""Confirming reads: one per node at a time, a limited number in parallel, with retries.

When very many nodes wait to be read, they are read by the page.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bus.clock import Clock
from ironic_sync.api import IronicRefused, IronicUnavailable
from ironic_sync.core.known_state import Moment
from ironic_sync.core.node import FIELDS
from ironic_sync.reader import MANY, SINGLE_READERS, NodeRead, Reader
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time

READING = 0.01  # seconds


class CountingIronic:
    """An Ironic that counts its reads; each takes some time."""

    def __init__(self) -> None:
        self.away = False
        self.refused: set[str] = set()
        self.nonsense: set[str] = set()
        self.missing: set[str] = set()
        self.reads: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.most_of_one = self.most = self.pages = 0
        self.listed: list[str] = []
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
    def __init__(self, at_once: int, closed: Collection[str]) -> None:
        self.ironic = CountingIronic()
        clock = Clock(lambda: 0.0, random.Random(1), lambda: 0.0)
        self.reader = Reader(self.ironic, clock, at_once=at_once, closed=closed.__contains__)
        self.found: list[NodeRead] = []
        self.received = 0

    def moment(self) -> Moment:
        return Moment(asyncio.get_running_loop().time(), self.received)

    async def take(self, found: Sequence[NodeRead]) -> None:
        self.found += found

    def request(self, *uuids: str) -> None:
        for uuid in uuids:
            self.reader.request(uuid)

    @property
    def found_nodes(self) -> list[str]:
        return [uuid for uuid, _, _ in self.found]


@asynccontextmanager
async def reading(at_once: int = 4, closed: Collection[str] = ()) -> AsyncIterator[ReaderCase]:
    case = ReaderCase(at_once, closed)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(case.reader.run(case.moment, case.take))
        yield case
        running.cancel()


def nodes(count: int) -> list[str]:
    return [uid(number, "c") for number in range(count)]


ONE, TWO, THREE = nodes(3)


@in_virtual_time
async def test_a_request_during_a_read_causes_one_more_read() -> None:
    async with reading() as case:
        case.request(ONE)
        await asyncio.sleep(READING / 2)
        case.received = 7
        case.request(*[ONE] * 5)
        await asyncio.sleep(1)
    assert [began.received for _, _, began in case.found] == [0, 7]
    assert case.ironic.most_of_one == 1


@in_virtual_time
async def test_a_node_without_read_permission_delays_no_other_and_is_retried() -> None:
    async with reading(at_once=1) as case:
        case.ironic.refused.add(ONE)
        case.request(ONE, TWO)
        await asyncio.sleep(1)
        assert case.found_nodes == [TWO] and case.reader.unresolved == 1
        case.ironic.refused.clear()
        await asyncio.sleep(60)
    assert case.found_nodes == [TWO, ONE] and case.reader.unresolved == 0


@in_virtual_time
async def test_missing_nodes_are_found_and_invalid_answers_ignored() -> None:
    async with reading() as case:
        case.ironic.missing.add(ONE)
        case.ironic.nonsense.add(TWO)
        case.request(ONE, TWO, THREE)
        await asyncio.sleep(1)
    assert {uuid: node is not None for uuid, node, _ in case.found} == {ONE: False, THREE: True}
    assert case.reader.unresolved == 0


# Pages


@in_virtual_time
async def test_an_open_node_in_a_page_is_used_without_a_request() -> None:
    everyone = nodes(2 * MANY + 3)
    wished, closed = everyone[:MANY], everyone[MANY:-3]  # the last three are known to be open
    async with reading(at_once=1, closed=closed) as case:
        case.ironic.listed = everyone
        case.request(*wished)
        await asyncio.sleep(1)
    assert sorted(case.found_nodes) == [*wished, *closed]
    assert not case.ironic.reads.keys() & set(closed)


@in_virtual_time
async def test_single_reads_run_in_parallel_with_pages() -> None:
    in_parallel: list[int] = []
    async with reading(at_once=8) as case:
        case.ironic.listed = nodes(MANY)
        case.ironic.page_takes = 1.0
        case.request(*nodes(MANY))
        for _ in range(30):
            await asyncio.sleep(READING)
            in_parallel.append(case.ironic.under_way.total())
    assert max(in_parallel[5:]) == SINGLE_READERS


@in_virtual_time
async def test_a_page_requested_before_the_read_request_does_not_count() -> None:
    *early, late = nodes(MANY + 1)
    async with reading(at_once=1) as case:
        case.ironic.listed = [late, *early]
        case.request(*early)
        await asyncio.sleep(READING / 2)
        case.received = 7
        case.request(late)
        await asyncio.sleep(20)
    (found,) = (read for read in case.found if read.uuid == late)
    assert found.began.received == 7


@pytest.mark.parametrize("trouble", ["away", "refused"])
@in_virtual_time
async def test_without_pages_all_nodes_are_read_singly(trouble: str) -> None:
    async with reading() as case:
        case.ironic.listed = nodes(MANY)
        if trouble == "away":
            case.ironic.away = True
        else:
            case.ironic.refused.add("listings")
        case.request(*nodes(MANY))
        await asyncio.sleep(10)
        case.ironic.away = False
        await asyncio.sleep(60)
    assert sorted(case.found_nodes) == nodes(MANY) and case.reader.unresolved == 0
