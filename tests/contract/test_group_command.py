"""`berth group`: create, list, show and delete, by name or uuid; errors for wrong input."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable

import pytest
from rich.console import Console

from berth import wiring
from berth.commands import groups
from berth.commands.builds import boot
from berth.commands.terminal import Cli
from berth.operations.boot_options import BootOptions, boot_request
from berth.operations.names import ByName
from berth.settings import BadSetting, Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.groups import FindGroups, GroupEditRequested, MakeGroup
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildRequested
from bus.worker import Worker, on
from placement_worker import Placement, placement_worker
from tests.support.command_line import plainly
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts

WEB, DB, THEIRS = uid(1, "9"), uid(2, "9"), uid(3, "9")
OURS = boot_request(BootOptions(vcpus=1, memory_mb=512, disk_gb=1)).project


@pytest.fixture
async def asked() -> list[BuildRequested]:
    return []


@pytest.fixture
async def placement(asked: list[BuildRequested], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    broker = LocalBroker()
    monkeypatch.setattr(wiring, "transport", lambda settings, name: LocalTransport(broker))

    async def handle(request: BuildRequested) -> None:
        asked.append(request)

    async with a_placement("sqlite+aiosqlite://", inline=True) as placement:
        stopping = asyncio.Event()
        async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as running:
            running.create_task(bus.serve(placement_worker(placement, bus.publish, ("c1",)), stopping))
            scheduler = Worker("scheduler", consumes=[on(topics.BUILD_REQUESTED, handle)])
            running.create_task(bus.serve(scheduler, stopping))
            await bus.asker(topics.GROUPS)(FindGroups())  # answered once it is served
            await placement.reports.report_many([a_report(1), a_report(2)])
            for made in (
                MakeGroup(group=WEB, name="web", policy="anti-affinity", max_per_host=2),
                MakeGroup(group=DB, name="db", policy="soft-affinity"),
                MakeGroup(group=THEIRS, name="web", policy="affinity", project="theirs"),
            ):
                await placement.server_groups.edit(GroupEditRequested(edit=made))
            one = a_claim(1, on_hosts(1), group=THEIRS, project="theirs")
            await placement.claims.claim_many([an_order(one)])
            moved = a_claim(1, on_hosts(2), generation=1, keep=100, project="theirs")
            await placement.claims.claim_many([an_order(moved)])
            yield placement
            stopping.set()


class Spoken:
    def __init__(self) -> None:
        self.text = io.StringIO()
        self.say = Console(file=self.text, width=200)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.getvalue().splitlines()]


async def refusal(work: Awaitable[object]) -> str:
    with pytest.raises(OperationRefused) as refused:
        await plainly(work)
    return str(refused.value)


async def test_a_group_is_made_and_a_second_of_its_name_is_not(placement: Placement) -> None:
    told = Spoken()
    order = GroupEditRequested(edit=groups._made("cache", "anti-affinity", 3, ""))
    assert await groups.create(Cli(Settings(), False, told.say), order) == 0
    [made] = (await placement.server_groups.find(FindGroups(name="cache"))).groups
    assert (made.policy, made.max_per_host) == ("anti-affinity", 3)
    assert told.lines == [f"server group cache: {made.id}"]
    again = GroupEditRequested(edit=groups._made("cache", "affinity", 1, ""))
    said = await refusal(groups.create(Cli(Settings(), False, told.say), again))
    assert said == "there is a server group cache in this project already"


@pytest.mark.parametrize(
    ("policy", "most", "problem"),
    [
        ("together", 1, "--policy together: it is one of affinity, anti-affinity, soft-affinity, soft-anti-"),
        ("affinity", 2, "--max-per-host is of anti-affinity groups, not of affinity"),
    ],
)
def test_an_invalid_policy_or_limit_is_refused(policy: str, most: int, problem: str) -> None:
    with pytest.raises(BadSetting, match=problem):
        groups._made("web", policy, most, "")


async def test_groups_are_listed_by_name(placement: Placement) -> None:
    told = Spoken()
    assert await groups.list_groups(Cli(Settings(), False, told.say), "") == 0
    assert [line.split()[:2] for line in told.lines[1:]] == [["db", DB], ["web", WEB], ["web", THEIRS]]
    told = Spoken()
    assert await groups.list_groups(Cli(Settings(), False, told.say), "theirs") == 0
    assert [" ".join(line.split()) for line in told.lines[1:]] == [f"web {THEIRS} affinity 1 1 theirs"]
    told = Spoken()
    await groups.list_groups(Cli(Settings(), False, told.say), "nobody")
    assert told.lines == ["no server groups"]


@pytest.mark.parametrize("page", [1, 2, 3, 10])
async def test_a_list_comes_in_pages(
    placement: Placement, page: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(groups, "_PAGE", page)
    await groups.list_groups(Cli(Settings(), True, Spoken().say), "")
    listed = [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(listed) == [WEB, DB, THEIRS]


async def test_a_group_is_shown_with_its_members_and_the_names_of_their_hosts(
    placement: Placement, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Spoken()
    assert await groups.show(Cli(Settings(), False, told.say), THEIRS, "") == 0
    assert told.lines == [
        f"web {THEIRS}",
        "  affinity; project theirs",
        f"  {uid(1)} on host-2",
        f"  {uid(100)} on host-1 (may still be there)",
    ]
    await groups.show(Cli(Settings(), True, told.say), "web", "theirs")
    shown = json.loads(capsys.readouterr().out)
    assert shown["members"] == {uid(1): [uid(2, "a")]}
    assert shown["hosts"] == {uid(1, "a"): "host-1", uid(2, "a"): "host-2"}


@pytest.mark.parametrize(
    ("which", "project", "said"),
    [
        ("cache", "", "there is no server group cache: `berth group list` tells which there are"),
        (
            "db",
            "theirs",
            "there is no server group db in project theirs: `berth group list` tells which there are",
        ),
        ("web", "", f"web is a server group of projects {OURS}, theirs: say --project, or its uuid"),
    ],
)
async def test_a_group_that_is_not_clear_is_not_guessed(
    placement: Placement, which: str, project: str, said: str
) -> None:
    assert await refusal(groups.show(Cli(Settings(), False, Spoken().say), which, project)) == said


async def test_a_group_with_members_is_deleted_by_force_alone(placement: Placement) -> None:
    told = Spoken()
    said = await refusal(groups.delete(Cli(Settings(), False, told.say), THEIRS, "", False))
    assert said == f"server group web has members ({uid(1)}): delete them first, or say --force"
    assert await groups.delete(Cli(Settings(), False, told.say), THEIRS, "", True) == 0
    assert await groups.delete(Cli(Settings(), False, told.say), "db", "", False) == 0
    assert told.lines == ["server group web deleted", "server group db deleted"]
    assert [group.id for group in (await placement.server_groups.find(FindGroups())).groups] == [WEB]


async def test_a_boot_names_the_group_it_joins_by_its_uuid(
    placement: Placement, asked: list[BuildRequested]
) -> None:
    request = boot_request(BootOptions(vcpus=1, memory_mb=512, disk_gb=1))
    assert await boot(Cli(Settings(), False, Spoken().say), request, False, 1.0, ByName("web")) == 0
    assert await boot(Cli(Settings(), False, Spoken().say), request, False, 1.0, ByName(DB.upper())) == 0
    async with asyncio.timeout(60):
        while len(asked) < 2:
            await asyncio.sleep(0)
    assert [request.hints.group for request in asked] == [WEB, DB]
    said = await refusal(boot(Cli(Settings(), False, Spoken().say), request, False, 1.0, ByName(THEIRS)))
    assert said.startswith(f"there is no server group {THEIRS} in project {OURS}")
