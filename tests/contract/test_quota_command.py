"""`berth quota`: shows used, limit and waiting requests of each project."""

from collections.abc import Sequence

import pytest

from berth.commands import quotas
from bus.groups import GroupEditRequested, MakeGroup
from bus.quotas import DEFAULT, QuotaEditRequested, SetQuota
from tests.support.command_line import CommandLine, a_served_placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import report


async def test_used_limit_and_waiting_requests_are_shown_also_without_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def waiting(bus: object, projects: Sequence[str]) -> dict[str, int]:
        return {project: 7 for project in projects if project == "p1"}

    monkeypatch.setattr(quotas, "waiting_by_project", waiting)
    async with a_served_placement(monkeypatch, "c1") as placement:
        assert await report(placement, a_report(1)) == [""]
        group = MakeGroup(group=uid(1, "9"), name="web", policy="soft-affinity", project="p1")
        await placement.server_groups.edit(GroupEditRequested(edit=group))
        for project, limits in ((DEFAULT, {"VCPU": 8}), ("p1", {"server_group_members": 2})):
            edit = SetQuota(project=project, limits=limits)
            await placement.quotas.edit(QuotaEditRequested(edit=edit))
        members = [a_claim(number, on_hosts(1), group=group.group) for number in (1, 2)]
        await placement.claims.claim_many([an_order(*members), an_order(a_claim(3, on_hosts(1)))])
        run = CommandLine("quota", quotas, monkeypatch, capsys)
        shown = [line.split() for line in (await run()).splitlines()[1:]]
        assert shown == [
            ["default", "VCPU", "8"],
            ["p1", "VCPU", "3", "8", "default", "7"],
            ["p1", "instances", "3", "unlimited", "7"],
            ["p1", "server_group_members", "2", "2", "7"],
        ]
        assert [line.split() for line in (await run("show")).splitlines()[1:]] == shown
