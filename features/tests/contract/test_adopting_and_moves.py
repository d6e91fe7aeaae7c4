"""Adopted instances move."""

from msgspec.structs import replace

from bus.claims import Choice, holder_consumer
from bus.messages import Selection
from features.adoption.tests.support.adopting_cell import ASKED, WHO, AdoptingCell
from features.adoption.tests.support.adopting_cell import cell as cell
from features.moves.tests.support.conductor_moves import a_move
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, on_hosts
from tests.support.placement_calls import must_take


async def test_a_build_on_another_host_or_in_a_move_is_not_adopted(cell: AdoptingCell) -> None:
    await cell.hears(ASKED)
    there = replace(ASKED.chosen, root=uid(2, "a"), host="host-2")
    assert await cell.refuses(replace(ASKED, chosen=there)) == "its cell has it on host-1, not on host-2"
    to = Selection(root=uid(2, "a"), host="host-2", agent="agent-2", choice=Choice(on_hosts(2, VCPU=2)))
    move = replace(a_move(), build=WHO, cell="c1", generation=3, chosen=to, alternates=())
    started = replace(
        a_claim(7, on_hosts(2, VCPU=2), generation=2), keep=holder_consumer(WHO, 1), begins=move.move
    )
    await must_take(cell.placement, started)
    assert await cell.refuses(replace(ASKED, generation=9)) == "it holds nothing of host-1 by now"
    await cell.builds.handle([(WHO, move)])
    assert "its cell has it already: moving" in await cell.refuses(replace(ASKED, generation=9))
