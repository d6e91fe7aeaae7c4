"""`berth aggregate` on both buses: effects, output, refusals, and the import of Nova's aggregates."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from berth import wiring
from berth.commands import aggregates as commands
from berth.settings import BadSetting
from bus.errors import OperationRefused
from bus.resources import SetAggregates
from placement_worker import Placement
from tests.support.aggregates import EAST, has_hosts, host, members
from tests.support.buses import LOCALLY, Connect, serving
from tests.support.command_line import CommandLine
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, edit, report, silent_placement


class AggregateCommand(CommandLine):
    """`berth aggregate ...` on the bus of a placement."""

    def __init__(
        self, placement: Placement, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__("aggregate", commands, patch, capsys)
        self.placement = placement


@pytest.fixture
async def berth(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[AggregateCommand]:
    monkeypatch.setattr(wiring, "transport", lambda settings, name: connect())
    async with a_placement("sqlite+aiosqlite://") as placement:
        async with serving(connect, silent_placement(placement)):
            yield AggregateCommand(placement, monkeypatch, capsys)


async def test_a_life(berth: AggregateCommand) -> None:
    await has_hosts(berth.placement)
    assert await berth("list") == "no aggregate\n"
    said = await berth(
        "create", "east", "--zone", "e", "--property", "ssd=true", "--host", "host-1", "--uuid", EAST
    )
    assert said == f"east: made, 1 host put in\n  uuid {EAST}\n"
    assert await berth("add", "east", "host-2", host(3)) == "east: changed, 2 hosts put in\n"
    assert await berth("add", EAST, "host-2") == "east: is so already\n"
    assert await berth("remove", "east", "host-1", "host-3") == "east: changed, 2 hosts taken out\n"
    assert await berth("set", "east", "--name", "orient", "--property", "a=b=c") == "orient: changed\n"
    assert await berth("unset", "orient", "--property", "ssd") == "orient: changed\n"
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
    assert await berth("unset", "orient", "--zone") == "orient: changed\n"
    assert await berth("delete", "orient", "--force") == "orient: deleted, 1 host taken out\n"
    assert await berth("list") == "no aggregate\n"


@LOCALLY
async def test_the_same_as_json(berth: AggregateCommand) -> None:
    await has_hosts(berth.placement, 1)
    told = {"uuid": EAST, "name": "east", "metadata": {"availability_zone": "e"}}
    done = {"gone": False, "added": [], "removed": [], "warnings": []}
    made = await berth.json("create", "east", "--zone", "e", "--host", "host-1", "--uuid", EAST)
    assert made == [{**told, **done, "added": [host(1)]}]
    assert await berth.json("list") == [{**told, "host_count": 1}]
    assert await berth.json("list", "--host", "host-1", "--key", "availability_zone") == [
        {**told, "host_count": 1}
    ]
    assert await berth.json("list", "--host", "host-2") == []
    hosts = [{"uuid": host(1), "name": "host-1", "cell": "c1"}]
    assert await berth.json("show", "east") == [{**told, "host_count": 1, "hosts": hosts}]
    [doubtful] = await berth.json("set", "east", "--property", "max_io_ops_per_host=8.5")
    assert doubtful["warnings"] == ["max_io_ops_per_host: '8.5' is no whole number"]


@LOCALLY
async def test_an_ironic_node_is_put_in_by_its_name_as_a_host_is(berth: AggregateCommand) -> None:
    await report(berth.placement, a_report(7, name="rack1-node7", traits=("CUSTOM_METAL",)))
    await berth("create", "metal", "--host", "rack1-node7", "--uuid", EAST)
    assert await members(berth.placement, EAST) == {host(7)}


@LOCALLY
async def test_aggregates_reported_by_the_owner_are_shown_as_such(berth: AggregateCommand) -> None:
    await report(berth.placement, a_report(1, aggregates=(EAST,)))
    assert (await berth("show", EAST)).splitlines() == [
        f"(no name)  {EAST}",
        "1 host:",
        f"  host-1  {host(1)}  (as its owner reports)",
    ]
    assert "its owner reports it in this aggregate" in await berth("remove", EAST, "host-1")


# `east` is a zone with host-1, which has an instance

REFUSED: list[tuple[tuple[str, ...], type[Exception], str]] = [
    (("show", "aest"), OperationRefused, "there is no aggregate 'aest'; the nearest is 'east'"),
    (("create", "east"), OperationRefused, "another aggregate has the name 'east'"),
    (("create", "x", "--uuid", EAST), OperationRefused, "exists already, with the name 'east'"),
    (
        ("create", "w", "--zone", "w", "--host", "host-1"),
        OperationRefused,
        "host-1 cannot be in zone 'w': it is in zone 'e' by aggregate east",
    ),
    (("create", EAST), BadSetting, "$.edit.name"),
    (("create", "x", "--uuid", "mine"), BadSetting, "'mine' is no uuid"),
    (("create", "x", "--property", "ssd"), BadSetting, "--property takes KEY=VALUE, not 'ssd'"),
    (("set", "east"), BadSetting, "nothing to set"),
    (("set", "east", "--zone", "e,w"), BadSetting, "--zone e,w: one zone, whose name has no comma"),
    (("set", "east", "--zone", ""), BadSetting, "`berth aggregate unset AGGREGATE --zone` makes it no zone"),
    (("unset", "east"), BadSetting, "nothing to unset"),
]


@LOCALLY
@pytest.mark.parametrize(("arguments", "kind", "why"), REFUSED)
async def test_invalid_input_is_refused_with_the_reason(
    berth: AggregateCommand, arguments: tuple[str, ...], kind: type[Exception], why: str
) -> None:
    await has_hosts(berth.placement, 1)
    await berth("create", "east", "--zone", "e", "--host", "host-1", "--uuid", EAST)
    await claim(berth.placement, an_order(a_claim(1, on_hosts(1))))
    with pytest.raises(kind) as refused:
        await berth(*arguments)
    assert why in str(refused.value)


@LOCALLY
async def test_by_force(berth: AggregateCommand) -> None:
    await has_hosts(berth.placement, 1)
    await claim(berth.placement, an_order(a_claim(1, on_hosts(1))))
    await berth("create", "east", "--zone", "e", "--host", "host-1", "--force")
    await berth("set", "east", "--zone", "x", "--force")
    assert await berth("remove", "east", "host-1", "--force") == "east: changed, 1 host taken out\n"


# Nova's

LONG = [
    {
        "ID": 1,
        "Name": "east",
        "Availability Zone": "e",
        "Properties": {"ssd": "true"},
        "Hosts": ["host-1", "host-2"],
    },
    {"ID": 2, "Name": "gpu", "Availability Zone": None, "Properties": {}, "Hosts": ["host-2", "host-9"]},
    {"ID": 3, "Name": "west", "Availability Zone": "w", "Properties": {}, "Hosts": ["host-2", "host-3"]},
]


def a_file(tmp_path: Path, content: object) -> str:
    file = tmp_path / "aggregates.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


async def test_novas_are_brought_over_with_all_that_can_be(berth: AggregateCommand, tmp_path: Path) -> None:
    await has_hosts(berth.placement)
    file = a_file(tmp_path, LONG)
    assert (await berth("import", file, "--dry-run")).splitlines() == [
        "east: would be made",
        "gpu: would be made",
        "west: would be made",
    ]
    assert await berth("list") == "no aggregate\n"
    assert (await berth("import", file, ends=1)).splitlines() == [
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
    file = a_file(tmp_path, [{**LONG[0], "Properties": {"hdd": "true"}, "Hosts": ["host-1"]}])
    assert (await berth("import", file)).splitlines() == ["east: changed"]
    assert (await berth("import", file)).splitlines() == ["east: is so already"]
    (told,) = await berth.json("import", file)
    assert (told["name"], told["did"], told["notes"], told["failed"]) == ("east", "is so already", [], [])
    [east] = await berth.json("list", "--key", "hdd")
    assert (east["metadata"], east["host_count"]) == ({"hdd": "true", "availability_zone": "e"}, 2)


@LOCALLY
async def test_aggregates_of_placement_are_named_by_uuid_or_by_their_hosts(
    berth: AggregateCommand, tmp_path: Path
) -> None:
    await has_hosts(berth.placement)
    first, second, other = uid(1, "d"), uid(2, "d"), uid(3, "d")
    for number, ids in ((1, (first, other)), (2, (first,)), (3, (second,))):
        await edit(berth.placement, SetAggregates(provider=host(number), aggregates=ids))
    rows = [
        {"Name": "pair", "Availability Zone": "e", "Properties": {}, "Hosts": ["host-2", "host-1"]},
        {"Name": "known", "UUID": second, "Properties": {"a": "b"}},
        {"Name": "new", "Hosts": ["host-1", "host-3"]},
    ]
    assert (await berth("import", a_file(tmp_path, rows))).splitlines() == [
        "pair: made",
        "known: made",
        "  the file does not say which hosts are in it",
        "new: made, 2 hosts put in",
    ]
    named = {one["name"]: one["uuid"] for one in await berth.json("list")}
    assert (named["pair"], named["known"], named[""]) == (first, second, other)


@LOCALLY
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
async def test_other_forms_of_the_same(
    berth: AggregateCommand, tmp_path: Path, content: Any, metadata: dict[str, str], count: int
) -> None:
    await has_hosts(berth.placement, 2)
    await berth("import", a_file(tmp_path, content))
    [one] = await berth.json("list")
    assert (one["name"], one["metadata"], one["host_count"]) == ("n", metadata, count)


@LOCALLY
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
    berth: AggregateCommand, tmp_path: Path, content: object, why: str
) -> None:
    with pytest.raises(BadSetting, match=why):
        await berth("import", a_file(tmp_path, content))
