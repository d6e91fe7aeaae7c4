"""Hosts in the control room, with a real placement."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bus.cells import CellsFound, RegisteredCell
from bus.claims import ClaimRequested
from bus.host_health import HostCapabilities, HostHealthFound
from bus.queries import Instance, InstancesFound
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_provider, a_report, gone, on_hosts
from tests.support.placement_calls import claim, find_providers, report, silent_placement
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


ROOT = uid(1, "a")
HOST = f"/hosts/{ROOT}"


async def data(room: VisitedRoom, since: dict[str, Any] | None = None) -> dict[str, Any]:
    room.clock.passed += 10.0  # the cached hosts expire
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
    anew = await data(room, news)  # all hosts, because the layout changed
    assert anew["name"] == ["host-1", "host-3", "host-10"]


async def test_the_table_shows_use_state_instances_and_heartbeat(placement: Placement) -> None:
    await claim(placement, ClaimRequested(claims=(a_claim(1, on_hosts(10, VCPU=4)),)))
    told = HostCapabilities(root=uid(10, "a"), instances=7, heard=1_800_000_000.0 - 3.0)
    sent = {"health": HostHealthFound(hosts=(), capabilities=(told,))}
    worker = silent_placement(placement, ("c1", "c2"))
    async with a_visited_room(worker, answered=("trees", "changes", "aggregates"), sent=sent) as room:
        page = " ".join((await room.page("/host-table?sort=-VCPU&cell=c1")).split())
    first, second = (page.index(f">{name}</a></td>") for name in ("host-10", "host-1"))
    assert first < second
    assert "host-2<" not in page
    row = page[first:second]
    assert '<td><span class="state up">up</span></td> <td>c1</td>' in row
    assert '<td class="n">7</td> <td class="n">3.0 s</td>' in row


GUEST = Instance(
    build=uid(7), status="active", cell="c1", host="host-1", root=uid(1, "a"), project="p", flavor="<m1>"
)


@pytest.fixture
async def placement_of_one_host() -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made:
        child = a_provider(11, 1, name="host-1_numa0")
        assert await report(made, a_report(1, child, traits=("HW_CPU_X86_AVX2",))) == [""]
        yield made


@pytest.fixture
async def room_of_one_host(placement_of_one_host: Placement) -> AsyncIterator[VisitedRoom]:
    worker = silent_placement(placement_of_one_host)
    guests = {"instances": InstancesFound(instances=(GUEST,), count=3)}
    async with a_visited_room(worker, answered=("providers",), sent=guests) as visited:
        yield visited


async def traits(placement: Placement) -> set[str]:
    (root,) = await find_providers(placement, ids=(ROOT,), parts=("traits",))
    return set(root.traits)


async def test_the_page_of_a_host_shows_its_tree_guests_and_agent(room_of_one_host: VisitedRoom) -> None:
    page = await room_of_one_host.page(HOST)
    assert "host-1_numa0" in page and "HW_CPU_X86_AVX2" in page and "0 of 8" in page
    assert f"/builds/{uid(7)}" in page and "&lt;m1&gt;" in page
    assert "agent-1 has sent no heartbeat since this control room started" in page
    assert "host-1_numa0" in await room_of_one_host.page("/hosts/host-1")  # by its name as well
    assert "There is no such host" in await room_of_one_host.page("/hosts/nobody", 404)


async def test_the_first_page_shows_the_states_of_the_hosts_of_each_cell() -> None:
    registered = CellsFound(seen=0, cells=(RegisteredCell(name="c1"),))
    health = HostHealthFound(hosts=(), counts={"c1": {"up": 1, "down": 2, "disabled": 1}})
    async with a_visited_room(sent={"cells": registered, "health": health}) as room_of_one_host:
        assert "1 disabled, 2 down" in await room_of_one_host.page("/")
