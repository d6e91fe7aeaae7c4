"""`berth project reservation`: creates, lists, shows, extends and deletes reservations."""

import json
from collections.abc import Awaitable, Callable
from unittest.mock import AsyncMock

import pytest

from berth.kit import BadSetting
from berth.kit.testing import connected_as_commands
from bus.errors import OperationRefused, Unavailable
from bus.worker import Worker, answers
from features.reservations.messages import FILL_RESERVATION, ReservationFilled
from features.reservations.tests.support.reserve_command import draw
from features.reservations.tests.support.reserve_command import placement as placement
from placement_worker.testing import Placement
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid

Reserve = Callable[..., Awaitable[str]]
LATER = ("--hold-from", "+1h", "--begin", "+1h", "--end", "+3h")


@pytest.fixture
def run(placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reserve:
    return CommandLine("project reservation", monkeypatch, capsys)


async def created(run: Reserve, *options: str) -> str:
    made = json.loads(await run("create", "season", "--vcpus", "4", "--project", "p1", *options, "--json"))
    return str(made["id"])


async def test_several_reservations_are_deleted_whatever_becomes_of_one(run: Reserve) -> None:
    id_ = await created(run, *LATER)
    await run("create", "other", "--vcpus", "4", *LATER)
    before = await run("list")
    assert (await run("delete", "season", "missing", "other", "--dry-run", ends=1)).splitlines() == [
        "reservation season would be deleted: 0 slots would be released",
        "there is no reservation missing: `berth project reservation list` lists them",
        "reservation other would be deleted: 0 slots would be released",
    ]
    assert json.loads(await run("set", "season", "--end", "", "--dry-run", "--json")) == {
        "dry_run": True, "id": id_, "ends": 0.0,
    }  # fmt: skip
    assert await run("list") == before
    assert "reservation other deleted" in await run("delete", "season", "missing", "other", ends=1)
    assert await run("list") == "no reservations\n"


async def test_a_reservation_is_named_by_the_first_characters_of_its_id(run: Reserve) -> None:
    id_ = await created(run, *LATER)
    assert f"season {id_}" in await run("show", id_[:8])
    with pytest.raises(OperationRefused, match="there is no reservation 0000000"):
        await run("show", "00000000")


async def test_a_later_reservation_is_planned_until_its_capacity_is_held(run: Reserve) -> None:
    text = await run("create", "season", "--vcpus", "4", "--count", "2", *LATER)
    assert "no capacity is held before" in text
    assert "planned" in await run("list")
    assert "2 of 2 slots have no host yet" in await run("show", "season")


async def test_a_reservation_exists_although_no_scheduler_claims_its_slots_now(run: Reserve) -> None:
    refuse = AsyncMock(side_effect=Unavailable("the database is unreachable"))
    scheduler = Worker("scheduler", answers=[answers(FILL_RESERVATION, refuse)])
    async with serving(connected_as_commands, scheduler):
        text = await run("create", "season", "--count", "2", ends=1)
    assert "0 of 2 slots have a host: the reservation is stored, and schedulers claim its slots" in text
    assert "unreachable" in text
    assert "2 of 2 slots have no host yet" in await run("show", "season")


async def test_the_reason_of_missing_slots_may_be_long(run: Reserve) -> None:
    why = "no valid host among 200: " + ", ".join(f"host-{number}" for number in range(60))
    await served_by(
        run, ReservationFilled(placed=0, missing=1, reason=why), f"0 of 1 slots have a host: {why}"
    )


async def test_a_reservation_is_stored_although_the_answer_about_its_slots_is_unreadable(
    run: Reserve,
) -> None:
    text = "0 of 1 slots have a host: the reservation is stored, and schedulers claim its slots later"
    await served_by(run, ReservationFilled(placed=-1), text)


async def served_by(run: Reserve, filled: ReservationFilled, text: str) -> None:
    """Create a reservation while a scheduler gives this answer: the output has `text`, and it is stored."""
    scheduler = Worker("scheduler", answers=[answers(FILL_RESERVATION, AsyncMock(return_value=filled))])
    async with serving(connected_as_commands, scheduler):
        assert text in await run("create", "season", "--vcpus", "999", ends=1)
    assert "1 of 1 slots have no host yet" in await run("show", "season")


async def test_a_project_finds_its_own_reservation_before_one_of_any_project(
    placement: Placement, run: Reserve
) -> None:
    await run("create", "season", "--vcpus", "4", "--any-project", *LATER)
    assert "any project" in await run("show", "season", "--project", "p1")
    await created(run, *LATER)
    assert "project p1" in await run("show", "season", "--project", "p1")
    assert "any project" in await run("show", "season", "--project", "p2")


async def test_a_slot_is_shown_with_its_host_and_the_instances_that_drew(
    placement: Placement, run: Reserve
) -> None:
    id_ = await draw(placement)
    assert f"host-1: 3 VCPU of 4 VCPU, drawn by {uid(2)}" in await run("show", "season")
    assert "reservation season deleted: 1 slots released" in await run("delete", id_)
    assert "no reservations" in await run("list")


async def test_a_reservation_is_extended_until_it_has_ended(run: Reserve) -> None:
    id_ = await created(run, *LATER)
    assert "ends: 2999-01-01 00:00" in await run("set", "season", "--end", "2999-01-01")
    [row] = [json.loads(line) for line in (await run("list", "--json")).splitlines()]
    assert (row["id"], row["ends"]) == (id_, 32472144000.0)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (("show", "none"), "there is no reservation none"),
        (("create", "x", "--any-project", "--open"), "no --project, no --open"),
        (("create", "x", "--end", "tomorrow"), "--end tomorrow: a time like"),
        (("create", "x", "--begin", "+2h", "--end", "+1h"), "it is not after the beginning"),
    ],
)
async def test_a_command_is_refused(run: Reserve, command: tuple[str, ...], problem: str) -> None:
    with pytest.raises((BadSetting, OperationRefused), match=problem.replace("+", r"\+")):
        await run(*command)
