"""Builds in the control room: the list of ended builds, and one build with all its records."""

import asyncio
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest

from bus.cells import CellsFound
from bus.protocol import DeadLetter, QueueSpec, Transport
from bus.queries import BuildsFound
from control_room.core.builds import EndedBuild
from tests.support.decided_builds import NOTHING, STANDS
from tests.support.envelopes import a_letter, an_envelope, publish
from tests.support.ids import uid
from tests.support.visited_room import VisitedRoom, a_visited_room
from tests.support.waiting import until


async def test_a_build_has_every_attempt_and_its_decision_with_named_hosts() -> None:
    async with a_visited_room(sent={**NOTHING, "builds": BuildsFound(builds=(STANDS,))}) as room:
        page = await room.page(f"/builds/{uid(7)}")
        again = await room.page(f"/builds/{uid(7)}?then=again")
        failed = await room.page(f"/builds/{uid(7)}?attempts=failed")
    assert "1. <a" in page and "2. <a" in page and "no disk" in page and "after 1.0 s" in page
    assert "removed 60" in page and "far2</a> and 58 more" in page
    assert "io_ops: too many builds" in page and "one more VCPU" in page
    assert "m&lt;1&gt;" in page
    assert "Repeated from" not in page and "Repeated from its record: h1, the same host" in again
    assert ">Only failed attempts<" in page and ">All attempts<" in failed
    assert "1. <a" in failed and "2. <a" not in failed


async def test_recently_ended_builds_are_listed_and_filtered_by_failure() -> None:
    async with a_visited_room() as room:
        assert "No build has ended" in await room.page("/builds")
        for number, status in ((1, "active"), (2, "error")):
            end = EndedBuild(build=uid(number), status=status, at=room.clock.now, host="h1", attempts=1)  # type: ignore[arg-type]
            room.events.history.add(end)
        room.events.changes.notify()
        every, failed = await room.page("/builds"), await room.page("/builds?failed=1")
        assert uid(1) in every and uid(2) in every
        assert uid(1) not in failed and uid(2) in failed
        found = await room.browser.get(f"/builds?id={uid(9).upper()}")
        assert (found.status_code, found.headers["location"]) == (303, f"/builds/{uid(9)}")
        assert "is not the uuid" in await room.page("/builds?id=x", 400)


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


async def act(room: VisitedRoom, what: str, *ids: str, sure: str = "yes", **more: Any) -> httpx.Response:
    marked: dict[str, Any] = {f"letter:{id_}": "1" for id_ in ids}
    return await room.send("/bus/dead", act=what, sure=sure, **marked, **more)


async def counted(room: VisitedRoom, path: str = "/bus") -> str:
    """Request the page repeatedly until it shows the counts of queues; return it."""
    pages: list[str] = []

    async def there() -> bool:
        pages.append(await room.page(path))
        return "Being counted" not in pages[-1]

    await until(there)
    return pages[-1]


# Load of the bus


async def test_a_slow_count_of_the_queues_continues_after_the_page_was_sent() -> None:
    asked, answer = 0, asyncio.Event()

    async def slow(_: object) -> CellsFound:
        nonlocal asked
        asked += 1
        await answer.wait()
        return CellsFound(seen=0, cells=())

    async with a_visited_room(sent={"cells": slow}, patience=0.1) as room:
        assert "Being counted" in await room.page("/bus")
        assert "Being counted" in await room.page("/bus")
        answer.set()
        await counted(room)
        assert asked == 2  # one query for the cells and one for the counts serve both pages


async def test_every_topic_is_listed_with_queue_depths_and_consumers(room: VisitedRoom) -> None:
    for number in range(3):
        await publish(bus_of(room), an_envelope(number))
    await store_dead_letter(room, 1)
    page = await counted(room)
    assert "build one or several instances" in page and "placement.claim.{cell}" in page
    row = re.search(rf"<tr><td class=\"mono\">{QUEUE}</td>.*?</tr>", page, re.S)
    assert row is not None and '<td class="n">3</td><td class="n">0</td>' in row[0]
    assert '<a href="/bus/dead">1</a>' in page
    of_topic = await room.page("/bus?topic=build.placed.%7Bcell%7D")
    assert "conductor.c1:build.placed.c1" in of_topic
    assert "Queues with messages" in await room.page("/bus?topic=nothing")


