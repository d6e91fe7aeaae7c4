"""The audit of instances that move: the allocations held for their moves are notes."""

from collections.abc import Awaitable, Callable

from berth.kit import Settings
from berth.kit.testing import audit
from features.moves.tests.support.audited_moves import berth as berth
from features.moves.tests.support.audited_moves import settings as settings
from tests.support.healed_region import BUILD, KEEPER, stands
from tests.support.ids import uid


async def test_allocations_held_for_a_move_are_a_note(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "moving", 2)
    found = await audit(settings)
    assert (found.breaches, found.types) == ([], {"INSTANCE": 1, "MIGRATION": 1})
    assert found.notes == [f"{KEEPER}: holds the host that {uid(BUILD)} has moved from"]
    assert await berth("--yes") == "nothing is wrong\n"
    assert (await audit(settings)).consumers == 2
