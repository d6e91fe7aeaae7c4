"""Capacity plans in the control room, computed from a real placement."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from bus.aggregates import AggregatesFound
from bus.cells import CellsFound
from bus.host_health import DISABLED
from bus.replication import FindTrees, TreesFound
from bus.reports import Inventory
from control_room import shared_data
from control_room.core.planning import PlanAnswer, PlanStopped, planned
from control_room.core.what_if_form import Plan
from control_room.pages import what_if
from tests.support.placement_builders import a_placement, a_provider, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room
from tests.support.waiting import in_time, until

ASKED = ("trees", "aggregates", "cells")


def of(vcpus: int, **more: Any) -> dict[str, Inventory]:
    return {"VCPU": Inventory(total=vcpus, **more), "MEMORY_MB": Inventory(total=1000 * vcpus)}


@pytest.fixture
async def room() -> AsyncIterator[VisitedRoom]:
    async with a_placement("sqlite+aiosqlite://") as placement:
        numa = a_provider(
            31, 3, name="host-3_numa0", inventories={"VCPU": Inventory(total=6)}, traits=("CUSTOM_A",)
        )
        told = [
            a_report(1, inventories=of(8, allocation_ratio=2.0, reserved=1)),
            a_report(2, inventories=of(8), traits=(DISABLED,)),
            a_report(3, numa, inventories={"MEMORY_MB": Inventory(total=4000)}),
        ]
        assert await report(placement, *told) == ["", "", ""]
        async with a_visited_room(silent_placement(placement), answered=ASKED) as visited:
            yield visited


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("mix=VCPU:2", ("10 whole mixes fit now", "Of 2 open hosts; 1 closed one is not counted")),
        ("mix=VCPU:2,CUSTOM_A", ("3 whole mixes fit now", "1 host does not count for its traits")),
        ("mix=VCPU:2,MEMORY_MB:2000", ("6 whole mixes fit now",)),
        ("mix=VCPU:2&add=2 x like:host-2", ("10 whole mixes fit now, 18 then", "2 additional empty hosts")),
        ("mix=VCPU:2&add=1xVCPU:64&without=host-1", ("10 whole mixes fit now, 35 then", "host-1")),
        ("mix=VCPU:2&zone=z9", ("0 whole mixes fit now",)),
        ("mix=2xVCPU:4%0AVCPU:7", ("1 whole mix fits now", "Lost to fragmentation")),
    ],
)
async def test_a_plan_is_computed_from_the_hosts_of_placement(
    room: VisitedRoom, query: str, says: tuple[str, ...]
) -> None:
    page = await room.page(f"/what-if/capacity?wait=1&{query}")
    assert 'role="alert"' not in page
    for one in says:
        assert one in page


async def test_an_empty_form_queries_nothing() -> None:
    async with a_visited_room() as alone:
        assert "Enter a mix of flavors" in await alone.page("/what-if/capacity")
        assert "Placement does not answer" in await alone.page("/what-if/capacity?wait=1&mix=VCPU:1")


async def test_a_slow_plan_is_sent_as_an_event_and_hosts_are_read_once() -> None:
    let, asked = asyncio.Event(), list[int]()

    async def late(question: FindTrees) -> TreesFound:
        """The second of two pages is."""
        asked.append(question.after)
        if question.after:
            await let.wait()
        return TreesFound(trees=(), more=None if question.after else 7)

    known = {
        "trees": late,
        "aggregates": AggregatesFound(seen=0, aggregates=()),
        "cells": CellsFound(seen=0, cells=()),
    }
    async with a_visited_room(told=known) as room:
        page = await room.page("/what-if/capacity?mix=VCPU:1&zone=z")
        assert "The plan is being computed" in page
        assert 'data-live="/what-if/capacity/events?mix=VCPU%3A1&amp;zone=z"' in page
        let.set()
        async with room.following("/what-if/capacity/events?mix=VCPU%3A1&zone=z") as told:
            await until(lambda: "0 whole mixes fit now" in "".join(told))
        assert asked == [0, 7]  # it went on while the page was shown without it


# How much work a reader may cause


def nothing_known() -> dict[str, Any]:
    return {
        "trees": TreesFound(trees=(), more=None),
        "aggregates": AggregatesFound(seen=0, aggregates=()),
        "cells": CellsFound(seen=0, cells=()),
    }


@pytest.mark.parametrize("path", ["/what-if/capacity?wait=1&", "/what-if/capacity/events?"])
async def test_a_plan_ends_when_its_last_reader_has_left(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    began, ended = threading.Event(), threading.Event()

    def endless(hosts: Any, plan: Any, stopped: Callable[[], bool]) -> PlanAnswer:
        began.set()
        while not stopped():
            time.sleep(0.001)
        ended.set()
        raise PlanStopped

    monkeypatch.setattr(what_if, "planned", endless)
    monkeypatch.setattr(shared_data, "GRACE", 0.01)
    async with a_visited_room(told=nothing_known()) as room:
        left = asyncio.Event()

        async def receive() -> Any:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            pass

        request = room.browser.build_request("GET", f"{path}mix=VCPU:1")
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": request.url.path,
            "query_string": request.url.query,
            "headers": [(b"host", b"localhost")],
            "client": ("10.0.0.1", 1),
        }
        reading = asyncio.create_task(room.app(scope, receive, send))
        await until(began.is_set, "the plan is being worked out")
        left.set()
        await in_time(reading)
        await until(ended.is_set, "the plan has ended")


async def test_plans_of_one_reader_wait_for_each_other_and_not_before_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, order = threading.Event(), list[str]()

    def recorded(hosts: Any, plan: Plan, stopped: Callable[[], bool]) -> PlanAnswer:
        order.append(plan.zone)
        go.wait(10)
        return planned(hosts, plan, stopped)

    monkeypatch.setattr(what_if, "planned", recorded)
    async with a_visited_room(told=nothing_known()) as room, asyncio.TaskGroup() as group:
        await room.sign_in("alice")
        for zone in ("a1", "a2", "a3"):
            group.create_task(room.page(f"/what-if/capacity?wait=1&mix=VCPU:1&zone={zone}"))
        await until(lambda: order)
        way = httpx.ASGITransport(room.app)
        async with httpx.AsyncClient(transport=way, base_url=room.browser.base_url) as other:
            asking = group.create_task(other.get("/what-if/capacity?wait=1&mix=VCPU:1&zone=b1"))
            await other.get("/healthz")  # the event loop goes on meanwhile
            go.set()
            await asking
    assert order == ["a1", "b1", "a2", "a3"]


async def test_a_plan_that_takes_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(hosts: Any, plan: Any, stopped: Callable[[], bool]) -> PlanAnswer:
        while not stopped():
            time.sleep(0.001)
        raise PlanStopped

    monkeypatch.setattr(what_if, "planned", endless)
    monkeypatch.setattr(what_if, "LONGEST", 0.05)
    async with a_visited_room(told=nothing_known()) as room:
        assert "This plan takes longer than" in await room.page("/what-if/capacity?wait=1&mix=VCPU:1")
