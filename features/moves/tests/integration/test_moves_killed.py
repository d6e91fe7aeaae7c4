"""kill -9 of both agents and the conductor while moves of every type are in progress.

The agents of the source and the destination are separate processes that log which guests run. Each move ends
once with the expected result, its guest never runs twice, and the audit finds nothing left over.
"""

import asyncio
from pathlib import Path

import pytest

from berth.kit import Settings, forcing_down, host_named
from bus.requests import Image
from features.moves.tests.integration.moving_site import (
    AGENT_OF,
    CELL,
    LARGE,
    SECONDS,
    SENDING,
    SOURCE,
    Errand,
    moving_site,
)
from tests.support.berth_processes import LAYOUTS
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

FAILING = 0.1  # share of phases that fail; ids of moves are chosen by whether they fail


ERRANDS = [
    Errand("migrate", "prepare", SENDING),
    Errand("migrate", "start", SENDING),
    Errand("live", "send", SENDING),
    Errand("resize", "start", (*SENDING, "verify"), more={"flavor": LARGE, "verify": True}),
    Errand("shelve", "send", ("send", "destroy"), at=""),
    Errand("rebuild", "rebuild", ("rebuild",), at=SOURCE, more={"image": Image(name="alpine")}),
    Errand("migrate", "send", ("prepare", "send", "resume"), "error", SOURCE, fails="send"),
    Errand("evacuate", "build", ("build",)),
]


@pytest.mark.soak  # test_drain_killed.py kills processes in each run, and the simulation kills workers
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_moves_of_every_type_survive_kills(
    layout: str, servers: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = servers.having(
        cells=(CELL,),
        simulator={
            "hosts": 6,
            "agents_per_cell": 2,
            "move_fail": FAILING,
            "build_time": f"constant:{SECONDS}",
            "move_time": f"constant:{SECONDS}",
        },
        build_timeout=60.0,
        layout=layout,
    )
    async with moving_site(settings, tmp_path, monkeypatch) as site:
        first, _, dead = site.hosts[SOURCE]
        builds = [*await site.boot(len(ERRANDS) - 1, first), *await site.boot(1, dead)]
        await forcing_down(True)(site.bus, await host_named(site.bus, dead))
        moves = [site.move_that_fails(errand.fails) for errand in ERRANDS]
        courses = list(zip(ERRANDS, moves, builds, strict=True))
        last = max(errand.begins for errand in ERRANDS)
        async with asyncio.TaskGroup() as group:
            for errand, move, build in courses:
                group.create_task(site.order(errand, move, build, last - errand.begins))
            await asyncio.sleep(last)
            await site.kill(*AGENT_OF, f"conductor.{CELL}")
        for errand, move, build in courses:
            if errand.kind == "resize":
                await site.confirm(move, build)
        await until(lambda: {*moves} <= site.ends.keys() | site.refused.keys(), "all ended", 120.0)
        assert not site.refused
        await site.clean()
        guests = site.notes.now()
        for errand, move, build in courses:
            end = site.ends[move][0]
            assert all(other == end for other in site.ends[move])
            agent = site.agent_of[end.root] if end.root else ""
            assert (end.end, agent) == (errand.end, errand.at), (errand, end)
            assert tuple(phase.phase for phase in end.phases) == errand.phases, end
            assert [root for _, root in guests.get(build, [])] == ([end.root] if end.root else []), end
            if errand.kind != "evacuate":  # the dead host's agent runs on: only its host is forced down
                assert [*site.notes.at_once(build)] == [], end
