"""Where a scheduler searches: placement's own memory where they share a process, else a replica."""

from collections.abc import Sequence

import pytest

from berth.searching import SharedMemory, candidate_source
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, report
from tests.support.waiting import in_time

ONE = uid(1, "a")


async def test_in_one_process_it_is_placements_own_and_nobody_keeps_another() -> None:
    shared = SharedMemory()
    place = candidate_source(Bus(LocalTransport(LocalBroker())), shared)
    assert place.workers == ()
    heard: list[str] = []

    def handle(roots: Sequence[str], _: Sequence[str]) -> None:
        heard.extend(roots)

    place.source.watch(handle)
    with pytest.raises(Unavailable, match="has not read"):
        place.source.hosts()
    async with a_placement("sqlite+aiosqlite://") as placement:
        await report(placement, a_report(1))
        shared.give(placement.memory)
        await in_time(place.loaded())
        assert [host.uuid for host in place.source.hosts()] == [ONE]
        await claim(placement, an_order(a_claim(1, on_hosts(1))))
        assert place.source.seen == placement.memory.index.seen and heard == [ONE]


def test_elsewhere_a_replica_is_kept_which_is_not_empty_but_unread() -> None:
    place = candidate_source(Bus(LocalTransport(LocalBroker())), None)
    assert [worker.name for worker in place.workers] == ["replica"]
    with pytest.raises(Unavailable, match="has not been read"):
        place.source.hosts()
