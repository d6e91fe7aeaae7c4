"""A flood of one project's requests, schedulers that are killed, and the boots of other projects."""

import asyncio
import signal
from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest

from berth.kit import Settings, publish
from berth.kit.testing import audit
from bus import topics
from bus.clock import monotonic
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.requests import Flavor
from features.waiting.shares import fair_shares, set_weight
from tests.support.replicas import replicated
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

SMALL = Flavor(name="small", vcpus=1, memory_mb=128, disk_gb=1)
CHUNK = 2000  # published at once, faster than it can be placed


@pytest.mark.soak
@pytest.mark.parametrize("flood", [2000, 200_000])
async def test_a_flood_and_killed_schedulers_lose_and_double_nothing(
    flood: int, servers: Settings, tmp_path: Path
) -> None:
    settings = servers.having(
        simulator={"hosts": 50 + flood // 64, "build_time": "constant:0.05"},
        state_dir=str(tmp_path),
        log_level="info",
        log_format="json",
    )
    async with replicated(settings, tmp_path, replicas=2) as berth, asyncio.TaskGroup() as group:
        bus, project_of, ends = berth.bus, dict[str, str](), dict[str, set[str]]()

        def on_end(end: BuildEnded) -> None:
            ends.setdefault(end.build, set()).add(f"{end.status} on {end.host}")

        def on_unplaceable(end: BuildUnplaceable) -> None:
            for build in end.instances:
                ends.setdefault(build, set()).add(f"unplaceable: {end.reason}")

        async def request(project: str, several: int) -> None:
            builds = [bus.clock.uuid() for _ in range(several)]
            project_of.update(dict.fromkeys(builds, project))
            await publish(
                bus,
                *(
                    BuildRequested(
                        request=build, instances=(build,), flavor=SMALL, project=project, reply_to="fair"
                    )
                    for build in builds
                ),
            )

        listening = [
            group.create_task(receive_all(await bus.listen(topics.BUILD_ENDED.at(reply_to="fair")), on_end)),
            group.create_task(
                receive_all(await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to="fair")), on_unplaceable)
            ),
        ]
        await set_weight(bus, "flood", 2)
        for _ in range(0, flood, CHUNK):
            await request("single", 1)
            await request("flood", CHUNK)
        schedulers = cycle([each for each in berth.replicas if each.role.worker == "scheduler"])
        is_seen, kills = False, 0
        began = monotonic()
        while len(ends) < len(project_of):
            if kills < 3 and (len(ends) > flood * (kills + 1) // 8):
                kills += 1
                victim = next(schedulers)
                await victim.stop(signal.SIGKILL)
                await victim.start()
            if kills < 3:
                await request("single", 1)
                shares = {each.project: each for each in await fair_shares(bus)}
                assert shares["flood"].weight == 2
                is_seen |= shares["flood"].backlog > 0
            assert monotonic() - began < 150 + flood / 50, f"{len(ends)} of {len(project_of)} ended"
            await asyncio.sleep(0.05)
        assert is_seen
        assert kills >= 2
        assert {build: found for build, found in ends.items() if len(found) > 1} == {}
        assert Counter(status.split()[0] for [status] in ends.values()) == {"active": len(project_of)}

        async def nothing_is_left() -> bool:
            return not any(each.backlog for each in await fair_shares(bus))

        await until(nothing_is_left, "the backlog is empty")
        for task in listening:
            task.cancel()
    assert (await audit(settings)).clean
