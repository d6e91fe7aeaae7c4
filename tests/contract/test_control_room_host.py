"""One host in the control room, with a real placement; disabling and enabling it."""

from collections.abc import AsyncIterator

import pytest

from bus.cells import CellsFound, RegisteredCell
from bus.host_health import DISABLED, FORCED_DOWN, HostHealth, HostHealthFound
from bus.queries import Instance, InstancesFound
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_provider, a_report
from tests.support.placement_calls import find_providers, report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room

HOST = f"/hosts/{uid(1, 'a')}"
GUEST = Instance(
    build=uid(7), status="active", cell="c1", host="host-1", root=uid(1, "a"), project="p", flavor="<m1>"
)


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made:
        child = a_provider(11, 1, name="host-1_numa0")
        assert await report(made, a_report(1, child, traits=("HW_CPU_X86_AVX2",))) == [""]
        yield made


@pytest.fixture
async def room(placement: Placement) -> AsyncIterator[VisitedRoom]:
    worker = silent_placement(placement)
    guests = {"instances": InstancesFound(instances=(GUEST,), count=3)}
    async with a_visited_room(worker, answered=("providers",), told=guests) as visited:
        yield visited


async def traits(placement: Placement) -> set[str]:
    (root,) = await find_providers(placement, ids=(uid(1, "a"),), parts=("traits",))
    return set(root.traits)


async def test_the_page_of_a_host_shows_its_tree_guests_and_agent(room: VisitedRoom) -> None:
    page = await room.page(HOST)
    assert "host-1_numa0" in page and "HW_CPU_X86_AVX2" in page and "0 of 8" in page
    assert f"/builds/{uid(7)}" in page and "&lt;m1&gt;" in page
    assert "agent-1 has sent no heartbeat since this control room started" in page
    assert "host-1_numa0" in await room.page("/hosts/host-1")  # by its name as well
    assert "There is no such host" in await room.page("/hosts/nobody", 404)


async def test_a_reader_cannot_change_a_host(room: VisitedRoom, placement: Placement) -> None:
    for token in ("", "somebody"):
        if token:
            await room.sign_in(token)
        assert "An operator's word" not in await room.page(HOST)
        answer = await room.send(HOST, act="disable")
        assert (answer.status_code, "sign in with a token whose role may" in answer.text) == (403, True)
    assert await traits(placement) == {"HW_CPU_X86_AVX2"}


async def test_an_operator_disables_and_enables_a_host(room: VisitedRoom, placement: Placement) -> None:
    await room.sign_in("admin")
    assert (await room.send(HOST, act="disable", form_token="0")).status_code == 403
    assert (await room.send(HOST, act="explode")).status_code == 400
    assert (await room.send(HOST, act="disable", cause="disk")).status_code == 303
    page = await room.page(HOST)
    assert "disabled by an operator: disk" in page
    assert DISABLED in await traits(placement)
    again = await room.send(HOST, act="enable")
    assert (again.status_code, "stays disabled because of disk" in again.text) == (409, True)
    assert "one word of letters" in (await room.send(HOST, act="disable", cause="a b")).text
    assert (await room.send(HOST, act="enable", cause="disk")).status_code == 303
    assert (await room.send(HOST, act="force-down")).status_code == 303
    assert FORCED_DOWN in await traits(placement)
    assert (await room.send(HOST, act="undo-force-down")).status_code == 303
    assert await traits(placement) == {"HW_CPU_X86_AVX2"}


async def test_the_state_of_a_host_is_the_one_that_the_scheduler_reports(placement: Placement) -> None:
    down = HostHealth(
        root=uid(1, "a"), host="host-1", cell="c1", agent="agent-1", availability="down", why="no heartbeat"
    )
    worker, health = silent_placement(placement), HostHealthFound(hosts=(down,))
    async with a_visited_room(worker, answered=("providers",), told={"health": health}) as room:
        assert "down: no heartbeat" in await room.page(HOST)
    async with a_visited_room(
        worker, answered=("providers",), told={"health": HostHealthFound(hosts=())}
    ) as room:
        assert '<span class="tag good">up</span>' in await room.page(HOST)


async def test_the_page_of_a_host_names_placement_if_it_does_not_answer() -> None:
    async with a_visited_room() as alone:
        assert "Placement does not answer" in await alone.page(HOST, 503)


async def test_the_first_page_shows_the_states_of_the_hosts_of_each_cell() -> None:
    registered = CellsFound(seen=0, cells=(RegisteredCell(name="c1"),))
    health = HostHealthFound(hosts=(), counts={"c1": {"up": 1, "down": 2, "disabled": 1}})
    async with a_visited_room(told={"cells": registered, "health": health}) as room:
        assert "1 disabled, 2 down" in await room.page("/")
