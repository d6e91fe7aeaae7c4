"""A cell adopts existing instances: it queries placement first, and repeated messages have no effect."""

import pytest
from msgspec.structs import replace

from bus.claims import Choice
from bus.errors import Retry
from bus.messages import BuildOrdered
from bus.vocabulary import Message
from features.adoption.messages import BuildAdopted
from features.adoption.tests.support.adopting_cell import ASKED, WHO, AdoptingCell, came_over
from features.adoption.tests.support.adopting_cell import cell as cell
from tests.support.conductor_builders import an_agent_report
from tests.support.ids import uid
from tests.support.placement_builders import a_release, on_hosts

ADOPTED = BuildAdopted(build=WHO, cell="c1", outcome="adopted", host="host-1", reply_to="me")


def an_order_to_the_agent(reply: list[Message]) -> BuildOrdered:
    (order,) = [message for message in reply if isinstance(message, BuildOrdered)]
    return order


async def test_a_repeated_adoption_gives_the_same_answer_and_changes_nothing(cell: AdoptingCell) -> None:
    [first] = await cell.hears(ASKED)
    assert await cell.hears(ASKED) == [first]
    stands = await cell.stands()
    assert stands is not None and stands.generation == 2


@pytest.mark.parametrize("lost", [1, 2])
async def test_an_adoption_is_completed_after_a_crash_between_placement_and_the_cell(
    cell: AdoptingCell, lost: int
) -> None:
    cell.answers_lost = lost
    for _ in range(lost):
        (outcome,) = await cell.adoptions.adopt_many([ASKED])
        assert isinstance(outcome, Retry) and await cell.stands() is None
    [reply] = await cell.hears(ASKED)
    assert reply[1] == ADOPTED


async def test_an_adopted_build_without_a_guest_on_its_host_stays_active(cell: AdoptingCell) -> None:
    [reply] = await cell.hears(ASKED)
    await cell.builds.report_many(
        [an_agent_report(an_order_to_the_agent(reply), "failed", cause="no such guest")]
    )
    stands = await cell.stands()
    assert stands is not None and stands.status == "active" and await cell.held() is not None


async def test_an_adoption_is_refused_if_the_allocations_changed(cell: AdoptingCell) -> None:
    await came_over(cell.placement, 7, on_hosts(2, VCPU=2), generation=1)
    assert await cell.refuses(ASKED) == "its allocations have changed: try again"
    await cell.placement.claims.release_many([a_release(7, 2)])
    assert await cell.refuses(ASKED) == "it does not hold any resources now"
    assert await cell.stands() is None


async def test_an_adoption_of_an_instance_in_another_cell_is_refused(cell: AdoptingCell) -> None:
    await came_over(cell.placement, 8, on_hosts(3))
    there = replace(ASKED.chosen, root=uid(3, "a"), choice=Choice(on_hosts(3)))
    assert "it was not placed in cell c1" in await cell.refuses(replace(ASKED, build=uid(8), chosen=there))


async def test_an_adoption_of_an_ended_instance_is_refused(cell: AdoptingCell) -> None:
    await cell.placement.claims.release_many([a_release(7, 1, "deleted")])
    assert await cell.refuses(ASKED) == "it has ended for placement (it has ended, not by this cell)"


async def test_adopting_a_known_build_updates_its_allocations(cell: AdoptingCell) -> None:
    await cell.hears(ASKED)
    await came_over(cell.placement, 7, on_hosts(1, VCPU=3), generation=2)
    changed = replace(ASKED, generation=3, chosen=replace(ASKED.chosen, choice=Choice(on_hosts(1, VCPU=3))))
    await cell.hears(changed)
    stands, held = await cell.stands(), await cell.held()
    assert stands is not None and stands.chosen is not None and held is not None
    assert (stands.generation, stands.chosen.choice.allocations) == (held.generation, on_hosts(1, VCPU=3))
    await cell.hears(ASKED)
    stands = await cell.stands()
    held = await cell.held()
    assert stands is not None and held is not None and stands.chosen is not None
    assert (stands.generation, stands.chosen.choice.allocations) == (held.generation, on_hosts(1, VCPU=3))
