"""The feed of commits: it ends if commits were deleted or lost."""

import asyncio
from collections.abc import Collection, Iterable, Mapping

import pytest

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.replication import ChangesFound
from features.placement_additions.feed import ChangeFeed
from placement_worker.extension import Forgotten, Memory, Tree
from placement_worker.testing import Placement, Take
from tests.support.placement_builders import a_report, mark_published
from tests.support.placement_calls import report


class EmptyLog:
    """A change log without commits, of a database whose history a fail-over changes."""

    def __init__(self) -> None:
        self.history = "7/1"

    async def changes(self, after: int, most: int) -> ChangesFound:
        return ChangesFound(changes=(), oldest=0, last=after, history=self.history)

    async def trees(self, roots: Collection[str], history: str) -> Mapping[str, Tree]:
        return {}

    async def facts(self) -> Iterable[Aggregate | RegisteredCell]:
        return ()

    async def each(self, take: Take, history: str) -> None:
        return None


async def test_a_feed_ends_at_a_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("features.placement_additions.feed.POLL_SECONDS", 0.01)
    log = EmptyLog()
    changes = ChangeFeed(Memory(log)).follow(1)
    first = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    log.history = "7/2"
    with pytest.raises(Forgotten, match="failed over"):
        await first


@pytest.mark.parametrize("after", [0, 4])
async def test_a_feed_from_a_pruned_or_future_number_is_refused(placement: Placement, after: int) -> None:
    placement.log.keep = 1
    for number in (1, 2, 3):
        await report(placement, a_report(number))
    await mark_published(placement)
    await placement.log.trim()
    with pytest.raises(Forgotten, match=f"from {after + 1} on|{after} was expected"):
        await anext(ChangeFeed(placement.memory).follow(after))
