"""The page of the control room about failover headroom."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from bus.domains import LabelEditRequested
from bus.requests import Flavor
from control_room.kit import frame
from features.headroom import pages
from features.headroom.controller import HeadroomController
from features.headroom.messages import HEADROOM, FindHeadroom, Headroom, HeadroomFound
from features.reservations.messages import RESERVATIONS, Reservation
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room, nobody


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made:
        assert await report(made, a_report(1), a_report(2)) == ["", ""]
        yield made


@pytest.fixture
async def room(placement: Placement) -> AsyncIterator[VisitedRoom]:
    answered = (RESERVATIONS.name, HEADROOM.name, "providers")
    async with a_visited_room(silent_placement(placement), answered=answered) as visited:
        await visited.sign_in("admin")
        yield visited


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


async def test_unknown_operations_and_a_silent_placement_are_shown() -> None:
    async with a_visited_room() as room:
        await room.sign_in("admin")
        assert (await room.send("/headroom", act="<x>")).status_code == 400
        assert "Placement does not answer: no consumer" in await room.page("/headroom?wait=1")


async def test_an_operator_sets_and_unsets_headroom(room: VisitedRoom, placement: Placement) -> None:
    assert "No headroom is kept" in await room.page("/headroom")
    await placement.claims.claim_many([an_order(a_claim(2, on_hosts(1, VCPU=5)))])
    answer = await room.send("/headroom", act="set", levels="host")
    await placement.of(HeadroomController).adjust()
    text = words(await room.page(answer.headers["location"]))
    assert "The headroom was set" in text and "Any one host kept Slots 1" in text
    assert "1 slot for 1 instance in 2 domains" in text
    refused = await room.send("/headroom", headers={}, act="set", levels="host")
    assert refused.status_code == 409 and "kept for any one host already" in refused.text
    assert (await room.send("/headroom", act="unset")).status_code == 303
    assert "No headroom is kept" in await room.page("/headroom")
    assert (await placement.of(HeadroomController).find(FindHeadroom())).headrooms == ()


async def test_the_form_refuses_unknown_levels_and_asks_before_it_replaces_headroom(
    room: VisitedRoom, placement: Placement
) -> None:
    async def levels() -> list[tuple[str, ...]]:
        found = (await placement.of(HeadroomController).find(FindHeadroom())).headrooms
        return [each.reservation.levels for each in found]

    await placement.reports.label(LabelEditRequested(roots=(uid(1, "a"),), set={"rack": "r1"}))
    await room.send("/headroom", act="set", levels="host")
    unknown = await room.send("/headroom", headers={}, act="set", levels="planet")
    assert unknown.status_code == 409 and "no host has a label of level planet" in unknown.text
    asked = await room.send("/headroom", headers={}, act="set", levels="rack")
    assert asked.status_code == 409 and "the loss of any one host would not be covered" in words(asked.text)
    assert await levels() == [("host",)]
    assert (await room.send("/headroom", act="set", levels="rack", sure="yes")).status_code == 303
    assert await levels() == [("rack",)]


async def test_headroom_that_is_not_kept_is_shown_with_reasons(
    room: VisitedRoom, placement: Placement
) -> None:
    await placement.reports.label(LabelEditRequested(roots=(uid(2, "a"),), set={"rack": "r1"}))
    await room.send("/headroom", act="set", levels="host, rack")
    await placement.of(HeadroomController).adjust()
    await placement.claims.claim_many([an_order(a_claim(2, on_hosts(1, VCPU=5)))])
    await placement.of(HeadroomController).adjust()
    text = words(await room.page("/headroom"))
    assert "Any one host or rack not kept" in text
    assert "1 instances: their hosts have no label of level rack" in text.partition("Missing")[2]


def section(answer: Callable[[Any], Awaitable[Any]]) -> frame.Section:
    """Return the section about the headroom after claims, with this answer to its query."""
    queries = SimpleNamespace(asker=lambda query: answer)
    templates = Path(pages.__file__).with_name("templates")
    only = frame.FeaturePages(navigation={}, make=lambda *_: frame.AddedPages(), templates=templates)
    context: Any = SimpleNamespace(access=None, sessions=None, features=[only], queries=queries)
    return partial(pages.after_claims, context, frame.Renderer(context))


async def test_claims_that_would_end_the_headroom_are_shown_with_the_reason() -> None:
    request = Request({"type": "http"})
    claim = a_claim(1, on_hosts(2, VCPU=4))
    asked: list[FindHeadroom] = []
    headroom = Reservation(
        id=uid(1, "7"), name="headroom", flavor=Flavor(name="any"), use="failover", levels=("host",)
    )
    why = "host <h2>: no host outside of it"
    ends = Headroom(reservation=headroom, kept=True, slots=1, domains=2, instances=1, lacking_then=(why,))

    async def tell(question: FindHeadroom) -> HeadroomFound:
        asked.append(question)
        return HeadroomFound(headrooms=(ends,))

    text = await section(tell)(request, (claim,))
    assert asked == [FindHeadroom(claims=(claim,))]
    assert "Failover headroom for any one host would end: host &lt;h2&gt;: no host outside of it" in text
    assert "Whether failover headroom would be kept is unknown." in await section(nobody)(request, (claim,))
    assert await section(tell)(request, ()) == "" and len(asked) == 1
