"""A load as `berth load` makes it, through an embedded berth; then `berth why --replay` of every build."""

import asyncio
import io
import json
from pathlib import Path

import pytest

from berth.commands import terminal
from berth.commands.run import ready
from berth.commands.why import why
from berth.embedded import embedded
from berth.loadtest import MIX, Load, LoadOutcome, LoadPlan
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildPlaced
from bus.queries import FindBuilds

pytestmark = pytest.mark.slow

HOSTS = 60


async def placed_by_a_load(bus: Bus, boots: int) -> LoadOutcome:
    return await Load(bus, LoadPlan(boots=boots, seed=7)).run()


async def kept_of(bus: Bus, settings: Settings, builds: list[str]) -> list[BuildPlaced]:
    find, found = bus.asker(topics.FIND_BUILDS), list[BuildPlaced]()
    for cell in settings.cell_names:
        for at in range(0, len(builds), 100):
            answer = await find(FindBuilds(cell=cell, builds=tuple(builds[at : at + 100])))
            found += [build.placed for build in answer.builds]
    return found


@pytest.mark.parametrize("boots", [200, pytest.param(1000, marks=pytest.mark.soak)])
async def test_every_decision_of_a_load_comes_to_the_same_host_again(
    boots: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings().having(
        cells=("c1", "c2", "c3"),
        hosts=HOSTS,
        state_dir=str(tmp_path / "state"),
        build_time="constant:0.01",
        fail=0.1,
        heartbeat=0.5,
    )
    async with asyncio.timeout(300), embedded(settings, open_socket=True) as berth:
        await ready(berth.bus, settings)
        outcome = await placed_by_a_load(berth.bus, boots)
        assert outcome.statuses.keys() <= {"active", "error"}, outcome.summary()  # all were placed
        kept = await kept_of(berth.bus, settings, list(outcome.boots))
        for build in outcome.boots:
            code = await why(settings, build, True, False, True, terminal.console(io.StringIO()))
            assert code == 0, capsys.readouterr().out
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["build"] for one in again} == outcome.boots.keys()
    assert all(one["same"] and one["recorded"] == one["again"] for one in again)
    # There was something to be decided: by many flavors, on many hosts, between two at least.
    assert len(kept) == boots
    assert len({placed.spec.flavor.name for placed in kept}) == MIX
    assert len({one["recorded"] for one in again}) > HOSTS // 2
    between = [len(record.hosts) for placed in kept if (record := placed.decision.record) is not None]
    assert sum(several > 1 for several in between) > boots // 2
