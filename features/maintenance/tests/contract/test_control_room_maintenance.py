"""Operators add, change and cancel maintenance windows on the control room's page about maintenance."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from berth.kit.testing import packages
from bus.decisions import Decision
from bus.queries import FindInstances, Instance, InstancesFound
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker, answers
from features.maintenance.controller import MaintenanceController, MaintenanceNeeds
from features.maintenance.messages import (
    EDIT_MAINTENANCE,
    MAINTENANCE,
    FindMaintenance,
    HostEvacuation,
    MaintenanceFound,
    MaintenanceWindow,
    WindowHost,
    WindowState,
)
from features.maintenance.settings import MaintenanceSettings
from features.moves.messages import MoveRequested
from features.moves.plans import MovePlans
from features.moves.supposed_moves import MoveEvaluation, SupposedPlace
from placement_worker.testing import IndexedSource, Placement
from scheduler_worker.extension import CellQueries, HostBook
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.schedulers import queries_of
from tests.support.virtual_time import TurnedClock
from tests.support.visited_room import VisitedRoom, a_visited_room

PATH = "/maintenance"
ROOT = uid(1, "a")
GIVEN = {"hosts": "host-1, host-2", "begin": "+30d", "end": "+31d", "budget": "1", "reason": "<new> disks"}


DATABASES = ["sqlite file"]  # test_dead_hosts_evacuated.py runs the statements on PostgreSQL, too


@pytest.fixture
def url() -> str:
    """Return one type of database: tests of placement run its statements on both."""
    return "sqlite+aiosqlite://"


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made:
        assert await report(made, a_report(1), a_report(2), a_report(3)) == ["", "", ""]
        yield made


async def unused(_: object) -> Any:
    raise AssertionError("no cell is asked")


@pytest.fixture
async def windows(placement: Placement, open_database: Callable[..., Database]) -> MaintenanceController:
    database, clock = open_database(), TurnedClock()
    await migrate(database, *packages("scheduler"))
    source = IndexedSource(placement.memory)
    needs = MaintenanceNeeds(
        database=database, placement=queries_of(placement), source=source,
        cells=CellQueries(builds=unused, instances=unused), book=HostBook(clock.now),
        plans=MovePlans(database, unused, source, clock.clock, unused),
        clock=clock.clock, publish=unused,
    )  # fmt: skip
    return MaintenanceController(needs, MaintenanceSettings())


@pytest.fixture
async def room(placement: Placement, windows: MaintenanceController) -> AsyncIterator[VisitedRoom]:
    scheduler = Worker(
        "scheduler", answers=[answers(MAINTENANCE, windows.find), answers(EDIT_MAINTENANCE, windows.edit)]
    )
    answered = (MAINTENANCE.name,)
    async with a_visited_room(silent_placement(placement), scheduler, answered=answered) as visited:
        await visited.sign_in("admin")
        yield visited


async def instances(asked: FindInstances) -> InstancesFound:
    """Return two instances of the first host."""
    there = [
        Instance(
            build=uid(number), status="active", cell="c1", host="host-1", root=ROOT, project="p", flavor="m"
        )
        for number in (1, 2)
    ]
    return InstancesFound(instances=tuple(there) if asked.host == ROOT else ())


@dataclass(frozen=True)
class SupposedAnswer:
    fits: bool
    refusal: str = ""
    placed: Sequence[SupposedPlace] = ()
    decision: Decision = field(default_factory=Decision)


@dataclass(frozen=True)
class OtherHost:
    root: str = uid(3, "a")
    host: str = "host-3"
    cell: str = "c1"


class RoomForOne(MoveEvaluation):
    """The first instance finds a host, and the second none."""

    async def supposed(
        self, moves: Sequence[MoveRequested], closed: Collection[str]
    ) -> Sequence[SupposedAnswer]:
        full = SupposedAnswer(fits=False, refusal="no host has <room>", decision=Decision(code="room"))
        fitting = SupposedAnswer(fits=True, placed=(OtherHost(),))
        return [fitting if move.build == uid(1) else full for move in moves]


async def test_a_window_is_tried_before_it_is_added(
    room: VisitedRoom, windows: MaintenanceController
) -> None:
    windows.windows.cells = CellQueries(builds=unused, instances=instances)
    windows.windows.evaluation = RoomForOne()
    fields = {"hosts": "host-1", "begin": "+2h", "duration": "1h", "reason": "disks"}
    answer = await room.send(PATH, headers={}, act="plan", **fields)
    assert answer.status_code == 200 and not await stored(windows)
    page = answer.text
    assert f'{uid(1)}</a></th><td>host-1</td><td class="state"><a href="/hosts/host-3">host-3</a>' in page
    assert "stays: [room] no host has &lt;room&gt;" in page
    assert "1 of 2 instances would find no host now" in page
    assert "the first drain takes about 60 s (assumed) for 2 moves" in page
    assert "before the window begins" in page and 'name="duration" value="1h"' in page


async def stored(windows: MaintenanceController) -> list[WindowState]:
    return list((await windows.find(FindMaintenance(ended=True))).windows)


async def test_a_window_is_added_changed_and_cancelled(
    room: VisitedRoom, windows: MaintenanceController
) -> None:
    answer = await room.send(PATH, headers={}, act="add", **GIVEN)
    assert answer.status_code == 303
    page = await room.page(answer.headers["location"])
    [state] = await stored(windows)
    window = state.window
    assert (window.budget, window.moves, window.cold, window.reason) == (1, 4, False, "<new> disks")
    assert window.roots == (uid(1, "a"), uid(2, "a"))
    assert f"window {window.id}: 2 hosts" in page and "&lt;new&gt; disks" in page

    form = await room.page(f"/maintenance?window={window.id}")
    assert 'name="reason" value="&lt;new&gt; disks"' in form and 'name="hosts"' not in form
    begin = form.partition('name="begin" value="')[2].partition('"')[0]
    fields = {"begin": begin, "end": "+40d", "budget": "", "cold": "1", "reason": "disks"}
    answer = await room.send(PATH, headers={}, act="change", window=window.id, **fields)
    assert answer.status_code == 303, answer.text
    [state] = await stored(windows)
    assert (state.window.cold, state.window.budget, state.window.reason) == (True, 0, "disks")
    assert state.window.roots == window.roots and state.window.ends > window.ends
    assert abs(state.window.begins - window.begins) < 60.0

    assert (await room.send(PATH, headers={}, act="cancel", window=window.id)).status_code == 303
    [state] = await stored(windows)
    assert state.cancelled
    refused = await room.send(PATH, headers={}, act="change", window=window.id, **fields)
    assert refused.status_code == 409
    assert f"window {window.id} is over or cancelled" in refused.text


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"end": ""}, "say --until"),
        ({"end": "+29d"}, "the window must end after its begin"),
        ({"begin": "tomorrow"}, "--from tomorrow: a time like"),
        ({"budget": "x"}, "budget: &#39;x&#39; is no whole number"),
        ({"hosts": "host-9"}, "host-9"),
        ({"hosts": ""}, "say which"),
        ({"hosts": "host-3,host-1"}, "host host-1 is in window"),
        ({"most": "0"}, "moves"),
    ],
)
async def test_a_refusal_is_shown_with_the_entered_text(
    room: VisitedRoom, windows: MaintenanceController, given: dict[str, str], problem: str
) -> None:
    await room.send(PATH, headers={}, act="add", **GIVEN)
    fields = {**GIVEN, "hosts": "host-3", **given}
    refused = await room.send(PATH, headers={}, act="add", **fields)
    assert refused.status_code == 409
    assert problem in refused.text.partition('id="form-problem">')[2].partition("</p>")[0]
    assert f'name="hosts" value="{fields["hosts"]}"' in refused.text
    assert len(await stored(windows)) == 1


async def test_a_change_may_not_overlap_another_window(
    room: VisitedRoom, windows: MaintenanceController
) -> None:
    await room.send(PATH, headers={}, act="add", **GIVEN)
    later = {**GIVEN, "begin": "+32d", "end": "+33d"}
    await room.send(PATH, headers={}, act="add", **later)
    second = max((state.window for state in await stored(windows)), key=lambda window: window.begins)
    refused = await room.send(
        PATH, headers={}, act="change", window=second.id, begin="+30d", end="+33d", reason="r"
    )
    assert refused.status_code == 409 and "host host-1 is in window" in refused.text


async def test_the_page_shows_windows_and_evacuations_with_their_problems() -> None:
    window = MaintenanceWindow(
        id=uid(1), roots=(ROOT,), begins=1_800_000_000.0, ends=1_800_003_600.0, reason="<new> disks"
    )
    late = WindowHost(
        root=ROOT, host="host-1", phase="draining", late=True, note="2 instances are still there"
    )
    dead = HostEvacuation(
        id=uid(2), root=uid(2, "a"), host="host-2", cell="c1", missing_since=1_799_999_000.0, state="held",
        why="3 hosts of rack r1 were lost",
    )  # fmt: skip
    state = WindowState(window=window, hosts=(late,))
    answer = MaintenanceFound(windows=(state,), evacuations=(dead,))
    async with a_visited_room(sent={MAINTENANCE.name: answer}) as room:
        page = await room.page("/maintenance")
        assert (
            "&lt;new&gt; disks" in page
            and "2 instances are still there" in page
            and f'href="/hosts/{ROOT}"' in page
        )
        assert "host-2</a> sends no heartbeats and is not evacuated: 3 hosts of rack r1 were lost" in page
