"""`berth audit heal` releases the allocations of shelved builds, unless a move that unshelves them needs
them.
"""

from collections.abc import Awaitable, Callable

import pytest

from berth.kit import Settings
from berth.kit.testing import connected_as_commands
from bus.claims import Claimed, Retired
from bus.delivery.runner import Bus
from bus.topics import CLAIM
from features.moves.core.phases import BuildMove, encode_move
from features.moves.messages import SHELVED
from features.moves.tests.support.audited_moves import berth as berth
from features.moves.tests.support.audited_moves import settings as settings
from features.moves.tests.support.conductor_moves import a_move
from tests.support.databases import sql
from tests.support.healed_region import BUILD, a_cell_with, stands
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, an_order, on_hosts


def shelved(settings: Settings, ended: float) -> None:
    stands(settings, "shelved", 2, leftovers="[[1,0,9.0]]")
    placed = a_move("shelve", BUILD)
    move = BuildMove(placed=placed, phase="release", since=900.0, began=900.0, end="done", ended=ended)
    story = encode_move(move).decode()
    columns = "id, build, kind, status, phase, source, host, since, ended, placed, story"
    values = (move.id, uid(BUILD), "shelve", "ended", "done", "", "", 900.0, ended, story, story)
    marks = ", ".join("?" for _ in values)
    sql(settings, "cell_c1", f"INSERT INTO moves ({columns}) VALUES ({marks})", *values)


SHELVED_BREACH = f"{uid(BUILD)}: ended as shelved in cell c1, and holds resources"


async def test_if_its_release_was_lost_the_allocations_of_a_shelved_build_are_released(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    shelved(settings, ended=1061.0)
    assert (await berth("--yes", ends=1)).startswith(f"for you to judge: {SHELVED_BREACH}; agent agent-1,")
    async with a_cell_with(settings):
        assert await berth("--yes") == f"released: {SHELVED_BREACH}\n"
        assert await berth() == "nothing is wrong\n"
        async with Bus(connected_as_commands()) as bus:
            boot = an_order(a_claim(BUILD, on_hosts(1)))
            assert (await bus.asker(CLAIM)(boot)).results == (
                Retired(why=SHELVED, cell="c1", revivable=True),
            )
            unshelve = an_order(a_claim(BUILD, on_hosts(1), begins=2))
            assert isinstance((await bus.asker(CLAIM)(unshelve)).results[0], Claimed)


@pytest.mark.parametrize("ended", [0.0, 1059.0])
async def test_allocations_that_an_unshelving_may_have_claimed_are_not_released(
    settings: Settings, berth: Callable[..., Awaitable[str]], ended: float
) -> None:
    if ended:
        shelved(settings, ended)
    else:  # its move is not recorded any more
        stands(settings, "shelved", 2, leftovers="[[1,0,9.0]]")
    async with a_cell_with(settings):
        assert await berth("--yes", ends=1) == (
            f"for you to judge: {SHELVED_BREACH}; a move that unshelves it may have claimed them\n"
        )
