"""Confirming reads: one per node at a time, a limited number in parallel, with retries."""

import asyncio

import pytest

from ironic_sync.notifications import UNRESOLVED
from tests.support.counting_ironic import READING, ReaderCase, nodes
from tests.support.ids import uid


def test_a_node_is_read_once_however_often_it_is_wished_for() -> None:
    case = ReaderCase()

    async def story() -> None:
        for _ in range(5):
            case.reader.wish(uid(1, "c"))
        assert case.reader.unresolved == 1
        await asyncio.sleep(1)

    case.play(story)
    assert case.found_nodes == [uid(1, "c")] and case.reader.unresolved == 0


def test_a_request_during_a_read_causes_one_more_read() -> None:
    case = ReaderCase()

    async def story() -> None:
        case.reader.wish(uid(1, "c"))
        await asyncio.sleep(READING / 2)
        case.received = 7
        for _ in range(5):
            case.reader.wish(uid(1, "c"))
        await asyncio.sleep(1)

    case.play(story)
    assert [began.received for _, _, began in case.found] == [0, 7]
    assert case.ironic.most_of_one == 1


def test_reads_are_limited_and_done_in_order_of_request() -> None:
    case = ReaderCase(at_once=4)

    async def story() -> None:
        for uuid in nodes(50):
            case.reader.wish(uuid)
        assert case.reader.unresolved == 50 == UNRESOLVED._value.get()
        await asyncio.sleep(1)

    case.play(story)
    assert case.ironic.most == 4 and UNRESOLVED._value.get() == 0
    assert list(case.ironic.reads) == nodes(50) and sorted(case.found_nodes) == nodes(50)


def test_reads_back_off_while_ironic_is_unreachable() -> None:
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
        case.reader.wish(uid(1, "c"))
        await asyncio.sleep(300)
        case.ironic.away = False
        await asyncio.sleep(40)
        case.found.clear()
        case.reader.wish(uid(2, "c"))
        await asyncio.sleep(2 * READING)
        assert case.found_nodes == [uid(2, "c")]
        case.ironic.away = True
        case.reader.wish(uid(3, "c"))
        await asyncio.sleep(2 * READING)
        case.ironic.away = False
        await asyncio.sleep(0.2)
        assert case.found_nodes == [uid(2, "c"), uid(3, "c")], "patience begins anew"

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


def test_a_new_request_ends_the_pause_of_a_node() -> None:
    case = ReaderCase()

    async def story() -> None:
        case.ironic.refused.add(uid(1, "c"))
        case.reader.wish(uid(1, "c"))
        await asyncio.sleep(1)
        case.ironic.refused.clear()
        case.reader.wish(uid(1, "c"))
        await asyncio.sleep(1)
        assert case.found_nodes == [uid(1, "c")]
        await asyncio.sleep(100)

    case.play(story)
    assert case.ironic.reads.total() == 2


@pytest.mark.parametrize("kind", ["missing", "nonsense"])
def test_missing_nodes_are_found_and_invalid_answers_ignored(kind: str) -> None:
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
