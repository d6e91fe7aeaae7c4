"""`berth audit undo` in an embedded berth: the former state comes back, unless it was changed since."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.living_berth import LivingBerth, opening_berths

HOST, OTHER = "c1-host00001", "c1-host00002"
# commands before the act, the act, the command that shows the state, and the kind of act
UNDONE = (
    ((), f"host disable {HOST} --because disk", "host list", "mark host"),
    ((f"host disable {HOST}",), f"host enable {HOST}", "host list", "mark host"),
    ((f"host label {HOST} rack=r1",), f"host label {HOST} rack=r2 row=a", "host list", "label hosts"),
    ((), "cell disable c1", "cell list", "cell"),
    ((), "resource aggregate create east --zone east", "resource aggregate list", "aggregate"),
    (
        ("resource aggregate create west",), f"resource aggregate set west --add-host {HOST}",
        "resource aggregate list", "aggregate",
    ),
    (
        ("resource aggregate create north",), "resource aggregate delete north",
        "resource aggregate list", "aggregate",
    ),
    (
        ("project quota set p1 VCPU=4",), "project quota set p1 VCPU=2 instances=3",
        "project quota list", "quota",
    ),
    (("project quota set p2 VCPU=4",), "project quota set p2 default", "project quota list", "quota"),
    ((), "policy priority set gold --value 7", "policy priority list", "priority"),
    (
        ("policy priority set iron --value 2", "policy priority set tin --value 1"),
        "policy priority set iron --value 3", "policy priority list", "priority",
    ),
    (
        ("policy priority set zinc --value 4",), "policy priority delete zinc",
        "policy priority list", "priority",
    ),
    ((), "instance group create web --policy affinity", "instance group list", "server group"),
    (
        ("instance group create db --policy anti-affinity",), "instance group delete db",
        "instance group list", "server group",
    ),
    (
        ("project reservation create season --vcpus 1 --memory-mb 64 --project p1 --end +2h",),
        "project reservation set season --end +9h", "project reservation list", "reserve",
    ),
)  # fmt: skip


@pytest.fixture
async def berth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[LivingBerth]:
    async with opening_berths(tmp_path, monkeypatch, capsys)("c1", simulator={"hosts": 2}) as berth:
        yield berth


async def latest(berth: LivingBerth, act: str) -> str:
    """Return the id of the latest act of this kind that changed something."""
    lines = (await berth("audit", "log", "--act", act, "--json")).splitlines()
    return next(str(row["id"]) for line in lines if (row := json.loads(line))["before"] or row["after"])


async def shown(berth: LivingBerth, command: str) -> list[object]:
    rows = [json.loads(line) for line in (await berth(*command.split(), "--json")).splitlines()]
    for row in rows:
        for name in ("heartbeat", "last_heartbeat", "generation", "updated", "since", "root"):
            row.pop(name, None)
    return rows


async def test_an_undone_act_leaves_what_was_there_before(berth: LivingBerth) -> None:
    for earlier, act, state, kind in UNDONE:
        for command in earlier:
            await berth(*command.split())
        before = await shown(berth, state)
        await berth(*act.split())
        changed = await shown(berth, state)
        assert changed != before, act
        id_ = await latest(berth, kind)
        would = await berth("audit", "undo", id_[:8], "--dry-run")
        assert f"{kind} {id_[:8]}" in would and "would be undone" in would, act
        assert await shown(berth, state) == changed, act
        await berth("audit", "undo", id_[:8])
        assert await shown(berth, state) == before, act


async def test_an_act_is_not_undone_if_its_target_was_changed_since(berth: LivingBerth) -> None:
    await berth("project", "quota", "set", "p1", "VCPU=4")
    await berth("project", "quota", "set", "p1", "VCPU=3")
    first = await latest(berth, "quota")
    await berth("project", "quota", "set", "p1", "VCPU=2")
    refused = await berth.done("audit", "undo", first)
    assert (refused.code, "changed p1 later" in refused.output) == (1, True), refused
    await berth("audit", "undo", first, "--anyway")
    rows = [json.loads(line) for line in (await berth("project", "quota", "list", "--json")).splitlines()]
    assert [row["limits"] for row in rows if row["project"] == "p1"] == [{"VCPU": 4}]


async def test_an_act_on_several_hosts_is_not_undone_if_one_of_them_was_changed_since(
    berth: LivingBerth,
) -> None:
    await berth("host", "label", HOST, OTHER, "rack=r1")
    several = await latest(berth, "label hosts")
    await berth("host", "label", OTHER, "rack=r2")
    refused = await berth.done("audit", "undo", several)
    assert (refused.code, "later" in refused.output) == (1, True), refused
    await berth("audit", "undo", await latest(berth, "label hosts"), several, "--anyway")
    hosts = [json.loads(line) for line in (await berth("host", "list", "--json")).splitlines()]
    assert ["rack" in host["labels"] for host in hosts] == [False, False]


async def test_what_cannot_be_undone_is_refused_with_the_reason(berth: LivingBerth) -> None:
    build, _ = await berth.boot("--host", HOST)
    await berth("delete", build)
    [deleted] = [
        json.loads(line) for line in (await berth("audit", "log", "--act", "delete", "--json")).splitlines()
    ]
    for id_, says in (
        (deleted["id"], "acts of the kind 'delete' are not undone by a command"),
        ("1234567", "give at least 8 characters"),
        ("00000000", "no act has the id '00000000'"),
        ("QUOTA'--x", "is no id"),
    ):
        done = await berth.done("audit", "undo", id_)
        assert (done.code in (1, 2), says in done.output) == (True, True), (id_, done)
        assert "Traceback" not in done.output