async def test_a_dead_letter_with_any_id_is_listed_and_shown_in_full(room: VisitedRoom) -> None:
    await bus_of(room).store_dead_letter(
        a_letter(id=ODD, body=b'{"name":"<script>"}', traceback="Boom\n  at <x>")
    )
    page = await room.page("/bus/dead")
    link = re.search(r'href="(/bus/letter\?id=[^"]+)"', page)
    assert link is not None and "flavor: a name is missing" in page and "<b>" not in page
    whole = await room.page(unescape(link[1]))
    assert "&lt;script&gt;" in whole and "Boom\n  at &lt;x&gt;" in whole
    assert "2023-11-14 22:14:20 UTC" in whole
    assert "There is no such dead letter" in await room.page("/bus/letter?id=gone", 404)


async def test_dead_letters_are_paged_and_filtered_by_queue(room: VisitedRoom) -> None:
    await store_dead_letter(room, *range(150), queue="other:x")
    await store_dead_letter(room, 150, queue=QUEUE)
    page = await room.page("/bus/dead")
    assert page.count("/bus/letter?id=") == 100
    assert "sign in with a token" in page and 'value="replay"' not in page
    assert (await room.page("/bus/dead?after=letter-99")).count("/bus/letter?id=") == 51
    assert (await room.page(f"/bus/dead?queue={QUEUE}")).count("/bus/letter?id=") == 1
    gone = await room.page("/bus/dead?after=letter-999")
    assert "was deleted: these are the oldest" in gone and gone.count("/bus/letter?id=") == 100


# Operations on dead letters


@pytest.mark.parametrize(("what", "waits"), [("replay", 2), ("drop", 0)])
async def test_an_operator_replays_or_drops_marked_letters_after_confirmation(
    room: VisitedRoom, what: str, waits: int
) -> None:
    await store_dead_letter(room, 1, 2, 3)
    await room.sign_in("admin")
    asked = await act(room, what, "letter-1", "letter-3", sure="")
    assert asked.status_code == 200 and f"{what.capitalize()} 2 dead letters?" in asked.text
    assert (await left(room), await waiting(room)) == (["letter-1", "letter-2", "letter-3"], 0)
    done = await act(room, what, "letter-1", "letter-3")
    assert done.status_code == 303
    sent = "replayed" if what == "replay" else "dropped"
    assert f"2 {sent}." in await room.page(done.headers["location"])
    assert (await left(room), await waiting(room)) == (["letter-2"], waits)


async def test_a_letter_that_cannot_be_replayed_stays_and_the_reason_is_shown(room: VisitedRoom) -> None:
    letters: list[DeadLetter] = [a_letter(1, queue="nowhere"), a_letter(2), a_letter(3, cell="c1")]
    for letter in letters:
        await bus_of(room).store_dead_letter(letter)
    await room.sign_in("admin")
    some = await act(room, "replay", "letter-1", "letter-2", "letter-3", "gone")
    assert some.status_code == 409 and "1 replayed." in some.text
    assert "there is no queue &#39;nowhere&#39;" in some.text and "it is of cell c1" in some.text
    assert "1 letter were deleted before" in some.text
    assert await left(room) == ["letter-1", "letter-3"]
    assert (await act(room, "explode", "letter-1")).status_code == 400
    assert "No letter was marked" in (await act(room, "drop")).text
    assert "All of them were deleted before" in (await act(room, "drop", "gone", sure="")).text
    forged = await act(room, "drop", "letter-1", form_token="0")
    assert (forged.status_code, len(await left(room))) == (403, 2)
