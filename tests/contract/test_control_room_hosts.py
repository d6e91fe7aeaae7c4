"""Hosts in the control room, with a real placement."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from bus.cells import CellsFound, RegisteredCell
from bus.claims import ClaimRequested
from bus.host_health import DISABLED, FORCED_DOWN, HostCapabilities, HostHealth, HostHealthFound
from bus.host_health import DRAIN as MARK
from bus.messages import Attempt
from bus.queries import Instance, InstancesFound
from bus.resources import Provider, ProvidersFound
from bus.vocabulary import Message
from control_room.pages import moves as pages
from features.moves import emptying, moving
from features.moves.messages import MoveEnded, MoveProgress, MoveRequested, MovesFound, MoveSteered, PhaseOver
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_provider, a_report, gone, on_hosts
from tests.support.placement_calls import claim, find_providers, report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room
from tests.support.waiting import until


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


async def test_an_invalid_flavor_is_refused(room: VisitedRoom) -> None:
    assert "CLASS:AMOUNT" in await room.page("/hosts.json?flavor=x", 400)
    async with a_visited_room() as alone:
        assert "Placement does not answer" in await alone.page("/hosts.json", 503)
        assert "Placement does not answer" in await alone.page(HOST, 503)
        assert uid(1, "a") not in await alone.page("/hosts")


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
    async with a_visited_room(worker, answered=("providers",), told=guests) as visited:
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


async def test_an_operator_disables_and_enables_a_host(
    room_of_one_host: VisitedRoom, placement_of_one_host: Placement
) -> None:
    await room_of_one_host.sign_in("admin")
    assert (await room_of_one_host.send(HOST, act="disable", form_token="0")).status_code == 403
    assert (await room_of_one_host.send(HOST, act="explode")).status_code == 400
    assert (await room_of_one_host.send(HOST, act="disable", cause="disk")).status_code == 303
    page = await room_of_one_host.page(HOST)
    assert "disabled by an operator: disk" in page
    assert DISABLED in await traits(placement_of_one_host)
    again = await room_of_one_host.send(HOST, act="enable")
    assert (again.status_code, "stays disabled because of disk" in again.text) == (409, True)
    assert "a name of letters" in (await room_of_one_host.send(HOST, act="disable", cause="a b")).text
    assert (await room_of_one_host.send(HOST, act="enable", cause="disk")).status_code == 303
    assert (await room_of_one_host.send(HOST, act="force-down")).status_code == 303
    assert FORCED_DOWN in await traits(placement_of_one_host)
    assert (await room_of_one_host.send(HOST, act="undo-force-down")).status_code == 303
    assert await traits(placement_of_one_host) == {"HW_CPU_X86_AVX2"}


DOWN = HostHealth(root=ROOT, host="host-1", cell="c1", agent="agent-1", availability="down", why="late")


@pytest.mark.parametrize(
    ("hosts", "tag"), [((DOWN,), "down: late"), ((), '<span class="tag good">up</span>')]
)
async def test_the_state_of_a_host_is_the_one_that_the_scheduler_reports(
    placement_of_one_host: Placement, hosts: tuple[HostHealth, ...], tag: str
) -> None:
    worker, health = silent_placement(placement_of_one_host), HostHealthFound(hosts=hosts)
    async with a_visited_room(worker, answered=("providers",), told={"health": health}) as room:
        assert tag in await room.page(HOST)


async def test_the_page_of_a_host_shows_its_hypervisor_driver_and_supported_moves(
    placement_of_one_host: Placement,
) -> None:
    known = HostCapabilities(
        root=uid(1, "a"),
        hypervisor="QEMU",
        hypervisor_version=8_002_001,
        driver="<mine>:Libvirt",
        moves=("live",),
    )
    worker = silent_placement(placement_of_one_host)
    health = HostHealthFound(hosts=(), capabilities=(known,))
    async with a_visited_room(worker, answered=("providers",), told={"health": health}) as room_of_one_host:
        page = await room_of_one_host.page(HOST)
        assert (
            "<td>QEMU 8.2.1</td>" in page
            and "<td>&lt;mine&gt;:Libvirt</td>" in page
            and "<td>live</td>" in page
        )
    silent = HostHealthFound(hosts=())
    async with a_visited_room(worker, answered=("providers",), told={"health": silent}) as room_of_one_host:
        assert "No heartbeat describes it." in await room_of_one_host.page(HOST)


async def test_the_first_page_shows_the_states_of_the_hosts_of_each_cell() -> None:
    registered = CellsFound(seen=0, cells=(RegisteredCell(name="c1"),))
    health = HostHealthFound(hosts=(), counts={"c1": {"up": 1, "down": 2, "disabled": 1}})
    async with a_visited_room(told={"cells": registered, "health": health}) as room_of_one_host:
        assert "1 disabled, 2 down" in await room_of_one_host.page("/")


# Limits of the work for one reader


MOVE = uid(1, "e")
MOVE_QUERIES = ("moves", "instances", "providers")


@asynccontextmanager
async def a_room(movers: FakeMovers, *more: Any) -> AsyncIterator[VisitedRoom]:
    async with a_visited_room(movers.worker(), *more, answered=MOVE_QUERIES) as room:
        yield room


def told(move_steered: MoveSteered, refused: str = "") -> list[Message]:
    phase = "confirm" if move_steered.to == "confirm" else "undo"
    return [
        MoveProgress(
            move=move_steered.move, build=move_steered.build, cell="c1", phase=phase, refused=refused,
            reply_to=move_steered.reply_to,
        )
    ]  # fmt: skip


async def test_moves_are_shown_with_phases_attempts_and_causes() -> None:
    movers = FakeMovers()
    failed = PhaseOver("prepare", "host-3", "failed", "no <disk>", 1000.0, 1003.0)
    tried = (Attempt(host="host-3", agent="a", outcome="failed", cause="no <disk>"),)
    movers.keeps(1, 1, "send", kind="live", percent=37, phases=(failed,), attempts=tried)
    movers.keeps(2, 2, "error", ended=1030.0, reason="it could not be started")
    async with a_room(movers) as room:
        page = await room.page("/moves")
        one = await room.page(f"/moves/{MOVE}")
        over = await room.page(f"/moves/{uid(2, 'e')}")
        assert "There is no such move" in await room.page(f"/moves/{uid(9)}", 404)
        assert "There is no such move" in await room.page("/moves/x", 404)
    for shown in (page, one):
        assert "copying to host-9" in shown and "attempt 2" in shown and 'width="37"' in shown
        assert "no &lt;disk&gt;" in shown and 'value="abort"' not in shown
    assert "not done: it could not be started" in page and "30 s" in page
    assert "it could not be started" in over and "sign in with a token" not in over


async def test_an_operator_steers_a_move_and_sees_why_it_was_refused() -> None:
    movers = FakeMovers()
    movers.keeps(1, 1, "verify")
    async with a_room(movers) as room:
        assert (await room.send(f"/moves/{MOVE}", act="confirm")).status_code == 403
        await room.sign_in("admin")
        page = await room.page("/moves")
        assert 'value="confirm"' in page and 'value="revert"' in page and 'value="abort"' not in page
        assert (await room.send(f"/moves/{MOVE}", act="explode")).status_code == 400
        assert not movers.steered
        movers.steering = told
        assert (await room.send(f"/moves/{MOVE}", act="confirm")).status_code == 303
        movers.steering = lambda said: told(said, "it is too late for <that>")
        late = await room.send(f"/moves/{MOVE}", act="revert")
        assert (late.status_code, "it is too late for &lt;that&gt;" in late.text) == (409, True)
    assert [(move.to, move.move, move.cell) for move in movers.steered] == [
        ("confirm", MOVE, "c1"),
        ("revert", MOVE, "c1"),
    ]


async def test_a_steering_request_is_sent_even_if_the_cell_does_not_answer_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moving, "ANSWER_SECONDS", 0.01)
    movers = FakeMovers()
    movers.keeps(1, 1)
    async with a_room(movers) as room:
        await room.sign_in("admin")
        assert (await room.send(f"/moves/{MOVE}", act="abort")).status_code == 303
        await until(lambda: [move.to for move in movers.steered] == ["abort"])


@pytest.mark.parametrize("path", ["/moves/events", f"/moves/{MOVE}/events"])
async def test_progress_of_a_move_updates_open_pages(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(pages, "SECONDS", 3600.0)
    movers = FakeMovers()
    movers.keeps(1, 1, "prepare")
    async with a_room(movers) as room, room.following(path) as told:
        await until(lambda: "preparing on host-9" in "".join(told))
        movers.keeps(1, 1, "start")
        said = MoveProgress(move=MOVE, build=uid(1), cell="c1", phase="start", reply_to="who-asked")
        await room.bus.publish(said)
        await until(lambda: "starting on host-9" in "".join(told))
        stands = movers.keeps(1, 1, "done", ended=1030.0)
        await room.bus.publish(
            MoveEnded(move=MOVE, build=uid(1), kind=stands.kind, cell="c1", end="done", host="host-9")
        )
        await until(lambda: "30 s" in "".join(told))  # the duration of the move


async def test_the_page_without_moves_names_silent_cells() -> None:
    async with a_room(FakeMovers()) as room:
        page = await room.page("/moves?host=h1")
        assert "No move is under way" in page and "is being drained" in page
    async with a_visited_room() as alone:
        page = await alone.page("/moves")
        assert "Incomplete, these did not answer: cell c1" in page
        assert "Placement does not answer" in page


# Drains


@asynccontextmanager
async def a_room_with_hosts(movers: FakeMovers) -> AsyncIterator[tuple[VisitedRoom, Placement]]:
    async with a_placement("sqlite+aiosqlite://") as placement:
        assert await report(placement, a_report(1), a_report(9)) == ["", ""]
        async with a_room(movers, silent_placement(placement)) as room:
            yield room, placement


@pytest.fixture
def movers(monkeypatch: pytest.MonkeyPatch) -> FakeMovers:
    monkeypatch.setattr(emptying, "POLL_SECONDS", 0.02)
    made = FakeMovers(alone=False)
    made.have(*(an_instance_there(number, 1) for number in range(1, 4)))
    return made


async def test_a_host_is_drained_from_its_page(movers: FakeMovers) -> None:
    async with a_room_with_hosts(movers) as (room, placement):
        assert (await room.send(HOST, act="drain")).status_code == 403
        await room.sign_in("admin")
        wrong = await room.send(HOST, act="drain", most="0")
        assert (wrong.status_code, "a number from 1 to" in wrong.text) == (409, True)
        assert not await traits(placement) and not movers.asked
        assert (await room.send(HOST, act="drain", how="cold", most="2")).status_code == 303
        await until(lambda: all(build.host == "host-9" for build in movers.builds.values()))
        assert {request.kind for request in movers.asked} == {"migrate"} and len(movers.asked) == 3
        assert {DISABLED, MARK} <= await traits(placement)
        assert "host-1" in await room.page("/moves")
        assert (await room.send("/moves", root=ROOT, act="stop-and-open")).status_code == 303
        assert not await traits(placement)
        again = await room.send("/moves", root=ROOT, act="stop")
        assert (again.status_code, "is not being drained" in again.text) == (409, True)


async def test_a_drain_is_stopped_and_the_host_stays_closed(movers: FakeMovers) -> None:
    began = list[MoveRequested]()

    def begin(asked: MoveRequested) -> list[Message]:
        began.append(asked)
        movers.moves[asked.move] = replace(movers.keeps(7, 1), move=asked.move, build=asked.build)
        return []

    movers.doing = begin
    async with a_room_with_hosts(movers) as (room, placement):
        await room.sign_in("admin")
        assert (await room.send(HOST, act="drain", most="1")).status_code == 303
        await until(lambda: began)
        twice = await room.send(HOST, act="drain")
        assert (twice.status_code, "being emptied already" in twice.text) == (409, True)
        assert "This control room runs the drain" in await room.page(HOST)
        assert (await room.send(HOST, act="stop-drain")).status_code == 303
        assert MARK not in await traits(placement) and DISABLED in await traits(placement)
        page = await room.page(HOST)
        assert "disabled by an operator" in page and "This control room runs the drain" not in page
        assert len(began) == 1


async def test_a_steering_request_without_a_conductor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "PATIENCE", 0.0)
    stands = FakeMovers().keeps(1, 1)
    async with a_visited_room(told={"moves": MovesFound(moves=(stands,))}) as room:
        await room.sign_in("admin")
        answer = await room.send(f"/moves/{MOVE}", act="abort")
        assert answer.status_code == 409
        assert "no queue is bound to move.steer.c1" in answer.text


async def test_a_moving_instance_counts_as_left_until_its_move_is_done() -> None:
    movers = FakeMovers()
    moves = (
        movers.keeps(1, 1, source="host-1"),
        movers.keeps(2, 2, source="host-1"),
        movers.keeps(3, 3, "done", source="host-1", ended=1_799_999_999.0),
    )
    root = Provider(
        id=ROOT, name="host-1", parent=None, root=ROOT, generation=1, traits=(MARK,), cell="c1", host="host-1"
    )
    told_of = {
        "providers": ProvidersFound(providers=(root,)),
        "instances": InstancesFound(instances=(), count=1),
        "moves": MovesFound(moves=moves),
    }
    async with a_visited_room(told=told_of) as room:
        page = await room.page("/moves")
    assert "3 instances left" in page and "1 moved away, 2 under way" in page and "25 % moved" in page
