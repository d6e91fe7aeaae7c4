"""Confirming reads: each node by one at a time, not too many at once, and patiently. In virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from typing import Any

import pytest

from bus.clock import Clock
from ironic_sync.access import IronicRefused, IronicUnavailable
from ironic_sync.core.belief import Moment
from ironic_sync.core.node import FIELDS
from ironic_sync.meters import UNRESOLVED
from ironic_sync.reader import BESIDE_PAGES, IN_VAIN, MANY, PAGE, VAIN_PAUSE, NodeRead, Reader
from tests.cells import an_id
from tests.simulation.clockwork import run

READING = 0.01  # seconds


class CountingIronic:
    """Answers after a while; counts who is being read."""

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
        self.heard = 0

    def moment(self) -> Moment:
        return Moment(asyncio.get_running_loop().time(), self.heard)

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
    return [an_id(number, "c") for number in range(count)]


def test_a_node_is_read_once_however_often_it_is_wished_for() -> None:
    case = ReaderCase()

    async def story() -> None:
        for _ in range(5):
            case.reader.wish(an_id(1, "c"))
        assert case.reader.unresolved == 1
        await asyncio.sleep(1)

    case.play(story)
    assert case.found_nodes == [an_id(1, "c")] and case.reader.unresolved == 0


def test_a_wish_during_a_read_makes_exactly_one_more_that_begins_later() -> None:
    case = ReaderCase()

    async def story() -> None:
        case.reader.wish(an_id(1, "c"))
        await asyncio.sleep(READING / 2)
        case.heard = 7
        for _ in range(5):
            case.reader.wish(an_id(1, "c"))
        await asyncio.sleep(1)

    case.play(story)
    assert [began.heard for _, _, began in case.found] == [0, 7]
    assert case.ironic.most_of_one == 1


def test_only_so_many_are_read_at_once_and_all_in_the_end_in_the_order_of_wishing() -> None:
    case = ReaderCase(at_once=4)

    async def story() -> None:
        for uuid in nodes(50):
            case.reader.wish(uuid)
        assert case.reader.unresolved == 50 == UNRESOLVED._value.get()
        await asyncio.sleep(1)

    case.play(story)
    assert case.ironic.most == 4 and UNRESOLVED._value.get() == 0
    assert list(case.ironic.reads) == nodes(50) and sorted(case.found_nodes) == nodes(50)


def test_while_ironic_is_away_it_is_asked_less_and_less_often_and_no_wish_is_lost() -> None:
    case = ReaderCase(at_once=4)
    asked = []

    async def story() -> None:
        case.ironic.away = True
        for uuid in nodes(20):
            case.reader.wish(uuid)
        for _ in range(3):
            before = case.ironic.reads.total()
            await asyncio.sleep(100)
            asked.append(case.ironic.reads.total() - before)
        assert not case.found and case.reader.unresolved == 20
        case.ironic.away = False
        await asyncio.sleep(40)

    case.play(story)
    assert asked[0] > max(asked[1:]) and max(asked[1:]) <= 4 * 7, "15 s to 30 s between tries"
    assert sorted(case.found_nodes) == nodes(20) and case.reader.unresolved == 0


def test_once_ironic_is_back_nothing_waits_any_more() -> None:
    case = ReaderCase()

    async def story() -> None:
        case.ironic.away = True
        case.reader.wish(an_id(1, "c"))
        await asyncio.sleep(300)
        case.ironic.away = False
        await asyncio.sleep(40)
        case.found.clear()
        case.reader.wish(an_id(2, "c"))
        await asyncio.sleep(2 * READING)
        assert case.found_nodes == [an_id(2, "c")]
        case.ironic.away = True
        case.reader.wish(an_id(3, "c"))
        await asyncio.sleep(2 * READING)
        case.ironic.away = False
        await asyncio.sleep(0.2)
        assert case.found_nodes == [an_id(2, "c"), an_id(3, "c")], "patience begins anew"

    case.play(story)


def test_a_node_we_may_not_read_holds_up_no_other_and_is_tried_again() -> None:
    case = ReaderCase(at_once=1)
    bad, good = nodes(2)

    async def story() -> None:
        case.ironic.refused.add(bad)
        case.reader.wish(bad)
        case.reader.wish(good)
        await asyncio.sleep(1)
        assert case.found_nodes == [good] and case.reader.unresolved == 1
        case.ironic.refused.clear()
        await asyncio.sleep(60)

    case.play(story)
    assert case.found_nodes == [good, bad] and case.reader.unresolved == 0


def test_a_new_wish_for_such_a_node_is_heard_at_once() -> None:
    case = ReaderCase()

    async def story() -> None:
        case.ironic.refused.add(an_id(1, "c"))
        case.reader.wish(an_id(1, "c"))
        await asyncio.sleep(1)
        case.ironic.refused.clear()
        case.reader.wish(an_id(1, "c"))
        await asyncio.sleep(1)
        assert case.found_nodes == [an_id(1, "c")]
        await asyncio.sleep(100)

    case.play(story)
    assert case.ironic.reads.total() == 2


@pytest.mark.parametrize("kind", ["missing", "nonsense"])
def test_a_node_that_is_not_there_is_found_gone_and_nonsense_is_left_alone(kind: str) -> None:
    case = ReaderCase()
    bad, good = nodes(2)

    async def story() -> None:
        getattr(case.ironic, kind).add(bad)
        case.reader.wish(bad)
        case.reader.wish(good)
        await asyncio.sleep(1)

    case.play(story)
    expected = {good: "node", bad: "none"} if kind == "missing" else {good: "node"}
    assert {uuid: "node" if node else "none" for uuid, node, _ in case.found} == expected
    assert case.reader.unresolved == 0


# Very many at once


def test_very_many_are_read_by_the_page() -> None:
    case = ReaderCase(at_once=1)
    everyone = nodes(4000)

    async def story() -> None:
        case.ironic.listed = everyone
        for uuid in everyone[:3000]:
            case.reader.wish(uuid)
        await asyncio.sleep(1)

    case.play(story)
    assert sorted(case.found_nodes) == everyone[:3000], "each once, and no other"
    assert case.ironic.pages <= 3000 // PAGE + 1 and case.ironic.reads.total() < MANY
    newest_first = {"sort_key": "updated_at", "sort_dir": "desc"}
    assert case.ironic.asked_for == {"provision_state": "available", **newest_first}


def test_who_turns_up_open_and_is_held_to_be_closed_is_taken_unwished_for() -> None:
    everyone = nodes(2 * MANY + 3)
    wished, closed = everyone[:MANY], everyone[MANY:-3]  # the last three are known to be open
    case = ReaderCase(at_once=1, closed=closed)

    async def story() -> None:
        case.ironic.listed = everyone
        for uuid in wished:
            case.reader.wish(uuid)
        await asyncio.sleep(1)

    case.play(story)
    assert sorted(case.found_nodes) == [*wished, *closed]
    assert not case.ironic.reads.keys() & set(closed)


def test_pages_end_where_nobody_waits_any_more() -> None:
    case = ReaderCase(at_once=1)
    everyone = nodes(20 * PAGE)

    async def story() -> None:
        case.ironic.listed = everyone
        for uuid in [*everyone[:PAGE], everyone[-1]]:
            case.reader.wish(uuid)
        await asyncio.sleep(1)

    case.play(story)
    assert sorted(case.found_nodes) == [*everyone[:PAGE], everyone[-1]]
    assert case.ironic.pages <= 2 + IN_VAIN


def test_pages_that_bring_nobody_are_left_for_a_while_and_all_are_read_singly() -> None:
    case = ReaderCase(at_once=8)
    everyone = nodes(1000)

    async def story() -> None:
        case.ironic.listed = nodes(3000)[1000:]
        for uuid in everyone:
            case.reader.wish(uuid)
        await asyncio.sleep(VAIN_PAUSE * 0.9)
        assert case.ironic.pages <= IN_VAIN + 1
        await asyncio.sleep(20)

    case.play(story)
    assert sorted(case.found_nodes) == everyone


def test_while_pages_are_read_a_few_are_read_singly_beside_them() -> None:
    case = ReaderCase(at_once=8)
    everyone = nodes(MANY)
    beside: list[int] = []

    async def story() -> None:
        case.ironic.listed = everyone
        case.ironic.page_takes = 1.0
        for uuid in everyone:
            case.reader.wish(uuid)
        for _ in range(30):
            await asyncio.sleep(READING)
            beside.append(case.ironic.under_way.total())

    case.play(story)
    assert max(beside[5:]) == BESIDE_PAGES


def test_those_a_listing_leaves_out_are_read_singly() -> None:
    case = ReaderCase()
    everyone = nodes(1000)

    async def story() -> None:
        case.ironic.listed = everyone[500:]
        for uuid in everyone:
            case.reader.wish(uuid)
        await asyncio.sleep(20)

    case.play(story)
    assert sorted(case.found_nodes) == everyone


def test_a_page_that_was_asked_for_before_the_wish_does_not_count() -> None:
    case = ReaderCase(at_once=1)
    everyone = nodes(MANY + 1)
    late = everyone[-1]

    async def story() -> None:
        case.ironic.listed = [late, *everyone[:-1]]
        for uuid in everyone[:-1]:
            case.reader.wish(uuid)
        await asyncio.sleep(READING / 2)
        case.heard = 7
        case.reader.wish(late)
        await asyncio.sleep(20)

    case.play(story)
    (found,) = (one for one in case.found if one.uuid == late)
    assert found.began.heard == 7


@pytest.mark.parametrize("trouble", ["away", "refused"])
def test_where_pages_cannot_be_had_all_are_read_singly_in_the_end(trouble: str) -> None:
    case = ReaderCase()
    everyone = nodes(MANY)

    async def story() -> None:
        case.ironic.listed = everyone
        if trouble == "away":
            case.ironic.away = True
        else:
            case.ironic.refused.add("listings")
        for uuid in everyone:
            case.reader.wish(uuid)
        await asyncio.sleep(10)
        case.ironic.away = False
        await asyncio.sleep(60)

    case.play(story)
    assert sorted(case.found_nodes) == everyone and case.reader.unresolved == 0
