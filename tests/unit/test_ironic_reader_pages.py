"""When very many nodes wait to be read, they are read by the page."""

import asyncio

import pytest

from ironic_sync.reader import FRUITLESS_PAGES, FRUITLESS_PAUSE, MANY, PAGE, SINGLE_READERS
from tests.support.counting_ironic import READING, ReaderCase, nodes


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


def test_an_open_node_in_a_page_is_used_without_a_request() -> None:
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


def test_listing_ends_when_no_requested_node_is_left() -> None:
    case = ReaderCase(at_once=1)
    everyone = nodes(20 * PAGE)

    async def story() -> None:
        case.ironic.listed = everyone
        for uuid in [*everyone[:PAGE], everyone[-1]]:
            case.reader.wish(uuid)
        await asyncio.sleep(1)

    case.play(story)
    assert sorted(case.found_nodes) == [*everyone[:PAGE], everyone[-1]]
    assert case.ironic.pages <= 2 + FRUITLESS_PAGES


def test_fruitless_pages_are_replaced_by_single_reads() -> None:
    case = ReaderCase(at_once=8)
    everyone = nodes(1000)

    async def story() -> None:
        case.ironic.listed = nodes(3000)[1000:]
        for uuid in everyone:
            case.reader.wish(uuid)
        await asyncio.sleep(FRUITLESS_PAUSE * 0.9)
        assert case.ironic.pages <= FRUITLESS_PAGES + 1
        await asyncio.sleep(20)

    case.play(story)
    assert sorted(case.found_nodes) == everyone


def test_single_reads_run_in_parallel_with_pages() -> None:
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
    assert max(beside[5:]) == SINGLE_READERS


def test_nodes_missing_in_a_list_are_read_singly() -> None:
    case = ReaderCase()
    everyone = nodes(1000)

    async def story() -> None:
        case.ironic.listed = everyone[500:]
        for uuid in everyone:
            case.reader.wish(uuid)
        await asyncio.sleep(20)

    case.play(story)
    assert sorted(case.found_nodes) == everyone


def test_a_page_requested_before_the_read_request_does_not_count() -> None:
    case = ReaderCase(at_once=1)
    everyone = nodes(MANY + 1)
    late = everyone[-1]

    async def story() -> None:
        case.ironic.listed = [late, *everyone[:-1]]
        for uuid in everyone[:-1]:
            case.reader.wish(uuid)
        await asyncio.sleep(READING / 2)
        case.received = 7
        case.reader.wish(late)
        await asyncio.sleep(20)

    case.play(story)
    (found,) = (read for read in case.found if read.uuid == late)
    assert found.began.received == 7


@pytest.mark.parametrize("trouble", ["away", "refused"])
def test_without_pages_all_nodes_are_read_singly(trouble: str) -> None:
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
