"""`berth project quota`: shows used, limit and waiting requests of each project."""

from collections.abc import Sequence

import pytest

from berth.kit import BadSetting
from berth.kit.testing import connected_as_commands
from bus.delivery.runner import Bus
from features.quotas import commands as quotas
from features.quotas.edits import check_resources
from features.quotas.messages import DEFAULT
from features.quotas.tests.support.limits import limit, quota
from tests.support.command_line import CommandLine, a_served_placement, plainly
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import report


async def test_used_limit_and_waiting_requests_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def waiting(bus: object, projects: Sequence[str]) -> dict[str, int]:
        return {project: 7 for project in projects if project == "p1"}

    monkeypatch.setattr(quotas, "waiting_by_project", waiting)
    async with a_served_placement(monkeypatch, "c1") as placement:
        assert await report(placement, a_report(1)) == [""]
        await limit(placement, DEFAULT, VCPU=8)
        await limit(placement, instances=5)
        members = [a_claim(number, on_hosts(1)) for number in (1, 2)]
        await placement.claims.claim_many([an_order(*members), an_order(a_claim(3, on_hosts(1)))])
        run = CommandLine("project quota", monkeypatch, capsys)
        assert [line.split() for line in (await run("list")).splitlines()[1:]] == [
            ["default", "VCPU", "8"],
            ["p1", "VCPU", "3", "8", "default", "7"],
            ["p1", "instances", "3", "5", "7"],
        ]


@pytest.mark.parametrize("words", [("set", "", "VCPU=3"), ("set", "", "default")])
async def test_an_empty_project_name_is_refused(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script with an unset variable must not change the limits of all projects."""
    async with a_served_placement(monkeypatch, "c1") as placement:
        await limit(placement, DEFAULT, VCPU=8)
        run = CommandLine("project quota", monkeypatch, capsys)
        with pytest.raises(BadSetting, match="no project is named"):
            await plainly(run(*words))
        assert (await quota(placement, DEFAULT)).limits == {"VCPU": 8}


async def test_the_default_limits_are_named_by_an_option_or_by_the_word_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_served_placement(monkeypatch, "c1") as placement:
        run = CommandLine("project quota", monkeypatch, capsys)
        assert await run("set", "--default", "VCPU=3", "instances=2") == "default: VCPU 3, instances 2\n"
        await run("set", "default", "VCPU=4")
        assert (await quota(placement, DEFAULT)).limits == {"VCPU": 4, "instances": 2}
        with pytest.raises(BadSetting, match="name a limit"):
            await plainly(run("set", "p1"))


async def test_limits_are_deleted_by_the_word_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_served_placement(monkeypatch, "c1") as placement:
        run = CommandLine("project quota", monkeypatch, capsys)
        await run("set", "p1", "VCPU=4", "instances=2", "MEMORY_MB=1024")
        assert await run("set", "p1", "VCPU=5", "instances=default") == "p1: VCPU 5, instances default\n"
        assert (await quota(placement, "p1")).limits == {"VCPU": 5, "MEMORY_MB": 1024}
        assert await run("set", "p1", "VCPU=default") == "p1: limits deleted: VCPU\n"
        assert (await quota(placement, "p1")).limits == {"MEMORY_MB": 1024}
        assert await run("set", "p1", "default") == "p1: limits deleted: all\n"
        assert (await quota(placement, "p1")).limits == {}
        with pytest.raises(BadSetting, match="default stands alone"):
            await plainly(run("set", "p1", "default", "VCPU=3"))


async def test_the_limits_of_a_policy_test_are_of_known_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_served_placement(monkeypatch, "c1"), Bus(connected_as_commands()) as bus:
        await check_resources(bus, ["VCPU", "instances", "server_group_members"])
        await check_resources(bus, [])
        with pytest.raises(BadSetting, match="NOSUCH: neither a resource class"):
            await check_resources(bus, ["NOSUCH", "VCPU"])
