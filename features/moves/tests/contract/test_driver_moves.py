"""Moves by operators' drivers."""

import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import patch

from compute_sim.extension import DriverStand, GuestRecord
from features.moves.agent_moves import SimulatedMoves
from features.moves.driver_rules import move_order
from features.moves.messages import MoveOrdered
from tests.support.driver_checks import an_agent, broken, check, module_of_the_page
from tests.support.snippets import ROOT, snippets


def _driver_of_the_page() -> Any:
    """Return the driver of the section about drivers in features/moves/README.md."""
    page = ROOT / "features/moves/README.md"
    (example,) = [each.text for each in snippets(page) if "class MovingFolderDriver" in each.text]
    module = types.ModuleType("moving_folders")
    with patch.dict(sys.modules, folders=module_of_the_page("folders")):
        exec(compile(example, module.__name__, "exec"), vars(module))
    return module.MovingFolderDriver


MovingFolderDriver: Any = _driver_of_the_page()


async def test_the_example_of_the_documentation_follows_all_rules_of_moves(tmp_path: Path) -> None:
    results = await check(DriverStand(lambda: MovingFolderDriver(str(tmp_path))))
    moves = [result.outcome for result in results if result.part == "moves"]
    assert moves == ["passed"] * 6 and broken(results) == {}


class _Doubling(MovingFolderDriver):  # type: ignore[misc]
    """A driver that leaves the guest running on the source host of a move."""

    async def move(self, order: MoveOrdered, guest: GuestRecord) -> None:
        if order.phase != "send":
            await super().move(order, guest)


async def test_a_driver_that_leaves_the_guest_of_a_move_at_its_source_fails_the_rule(tmp_path: Path) -> None:
    failed = broken(await check(DriverStand(lambda: _Doubling(str(tmp_path)))))
    [reason] = [why for name, why in failed.items() if name.startswith("migrate: after the move")]
    assert "after `start` 2 guests run" in reason


async def test_a_move_that_the_driver_does_not_support_is_refused(tmp_path: Path) -> None:
    stand = DriverStand(lambda: MovingFolderDriver(str(tmp_path)))
    agent, build = an_agent(stand), stand.new_build()
    order = move_order(stand, "live", "prepare", build, step=1, attempt=2, host=1)
    report = await SimulatedMoves(agent).move(order)
    assert report is not None
    assert (report.outcome, report.leftover) == ("failed", False)
    assert report.cause == "the driver MovingFolderDriver does not support the move live"
