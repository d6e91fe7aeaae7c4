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
    assert case.ironic.pages <= 2 + FRUITLESS_PAGES


def test_pages_that_bring_nobody_are_left_for_a_while_and_all_are_read_singly() -> None:
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
    assert max(beside[5:]) == SINGLE_READERS


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
    (found,) = (read for read in case.found if read.uuid == late)
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
