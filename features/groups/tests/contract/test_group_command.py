"""`berth instance group`: creates, lists, shows and deletes server groups; `berth boot --group` joins one."""

from collections.abc import AsyncIterator

import pytest

from berth.kit import BadSetting, boot_request, options_named
from berth.kit.testing import commands_connect_by
from bus import topics
from bus.errors import OperationRefused
from bus.messages import BuildRequested
from bus.worker import Worker, on
from features.groups import commands as groups
from features.groups.messages import FindGroups, GroupEditRequested, MakeGroup, group_of
from features.groups.store import ServerGroups
from features.groups.tests.support.group_parts import joining
from placement_worker.testing import Placement
from tests.support.aggregates import has_hosts
from tests.support.buses import LOCALLY, Connect, serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, an_order, on_hosts
from tests.support.placement_calls import claim, silent_placement
from tests.support.waiting import until

pytestmark = LOCALLY


@pytest.fixture
async def placement(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made, serving(connect, silent_placement(made)):
        commands_connect_by(connect, monkeypatch)
        yield made


WEB, DB, THEIRS = uid(1, "9"), uid(2, "9"), uid(3, "9")
OURS = boot_request(options_named(vcpus=1, memory_mb=512, disk_gb=1)).project


@pytest.fixture
async def group(
    placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """Return a runner of `berth instance group`. A group of another project has a member that moved to host
    2.
    """
    await has_hosts(placement, 2)
    for made in (
        MakeGroup(group=WEB, name="web", policy="anti-affinity", max_per_host=2),
        MakeGroup(group=DB, name="db", policy="soft-affinity"),
        MakeGroup(group=THEIRS, name="web", policy="affinity", project="theirs"),
    ):
        await placement.of(ServerGroups).edit(GroupEditRequested(edit=made))
    built = a_claim(1, on_hosts(1), parts=joining(THEIRS), project="theirs")
    moved = a_claim(1, on_hosts(2), generation=1, keep=100, project="theirs")
    await claim(placement, an_order(built))
    await claim(placement, an_order(moved))
    return CommandLine("instance group", monkeypatch, capsys)


async def test_a_second_group_of_the_same_name_is_refused(group: CommandLine, placement: Placement) -> None:
    reply = await group("create", "cache", "--policy", "anti-affinity", "--max-per-host", "3")
    [made] = (await placement.of(ServerGroups).find(FindGroups(name="cache"))).groups
    assert (made.policy, made.max_per_host) == ("anti-affinity", 3)
    assert reply == f"server group cache: {made.id}\n"
    with pytest.raises(OperationRefused, match="there is a server group cache in this project already"):
        await group("create", "cache", "--policy", "affinity")


async def test_groups_are_listed_by_name_and_project(
    group: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in (2, 1000):
        monkeypatch.setattr(groups, "_PAGE", page)
        assert [row["id"] for row in await group.json("list")] == [DB, WEB, THEIRS]
    listed = (await group("list", "--project", "theirs")).splitlines()
    assert [" ".join(line.split()) for line in listed[1:]] == [f"web {THEIRS} affinity 1 1 theirs"]
    assert await group("list", "--project", "nobody") == "no server groups\n"


async def test_a_group_is_shown_with_its_members_and_the_names_of_their_hosts(group: CommandLine) -> None:
    assert (await group("show", THEIRS)).splitlines() == [
        f"web {THEIRS}",
        "  affinity; project theirs",
        f"  {uid(1)} on host-2",
        f"  {uid(100)} on host-1 (may still be there)",
    ]
    [shown] = await group.json("show", "web", "--project", "theirs")
    assert shown["members"] == {uid(1): [uid(2, "a")]}
    assert shown["hosts"] == {uid(1, "a"): "host-1", uid(2, "a"): "host-2"}


WRONG_GROUPS: list[tuple[str, type[Exception], str]] = [
    (
        "show cache",
        OperationRefused,
        "there is no server group cache: `berth instance group list` lists them",
    ),
    ("show db --project theirs", OperationRefused, "there is no server group db in project theirs: `berth"),
    ("show web", OperationRefused, f"web is a group of projects {OURS}, theirs: give --project, or its uuid"),
    ("create web --policy together", BadSetting, "--policy together: it is one of affinity, anti-affinity,"),
    ("create web --policy affinity --max-per-host 2", BadSetting, "is of anti-affinity groups, not of affi"),
]


async def test_invalid_group_commands_are_refused_with_the_reason(group: CommandLine) -> None:
    for words, error, says in WRONG_GROUPS:
        with pytest.raises(error) as refused:
            await group(*words.split())
        assert says in str(refused.value)


async def test_a_group_with_members_is_deleted_only_by_force(
    group: CommandLine, placement: Placement
) -> None:
    with pytest.raises(OperationRefused) as refused:
        await group("delete", THEIRS)
    sentence = f"server group web has members ({uid(1)}): delete them first, or give --force"
    assert str(refused.value) == sentence
    assert await group("delete", THEIRS, "--force") == "server group web deleted\n"
    assert await group("delete", "db") == "server group db deleted\n"
    assert [left.id for left in (await placement.of(ServerGroups).find(FindGroups())).groups] == [WEB]


async def test_a_dry_run_of_a_deletion_is_judged_as_the_deletion(
    group: CommandLine, placement: Placement
) -> None:
    with pytest.raises(OperationRefused, match=f"server group web has members .{uid(1)}.: delete them first"):
        await group("delete", THEIRS, "--dry-run")
    stays = "server group web would be deleted; 1 member left without a policy\n"
    assert await group("delete", THEIRS, "--force", "--dry-run") == stays
    [would] = await group.json("delete", "db", "--dry-run")
    assert would == {"dry_run": True, "id": DB, "name": "db", "members": 0, "gone": True}
    left = (await placement.of(ServerGroups).find(FindGroups())).groups
    assert {each.id for each in left} == {WEB, DB, THEIRS}


@pytest.mark.usefixtures("group")
async def test_a_boot_names_the_group_it_joins_by_its_uuid(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[BuildRequested] = []

    async def handle(request: BuildRequested) -> None:
        asked.append(request)

    boot = CommandLine("boot", monkeypatch, capsys)
    small = ("--vcpus", "1", "--memory-mb", "512", "--disk-gb", "1")
    async with serving(connect, Worker("scheduler", consumes=[on(topics.BUILD_REQUESTED, handle)])):
        for name in ("web", DB.upper()):
            await boot(*small, "--group", name)
        await until(lambda: len(asked) == 2)
    assert [group_of(each.parts) for each in asked] == [WEB, DB]
    with pytest.raises(OperationRefused, match=f"there is no server group {THEIRS} in project {OURS}"):
        await boot(*small, "--group", THEIRS)
