"""Moves of a cell in a real database: stored before the order, repeated after a crash, listed."""

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from bus.claims import Choice
from bus.decisions import Record
from bus.errors import Poison, Retry
from bus.messages import BuildReshaped, DestroyOrdered
from bus.sql.database import Database
from bus.vocabulary import Message
from features.moves.messages import FindMoves, MoveEnded, MoveKind, MoveOrdered
from features.moves.tests.support.conductor_moves import a_move, a_move_report
from features.moves.tests.support.moving_cell import MOVE, ONE, MovingCell, a_cell, short
from features.moves.tests.support.moving_cell import cell as cell
from tests.support.claims_in_memory import Holding
from tests.support.conductor_builders import CELL, a_delete, a_placed, a_selection, an_agent_report
from tests.support.ids import uid


@pytest.fixture
async def everywhere(database: Database) -> MovingCell:
    """Return a cell for tests of its SQL, which run on each type of database."""
    return await a_cell(database)


async def to_the_end(cell: MovingCell, event: Message, *, twice: bool) -> list[Message]:
    waiting, reply = [event], []
    while waiting:
        event = waiting.pop(0)
        if twice:
            await cell.hears(event)
            cell.restart()
        for message in await cell.came_of(event):
            if isinstance(message, MoveOrdered):
                waiting.append(a_move_report(message, "done"))
            elif isinstance(message, DestroyOrdered):
                waiting.append(an_agent_report(message, "destroyed"))
            else:
                reply.append(message)
    return reply


async def test_a_move_runs_its_phases_and_ends_on_the_claimed_host(cell: MovingCell) -> None:
    reply = await to_the_end(cell, cell.claimed(), twice=True)  # the conductor is killed at every step
    ends = [message for message in reply if isinstance(message, MoveEnded)]
    assert ends and all(end == ends[0] for end in ends)
    assert (ends[0].end, ends[0].host, ends[0].decision.record) == ("done", "host5", None)
    assert [phase.phase for phase in ends[0].phases] == ["prepare", "send", "start"]
    assert set(cell.books.held) == {ONE.build}
    stands = await cell.stands()
    assert (stands.status, stands.attempt, stands.generation, stands.move) == ("active", 2, 2, MOVE.move)
    assert (stands.chosen, stands.spec.flavor.name, stands.host) == (a_selection(5), "large", "host5")


async def test_moves_are_listed_newest_first_a_page_at_a_time(everywhere: MovingCell) -> None:
    cell = everywhere
    placed = [MOVE]
    await to_the_end(cell, cell.claimed(), twice=False)
    for number in (2, 3):
        cell.now += 10
        kind = "rebuild" if number == 2 else "shelve"
        placed.append(replace(a_move(kind, number=number, hosts=(5,)), attempt=number))  # type: ignore[arg-type]
        reply = await cell.came_of(placed[-1])
        if number == 2:
            await to_the_end(cell, a_move_report(reply[-1], "done"), twice=False)  # type: ignore[arg-type]
    first = await cell.moves.find(FindMoves(cell=CELL, limit=2))
    assert [(move.move, move.phase) for move in first.moves] == [
        (placed[2].move, "send"),
        (placed[1].move, "done"),
    ]
    assert first.more
    rest = await cell.moves.find(FindMoves(cell=CELL, limit=2, after=first.last))
    (oldest,) = rest.moves
    assert (oldest.move, oldest.source, oldest.host, rest.more) == (MOVE.move, "host0", "host5", False)
    assert oldest.decision.record == Record(seed="s")  # the list has the decision record, which the end lacks
    asked = {
        "under_way": ({"under_way": True}, [2]),
        "host": ({"host": "host0"}, [0]),
        "moves": ({"moves": (MOVE.move,)}, [0]),
        "builds": ({"builds": (ONE.build,)}, [2, 1, 0]),
        "of another build": ({"builds": (a_placed(9).build,)}, []),
    }
    for name, (question, expected) in asked.items():
        found = await cell.moves.find(FindMoves(cell=CELL, **question))  # type: ignore[arg-type]
        assert [move.move for move in found.moves] == [placed[number].move for number in expected], name
    with pytest.raises(Poison, match="after: 'nowhere'"):
        await cell.moves.find(FindMoves(cell=CELL, after="nowhere"))


async def test_ended_moves_are_republished_and_later_pruned(everywhere: MovingCell) -> None:
    cell = everywhere
    placed = cell.claimed()
    (*_, end) = await to_the_end(cell, placed, twice=False)
    rebuild = replace(a_move("rebuild", number=2, hosts=(5,)), attempt=2)
    reply = await cell.came_of(rebuild)
    await to_the_end(cell, a_move_report(reply[-1], "done"), twice=False)  # type: ignore[arg-type]
    assert await cell.came_of(placed) == [end]  # although its build was in a later move
    cell.now += 8 * 86400.0
    await cell.builds.prune()
    assert (await cell.moves.find(FindMoves(cell=CELL))).moves == ()
    assert (await cell.stands()).status == "active"


async def test_a_reshape_can_arrive_before_its_move(cell: MovingCell) -> None:
    """The destination is reshaped before the cell has received the move."""
    placed = cell.claimed()
    assert placed.chosen is not None
    sent = BuildReshaped(
        build=ONE.build, cell=CELL, root=placed.chosen.root, generation=2, number=9, at=cell.now,
        allocations={uid(9, "e"): {"VCPU": 1}},
    )  # fmt: skip
    assert isinstance((await cell.builds.reshape_many([sent]))[0], Retry)
    await cell.came_of(placed)
    await cell.builds.reshape_many([sent])
    assert (await cell.stands()).chosen.choice == Choice(allocations={uid(9, "e"): {"VCPU": 1}})


async def test_a_move_with_an_unreadable_record_is_a_dead_letter(cell: MovingCell) -> None:
    await cell.ordered(cell.claimed())
    async with cell.database.write() as tx:
        await tx.execute(text("UPDATE builds SET parts = '{'"))
    with pytest.raises(Poison, match="the state of a feature cannot be read any more"):
        await cell.hears(a_delete(ONE))


@pytest.mark.parametrize("deleted", [False, True], ids=["", "and was deleted"])
@pytest.mark.parametrize("kind", ["migrate", "evacuate", "shelve", "unshelve"])
async def test_a_move_of_a_build_that_is_not_known_is_undone(
    everywhere: MovingCell, kind: MoveKind, deleted: bool
) -> None:
    cell, build = everywhere, uid(2, "b")
    source, generation = a_selection(0).choice.allocations, 1
    placed = a_move(kind, 2, number=3)
    if kind == "unshelve":
        cell.books.held[build] = Holding(1, a_selection(5).choice.allocations)
        placed = replace(placed, generation=1)
    else:
        cell.books.held[build] = Holding(1, source)
    if kind in ("migrate", "evacuate"):
        placed, generation = cell.claimed(placed), 3
    if deleted:
        await cell.came_of(a_delete(a_placed(2)))
    cell.books.away = True
    waits = kind != "shelve"
    assert isinstance(await cell.hears(placed), Retry) == waits
    cell.books.away = False
    for _ in range(2):
        assert short(await cell.came_of(placed)) == ["ended deleted" if deleted else "ended error"]
        mine = {one: it for one, it in cell.books.held.items() if one != ONE.build}
        assert mine == ({} if kind == "unshelve" else {build: (generation, source)})
    if kind == "unshelve":
        assert cell.books.retired[build] == "shelved"
