"""The page about waiting requests in the control room."""

import re

from msgspec.structs import replace

from bus import topics
from bus.decisions import BACKLOG, Decision
from bus.messages import BuildCancelled, BuildCancelRequested, BuildRequested
from bus.queries import DecisionFound, WaitingFound, WaitingKind, WaitingRequest
from bus.worker import Worker, on
from tests.support.decided_builds import FLAVOR, NOTHING
from tests.support.ids import uid
from tests.support.visited_room import a_visited_room

NOW = 1_800_000_000.0


def waits(number: int, **reply: object) -> WaitingRequest:
    usual = WaitingRequest(
        request=uid(number), builds=(uid(number, "b"),), instances=1, project="<web>", flavor=f"m{number}",
        priority=0, since=NOW - 90, until=NOW + 1800, kind="abc", position=number,
        lacks="VCPU: 64 free removed <6>", wakes="64 VCPU free on one host",
    )  # fmt: skip
    return replace(usual, **reply)


KINDS = (WaitingKind("abc", "m1", 2, 7), WaitingKind("def", "m3", 1, 1))

FOUND = WaitingFound(
    waiting=(
        waits(1, priority=5, instances=6, start_p50=NOW + 60, start_p90=NOW + 600),
        waits(3, kind="def", move="live", wakes=""),
    ),
    count=3,
    kinds=KINDS,
    more=2,
)


async def test_waiting_requests_are_listed_in_order_with_missing_resources_and_events() -> None:
    async with a_visited_room(sent={"waiting": FOUND}) as room:
        page = await room.page("/waiting?project=web&after=0")
        first = await room.page("/waiting")
    assert page.index("6 × m1") < page.index("live of an instance")
    assert "priority 5" in page and "position 1 in class" in page
    assert "for 90 s, at most 30 min more" in page
    assert "VCPU: 64 free removed &lt;6&gt;" in page and "64 VCPU free on one host" in page
    assert "any change that may free capacity" in page
    assert f"/builds/{uid(1)}" in page and "&lt;web&gt;" in page and "3 requests" in page
    assert "2 requests, 7 instances" in page  # a line
    assert "unknown, no similar request has started recently" in page
    assert "/waiting?project=web&amp;after=2" in page and "/waiting?after=2" in first
    assert "/waiting/events?project=web" in page


async def test_an_empty_waiting_queue_and_a_silent_scheduler_are_reported() -> None:
    async with a_visited_room(sent={"waiting": WaitingFound(waiting=(), count=0)}) as room:
        assert "No requests wait" in await room.page("/waiting")
        assert "No requests of web wait" in await room.page("/waiting?project=web")
    async with a_visited_room() as alone:
        assert "The scheduler does not answer: no consumer" in await alone.page("/waiting")


async def test_requests_found_only_by_the_sweep_are_reported_as_a_fault() -> None:
    found = WaitingFound(waiting=(), count=0, rescued=2)
    async with a_visited_room(sent={"waiting": found}) as room:
        assert "2 requests waited although capacity was free" in await room.page("/waiting")


async def test_an_operator_cancels_a_waiting_request_and_sees_the_result() -> None:
    cancels: list[BuildCancelRequested] = []

    async def cancel(asked: BuildCancelRequested) -> BuildCancelled:
        """Answer that the first cancellation found a waiting request, and that the second found none."""
        cancels.append(asked)
        waited = len(cancels) == 1
        why = "cancelled" if waited else "no such build or request waits for a host"
        return BuildCancelled(build=asked.build, waited=waited, why=why, reply_to=asked.reply_to)

    scheduler = Worker(
        "scheduler", consumes=[on(topics.BUILD_CANCEL, cancel, emits=[topics.BUILD_CANCELLED])]
    )
    async with a_visited_room(scheduler, sent={"waiting": FOUND}) as room:
        await room.sign_in("admin")
        assert "Cancel the request" in await room.page("/waiting")
        assert (await room.send("/waiting", request="x")).status_code == 400
        done = await room.send("/waiting", request=uid(1))
        assert (done.status_code, done.headers["location"]) == (303, f"/waiting?ended={uid(1)}")
        assert "no longer waits" in await room.page(done.headers["location"])
        again = await room.send("/waiting", request=uid(1))
        assert (again.status_code, "It does not wait: no such build" in again.text) == (409, True)
    assert [(cancel.build, cancel.anywhere) for cancel in cancels] == [(uid(1), False)] * 2


async def test_a_request_in_the_backlog_shows_when_it_is_evaluated() -> None:
    request = BuildRequested(request=uid(8), instances=(uid(7),), flavor=FLAVOR)
    waits = DecisionFound(
        known=True,
        waits=True,
        request=request,
        decision=Decision(code=BACKLOG),
        start_p50=1.9e9,
        start_p90=2e9,
    )
    async with a_visited_room(sent={**NOTHING, "decision": waits}) as room:
        page = await room.page(f"/builds/{uid(8)}")
    assert re.search(r"Expected evaluation: 50 % within \d+ days, 90 % within \d+ days", page)
    assert "Expected start" not in page


async def test_a_waiting_request_shows_what_would_wake_it_and_an_operator_may_cancel_it() -> None:
    request = BuildRequested(request=uid(8), instances=(uid(7),), flavor=FLAVOR)
    waits = DecisionFound(
        known=True, waits=True, request=request, reason="no room", wakes="2 VCPU free", until=2e9,
        start_p50=1.95e9, start_p90=2.1e9,
    )  # fmt: skip
    async with a_visited_room(sent={**NOTHING, "decision": waits}) as room:
        looks = await room.page(f"/builds/{uid(8)}")
        await room.sign_in("admin")
        acts = await room.page(f"/builds/{uid(8)}")
    assert "the rest perhaps not before its limit" in looks
    assert "Woken by: 2 VCPU free." in looks and "Cancel the request" not in looks
    assert f'name="request" value="{uid(8)}"' in acts and "Cancel the request" in acts
