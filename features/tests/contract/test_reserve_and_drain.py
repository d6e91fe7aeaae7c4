"""The command `berth project reservation`, drains and maintenance."""

from unittest.mock import AsyncMock

import pytest

from berth.kit.testing import connected_as_commands
from bus import topics
from bus.queries import DecisionFound
from bus.worker import Worker, answers
from features.maintenance.messages import MAINTENANCE, MaintenanceFound
from features.moves.tests.support.fake_movers import FakeMovers, an_instance_there
from features.reservations.tests.support.reserve_command import draw
from features.reservations.tests.support.reserve_command import placement as placement
from placement_worker.testing import Placement
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid


async def test_why_names_the_reservation_and_the_plan_that_moved_an_instance(
    placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    id_, cell = await draw(placement), FakeMovers(alone=False)
    cell.have(an_instance_there(2, 1), an_instance_there(3, 1))
    move = cell.keeps(1, 2, "done", ended=1.0, note="rebalances the hosts")
    explain = CommandLine("why", monkeypatch, capsys)
    scheduler = Worker(
        "scheduler",
        answers=[
            answers(topics.DECISION, AsyncMock(return_value=DecisionFound())),
            answers(MAINTENANCE, AsyncMock(return_value=MaintenanceFound())),
        ],
    )
    async with serving(connected_as_commands, cell.worker(), scheduler):
        sent, other = await explain(uid(2)), await explain(uid(3))
    assert f"draws from reservation season {id_} of project p1" in sent
    assert f"migrate {move.move} from host-1 to host-9, done: rebalances the hosts" in sent
    assert "draws from" not in other and "rebalances" not in other
