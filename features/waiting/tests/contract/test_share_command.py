"""`berth project share`: the weights of projects."""

import pytest

from berth.kit import BadSetting
from features.waiting.shares import FairShare, fair_shares, set_weight
from tests.support.command_line import CommandLine, a_served_placement, plainly
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import waiting_world


@pytest.mark.parametrize("words", [("set", "", "3"), ("set", "", "default")])
async def test_an_empty_project_name_is_refused(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script with an unset variable must not change the weight of all projects."""
    async with a_served_placement(monkeypatch, "c1"):
        run = CommandLine("project share", monkeypatch, capsys)
        with pytest.raises(BadSetting, match="no project is named"):
            await plainly(run(*words))


@in_virtual_time
async def test_a_weight_applies_until_it_is_deleted() -> None:
    async with waiting_world() as world:
        assert (await set_weight(world.bus, "p", 3)).changed
        assert not (await set_weight(world.bus, "p", 3)).changed
        assert (await set_weight(world.bus, "", 2)).changed
        assert await fair_shares(world.bus) == [
            FairShare(project="", weight=2),
            FairShare(project="p", weight=3),
        ]
        assert (await set_weight(world.bus, "p", None)).changed
        assert await fair_shares(world.bus) == [FairShare(project="", weight=2)]
