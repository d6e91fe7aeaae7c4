"""`berth host` and `berth resource aggregate`: output, refusals, and what placement stores."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from berth import composition
from berth.settings import BadSetting
from bus import topics
from bus.errors import OperationRefused
from bus.host_health import (
    DISABLED,
    FORCED_DOWN,
    FindHostHealth,
    HostCapabilities,
    HostHealth,
    HostHealthFound,
)
from bus.ironic import NodeChanged
from bus.messages import InventoryReported
from bus.queries import FindWaiting, HeldHost, WaitingFound
from bus.reports import Inventory
from bus.resources import SetAggregates
from bus.topics import HOST_HEALTH
from bus.worker import Worker, answers
from ironic_sync.core.rule import inventory_of
from placement_worker import Placement
from tests.support.aggregates import EAST, has_hosts, host
from tests.support.buses import LOCALLY, Connect, serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_provider, a_report, on_hosts
from tests.support.placement_calls import edit, find_providers, must_take, report, silent_placement

pytestmark = LOCALLY

CELL = a_provider(21, 2, name="host-2_numa0", inventories={"PCPU": Inventory(total=4, reserved=1)})


@pytest.fixture
async def placement(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made, serving(connect, silent_placement(made)):
        monkeypatch.setattr(composition, "transport", lambda *_, **__: connect())
        yield made


@pytest.fixture
async def host_command(
    placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """Return a runner of `berth host` in a berth with three hosts."""
    some = a_report(1, traits=("COMPUTE_NODE",)), a_report(2, CELL), a_report(3, traits=(DISABLED,))
    assert await report(placement, *some) == ["", "", ""]
    return CommandLine("host", monkeypatch, capsys)


async def states(host_command: CommandLine) -> dict[str, str]:
    return {row["host"]: row["state"] for row in await host_command.json("list")}


async def traits(placement: Placement, number: int) -> set[str]:
    (found,) = await find_providers(placement, ids=(uid(number, "a"),), parts=("traits",))
    return set(found.traits)


def a_node(number: int, name: str) -> InventoryReported:
    node = NodeChanged(
        event="update", node=uid(number, "c"), name=name, at=1_700_000_000.0, cell="c1", agent="c1-metal",
        resource_class="gold", provision_state="available",
    )  # fmt: skip
    sent = inventory_of(node)
    assert sent is not None
    return sent


@pytest.mark.usefixtures("no_scheduler")
async def test_a_bare_metal_node_is_named_as_in_ironic(
    host_command: CommandLine, placement: Placement
) -> None:
    assert await report(placement, a_node(1, "metal1"), a_node(2, "metal2")) == ["", ""]
    assert (await states(host_command)).keys() == {"host-1", "host-2", "host-3", "metal1", "metal2"}
    assert await host_command("disable", "metal1", uid(2, "c")) == "metal1: disabled\nmetal2: disabled\n"
    assert uid(1, "c") in await host_command("show", "metal1")
    assert await host_command("label", "metal1", "rack=r1") == "labels of 1 of 1 hosts changed\n"


@pytest.mark.usefixtures("no_scheduler")
async def test_a_name_of_several_hosts_is_refused_with_their_uuids(
    host_command: CommandLine, placement: Placement
) -> None:
    assert await report(placement, a_node(1, "metal1"), a_node(2, "host-1")) == ["", ""]
    with pytest.raises(OperationRefused, match=f"one of {uid(1, 'a')} and {uid(2, 'c')}"):
        await host_command("disable", "host-1")
    assert await host_command("disable", uid(2, "c")) == "host-1: disabled\n"


@pytest.mark.usefixtures("no_scheduler")
async def test_each_of_several_hosts_is_disabled_whatever_becomes_of_the_others(
    host_command: CommandLine,
) -> None:
    assert (await host_command("disable", "host-9", "host-1", "host-2", ends=1)).splitlines() == [
        "there is no host 'host-9'; `berth host list` lists them", "host-1: disabled", "host-2: disabled",
    ]  # fmt: skip
    with pytest.raises(OperationRefused, match="there is no host 'host-9'"):
        await host_command("enable", "host-9")


@pytest.mark.usefixtures("no_scheduler")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("disable", "host-1"), "host-1: would be disabled"),
        (("disable", "host-1", "--because", "disk"), "host-1: would be disabled, because of disk"),
        (("force-down", "host-1"), "host-1: would be forced down"),
        (("disable", "host-2"), "host-2: is so already (disabled)"),
        (("enable", "host-2"), "host-2: would be open"),
    ],
)
async def test_a_dry_run_says_what_would_become_of_a_host(
    host_command: CommandLine, placement: Placement, words: tuple[str, ...], says: str
) -> None:
    await host_command("disable", "host-2")
    before = [await traits(placement, number) for number in (1, 2)]
    assert await host_command(*words, "--dry-run") == f"{says}\n"
    [would] = await host_command.json(*words, "--dry-run")
    assert (would["dry_run"], would["host"]) == (True, says.split(":")[0])
    assert [await traits(placement, number) for number in (1, 2)] == before
    with pytest.raises(OperationRefused, match="there is no host 'host-9'"):
        await host_command("disable", "host-9", "--dry-run")


@pytest.mark.usefixtures("no_scheduler")
async def test_disabling_a_host_does_not_change_the_agents_report(
    host_command: CommandLine, placement: Placement
) -> None:
    assert await states(host_command) == {"host-1": "unknown", "host-2": "unknown", "host-3": "disabled"}
    assert await host_command("disable", "host-1", uid(2, "a")) == "host-1: disabled\nhost-2: disabled\n"
    assert await host_command("disable", "host-1") == "host-1: is so already (disabled)\n"
    assert await traits(placement, 1) == {"COMPUTE_NODE", DISABLED}
    assert "host-1" in await host_command("list", "--closed")
    again = a_report(1, traits=("COMPUTE_NODE",), sequence=2)
    assert await report(placement, again) == [""]
    assert (await states(host_command))["host-1"] == "disabled"
    assert await host_command("enable", "host-1") == "host-1: open\n"
    assert await traits(placement, 1) == {"COMPUTE_NODE"}
    assert "no scheduler answers" in await host_command("list", "--closed")
    refused = await host_command("enable", "host-3", ends=1)
    assert refused == "host-3: its agent has disabled it: only that can undo it\n"


async def test_hosts_are_listed_with_the_state_that_the_scheduler_reports(
    host_command: CommandLine, connect: Connect
) -> None:
    why = {"availability": "down", "since": 1.5e9, "why": "no heartbeat"}
    down = HostHealth(root=uid(2, "a"), host="host-2", cell="c1", agent="a", **why)  # type: ignore[arg-type]

    async def find(question: FindHostHealth) -> HostHealthFound:
        return HostHealthFound(hosts=(down,))

    async with serving(connect, Worker("scheduler", answers=[answers(HOST_HEALTH, find)])):
        listed = await host_command.json("list")
        assert [(row["host"], row["state"], row["why"], row["since"]) for row in listed] == [
            ("host-1", "up", "", None),
            ("host-2", "down", "no heartbeat", 1.5e9),
            ("host-3", "disabled", "disabled by its agent", None),
        ]
        assert "no heartbeat since 2017-07-14 02:40:00 UTC" in await host_command("list", "--closed")
        assert "host-1" not in await host_command("list", "--closed")


async def test_a_held_host_is_shown_with_the_waiting_request_it_is_held_for(
    host_command: CommandLine, connect: Connect
) -> None:
    asked: list[FindWaiting] = []
    held = HeldHost(root=uid(1, "a"), host="host-1", request=uid(7), project="p1", since=1e9, until=1e9 + 60)

    async def health(question: FindHostHealth) -> HostHealthFound:
        return HostHealthFound(hosts=())

    async def waiting(question: FindWaiting) -> WaitingFound:
        asked.append(question)
        return WaitingFound(waiting=(), count=1, holds=(held,))

    scheduler = Worker("scheduler", answers=[answers(HOST_HEALTH, health), answers(topics.WAITING, waiting)])
    async with serving(connect, scheduler):
        shown = await host_command("show", "host-1")
        assert f"host-1 is held for waiting request {uid(7)} of project p1 since 2001-09-09 01:46:40" in shown
        assert asked[0].on == (uid(1, "a"),)
        assert (await host_command.json("show", "host-1"))[-1]["request"] == uid(7)


async def test_hosts_are_shown_with_their_hypervisor_driver_and_supported_moves(
    host_command: CommandLine, connect: Connect
) -> None:
    known = HostCapabilities(
        root=uid(1, "a"),
        hypervisor="QEMU",
        hypervisor_version=8_002_001,
        architecture="x86_64",
        driver="mine:Libvirt",
        agent_version="0.1.0",
        moves=("live", "migrate"),
    )

    async def find(question: FindHostHealth) -> HostHealthFound:
        found = (known,) if question.described and known.root in question.roots else ()
        return HostHealthFound(hosts=(), capabilities=found)

    summary = "QEMU 8.2.1 x86_64; driver mine:Libvirt; agent 0.1.0; moves: live, migrate"

    async def waiting(question: FindWaiting) -> WaitingFound:
        return WaitingFound(waiting=(), count=0)

    scheduler = Worker("scheduler", answers=[answers(HOST_HEALTH, find), answers(topics.WAITING, waiting)])
    async with serving(connect, scheduler):
        assert summary in await host_command("show", "host-1")
        assert "QEMU" not in await host_command("show", "host-2")
        assert summary in await host_command("list", "-o", "wide")
        assert "QEMU" not in await host_command("list")
        listed = {host["host"]: host for host in await host_command.json("list")}
        assert listed["host-1"]["hypervisor_version"] == "8.2.1"
        assert listed["host-1"]["moves"] == ["live", "migrate"]
        assert listed["host-2"]["driver"] == ""


async def test_the_worst_hosts_are_first_those_that_are_not_up_and_then_the_fullest(
    host_command: CommandLine, connect: Connect, placement: Placement, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    await must_take(placement, a_claim(1, on_hosts(1)))
    top = CommandLine("top", monkeypatch, capsys)
    down = HostHealth(root=uid(2, "a"), host="host-2", cell="c1", agent="a", availability="down", why="gone")

    async def find(question: FindHostHealth) -> HostHealthFound:
        known = [HostCapabilities(root=root, instances=1, heard=1e9) for root in question.roots]
        return HostHealthFound(hosts=(down,), capabilities=tuple(known) if question.described else ())

    async with serving(connect, Worker("scheduler", answers=[answers(HOST_HEALTH, find)])):
        worst = await top.json("hosts", "--limit", "3")
        assert [(host["host"], host["state"]) for host in worst] == [
            ("host-2", "down"), ("host-3", "disabled"), ("host-1", "up"),
        ]  # fmt: skip
        assert worst[2]["used"]["VCPU"]["used"] > 0
        fullest = await host_command("list", "--sort", "-vcpu", "-o", "name")
        assert fullest.split()[0] == "host-1"
        [cell] = await top.json("cells")
        assert (cell["hosts"], cell["states"]) == (3, {"up": 1, "down": 1, "disabled": 1})
        assert cell["used"]["VCPU"]["capacity"] == 3 * worst[2]["used"]["VCPU"]["capacity"]
        for words, why in (
            (("nodes",), "top 'nodes': it is one of hosts, cells, projects"),
            (("cells", "--cell", "c1"), "--cell is for `berth top hosts`"),
        ):
            with pytest.raises(BadSetting, match=why):
                await top(*words)


async def test_forced_down_is_set_and_removed_independently_of_disabled(
    host_command: CommandLine, placement: Placement
) -> None:
    await host_command("disable", "--agent", "agent-2")
    assert await host_command("force-down", "host-2") == "host-2: forced down, disabled\n"
    assert await traits(placement, 2) == {FORCED_DOWN, DISABLED}
    assert await host_command("force-down", "host-2", "--undo") == "host-2: disabled\n"
    assert await host_command("force-down", "host-2", "--undo") == "host-2: is so already (disabled)\n"


async def test_a_host_is_closed_for_several_causes_and_opens_with_the_last(
    host_command: CommandLine, placement: Placement
) -> None:
    steps = [
        ("disable --because disk", "disabled, because of disk"),
        ("disable --because Next-Upgrade", "disabled, because of disk and next_upgrade"),
        ("disable --because disk", "is so already (disabled, because of disk and next_upgrade)"),
        ("enable", "stays disabled because of disk and next_upgrade: `--because WORD` removes that cause"),
        ("enable --because disk", "disabled, because of next_upgrade"),
        ("enable --because next_upgrade", "open"),
        ("disable", "disabled"),
        ("disable --because disk", "disabled, because of disk and operator"),
        ("enable --because disk", "disabled, because of operator"),
        ("enable", "open"),
        ("disable --because disk", "disabled, because of disk"),
        ("disable", "disabled, because of disk and operator"),
        ("enable", "disabled, because of disk"),
        ("enable --because disk", "open"),
    ]  # fmt: skip
    for words, says in steps:
        command, *rest = words.split()
        stays = command == "enable" and says != "open"  # such a command fails
        assert await host_command(command, "host-1", *rest, ends=int(stays)) == f"host-1: {says}\n", words
    assert await traits(placement, 1) == {"COMPUTE_NODE"}


WRONG: list[tuple[tuple[str, ...], type[Exception], str]] = [
    (("disable",), BadSetting, "name the hosts, or give --agent"),
    (("disable", "host-1", "--agent", "agent-1"), BadSetting, "name the hosts"),
    (("disable", "nobody"), OperationRefused, "there is no host 'nobody'; `berth host list` lists them"),
    (("enable", "--agent", "nobody"), OperationRefused, "no host is reported by an agent 'nobody'"),
    (("disable", "host-1", "--because", "a b"), BadSetting, "--because 'a b': a name"),
    (("show", "host-2_numa0"), OperationRefused, "there is no host 'host-2_numa0'"),
]


async def test_invalid_input_is_refused_with_the_reason(host_command: CommandLine) -> None:
    for words, error, says in WRONG:
        with pytest.raises(error) as refused:
            await host_command(*words)
        assert says in str(refused.value)


@pytest.fixture
async def berth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine("resource aggregate", monkeypatch, capsys)


@pytest.fixture
async def imports(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine("openstack import aggregates", monkeypatch, capsys)


async def test_create_change_and_delete_an_aggregate(berth: CommandLine, placement: Placement) -> None:
    await has_hosts(placement)
    assert await berth("list") == "no aggregate\n"
    reply = await berth(
        "create", "east", "--zone", "e", "--property", "ssd=true", "--host", "host-1", "--uuid", EAST
    )
    assert reply == f"east: made, 1 host put in\n  uuid {EAST}\n"
    assert (
        await berth("set", "east", "--add-host", "host-2", "--add-host", host(3))
        == "east: changed, 2 hosts put in\n"
    )
    assert await berth("set", EAST, "--add-host", "host-2") == "east: is so already\n"
    assert await berth("set", "east", "--remove-host", "host-1", "--remove-host", "host-3") == (
        "east: changed, 2 hosts taken out\n"
    )
    assert await berth("set", "east", "--name", "orient", "--property", "a=b=c") == "orient: changed\n"
    assert await berth("set", "orient", "--no-property", "ssd") == "orient: changed\n"
    listed = (await berth("list")).splitlines()
    assert [line.split() for line in listed] == [
        ["name", "zone", "hosts", "properties", "uuid"],
        ["orient", "e", "1", "a=b=c", EAST],
    ]
    assert (await berth("show", "orient")).splitlines() == [
        f"orient  {EAST}",
        "  a = b=c",
        "  availability_zone = e",
        "1 host:",
        f"  host-2  {host(2)}",
    ]
    assert await berth("set", "orient", "--no-zone") == "orient: changed\n"
    assert await berth("delete", "orient", "--force") == "orient: deleted, 1 host taken out\n"
    assert await berth("list") == "no aggregate\n"


async def test_a_dry_run_of_an_edit_of_an_aggregate_is_judged_as_the_edit_and_changes_nothing(
    berth: CommandLine, placement: Placement
) -> None:
    await has_hosts(placement)
    await must_take(placement, a_claim(1, on_hosts(1)))
    hosts = ("--host", "host-1", "--host", "host-2", "--force")
    await berth("create", "east", "--zone", "e", *hosts, "--uuid", EAST)
    before = await berth.json("show", "east")
    for would, says in (
        ("set east --remove-host host-2", "east: would be changed, 1 host taken out"),
        ("set east --add-host host-1", "east: is so already"),
        ("delete east --force", "east: would be deleted, 2 hosts taken out"),
    ):
        assert await berth(*would.split(), "--dry-run") == f"{says}\n"
    for words in ("delete east", "set east --remove-host host-1", "set east --add-host h9"):
        problems = []
        for dry_run in (("--dry-run",), ()):
            with pytest.raises(OperationRefused) as refused:
                await berth(*words.split(), *dry_run)
            problems.append(str(refused.value))
        assert problems[0] == problems[1]
    assert await berth.json("show", "east") == before
    [facts] = await berth.json("set", "east", "--add-host", "host-3", "--dry-run")
    assert (facts["dry_run"], facts["added"], facts["gone"]) == (True, ["host-3"], False)


async def test_aggregates_are_printed_as_json(berth: CommandLine, placement: Placement) -> None:
    await has_hosts(placement, 1)
    sent = {"uuid": EAST, "name": "east", "metadata": {"availability_zone": "e"}}
    done = {"gone": False, "added": [], "removed": [], "warnings": []}
    made = await berth.json("create", "east", "--zone", "e", "--host", "host-1", "--uuid", EAST)
    assert made == [{**sent, **done, "added": [host(1)]}]
    for options in ((), ("--host", "host-1", "--key", "availability_zone")):
        assert await berth.json("list", *options) == [{**sent, "host_count": 1}]
    assert await berth.json("list", "--host", "host-2") == []
    hosts = [{"uuid": host(1), "name": "host-1", "cell": "c1"}]
    assert await berth.json("show", "east") == [{**sent, "host_count": 1, "hosts": hosts}]
    [doubtful] = await berth.json("set", "east", "--property", "max_io_ops_per_host=8.5")
    assert doubtful["warnings"] == ["max_io_ops_per_host: '8.5' is no whole number"]


async def test_aggregates_reported_by_the_owner_are_shown_as_such(
    berth: CommandLine, placement: Placement
) -> None:
    await report(placement, a_report(1, aggregates=(EAST,)))
    assert (await berth("show", EAST)).splitlines() == [
        f"(no name)  {EAST}",
        "1 host:",
        f"  host-1  {host(1)}  (as its owner reports)",
    ]
    assert "its owner reports it in this aggregate" in await berth("set", EAST, "--remove-host", "host-1")


# `east` is a zone with host-1

REFUSED: list[tuple[tuple[str, ...], type[Exception], str]] = [
    (("show", "aest"), OperationRefused, "there is no aggregate 'aest'; the nearest is 'east'"),
    (("create", "east"), OperationRefused, "another aggregate has the name 'east'"),
    (("create", EAST), BadSetting, "edit.name"),
    (("create", "x", "--uuid", "mine"), BadSetting, "'mine' is not the uuid of an aggregate"),
    (("create", "x", "--property", "ssd"), BadSetting, "--property takes KEY=VALUE, not 'ssd'"),
    (("set", "east"), BadSetting, "nothing to change"),
    (("set", "east", "--zone", "e", "--no-zone"), BadSetting, "set and taken away: availability_zone"),
    (("set", "east", "--zone", "e,w"), BadSetting, "--zone e,w: one zone; its name contains no comma"),
    (
        ("set", "east", "--zone", ""),
        BadSetting,
        "`berth resource aggregate set AGGREGATE --no-zone` makes it no zone",
    ),
]


@pytest.mark.parametrize(("arguments", "kind", "why"), REFUSED)
async def test_invalid_aggregates_are_refused_with_the_reason(
    berth: CommandLine, placement: Placement, arguments: tuple[str, ...], kind: type[Exception], why: str
) -> None:
    await has_hosts(placement, 1)
    await berth("create", "east", "--zone", "e", "--host", "host-1", "--uuid", EAST)
    with pytest.raises(kind) as refused:
        await berth(*arguments)
    assert why in str(refused.value)


# Nova's


def novas(name: str, zone: str | None, hosts: list[str], **properties: str) -> dict[str, Any]:
    return {"Name": name, "Availability Zone": zone, "Properties": properties, "Hosts": hosts}


LONG = [
    novas("east", "e", ["host-1", "host-2"], ssd="true"),
    novas("gpu", None, ["host-2", "host-9"]),
    novas("west", "w", ["host-2", "host-3"]),
]


def a_file(tmp_path: Path, content: object) -> str:
    file = tmp_path / "aggregates.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


async def test_aggregates_of_nova_are_imported(
    berth: CommandLine, imports: CommandLine, placement: Placement, tmp_path: Path
) -> None:
    await has_hosts(placement)
    file = a_file(tmp_path, LONG)
    dry = await imports(file, "--dry-run")
    assert dry == "east: would be made\ngpu: would be made\nwest: would be made\n"
    assert await berth("list") == "no aggregate\n"
    assert (await imports(file, ends=1)).splitlines() == [
        "east: made, 2 hosts put in",
        "gpu: made, 1 host put in",
        "  not brought over: there is no host host-9",
        "west: made, 1 host put in",
        "  not brought over: host-2 cannot be in zone 'w': it is in zone 'e' by aggregate east",
    ]
    found = {one["name"]: (one["metadata"], one["host_count"]) for one in await berth.json("list")}
    assert found == {
        "east": ({"ssd": "true", "availability_zone": "e"}, 2),
        "gpu": ({}, 1),
        "west": ({"availability_zone": "w"}, 1),
    }
    file = a_file(tmp_path, [novas("east", "e", ["host-1"], hdd="true")])
    assert (await imports(file)).splitlines() == ["east: changed"]
    assert (await imports(file)).splitlines() == ["east: is so already"]
    (sent,) = await imports.json(file)
    assert (sent["name"], sent["did"], sent["notes"], sent["failed"]) == ("east", "is so already", [], [])
    [east] = await berth.json("list", "--key", "hdd")
    assert (east["metadata"], east["host_count"]) == ({"hdd": "true", "availability_zone": "e"}, 2)


async def test_aggregates_of_placement_are_named_by_uuid_or_by_their_hosts(
    berth: CommandLine, imports: CommandLine, placement: Placement, tmp_path: Path
) -> None:
    await has_hosts(placement)
    first, second, other = uid(1, "d"), uid(2, "d"), uid(3, "d")
    for number, ids in ((1, (first, other)), (2, (first,)), (3, (second,))):
        await edit(placement, SetAggregates(provider=host(number), aggregates=ids))
    rows = [
        novas("pair", "e", ["host-2", "host-1"]),
        {"Name": "known", "UUID": second, "Properties": {"a": "b"}},
        {"Name": "new", "Hosts": ["host-1", "host-3"]},
    ]
    assert (await imports(a_file(tmp_path, rows))).splitlines() == [
        "pair: made",
        "known: made",
        "  the file does not list its hosts",
        "new: made, 2 hosts put in",
    ]
    named = {one["name"]: one["uuid"] for one in await berth.json("list")}
    assert (named["pair"], named["known"], named[""]) == (first, second, other)


@pytest.mark.parametrize(
    ("content", "metadata", "count"),
    [
        ({"name": "n", "properties": "a='b', c='d e'", "hosts": "host-1, host-2"}, {"a": "b", "c": "d e"}, 2),
        ({"aggregates": [{"name": "n", "uuid": EAST, "metadata": {"availability_zone": "z"}, "hosts": []}]},
         {"availability_zone": "z"}, 0),
        ({"name": "n", "availability_zone": "z", "properties": {}, "hosts": ["host-1"]},
         {"availability_zone": "z"}, 1),
    ],
    ids=["an older client", "the API itself", "aggregate show"],
)  # fmt: skip
async def test_other_forms_of_a_list_of_aggregates_are_read(
    berth: CommandLine,
    imports: CommandLine,
    placement: Placement,
    tmp_path: Path,
    content: Any,
    metadata: dict[str, str],
    count: int,
) -> None:
    await has_hosts(placement, 2)
    await imports(a_file(tmp_path, content))
    [one] = await berth.json("list")
    assert (one["name"], one["metadata"], one["host_count"]) == ("n", metadata, count)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("+----+", "not JSON"),
        ("[1]", "not a list of aggregates"),
        ("3", "not a list of aggregates"),
        ([{"ID": 1}], "number 1 has no name"),
        ([{"Name": "a"}, {"Name": "a"}], "'a' comes twice"),
        ([{"Name": "a", "Properties": [1]}], "'a': its properties are no pairs"),
        ([{"Name": "a", "Hosts": 3}], "'a': its hosts are no list"),
    ],
)
async def test_an_unreadable_list_of_aggregates_is_refused_with_an_example(
    imports: CommandLine, placement: Placement, tmp_path: Path, content: object, why: str
) -> None:
    with pytest.raises(BadSetting, match=why):
        await imports(a_file(tmp_path, content))
