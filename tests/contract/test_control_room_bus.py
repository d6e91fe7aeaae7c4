"""The bus in the control room: queue depths, dead letters, and replaying them."""

import asyncio
import re
from collections.abc import AsyncIterator
from html import unescape

import httpx
import pytest

from bus.cells import CellsFound
from bus.protocol import DeadLetter, QueueSpec, Transport
from tests.support.envelopes import a_letter, an_envelope, publish
from tests.support.visited_room import HTML, VisitedRoom, a_visited_room
from tests.support.waiting import until

QUEUE = "scheduler:build.requested"
ODD = "a/b ?&<b>\N{SNOWMAN}"


@pytest.fixture
async def room() -> AsyncIterator[VisitedRoom]:
    async with a_visited_room() as visited:
        await visited.bus.transport.declare(QueueSpec(QUEUE, ("build.requested",)))
        yield visited


def bus_of(room: VisitedRoom) -> Transport:
    return room.bus.transport


async def store_dead_letter(room: VisitedRoom, *numbers: int, **more: str) -> None:
    for number in numbers:
        await bus_of(room).store_dead_letter(a_letter(number, body=b'{"n":%d}' % number, **more))


async def left(room: VisitedRoom) -> list[str]:
    return [letter.id for letter in await bus_of(room).dead_letters()]


async def waiting(room: VisitedRoom) -> int:
    return (await bus_of(room).depths([QUEUE])).queues[QUEUE].messages


async def form(room: VisitedRoom, **given: str) -> httpx.Response:
    given = {"form_token": await room.form_token(), **given}
    return await room.browser.post("/bus/dead", data=given, headers=HTML)


async def act(room: VisitedRoom, what: str, *ids: str, sure: bool = True) -> httpx.Response:
    return await form(room, act=what, sure="yes" if sure else "", **{f"letter:{id_}": "1" for id_ in ids})


async def counted(room: VisitedRoom, path: str = "/bus") -> str:
    """The page, once it has been counted: the first time it may not wait for that."""
    pages: list[str] = []

    async def there() -> bool:
        pages.append(await room.page(path))
        return "Being counted" not in pages[-1]

    await until(there)
    return pages[-1]


# How full it is


async def test_a_slow_count_of_the_queues_continues_after_the_page_was_sent() -> None:
    asked, answer = 0, asyncio.Event()

    async def slow(_: object) -> CellsFound:
        nonlocal asked
        asked += 1
        await answer.wait()
        return CellsFound(seen=0, cells=())

    async with a_visited_room(told={"cells": slow}) as room:
        assert "Being counted" in await room.page("/bus")
        assert "Being counted" in await room.page("/bus")
        answer.set()
        await counted(room)
        assert asked == 2  # which cells there are, and how much is in each: once for both pages


async def test_every_topic_is_listed_with_queue_depths_and_consumers(room: VisitedRoom) -> None:
    for number in range(3):
        await publish(bus_of(room), an_envelope(number))
    await store_dead_letter(room, 1)
    page = await counted(room)
    assert "build one or several instances" in page and "placement.claim.{cell}" in page
    row = re.search(rf"<tr><td class=\"mono\">{QUEUE}</td>.*?</tr>", page, re.S)
    assert row is not None and '<td class="n">3</td><td class="n">0</td>' in row[0]
    assert "no consumer" in row[0]
    assert "1 message could not be handled" in page
    of_topic = await room.page("/bus?topic=build.placed.%7Bcell%7D")
    assert "conductor.c1:build.placed.c1" in of_topic and "not declared" in of_topic
    assert "Queues with messages" in await room.page("/bus?topic=nothing")


async def test_an_empty_bus_is_reported_as_empty(room: VisitedRoom) -> None:
    assert "All queues are empty" in await counted(room)
    assert "No dead letters: every message was handled" in await room.page("/bus/dead")


