"""`berth host` on either bus: which hosts there are, what each has, and keeping new instances away."""

from collections.abc import AsyncIterator

import pytest

from berth import wiring
from berth.commands import hosts as commands
from berth.settings import BadSetting
from bus.errors import OperationRefused
from bus.host_health import DISABLED, FORCED_DOWN, FindHostHealth, HostHealth, HostHealthFound
from bus.reports import Inventory
from bus.topics import HOST_HEALTH
from bus.worker import Worker, answers
from placement_worker import Placement
from tests.support.buses import LOCALLY, Connect, serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_provider, a_report
from tests.support.placement_calls import find_providers, report, silent_placement

CELL = a_provider(21, 2, name="host-2_numa0", inventories={"PCPU": Inventory(total=4, reserved=1)})


class HostCommand(CommandLine):
    """`berth host ...` on the bus of a placement with three hosts."""

    def __init__(
        self, placement: Placement, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__("host", commands, patch, capsys)
        self.placement = placement

    async def states(self) -> dict[str, str]:
        return {one["host"]: one["state"] for one in await self.json("list")}

    async def traits(self, number: int) -> set[str]:
        (found,) = await find_providers(self.placement, ids=(uid(number, "a"),), parts=("traits",))
        return set(found.traits)


@pytest.fixture
async def host(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[HostCommand]:
    async with a_placement("sqlite+aiosqlite://") as placement:
        some = a_report(1, traits=("COMPUTE_NODE",)), a_report(2, CELL), a_report(3, traits=(DISABLED,))
        assert await report(placement, *some) == ["", "", ""]

        async with serving(connect, silent_placement(placement)):
            monkeypatch.setattr(wiring, "transport", lambda *_, **__: connect())
            yield HostCommand(placement, monkeypatch, capsys)


async def test_a_host_is_closed_and_opened_and_what_its_agent_says_stays(host: HostCommand) -> None:
    assert await host.states() == {"host-1": "unknown", "host-2": "unknown", "host-3": "disabled"}
    assert await host("disable", "host-1", uid(2, "a")) == "host-1: disabled\nhost-2: disabled\n"
    assert await host("disable", "host-1") == "host-1: is so already (disabled)\n"
    assert await host.traits(1) == {"COMPUTE_NODE", DISABLED}
    assert "host-1" in await host("list", "--closed")
    again = a_report(1, traits=("COMPUTE_NODE",), sequence=2)
    assert await report(host.placement, again) == [""]
    assert (await host.states())["host-1"] == "disabled"
    assert await host("enable", "host-1") == "host-1: open\n"
    assert await host.traits(1) == {"COMPUTE_NODE"}
    assert "unknown: no scheduler answers" in await host("list", "--closed")
    assert await host("enable", "host-3") == "host-3: its agent has disabled it: only that can undo it\n"


async def test_hosts_are_listed_with_the_state_that_the_scheduler_reports(
    host: HostCommand, connect: Connect
) -> None:
    down = HostHealth(
        root=uid(2, "a"),
        host="host-2",
        cell="c1",
        agent="a",
        availability="down",
        since=1.5e9,
        why="no heartbeat",
    )

    async def find(question: FindHostHealth) -> HostHealthFound:
        return HostHealthFound(hosts=(down,))

    async with serving(connect, Worker("scheduler", answers=[answers(HOST_HEALTH, find)])):
        listed = {one["host"]: (one["state"], one["why"], one["since"]) for one in await host.json("list")}
        assert listed == {
            "host-1": ("up", "", None),
            "host-2": ("down", "no heartbeat", 1.5e9),
            "host-3": ("disabled", "disabled by its agent", None),
        }
        assert "down since 2017-07-14 02:40:00 UTC: no heartbeat" in await host("list", "--closed")
        assert "host-1" not in await host("list", "--closed")


@LOCALLY
async def test_json_output_has_one_object_per_host(host: HostCommand) -> None:
    first, second = await host.json("disable", "host-1", "host-2", "--because", "disk")
    assert first == {
        "host": "host-1",
        "uuid": uid(1, "a"),
        "cell": "c1",
        "becomes": "disabled, because of disk",
    }
    assert second["host"] == "host-2"
    assert [one["becomes"] for one in await host.json("force-down", "host-1", "--undo")] == [
        "is so already (disabled, because of disk)"
    ]


@LOCALLY
async def test_a_host_is_forced_down_beside_whatever_else_and_no_longer(host: HostCommand) -> None:
    await host("disable", "--agent", "agent-2")
    assert await host("force-down", "host-2") == "host-2: forced down, disabled\n"
    assert await host.traits(2) == {FORCED_DOWN, DISABLED}
    assert await host("force-down", "host-2", "--undo") == "host-2: disabled\n"
    assert await host("force-down", "host-2", "--undo") == "host-2: is so already (disabled)\n"


@LOCALLY
async def test_a_host_is_closed_for_several_causes_and_opens_with_the_last(host: HostCommand) -> None:
    steps = [
        ("disable --because disk", "disabled, because of disk"),
        ("disable --because Next-Upgrade", "disabled, because of disk and next_upgrade"),
        ("disable --because disk", "is so already (disabled, because of disk and next_upgrade)"),
        ("enable", "stays disabled because of disk and next_upgrade: `--because WORD` takes one away"),
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
        assert await host(words.split()[0], "host-1", *words.split()[1:]) == f"host-1: {says}\n", words
    assert await host.traits(1) == {"COMPUTE_NODE"}


@LOCALLY
async def test_providers_of_a_host_are_drawn_as_a_tree(host: HostCommand) -> None:
    drawn = await host("show", "host-2")
    lines = [line.strip() for line in drawn.splitlines()]
    assert lines[0] == "host-2  agent-2 in cell c1  unknown: no scheduler answers"
    assert any("VCPU  0 of 8 used  (8)" in line for line in lines)
    cell = next(number for number, line in enumerate(lines) if line.endswith("host-2_numa0"))
    assert "PCPU  0 of 3 used  (4, 1 reserved)" in lines[cell + 1]
    told = await host.json("show", "host-2")
    assert {one["name"] for one in told} == {"host-2", "host-2_numa0"}


WRONG: list[tuple[tuple[str, ...], type[Exception], str]] = [
    (("disable",), BadSetting, "say which: names of hosts, or --agent"),
    (("disable", "host-1", "--agent", "agent-1"), BadSetting, "say which"),
    (("disable", "nobody"), OperationRefused, "there is no host 'nobody'; `berth host list` lists them"),
    (("enable", "--agent", "nobody"), OperationRefused, "no host is reported by an agent 'nobody'"),
    (("disable", "host-1", "--because", "a b"), BadSetting, "--because 'a b': one word"),
    (("show", "host-2_numa0"), OperationRefused, "there is no host 'host-2_numa0'"),
]


@LOCALLY
async def test_invalid_input_is_refused_with_the_reason(host: HostCommand) -> None:
    for words, error, says in WRONG:
        with pytest.raises(error) as refused:
            await host(*words)
        assert says in str(refused.value)
