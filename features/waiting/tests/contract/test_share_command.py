"""`berth share`: the weights of projects."""

import pytest

from berth.settings import BadSetting
from features.quotas.messages import DEFAULT, FindQuotas, QuotaEditRequested, SetQuota
from features.quotas.operations import QuotaOperations
from features.waiting import shares
from tests.support.command_line import CommandLine, a_served_placement, plainly


@pytest.mark.parametrize("words", [("set", "", "3"), ("unset", "")])
async def test_an_empty_project_name_is_refused(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script with an unset variable must not change the weight of all projects."""
    async with a_served_placement(monkeypatch, "c1") as placement:
        quotas = placement.of(QuotaOperations)
        weight = SetQuota(project=DEFAULT, limits={"weight": 2})
        await quotas.edit(QuotaEditRequested(edit=weight))
        run = CommandLine("share", shares, monkeypatch, capsys)
        with pytest.raises(BadSetting, match="no project is named"):
            await plainly(run(*words))
        [quota] = (await quotas.find(FindQuotas(project=DEFAULT))).quotas
        assert quota.limits == {"weight": 2}
