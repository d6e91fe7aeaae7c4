"""Builds in the control room: the list of ended builds, and one build with all its records."""

from typing import Any

from bus.claims import Choice
from bus.decisions import Decision, NearMiss, RecordedHost, RecordedScale, Removal
from bus.decisions import Record as DecisionRecord
from bus.messages import Attempt, BuildPlaced, BuildRequested, Selection
from bus.moves import MovesFound, MoveStands
from bus.queries import BuildsFound, BuildStands, CapacityLeft, DecisionFound, PlacedThere, WhatIfAnswered
from bus.requests import BuildSpec, Flavor
from control_room.core.windows import EndedBuild
from tests.support.ids import uid
from tests.support.visited_room import a_visited_room

FLAVOR = Flavor(name="m<1>", vcpus=1, memory_mb=512, disk_gb=1)
RECORD = DecisionRecord(
    scales=(RecordedScale("ram", 1.0, 0.0, 10.0),),
    hosts=(
        RecordedHost(uid(1, "a"), "h1", (9.0,)),
        RecordedHost(uid(2, "a"), "h2", (1.0,)),
        RecordedHost(uid(3, "a"), "h3", (5.0,), "io_ops: too many builds"),
    ),
)
DECISION = Decision(
    considered=100,
    removals=(Removal(constraint="zone z1", removed=60, left=40, hosts=("far1", "far2")),),
    nearest=(NearMiss(host="far1", lacks="1 VCPU"),),
    helps=("one more VCPU",),
    record=RECORD,
)
PLACED = BuildPlaced(
    build=uid(7),
    request=uid(8),
    cell="c1",
    chosen=Selection(root=uid(1, "a"), host="h1", agent="a1", choice=Choice(allocations={}, shapes={})),
    generation=1,
    spec=BuildSpec(flavor=FLAVOR, project="p", user="u"),
    decision=DECISION,
)
ATTEMPTS = (
    Attempt(host="h9", agent="a9", outcome="failed", cause="no disk", started=100.0, ended=101.0),
    Attempt(host="h1", agent="a1", outcome="built", started=101.0, ended=103.0),
)
STANDS = BuildStands(build=uid(7), status="active", placed=PLACED, host="h1", attempts=ATTEMPTS)
NOTHING: dict[str, Any] = {
    "builds": BuildsFound(builds=()),
    "moves": MovesFound(moves=()),
    "decision": DecisionFound(),
}


async def test_a_build_has_every_attempt_and_its_decision_with_named_hosts() -> None:
    async with a_visited_room(told={**NOTHING, "builds": BuildsFound(builds=(STANDS,))}) as room:
        page = await room.page(f"/builds/{uid(7)}")
        again = await room.page(f"/builds/{uid(7)}?then=again")
    assert "1. <a" in page and "no disk" in page and "after 1.0 s" in page
    assert "removed 60" in page and "far2</a> and 58 more" in page
    assert "io_ops: too many builds" in page and "one more VCPU" in page
    assert "m&lt;1&gt;" in page
    assert "Repeated from" not in page and "Repeated from its record: h1, the same host" in again


async def test_the_page_of_an_unplaceable_build_shows_the_reason_and_the_decision_now() -> None:
    request = BuildRequested(request=uid(8), instances=(uid(7),), flavor=FLAVOR)
    decided = DecisionFound(known=True, request=request, reason="no room for 1 VCPU", decision=DECISION)
    there = PlacedThere(root=uid(2, "a"), host="h2", cell="c1")
    now = WhatIfAnswered(fits=True, placed=(there,), room=(CapacityLeft(cell="c1", hosts=2, instances=1200),))
    async with a_visited_room(told={**NOTHING, "decision": decided, "what_if": now}) as room:
        page = await room.page(f"/builds/{uid(7)}")
        today = await room.page(f"/builds/{uid(7)}?then=now")
    assert "no room for 1 VCPU" in page and "It fits" not in page
    assert "It fits: 1 on h2" in today and "Capacity for 1,200 more, on 2 hosts." in today


async def test_an_unknown_id_is_reported_with_the_cells_that_did_not_answer() -> None:
    async with a_visited_room(told=NOTHING) as room:
        assert "Unknown id" in await room.page(f"/builds/{uid(7)}", 404)
    async with a_visited_room() as alone:
        assert "the scheduler, cell c1 did not answer" in await alone.page(f"/builds/{uid(7)}", 404)
        assert "There is no such build" in await alone.page("/builds/x", 404)


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


async def test_attempts_are_filtered_by_failure() -> None:
    async with a_visited_room(told={**NOTHING, "builds": BuildsFound(builds=(STANDS,))}) as room:
        every = await room.page(f"/builds/{uid(7)}")
        failed = await room.page(f"/builds/{uid(7)}?attempts=failed")
    assert ">Only failed attempts<" in every and "2. <a" in every
    assert "1. <a" in failed and "2. <a" not in failed and ">All attempts<" in failed


async def test_a_build_links_to_the_what_if_form_with_its_request() -> None:
    async with a_visited_room(told={**NOTHING, "builds": BuildsFound(builds=(STANDS,))}) as room:
        page = await room.page(f"/builds/{uid(7)}")
    assert 'href="/what-if?vcpus=1&amp;memory_mb=512&amp;disk_gb=1' in page


async def test_a_waiting_request_shows_what_would_wake_it_and_an_operator_may_cancel_it() -> None:
    request = BuildRequested(request=uid(8), instances=(uid(7),), flavor=FLAVOR)
    waits = DecisionFound(
        known=True, waits=True, request=request, reason="no room", wakes="2 VCPU free", until=2e9
    )
    moves = MovesFound(
        moves=(MoveStands(move=uid(5), build=uid(7), kind="live", cell="c1", phase="done", ended=1.0),)
    )
    async with a_visited_room(told={**NOTHING, "decision": waits, "moves": moves}) as room:
        looks = await room.page(f"/builds/{uid(8)}")
        await room.sign_in("admin")
        acts = await room.page(f"/builds/{uid(8)}")
    assert "Woken by: 2 VCPU free." in looks and "Cancel the request" not in looks
    assert f'name="request" value="{uid(8)}"' in acts and "Cancel the request" in acts
    assert f"/moves/{uid(5)}" in acts
