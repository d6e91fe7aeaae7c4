"""An evacuated host returns during or after the evacuation: its agent was suspended, or is restarted.

On real services, repeatedly. Two guests of one instance never run, and the agent asks for the holders of its
guests before it reports anything.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from bus import topics
from bus.clock import monotonic
from bus.messages import HostReported
from tests.support.moving_site import DESTINATION, PEOPLE, SOURCE, MovingSite, moving_settings, moving_site
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.soak]

TIMES = 20
BUILDING = 1.5  # seconds
DEAD = PEOPLE["source agent"]
STOOD_STILL = 5.5  # seconds after which it notices by itself
Return = Literal["goes on", "is started anew"]


async def test_a_returning_evacuated_host_never_runs_moved_guests(
    amqp_url: str,
    database_url: str,
    bus_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = moving_settings(amqp_url, database_url, bus_name, BUILDING, heartbeat=2.0)
    chance, seen = random.Random("zombie"), Counter[str]()
    async with moving_site(settings, tmp_path, monkeypatch) as site, asyncio.TaskGroup() as group:
        heard: list[tuple[float, HostReported]] = []
        beats = await site.bus.listen(topics.HOST_REPORTED.at())

        async def handle() -> None:
            while True:
                said = await beats.get()
                heard.append((monotonic(), said))

        hearing = group.create_task(handle())
        for index in range(TIMES):
            how: Return = "is started anew" if index % 2 else "goes on"
            seen[f"{how} {await come_back(site, heard, how, chance)}"] += 1
        hearing.cancel()
    with capsys.disabled():
        print(f"\n{TIMES} times a host came back: {dict(seen)}")
    assert {when.rpartition(" ")[2] for when in seen} >= {"amid", "after"}, seen


async def come_back(
    site: MovingSite, heard: list[tuple[float, HostReported]], how: Return, chance: random.Random
) -> str:
    first, _, third = site.hosts[SOURCE]
    [bystander] = await site.boot(1, first)
    builds = await site.boot(3, third)
    await site.stop(DEAD)
    site.notes.stands_still(SOURCE)  # as its guests do
    stopped = monotonic()
    returns = stopped + STOOD_STILL + chance.uniform(0.0, 1.0)
    await asyncio.sleep(max(0.0, returns - chance.uniform(0.0, 2.5 * BUILDING) - monotonic()))
    await site.force_down(third)
    moves = {build: site.move_that_fails() for build in builds}
    for build, move in moves.items():
        await site.order(move, build, "evacuate")
    await asyncio.sleep(max(0.0, returns - monotonic()))

    when = "after" if set(moves.values()) <= site.ends.keys() else "amid"
    noted, back = len(site.notes.of(SOURCE)), monotonic()
    if how == "goes on":
        await site.go_on(DEAD)
    else:
        await site.kill(DEAD)
        noted += 1  # that it was killed
    await site.over([*moves.values()])
    await site.clean()

    def runs() -> dict[str, list[str]]:
        now = site.notes.now()
        return {
            build: [site.agent_of[root] for _, root in now.get(build, [])] for build in (bystander, *builds)
        }

    await until(lambda: runs()[bystander], "it runs on")
    assert runs() == {bystander: [SOURCE], **{build: [DESTINATION] for build in builds}}
    assert [site.ends[move][0].end for move in moves.values()] == ["done"] * len(moves)
    assert [said for build in builds for said in site.notes.at_once(build)] == []

    lines = site.notes.of(SOURCE)[noted:]
    assert lines[0].running == ()
    woke = next(line.at for line in lines if bystander in {build for build, _, _ in line.running})
    await until(lambda: any(one[1].agent == SOURCE and one[0] > back for one in heard), "heard again")
    said = [one for one in heard if one[1].agent == SOURCE and one[0] > back]
    assert said[0][0] > woke
    if when == "after":
        assert {host.host: host.instances for host in said[0][1].hosts}[third] == 0

    await site.force_down(third, yes=False)
    await site.delete([bystander, *builds])
    await until(lambda: not {bystander, *builds} & site.notes.now().keys(), "deleted")
    site.forget_failures()
    return when
