"""The control room's pages of reservations and headroom: lists, forms, and what they change in placement."""

import re
from collections.abc import AsyncIterator

import pytest

from bus.queries import BuildsFound
from bus.requests import Flavor
from bus.worker import Worker, answers
from features.reservations import pages
from features.reservations.messages import (
    FILL_RESERVATION,
    RESERVATIONS,
    FillReservation,
    FindReservations,
    MakeReservation,
    Reservation,
    ReservationEditRequested,
    ReservationFilled,
    ReservationsFound,
)
from features.reservations.operations import ReservationOperations
from features.reservations.tests.support.reservation_parts import draw_from
from placement_worker.testing import Placement
from tests.support.decided_builds import FLAVOR, NOTHING, STANDS
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room

R1 = uid(1, "7")
ANSWERED = (RESERVATIONS.name, "providers")


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made:
        assert await report(made, a_report(1), a_report(2)) == ["", ""]
        yield made


async def one_host_is_missing(_: FillReservation) -> ReservationFilled:
    return ReservationFilled(placed=1, missing=1, reason="no host has 4 <VCPU>")


@pytest.fixture
async def room(placement: Placement) -> AsyncIterator[VisitedRoom]:
    scheduler = Worker("scheduler", answers=[answers(FILL_RESERVATION, one_host_is_missing)])
    async with a_visited_room(silent_placement(placement), scheduler, answered=ANSWERED) as visited:
        await visited.sign_in("admin")
        yield visited


async def reserve(placement: Placement, number: int = 1, name: str = "season", count: int = 2) -> None:
    """Store a reservation with one slot of 4 VCPU on host 1."""
    id_ = uid(number, "7")
    made = Reservation(
        id=id_, name=name, project="p1", purpose="<sale>", flavor=Flavor(name="m", vcpus=4), count=count
    )
    await placement.of(ReservationOperations).edit(
        ReservationEditRequested(edit=MakeReservation(reservation=made))
    )


async def drawn(placement: Placement) -> None:
    await draw_from(placement, R1)


async def stored(placement: Placement) -> dict[str, Reservation]:
    found = await placement.of(ReservationOperations).find(FindReservations(slots=False))
    return {each.name: each for each in found.reservations}


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


async def test_a_reservation_is_shown_with_hosts_and_amounts(room: VisitedRoom, placement: Placement) -> None:
    await reserve(placement)
    await drawn(placement)
    page = await room.page("/reservations")
    text = words(page)
    assert "season of project p1 active 1 slot without a host End and delete" in text
    assert "VCPU 1 of 4 drawn 3 reserved now" in text and 'width="25.00"' in page
    assert "1 of 2 have a host, 1 hold capacity that is not drawn; each 4 VCPU" in text
    assert f"Hosts host-1 Drawn by {uid(2)} Use builds that name it Purpose &lt;sale&gt;" in text


async def test_reservations_are_listed_in_pages_without_those_of_failover(
    room: VisitedRoom, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    await placement.of(ReservationOperations).edit(
        ReservationEditRequested(edit=MakeReservation(reservation=FAILOVER))
    )
    for number in range(1, 4):
        await reserve(placement, number, f"r{number}")
    first, second = await room.page("/reservations"), await room.page("/reservations?skip=2")
    assert [re.findall(r"<b>(\w+)</b>\n", page) for page in (first, second)] == [["r1", "r2"], ["r3"]]
    assert 'href="/reservations?skip=2">Next' in first and ">Next" not in second
    assert 'href="/reservations">Previous' in second
    assert "No reservations of p2." in words(await room.page("/reservations?project=p2"))


FAILOVER = Reservation(
    id=uid(9, "7"), name="headroom", flavor=Flavor(name="any"), use="failover", levels=("host",)
)


async def test_an_operator_creates_and_deletes_a_reservation(room: VisitedRoom, placement: Placement) -> None:
    given = {
        "name": "s&t",
        "project": "p1",
        "vcpus": "4",
        "count": "2",
        "end": "+2h",
        "host": "host-1, host-2",
    }
    answer = await room.send("/reservations", headers={}, act="create", open="1", **given)
    assert answer.status_code == 303
    page = words(await room.page(answer.headers["location"]))
    assert "Reservation s&amp;t was created. 1 of 2 slots have a host: no host has 4 &lt;VCPU&gt;." in page
    made = (await stored(placement))["s&t"]
    assert (made.flavor.vcpus, made.count, made.hosts) == (4, 2, ("host-1", "host-2"))
    assert (made.use, made.returns) == ("open", True)
    answer = await room.send("/reservations", act="delete", reservation=made.id)
    assert "Reservation s&amp;t was deleted." in words(await room.page(answer.headers["location"]))
    assert await stored(placement) == {}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"vcpus": "x<"}, "vcpus: 'x<' is no whole number"),
        ({"count": "0"}, "count: a reservation has at least one slot"),
        ({"end": "tomorrow"}, "--end tomorrow: a time like"),
        ({"begin": "+2h", "end": "+1h"}, "--end +1h: it is not after the beginning"),
        ({"name": "season"}, "there is a reservation season in this project already"),
        ({"name": ""}, "name"),
    ],
)
async def test_an_error_is_shown_with_the_entered_text(
    room: VisitedRoom, placement: Placement, given: dict[str, str], problem: str
) -> None:
    await reserve(placement)
    fields = {"act": "create", "name": "new", "project": "p1", **given}
    answer = await room.send("/reservations", headers={}, **fields)
    assert answer.status_code == 409
    alarm = answer.text.partition('id="form-problem">')[2].partition("</p>")[0]
    assert problem.replace("'", "&#39;").replace("<", "&lt;") in alarm
    assert f'name="name" value="{fields["name"]}"' in answer.text
    assert list(await stored(placement)) == ["season"]


async def test_unknown_operations_and_a_silent_placement_are_shown() -> None:
    async with a_visited_room() as room:
        await room.sign_in("admin")
        assert (await room.send("/reservations", act="<x>")).status_code == 400
        assert "Placement does not answer: no consumer" in await room.page("/reservations?wait=1")


async def test_the_page_of_a_build_names_its_reservation() -> None:
    season = Reservation(id=uid(5), name="season", project="shop", flavor=FLAVOR)
    sent = {
        **NOTHING,
        "builds": BuildsFound(builds=(STANDS,)),
        RESERVATIONS.name: ReservationsFound(reservations=(season,)),
    }
    async with a_visited_room(sent=sent) as room:
        page = await room.page(f"/builds/{uid(7)}")
    assert 'Draws from reservation <a href="/reservations">season</a> of project shop.' in page
