"""The orders of moves between cells, and what cells keep of them, on every database."""

from msgspec.structs import replace

from bus.moves import HandoverReported
from bus.sql.database import Database
from bus.sql.migrations import migrate
from cell_conductor import keeping
from cell_conductor.builds import Builds
from cell_conductor.moves import CellMoves
from scheduler_worker.core.move_state import Handover
from scheduler_worker.store import handovers as store
from tests.support.cell_moves import a_move
from tests.support.conductor_builders import CELL, Books, a_placed
from tests.support.ids import uid

BOOTED = a_placed(1)
PLACED = replace(a_move(), out_of="c9", booted=BOOTED)


def an_order(number: int = 1) -> Handover:
    return Handover(placed=replace(PLACED, move=uid(number, "d")))


async def known(database: Database, *numbers: int) -> dict[str, Handover]:
    async with database.read() as tx:
        return await store.load(tx, [uid(number, "d") for number in numbers])


async def test_an_order_is_kept_once_and_changed_by_who_has_seen_it_last(database: Database) -> None:
    await migrate(database, "scheduler_worker")
    one, other = an_order(1), an_order(2)
    async with database.write() as tx:
        await store.add(tx, [other, one], 10.0)
        await store.add(tx, [replace(one, state="done")], 11.0)
    assert await known(database, 1, 2, 3) == {one.placed.move: one, other.placed.move: other}
    report = HandoverReported(
        move=one.placed.move, build=PLACED.build, cell=CELL, half="arriving", outcome="back"
    )
    arriving = replace(one, state="arriving")
    back = replace(arriving, state="back", by=report, generation=7, problem="none")
    async with database.write() as tx:
        assert await store.change(tx, one, arriving, 12.0)
        assert not await store.change(tx, one, replace(one, state="done"), 12.0)
        assert await store.change(tx, arriving, back, 13.0)
    assert (await known(database, 1))[one.placed.move] == back
    async with database.write() as tx:
        assert await store.untold(tx, 10.0, 20.0, 5) == []
        assert await store.untold(tx, 10.5, 20.0, 5) == [other]
        assert await store.untold(tx, 10.5, 20.0, 5) == []
        assert await store.prune(tx, 13.5, 5) == 1
    assert await known(database, 1, 2) == {other.placed.move: other}


async def test_what_comes_and_goes_between_cells_is_no_leak_of_theirs(database: Database) -> None:
    await migrate(database, "cell_conductor")
    books = Books(BOOTED)
    builds = Builds(database, books.claim_many, books.release_many)
    await CellMoves(builds).place_many([PLACED])
    [kept] = (await keeping(database, [PLACED.build, uid(9, "b")])).values()
    assert (kept.status, kept.in_a_move, kept.came) == ("moving", True, True)
    await builds.start_many([a_placed(2)])
    [kept] = (await keeping(database, [uid(2, "b")])).values()
    assert (kept.status, kept.in_a_move, kept.came) == ("building", False, False)
