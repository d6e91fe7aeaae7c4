"""Drains whose moves wait for capacity."""

from features.moves.tests.contract.test_drain_command import Berth
from features.moves.tests.contract.test_drain_command import berth as berth
from features.moves.tests.contract.test_drain_command import cloud as cloud
from features.moves.tests.support.hosts_to_empty import HostsToEmpty
from features.waiting.messages import wait_of


async def test_moves_may_wait_for_free_capacity(cloud: HostsToEmpty, berth: Berth) -> None:
    await berth("drain", "host-1", "--wait", "30m")
    await berth("evacuate", "host-2", "--wait", "1h")
    assert sorted((request.kind, wait_of(request.parts)) for request in cloud.movers.asked) == [
        ("evacuate", "1h"),
        ("live", "30m"),
        ("live", "30m"),
    ]
