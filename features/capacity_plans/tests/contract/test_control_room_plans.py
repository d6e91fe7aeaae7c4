"""The page about capacity plans in the control room."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bus.host_health import DISABLED
from bus.replication import FindTrees, TreesFound
from bus.reports import Inventory
from control_room.kit import shared_data
from features.capacity_plans import pages
from features.capacity_plans.core.packing import PlanStopped
from features.capacity_plans.core.planning import PlanAnswer
from features.capacity_plans.tests.support.plans import KNOWN_HOSTS, load_joins, nothing_known
from tests.support.placement_builders import a_placement, a_provider, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room
from tests.support.waiting import in_time, until


@pytest.fixture(autouse=True)
def _without_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    load_joins(monkeypatch)


def of(vcpus: int, **more: Any) -> dict[str, Inventory]:
    return {"VCPU": Inventory(total=vcpus, **more), "MEMORY_MB": Inventory(total=1000 * vcpus)}


@pytest.fixture
async def capacity_room() -> AsyncIterator[VisitedRoom]:
    async with a_placement("sqlite+aiosqlite://") as placement:
        numa = a_provider(
            31, 3, name="host-3_numa0", inventories={"VCPU": Inventory(total=6)}, traits=("CUSTOM_A",)
        )
        sent = [
            a_report(1, inventories=of(8, allocation_ratio=2.0, reserved=1)),
            a_report(2, inventories=of(8), traits=(DISABLED,)),
            a_report(3, numa, inventories={"MEMORY_MB": Inventory(total=4000)}),
        ]
        assert await report(placement, *sent) == ["", "", ""]
        async with a_visited_room(silent_placement(placement), answered=KNOWN_HOSTS) as visited:
            yield visited


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("mix=VCPU:2", ("10 whole mixes fit now", "Of 2 open hosts; 1 closed one is not counted")),
        ("mix=VCPU:2,CUSTOM_A", ("3 whole mixes fit now", "1 host does not count for its traits")),
        ("mix=VCPU:2&add=2 x like:host-2", ("10 whole mixes fit now, 18 then", "2 additional empty hosts")),
        ("mix=VCPU:2&add=1xVCPU:64&without=host-1", ("10 whole mixes fit now, 35 then", "host-1")),
        ("mix=2xVCPU:4%0AVCPU:7", ("1 whole mix fits now", "Lost to fragmentation")),
    ],
)
async def test_a_plan_is_computed_from_the_hosts_of_placement(
    capacity_room: VisitedRoom, query: str, says: tuple[str, ...]
) -> None:
    page = await capacity_room.page(f"/what-if/capacity?wait=1&{query}")
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
        """Return two pages of trees, the second one only after the test permits it."""
        asked.append(question.after)
        if question.after:
            await let.wait()
        return TreesFound(trees=(), more=None if question.after else 7)

    async with a_visited_room(sent={**nothing_known(), "trees": late}, patience=0.1) as capacity_room:
        page = await capacity_room.page("/what-if/capacity?mix=VCPU:1&zone=z")
        assert "The plan is being computed" in page
        assert 'data-live="/what-if/capacity/events?mix=VCPU%3A1&amp;zone=z"' in page
        let.set()
        async with capacity_room.following("/what-if/capacity/events?mix=VCPU%3A1&zone=z") as sent:
            await until(lambda: "0 whole mixes fit now" in "".join(sent))
        assert asked == [0, 7]  # the read continued after the page was sent


@pytest.mark.parametrize("path", ["/what-if/capacity?wait=1&", "/what-if/capacity/events?"])
async def test_a_plan_ends_when_its_last_reader_has_left(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    began, ended = threading.Event(), threading.Event()

    def endless(hosts: Any, plan: Any, stopped: Callable[[], bool]) -> PlanAnswer:
        began.set()
        while not stopped():
            time.sleep(0.001)
        ended.set()
        raise PlanStopped

    monkeypatch.setattr(pages, "planned", endless)
    monkeypatch.setattr(shared_data, "GRACE", 0.01)
    async with a_visited_room(sent=nothing_known()) as capacity_room:
        left = asyncio.Event()

        async def receive() -> Any:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_: Any) -> None:
            pass

        request = capacity_room.browser.build_request("GET", f"{path}mix=VCPU:1")
        scope: dict[str, Any] = {"type": "http", "method": "GET", "scheme": "http", "client": ("10.0.0.1", 1)}
        scope |= {"path": request.url.path, "query_string": request.url.query}
        scope |= {"headers": [(b"host", b"localhost")]}
        reading = asyncio.create_task(capacity_room.app(scope, receive, send))
        await until(began.is_set, "the plan is being worked out")
        left.set()
        await in_time(reading)
        await until(ended.is_set, "the plan has ended")


async def test_a_plan_that_takes_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(hosts: Any, plan: Any, stopped: Callable[[], bool]) -> PlanAnswer:
        while not stopped():
            time.sleep(0.001)
        raise PlanStopped

    monkeypatch.setattr(pages, "planned", endless)
    monkeypatch.setattr(pages, "LONGEST", 0.05)
    async with a_visited_room(sent=nothing_known()) as room:
        assert "This plan takes longer than" in await room.page("/what-if/capacity?wait=1&mix=VCPU:1")
