"""The records of moves between cells, in the databases of schedulers and cells."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from berth.kit.testing import held_by_cell, packages
from bus.sql.database import Database
from bus.sql.migrations import migrate
from cell_conductor.testing import Builds
from features.moves import handovers as handover_store
from features.moves.cell_audit import marks
from features.moves.cell_moves import CellMoves
from features.moves.core.handover import Handover
from features.moves.messages import HandoverReported
from features.moves.tests.support.conductor_moves import a_move as a_move_between_cells
from tests.support.conductor_builders import CELL, FEATURES, Books, a_placed
from tests.support.ids import uid


@pytest.fixture
async def store(open_database: Callable[..., Database]) -> Database:
    database = open_database()
    await migrate(database, *packages("scheduler"))
    return database


BOOTED = a_placed(1)
PLACED = replace(a_move_between_cells(), out_of="c9", booted=BOOTED)


def an_order(number: int = 1) -> Handover:
    return Handover(placed=replace(PLACED, move=uid(number, "d")))


async def known(database: Database, *numbers: int) -> dict[str, Handover]:
    async with database.read() as tx:
        return await handover_store.load(tx, [uid(number, "d") for number in numbers])


async def test_a_handover_is_stored_once_and_changed_only_from_its_last_version(store: Database) -> None:
    one, other = an_order(1), an_order(2)
    async with store.write() as tx:
        await handover_store.add(tx, [other, one], 10.0)
        await handover_store.add(tx, [replace(one, state="done")], 11.0)
    assert await known(store, 1, 2, 3) == {one.placed.move: one, other.placed.move: other}
    move, build = one.placed.move, PLACED.build
    report = HandoverReported(move=move, build=build, cell=CELL, half="arriving", outcome="back")
    arriving = replace(one, state="arriving")
    back = replace(arriving, state="back", by=report, generation=7, problem="none")
    async with store.write() as tx:
        assert await handover_store.change(tx, one, arriving, 12.0)
        assert not await handover_store.change(tx, one, replace(one, state="done"), 12.0)
        assert await handover_store.change(tx, arriving, back, 13.0)
    assert (await known(store, 1))[one.placed.move] == back
    async with store.write() as tx:
        assert await handover_store.unpublished(tx, 10.0, 20.0, 5) == []
        assert await handover_store.unpublished(tx, 10.5, 20.0, 5) == [other]
        assert await handover_store.unpublished(tx, 10.5, 20.0, 5) == []
        assert await handover_store.prune(tx, 13.5, 5) == 1
    assert await known(store, 1, 2) == {other.placed.move: other}


async def test_handovers_between_cells_are_not_leaks(database: Database) -> None:
    await migrate(database, *packages("conductor"))
    books = Books(BOOTED)
    builds = Builds(database, books.claim_many, books.release_many, **FEATURES)
    await CellMoves(builds).place_many([PLACED])
    [kept] = (await held_by_cell(database, [PLACED.build, uid(9, "b")], [marks])).values()
    assert (kept.status, kept.mark.operating, kept.mark.came) == ("moving", True, True)
    await builds.start_many([a_placed(2)])
    [kept] = (await held_by_cell(database, [uid(2, "b")], [marks])).values()
    assert (kept.status, kept.mark.operating, kept.mark.came) == ("building", False, False)
