"""`berth audit heal` lists what is uncertain, destroys guests, deletes builds and releases what nothing
needs.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from berth import composition
from berth.operations.allocation_repairs import Mending
from berth.operations.audit import audit
from berth.operations.wrong_allocations import Misheld
from berth.settings import Settings
from bus import topics
from bus.guests import ReportedGuest
from bus.local import LocalTransport
from bus.messages import BuildDeleted, BuildDeleteRequested
from bus.sql.database import Database
from bus.worker import Worker, on
from cell_conductor.core.build import Build
from cell_conductor.store import BuildStore
from placement_worker import Placement
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.conductor_builders import COURSES, a_placed
from tests.support.healed_region import BUILD, KEEPER, a_cell_with, region_with_moved_instance, stands
from tests.support.ids import uid
from tests.support.placement_builders import on_hosts
from tests.support.witnessed_cell import HERE, LOST, PLACED, WHO, WitnessedCell, retire_lost, witnessed_cell

TO_A_BERTH = composition.transport


@pytest.fixture
async def cell(url: str, placement: Placement) -> AsyncIterator[WitnessedCell]:
    async with witnessed_cell(url, placement) as cell:
        yield cell


async def test_allocations_are_not_healed_without_the_agents_confirmation(cell: WitnessedCell) -> None:
    await cell.takes(on_hosts(2, VCPU=2), 1)
    cell.guests.clear()
    assert await cell.heals() == ["agent agent-1 has no guest of its attempt 1 on host-1"]
    assert await cell.held() == on_hosts(2, VCPU=2)


async def test_a_build_that_its_cell_changed_after_the_check_is_not_healed(cell: WitnessedCell) -> None:
    await cell.loses()
    [one] = await cell.finds()
    stale = Misheld(one.wrong, replace(one.place, attempt=2), one.generation, one.held, one.sentence)
    [mend] = await Mending(cell.bus).judged([stale])
    assert mend.why_not == "it is being changed: try again"


async def test_the_cell_that_keeps_a_doubled_build_publishes_its_end_after_the_deletion_elsewhere(
    cell: WitnessedCell,
) -> None:
    async def deleted(asked: BuildDeleteRequested) -> BuildDeleted:
        return BuildDeleted(build=asked.build, cell="c2", reply_to=asked.reply_to)

    other = Worker(
        "conductor.c2",
        consumes=[on(topics.BUILD_DELETE.at(cell="c2"), deleted, emits=[topics.BUILD_DELETED])],
    )
    ends = await cell.bus.listen(topics.BUILD_ENDED.at())
    async with serving(lambda: LocalTransport(cell.broker), other):
        assert await Mending(cell.bus).guests.delete_double(WHO, "c2", keeper="c1") == ""
        ended = await ends.get()
    assert (ended.build, ended.cell, ended.status) == (WHO, "c1", "active")


async def test_a_guest_whose_id_was_retired_is_destroyed_if_the_operator_chooses_so(
    cell: WitnessedCell,
) -> None:
    await retire_lost(cell, "no host fits", unplaceable=True)
    assert await cell.repairs(WHO, retired="destroy") == [""]
    assert await cell.stands(LOST) is None and len(cell.guests) == 1
    assert [*await cell.finds(), *await cell.repairs(WHO)] == []


async def test_a_guest_whose_build_was_deleted_is_not_adopted(cell: WitnessedCell) -> None:
    await retire_lost(cell, "deleted", unplaceable=False)
    [why] = await cell.repairs(WHO, retired="adopt")
    assert why.endswith("it can only be destroyed (--retired destroy)")
    assert await cell.repairs(WHO) == ["for placement it has ended (deleted): --retired destroy destroys it"]


@pytest.fixture
async def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    async with region_with_moved_instance(tmp_path, monkeypatch) as settings:
        yield settings


@pytest.fixture
def berth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Awaitable[str]]:
    return CommandLine("audit heal", monkeypatch, capsys)


async def test_leaked_holder_allocations_are_released_when_the_cell_confirms(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "active", 2)
    why = "which is active, and of that attempt nothing is left"
    leak = f"{KEEPER}: holds resources of attempt 1 of {uid(BUILD)}, {why}"
    assert (await audit(settings)).breaches == [leak]
    assert (await berth(ends=1)).splitlines() == [
        f"would be released: {leak}",
        "`berth audit heal --yes` repairs confirmed differences",
    ]
    assert (await audit(settings)).consumers == 2
    assert await berth("--yes") == f"released: {leak}\n"
    assert ((await audit(settings)).breaches, (await audit(settings)).consumers) == ([], 1)


async def test_unconfirmed_differences_are_listed_and_not_healed(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "active", 1, host=1)
    sent = (await berth("--yes", ends=1)).splitlines()
    assert all(line.startswith("for you to judge: ") for line in sent)
    assert any("a move of it began that its cell does not know" in line for line in sent)
    assert (await audit(settings)).consumers == 2


async def add_build(settings: Settings, build: Build) -> None:
    database = Database(f"sqlite+aiosqlite:///{settings.database.state_dir}/cell_c1.db")
    async with database.write() as tx:
        adding, preceding = BuildStore(COURSES).adding([build], 1000.0)
        await adding(tx, preceding)
    await database.close()


async def test_after_its_deletion_was_lost_a_build_without_guest_and_allocations_is_deleted(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    await add_build(
        settings, Build(id=WHO, cell="c1", status="active", placed=PLACED, attempt=1, end="active")
    )
    stands(settings, "active", 2, leftovers="[[1,0,9.0]]")
    sentences = (
        f"{WHO}: active on host-1 in cell c1, and agent agent-1 has no guest of its attempt 1 there",
        f"{WHO}: active on {HERE} in cell c1, and holds nothing",
    )
    async with a_cell_with(settings):
        would = [f"would be deleted: {sentence}" for sentence in sentences]
        assert (await berth(ends=1)).splitlines()[:-1] == would
        assert (await berth("--yes")).splitlines() == [f"deleted: {sentence}" for sentence in sentences]
        assert await berth() == "nothing is wrong\n"


async def test_allocations_of_a_deleted_build_stay_while_a_clean_up_waits_for_one_of_its_guests(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "deleted", 2, leftovers="[[1,0,9.0]]")
    held, second = (ReportedGuest(uid(BUILD), 1, uid(host, "a"), "running", {}) for host in (1, 3))
    async with a_cell_with(settings, held, second):
        assert (await berth(ends=1)).splitlines() == [
            f"would be destroyed: {uid(BUILD)}: agent agent-2 of cell c1 has a guest of its attempt 1,"
            " and its cell has deleted it",
            f"for you to judge: {uid(BUILD)}: ended as deleted in cell c1, and holds resources;"
            " agent agent-2 has a guest of it",
            "`berth audit heal --yes` repairs confirmed differences",
        ]


async def test_without_a_running_berth_differences_are_listed_only(
    settings: Settings, berth: Callable[..., Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stands(settings, "active", 2, leftovers="[[1,0,9.0]]")
    placed = replace(a_placed(5), cell="c1")
    lost = Build(id=placed.build, cell="c1", status="active", placed=placed, attempt=1, end="active")
    await add_build(settings, lost)
    monkeypatch.setattr(composition, "transport", TO_A_BERTH)
    [sent] = (await berth(ends=1)).splitlines()
    assert sent == (
        f"for you to judge: {lost.id}: active on {lost.host.root} in cell c1, and holds nothing;"
        " no running berth can be queried here"
    )