async def test_a_dead_letter_with_any_id_is_listed_and_shown_in_full(room: VisitedRoom) -> None:
    await bus_of(room).store_dead_letter(
        a_letter(id=ODD, body=b'{"name":"<script>"}', traceback="Boom\n  at <x>")
    )
    page = await room.page("/bus/dead")
    link = re.search(r'href="(/bus/letter\?id=[^"]+)"', page)
    assert link is not None and "flavor: a name is missing" in page and "<b>" not in page
    whole = await room.page(unescape(link[1]))
    assert (
        "&lt;script&gt;" in whole and "Boom\n  at &lt;x&gt;" in whole and "2023-11-14 22:14:20 UTC" in whole
    )
    assert "There is no such dead letter" in await room.page("/bus/letter?id=gone", 404)


async def test_dead_letters_are_paged_and_filtered_by_queue(room: VisitedRoom) -> None:
    await store_dead_letter(room, *range(150), queue="other:x")
    await store_dead_letter(room, 150, queue=QUEUE)
    page = await room.page("/bus/dead")
    assert page.count("/bus/letter?id=") == 100
    assert (await room.page("/bus/dead?after=letter-99")).count("/bus/letter?id=") == 51
    assert (await room.page(f"/bus/dead?queue={QUEUE}")).count("/bus/letter?id=") == 1
    gone = await room.page("/bus/dead?after=letter-999")
    assert "is gone: these are the oldest" in gone and gone.count("/bus/letter?id=") == 100


# ... and acted on


@pytest.mark.parametrize("token", ["", "somebody"])
async def test_a_reader_can_neither_replay_nor_drop_dead_letters(room: VisitedRoom, token: str) -> None:
    await store_dead_letter(room, 1)
    if token:
        await room.sign_in(token)
    assert "sign in with a token whose role may act" in await room.page("/bus/dead")
    assert 'name="act"' not in await room.page("/bus/letter?id=letter-1")
    for what in ("replay", "drop"):
        assert (await act(room, what, "letter-1")).status_code == 403
    assert (await left(room), await waiting(room)) == (["letter-1"], 0)


@pytest.mark.parametrize(("what", "waits"), [("replay", 2), ("drop", 0)])
async def test_an_operator_replays_or_drops_marked_letters_after_confirmation(
    room: VisitedRoom, what: str, waits: int
) -> None:
    await store_dead_letter(room, 1, 2, 3)
    await room.sign_in("admin")
    asked = await act(room, what, "letter-1", "letter-3", sure=False)
    assert asked.status_code == 200 and f"{what.capitalize()} 2 dead letters?" in asked.text
    assert (await left(room), await waiting(room)) == (["letter-1", "letter-2", "letter-3"], 0)
    done = await act(room, what, "letter-1", "letter-3")
    assert done.status_code == 303
    told = "replayed" if what == "replay" else "dropped"
    assert f"2 {told}." in await room.page(done.headers["location"])
    assert (await left(room), await waiting(room)) == (["letter-2"], waits)


async def test_a_letter_that_cannot_be_replayed_stays_and_the_reason_is_shown(room: VisitedRoom) -> None:
    letters: list[DeadLetter] = [a_letter(1, queue="nowhere"), a_letter(2), a_letter(3, cell="c1")]
    for letter in letters:
        await bus_of(room).store_dead_letter(letter)
    await room.sign_in("admin")
    some = await act(room, "replay", "letter-1", "letter-2", "letter-3", "gone")
    assert some.status_code == 409 and "1 replayed." in some.text
    assert "there is no queue &#39;nowhere&#39;" in some.text and "it is of cell c1" in some.text
    assert "1 letter had gone meanwhile" in some.text
    assert await left(room) == ["letter-1", "letter-3"]
    assert (await act(room, "explode", "letter-1")).status_code == 400
    assert "No letter was marked" in (await act(room, "drop")).text
    assert "None of them is there any more" in (await act(room, "drop", "gone", sure=False)).text
    forged = await form(room, act="drop", sure="yes", form_token="0", **{"letter:letter-1": "1"})
    assert (forged.status_code, len(await left(room))) == (403, 2)
