"""Moves and drains in the control room."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from bus.host_health import DISABLED
from bus.host_health import DRAIN as MARK
from bus.messages import Attempt
from bus.parts import PlanParts
from bus.queries import BuildsFound, DecisionFound
from bus.resources import Provider, ProvidersFound
from bus.vocabulary import Message
from bus.worker import Worker, answers
from features.moves import emptying, moving, plans
from features.moves.messages import (
    FIND_MOVES,
    FIND_PLANS,
    START_PLAN,
    STOP_PLAN,
    EmptiedHost,
    Emptying,
    FindPlans,
    MoveProgress,
    MoveRequested,
    MovesFound,
    MoveStands,
    MoveSteered,
    PhaseOver,
    PlanOfMoves,
    PlansFound,
    PlanStands,
)
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from features.moves.tests.support.planning_schedulers import a_planning_scheduler
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import find_providers, report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room
from tests.support.waiting import until

ROOT = uid(1, "a")
HOST = f"/hosts/{ROOT}"
MOVE = uid(1, "e")
MOVE_QUERIES = (
    *(query.name for query in (FIND_MOVES, START_PLAN, STOP_PLAN, FIND_PLANS)),
    "instances",
    "providers",
)


@asynccontextmanager
async def a_room(movers: FakeMovers, *more: Any) -> AsyncIterator[VisitedRoom]:
    async with a_visited_room(movers.worker(), *more, answered=MOVE_QUERIES) as room:
        yield room


def sent(move_steered: MoveSteered, refused: str = "") -> list[Message]:
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
        movers.steering = sent
        assert (await room.send(f"/moves/{MOVE}", act="confirm")).status_code == 303
        movers.steering = lambda reply: sent(reply, "it is too late for <that>")
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
        async with (
            a_planning_scheduler(movers, placement) as (scheduler, publishes),
            a_room(movers, silent_placement(placement), scheduler) as room,
        ):
            publishes.append(room.bus.publish)
            yield room, placement


async def traits(placement: Placement) -> set[str]:
    (root,) = await find_providers(placement, ids=(ROOT,), parts=("traits",))
    return set(root.traits)


@pytest.fixture
def movers(monkeypatch: pytest.MonkeyPatch) -> FakeMovers:
    monkeypatch.setattr(emptying, "LIST_SECONDS", 0.02)
    monkeypatch.setattr(plans, "STEP_SECONDS", 0.02)
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
        assert "Schedulers move the rest" in await room.page(HOST)
        assert (await room.send(HOST, act="stop-drain")).status_code == 303
        assert MARK not in await traits(placement) and DISABLED in await traits(placement)
        page = await room.page(HOST)
        assert "disabled by an operator" in page and "Schedulers move the rest" not in page
        assert len(began) == 1


async def test_a_steering_request_without_a_conductor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "PUBLISH_SECONDS", 0.0)
    stands = FakeMovers().keeps(1, 1)
    async with a_visited_room(sent={FIND_MOVES.name: MovesFound(moves=(stands,))}) as room:
        await room.sign_in("admin")
        answer = await room.send(f"/moves/{MOVE}", act="abort")
        assert answer.status_code == 409
        assert "no queue is bound to move.steer.c1" in answer.text


def a_drain(*hosts: str, **facts: Any) -> PlanStands:
    listed = tuple([EmptiedHost(root=ROOT, host=host, cell="c1") for host in hosts])
    goal = PlanParts(Emptying(hosts=listed, kind="live", because="drain"))
    return PlanStands(plan=PlanOfMoves(id=uid(7), parts=goal, most=2), **facts)


RUNNING = a_drain("host-1", total=4, moved=1, under_way=2)
STAYS = a_drain("host-1", "host-2", total=2, moved=1, ended=9.0, code="stay", stay={uid(6): "no <host>"})


@pytest.mark.parametrize(
    ("drain", "shown"),
    [
        (
            RUNNING,
            ["under way</span>", "1 moved, 2 under way, 1 not started, none stays.", "Stop and enable"],
        ),
        (replace(RUNNING, stopping=True), ["not under way</span>", "again to continue", "Stop and enable"]),
        (
            STAYS,
            [
                "not under way</span>",
                "1 moved, 1 stay, on 2 hosts together: <a",
                "1 instance could not be moved",
            ],
        ),
        (STAYS, [f'href="/builds/{uid(6)}">{uid(6)}</a>: no &lt;host&gt;', "again to continue"]),
        (
            a_drain("host-1", moved=2, total=2, ended=9.0),
            ["empty</span>", "2 moved, none stays.", "Enable it"],
        ),
        (None, ["not under way</span>", "No plan is known that drains it: <a", "again to continue"]),
    ],
)
async def test_a_drained_host_is_shown_with_the_progress_of_its_plan(
    drain: PlanStands | None, shown: list[str]
) -> None:
    root = Provider(
        id=ROOT, name="host-1", parent=None, root=ROOT, generation=1, traits=(MARK,), cell="c1", host="host-1"
    )
    answered = {"providers": ProvidersFound(providers=(root,)), FIND_MOVES.name: MovesFound(moves=())}
    scheduler = Worker("scheduler", answers=[answers(FIND_PLANS, plans_of(drain))])
    async with a_visited_room(scheduler, answered=(FIND_PLANS.name,), sent=answered) as room:
        await room.sign_in("admin")
        page = await room.page("/moves")
    assert [text for text in shown if text not in page] == []
    assert ("again to continue" in page) == ("not under way" in page)


def plans_of(drain: PlanStands | None) -> Callable[[FindPlans], Awaitable[PlansFound]]:
    async def found(asked: FindPlans) -> PlansFound:
        assert asked.root in ("", ROOT)
        return PlansFound(plans=(drain,) if drain and asked.root else ())

    return found


# Pages of builds


async def test_the_page_of_a_build_lists_its_moves() -> None:
    stands = MoveStands(
        move=uid(5), build=uid(7), kind="live", cell="c1", phase="done", ended=1.0, note="makes room for x"
    )
    reported = {
        "builds": BuildsFound(builds=()),
        "decision": DecisionFound(),
        FIND_MOVES.name: MovesFound(moves=(stands,)),
    }
    async with a_visited_room(sent=reported) as room:
        page = await room.page(f"/builds/{uid(7)}")
    assert f"/moves/{uid(5)}" in page and "<td>makes room for x</td>" in page
