"""Hosts in the control room, with a real placement."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bus.claims import ClaimRequested
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, gone, on_hosts
from tests.support.placement_calls import claim, report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made:
        some = a_report(1), a_report(2, cell="c2"), a_report(10)
        assert await report(made, *some) == ["", "", ""]
        yield made


@pytest.fixture
async def room(placement: Placement) -> AsyncIterator[VisitedRoom]:
    worker = silent_placement(placement, ("c1", "c2"))
    async with a_visited_room(worker, answered=("trees", "changes", "aggregates")) as visited:
        yield visited


async def data(room: VisitedRoom, since: dict[str, Any] | None = None) -> dict[str, Any]:
    room.clock.passed += 10.0  # what was read is no longer fresh
    more = f"&since={since['number']}&layout={since['layout']}" if since else ""
    found: dict[str, Any] = json.loads(await room.page(f"/hosts.json?flavor=VCPU:3{more}"))
    return found


async def test_hosts_are_sent_once_and_then_only_changes(room: VisitedRoom, placement: Placement) -> None:
    assert "/static/heat.js" in await room.page("/hosts")
    first = await data(room)
    assert first["name"] == ["host-1", "host-10", "host-2"]
    assert (first["groups"], first["group"]) == ([["c1", ""], ["c2", ""]], [0, 0, 1])
    assert (first["used"], first["fits"]) == ({"VCPU": [0, 0, 0]}, [2, 2, 2])
    assert (await data(room, first))["at"] == []
    await claim(placement, ClaimRequested(claims=(a_claim(1, on_hosts(10, VCPU=4)),)))
    news = await data(room, first)
    assert (news["at"], news["used"], news["fits"]) == ([1], {"VCPU": [4]}, [1])
    assert (await data(room, news))["at"] == []
    assert await report(placement, gone(2, 2, cell="c2"), a_report(3)) == ["", ""]
    anew = await data(room, news)  # another layout: all of it
    assert anew["name"] == ["host-1", "host-3", "host-10"]


async def test_an_invalid_flavor_is_refused(room: VisitedRoom) -> None:
    assert "CLASS:AMOUNT" in await room.page("/hosts.json?flavor=x", 400)
    async with a_visited_room() as alone:
        assert "Placement does not answer" in await alone.page("/hosts.json", 503)
        assert uid(1, "a") not in await alone.page("/hosts")
