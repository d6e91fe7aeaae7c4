"""Commands with `--dry-run` in an embedded berth: they are judged as without, change and record nothing."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.living_berth import LivingBerth, opening_berths
from tests.support.waiting import until

H1 = "c1-host00001"
SETUP = (
    "host disable c1-host00002 --because disk",  # first: a slot of the reservation would leave it later
    "instance group create web --policy anti-affinity",
    "project reservation create season --vcpus 1 --memory-mb 64 --project p1",
    "project quota set p1 VCPU=4 instances=3",
    "project share set p1 3",
    "policy priority set gold --value 7 --preempts",
    "resource aggregate create east --host c1-host00001",
    "host maintenance create c1-host00002 --from +10h --for 1h",
)
STATE = (
    "instance list", "instance group list", "project reservation list", "project quota list",
    "project share list", "policy priority list", "resource aggregate list", "host maintenance list",
    "host list", "cell list", "move list", "audit log",
)  # fmt: skip
WOULD = (
    ("delete {build}", "{build} would be deleted: it is active on c1-host00001 in cell c1, and holds "),
    ("instance group delete web", "server group web would be deleted"),
    ("instance shelve {build}", "{build}: shelve"),
    ("instance rebuild {build} --image debian", "{build}: rebuild"),
    ("host disable c1-host00001", "c1-host00001: would be disabled; it keeps 1 instance"),
    ("host force-down c1-host00001", "c1-host00001: would be forced down; it keeps 1 instance"),
    ("host enable c1-host00002 --because disk", "c1-host00002: would be open"),
    ("host headroom set host", "headroom would be kept for any one host"),
    ("host headroom set none", "no headroom would be kept: none is kept"),
    ("host maintenance set {window} --for 2h", "nothing is stored"),
    ("host maintenance cancel {window}", " would be cancelled; its 1 host would be opened"),
    ("host maintenance finish c1-host00002", "the maintenance of 1 host would end"),
    ("cell disable c1", "cell c1 would be disabled: 2 hosts, "),
    ("project reservation set season --end +1h", "reservation season would end: "),
    ("project reservation delete season", "reservation season would be deleted: 1 slots would be released"),
    ("project quota set p1 default", "p1: limits that would be deleted: all"),
    ("project quota set p1 VCPU=2", "p1 would have: VCPU 2"),
    ("project share set p1 default", "p1: weight would be deleted, now 3"),
    ("policy priority delete gold", "gold: would be removed; requests of priority 7 would preempt nothing"),
    ("resource aggregate delete east --force", "east: would be deleted, 1 host taken out"),
    ("resource provider reset c1-host00001 --cell c1", " would be of cell c1; it is of cell c1, agent "),
)  # fmt: skip
REFUSED = (
    ("delete 00000000-0000-0000-0000-000000000001", "no build or waiting request has this id"),
    ("instance group delete web2", "there is no server group web2"),
    ("host disable h9", "there is no host 'h9'"),
    ("host headroom set rack", "no host has a label of level rack"),
    ("host maintenance cancel 00000000", "0 open windows have an id that begins with '00000000'"),
    ("cell disable c9", "there is no cell c9"),
    ("policy priority delete silver", "there is no priority class silver"),
    ("project quota set p1 NOTHING=2", "neither a resource class"),
    ("resource aggregate delete east", "east"),
    ("move confirm {build}", "no move of it is under way"),
)


@pytest.fixture
async def berth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[LivingBerth]:
    async with opening_berths(tmp_path, monkeypatch, capsys)("c1", simulator={"hosts": 2}) as berth:
        yield berth


async def test_a_dry_run_is_judged_as_the_act_and_changes_nothing(berth: LivingBerth) -> None:
    build, _ = await berth.boot("--host", H1)
    for command in SETUP:
        await berth(*command.split())
    [window] = [
        json.loads(line) for line in (await berth("host", "maintenance", "list", "--json")).splitlines()
    ]
    named = {"build": build, "window": window["window"]["id"]}
    await until(lambda: holds_its_slot(berth))  # the scheduler claims it after the answer
    before = [await berth.done(*command.split(), "--json") for command in STATE]
    assert any('"act"' in each.stdout for each in before), "the audit trail has records"
    for command, says in WOULD:
        words = command.format(**named).split()
        done = await berth.done(*words, "--dry-run")
        assert (done.code, says.format(**named) in done.stdout) == (0, True), (command, done)
        in_json = (await berth.done(*words, "--dry-run", "--json")).stdout.splitlines()
        assert in_json and all(json.loads(line)["dry_run"] for line in in_json), command
    for command, says in REFUSED:
        done = await berth.done(*command.format(**named).split(), "--dry-run")
        assert (done.code in (1, 2), says in done.output) == (True, True), (command, done)
    after = [await berth.done(*command.split(), "--json") for command in STATE]
    for command, was, now in zip(STATE, before, after, strict=True):
        assert steady(was.stdout) == steady(now.stdout), command


async def holds_its_slot(berth: LivingBerth) -> bool:
    """Return whether the build and the slot of the reservation are on the host that is open."""
    hosts = [json.loads(line) for line in (await berth("host", "list", "--json")).splitlines()]
    return [host["used"]["VCPU"]["used"] for host in hosts] == [2, 0]


def steady(printed: str) -> list[object]:
    """Return printed records without figures that change by themselves."""
    rows = [json.loads(line) for line in printed.splitlines()]
    for row in rows:
        for name in ("heartbeat", "last_heartbeat", "drain_begins", "empty_at", "share"):
            row.pop(name, None)
    return rows
