"""Agents that an operator removed: how their builds and deletions end, on a real database."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from bus.clock import Clock
from bus.errors import Unavailable
from bus.messages import BuildDeleted
from bus.vocabulary import Message
from cell_conductor import RemovedAgents
from tests.support.conductor_builders import (
    CELL,
    a_build_order,
    a_delete,
    a_destroy_order,
    a_placed,
    in_short,
)
from tests.support.removing_cell import BUILT, FIRST, ONE, SECOND, RemovingCell
from tests.support.removing_cell import cell as cell


def short(messages: Sequence[Message]) -> list[str]:
    """Return messages in short, without repetitions."""
    return list(dict.fromkeys(in_short(message) for message in messages))


async def test_a_build_that_is_placed_on_a_removed_agent_goes_elsewhere(cell: RemovingCell) -> None:
    await cell.remove("agent0")
    assert await cell.place(ONE) == [SECOND]


async def test_a_deletion_ends_and_releases_everything(cell: RemovingCell) -> None:
    await cell.place(ONE)
    await cell.deliver(BUILT)
    assert await cell.deliver(a_delete(ONE, "me")) == [a_destroy_order(ONE, 1)]
    assert await cell.remove("agent0") == [BuildDeleted(build=ONE.build, cell=CELL, reply_to="me")]
    assert cell.books.held == {}
    assert await cell.assumed() == [(ONE.build, 1, "host0", "agent0")]


async def test_a_restored_agent_gets_orders_again(cell: RemovingCell) -> None:
    await cell.place(ONE)
    await cell.remove("agent0")
    assert await cell.edit("agent0", "restore") == 1
    assert await cell.edit("agent0", "restore") == 0
    assert await cell.assumed() == []
    await cell.builds.end_orders_of_removed()
    two = a_placed(2)
    assert await cell.place(two) == [a_build_order(two)]


async def test_another_conductor_of_the_cell_ends_orders_as_well(cell: RemovingCell) -> None:
    await cell.place(ONE)
    await cell.edit("agent0", "remove")
    cell.builds = cell.a_conductor()
    assert SECOND in await cell.deliver(*await cell.builds.resume())


async def test_orders_of_a_removed_agent_end_although_reading_them_failed_at_first(
    cell: RemovingCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cell.place(ONE)
    await cell.edit("agent0", "remove")

    async def away(*_: object) -> None:
        raise Unavailable("the database is away")

    with monkeypatch.context() as broken, pytest.raises(Unavailable):
        broken.setattr(cell.builds, "_silent", away)
        await cell.builds.end_orders_of_removed()
    (report,) = await cell.builds.end_orders_of_removed()
    assert (report.agent, report.outcome) == ("agent0", "failed")
    assert await cell.builds.end_orders_of_removed() == []


async def test_an_adopted_guest_is_not_ordered_from_a_removed_agent(cell: RemovingCell) -> None:
    removed = RemovedAgents(cell.database, Clock())
    await cell.edit(FIRST.agent, "remove")
    await removed.refresh()
    assert await removed.addressed([replace(FIRST, adopt=True)], cell.builds.sharing) == [None]
