"""`berth provider reset`: a host goes back to whom it belongs, by its name or its root."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from berth import wiring
from berth.commands.providers import reset
from berth.commands.terminal import CommandRefused, leaves
from berth.settings import BadSetting, Cell, Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from bus.queries import FindGroups
from placement_worker import Placement, placement_worker
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report

SETTINGS = Settings(cells=(Cell("c1"), Cell("c2")))


@pytest.fixture
async def placement(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    """Host 1 is of c2 in truth, and c1 has reported it."""
    broker = LocalBroker()
    monkeypatch.setattr(wiring, "transport", lambda settings, name: LocalTransport(broker))
    async with a_placement("sqlite+aiosqlite://", inline=True) as placement:
        stopping = asyncio.Event()
        async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as running:
            running.create_task(bus.serve(placement_worker(placement, bus.publish, ("c1", "c2")), stopping))
            await bus.asker(topics.GROUPS)(FindGroups())  # answered once it is served
            assert await placement.reports.report_many([a_report(1, sequence=7)]) == [None]
            yield placement
            stopping.set()


async def said(root: str, cell: str, as_json: bool = False) -> str:
    text = io.StringIO()
    assert await reset(SETTINGS, root, cell, as_json, Console(file=text, width=200)) == 0
    return text.getvalue().strip()


async def test_it_goes_to_the_cell_that_is_named(placement: Placement) -> None:
    assert await said("host-1", "c2") == (
        f"{uid(1, 'a')} is of cell c2; it was of cell c1, agent agent-1, last report 7"
    )
    assert placement.memory.index.rows[uid(1, "a")].cell == "c2"
    assert await placement.reports.report_many([a_report(1, cell="c2", sequence=1)], cell="c2") == [None]


async def test_programs_read_who_had_it(placement: Placement, capsys: pytest.CaptureFixture[str]) -> None:
    await said(uid(1, "a"), "c2", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["cell"], told["agent"], told["sequence"]) == ("c1", "agent-1", 7)


async def test_what_is_asked_wrongly_is_said(placement: Placement) -> None:
    for unknown, why in {"host-9": "no provider host-9", uid(9, "a"): "no root provider"}.items():
        with pytest.raises(ExceptionGroup) as refused:
            await said(unknown, "c2")
        [problem] = leaves(refused.value)
        assert isinstance(problem, CommandRefused) and why in str(problem)
    with pytest.raises(BadSetting, match="--cell c9: the cells are c1, c2"):
        await said("host-1", "c9")
