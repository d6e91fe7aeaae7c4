"""`berth why`, `berth what-if` and `berth boot`: output and exit codes."""

import asyncio
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from berth import composition
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from tests.support.berth_processes import Up
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL, a_request

pytestmark = pytest.mark.slow

HOSTS = 6


Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class House:
    """A berth that is up, with a build of each kind."""

    up: Up
    ids: Mapping[str, str]

    def berth(self, *arguments: str) -> Done:
        return self.up.berth(*arguments)


def wait_for_a_node(up: Up, number: int, project: str = "admin") -> BuildRequested:
    """Publish a request that waits for bare metal, and return when it waits."""
    request = a_request(number, flavor=METAL, wait="10m", project=project)

    async def publish() -> None:
        settings = Settings().having(state_dir=str(up.directory / ".berth"))
        async with Bus(composition.transport(settings, "test")) as bus:
            await bus.publish(request)

    asyncio.run(publish())
    up.wait_until(lambda: request.instances[0] in up.berth("waiting", "--json").stdout, "it waits")
    return request


def output(done: Done) -> str:
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    flags = ("--hosts", str(HOSTS), "--build-time", "constant:0")
    with Up(tmp_path_factory.mktemp("why"), {"BERTH_CELLS": "c1,c2"}, *flags) as up:
        placed = json.loads(up.berth("boot", "--wait", "--json").stdout.splitlines()[0])
        unplaceable = json.loads(
            up.berth("boot", "--vcpus", "999", "--wait", "--json").stdout.splitlines()[0]
        )
        waiting = wait_for_a_node(up, 1)
        ids = {"placed": placed["build"], "unplaceable": unplaceable["request"], "waiting": waiting.request}
        yield House(up, {**ids, "unknown": uid(1), "no uuid": "x"})


WHY = [
    ("placed", (), 0, ("active on c", "considered", "▸ ", "attempt 1", ": built")),
    ("placed", ("--replay",), 0, ("the same host",)),
    ("placed", ("--now",), 0, ("then c", "with flavor custom, its flavor", "it fits: 1 instance")),
    ("unplaceable", (), 0, ("no host [class]", "VCPU: 999 free", "VCPU instead of 999", "came closest")),
    ("unplaceable", ("--replay",), 1, ("it was placed nowhere",)),
    ("unplaceable", ("--now",), 1, ("then nowhere; now:", "it does not fit [class]")),
    ("waiting", (), 0, ("waits for room", "evaluated again when 1 CUSTOM_BAREMETAL", "came closest")),
    ("waiting", ("--replay",), 1, ("it was placed nowhere",)),
    ("waiting", ("--now",), 1, ("it does not fit",)),
    ("unknown", (), 1, ("there is no build, request or move",)),
    ("no uuid", (), 2, ("'x' is not the uuid of a build or request",)),
    ("placed", ("--now", "--replay"), 2, ("one of them",)),
]  # fmt: skip


@pytest.mark.parametrize(("of", "flags", "code", "says"), WHY)
def test_the_decision_of_a_build_is_explained(
    house: House, of: str, flags: tuple[str, ...], code: int, says: tuple[str, ...]
) -> None:
    done = house.berth("why", house.ids[of], *flags)
    assert done.returncode == code, output(done)
    assert all(one in output(done) for one in says), output(done)


def sent(done: Done) -> dict[str, object]:
    [line] = done.stdout.splitlines()
    found: dict[str, object] = json.loads(line)
    return found


def test_why_prints_json_lines(house: House) -> None:
    placed = sent(house.berth("why", house.ids["placed"], "--json"))
    assert (placed["build"], placed["status"]) == (house.ids["placed"], "active")
    again = sent(house.berth("why", house.ids["placed"], "--replay", "--json"))
    assert again["same"] is True and again["recorded"] == again["again"]
    for of, waits in (("unplaceable", False), ("waiting", True)):
        decided = sent(house.berth("why", house.ids[of], "--json"))
        assert (decided["known"], decided["waits"]) == (True, waits)
    assert sent(house.berth("why", house.ids["unplaceable"], "--now", "--json"))["fits"] is False


WHAT_IF = [
    (("--count", "3"), 0, ("it fits: 3 instances", "1 on c", "room for ", f"on {HOSTS} hosts")),
    (("--vcpus", "999"), 1, ("it does not fit [class]", "VCPU: 999 free", "would help", "came closest")),
    (("--zone", "nowhere"), 1, ("it does not fit", "without zone nowhere: 6 hosts")),
    (("--host", "nobody"), 1, ("it cannot be meant: wanted_host: there is no host 'nobody'",)),
    (("--group", "nope"), 1, ("there is no server group nope",)),
    (("--mix", "2xVCPU:1", "--add-hosts", "2xVCPU:64"), 0, ("with 2 hosts more", "fit then")),
    (("--mix", "VCPU:9999"), 1, ("VCPU:9999", "lost in pieces")),
    (("--vcpus", "4", "--without", "nobody"), 2, ("there is no host 'nobody' to take away",)),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "code", "says"), WHAT_IF)
def test_what_if_reports_whether_a_flavor_fits(
    house: House, flags: tuple[str, ...], code: int, says: tuple[str, ...]
) -> None:
    done = house.berth("what-if", *flags)
    assert done.returncode == code, output(done)
    assert all(one in output(done) for one in says), output(done)


def test_a_capacity_plan_equals_the_schedulers_count(house: House) -> None:
    asked = ("--vcpus", "2", "--memory-mb", "2048", "--disk-gb", "10")
    answer: Any = sent(house.berth("what-if", *asked, "--json"))
    plan: Any = sent(house.berth("what-if", "--mix", "VCPU:2,MEMORY_MB:2048,DISK_GB:10", "--json"))
    assert plan["now"]["flavors"][0]["fits"] == 1 + sum(one["instances"] for one in answer["room"]) > 1


EAST = "c1-host00001"
NOSUCH = "note: ignore_hosts: there is no host 'nosuch'"
NO_AGGREGATE = "there is no aggregate 'aest'; the nearest is 'east'"


@pytest.fixture(scope="module")
def east(house: House) -> None:
    """One host, by a name."""
    assert house.berth("aggregate", "create", "east", "--host", EAST).returncode == 0


BOOT = [
    (("--ignore-host", "nosuch"), 0, "active on", (NOSUCH,)),
    (("--ignore-host", "nosuch", "--count", "2", "--json"), 0, '"active"', (NOSUCH,)),
    (("--ignore-host", "nosuch", "--vcpus", "999"), 1, "no host", (NOSUCH,)),
    (("--spec", "hw:cpu_polcy=shared"), 0, "active on", ("note: flavor.extra_specs: hw:cpu_polcy",)),
    ((), 0, "active on", ()),
    (("--aggregate", "east"), 0, f"active on {EAST} in", ()),
    (("--aggregate", "east", "--not-aggregate", "east"), 1, "no host", ()),
    (("--aggregate", "aest"), 1, "", (NO_AGGREGATE,)),
    (("--not-aggregate", "east,aest"), 1, "", (NO_AGGREGATE,)),
]  # fmt: skip


@pytest.mark.parametrize(("options", "code", "answer", "beside"), BOOT, ids=str)
def test_boot_prints_each_note_once(
    house: House, east: None, options: tuple[str, ...], code: int, answer: str, beside: tuple[str, ...]
) -> None:
    done = house.berth("boot", "--wait", *options)
    assert done.returncode == code, output(done)
    assert answer in done.stdout
    sent = done.stderr.splitlines()
    assert len(sent) == len(beside), sent
    assert all(line.startswith(one) for line, one in zip(sent, beside, strict=True)), sent


def test_what_if_takes_names_of_aggregates(house: House, east: None) -> None:
    assert f"▸ {EAST}" in house.berth("what-if", "--aggregate", "east").stdout
    assert NO_AGGREGATE in output(house.berth("what-if", "--aggregate", "aest"))


# Other tenants

SECRET, THEIR_HOST = "secret-project", "c2-host00001"


@pytest.fixture(scope="module")
def theirs(house: House) -> Sequence[str]:
    berth = house.berth
    group = json.loads(
        berth(
            "group", "create", "their-web", "--policy", "anti-affinity", "--project", SECRET, "--json"
        ).stdout
    )
    asked = ("--project", SECRET, "--group", "their-web", "--count", "2", "--wait", "--json")
    builds = [json.loads(line)["build"] for line in berth("boot", *asked).stdout.splitlines()]
    kept = ("--host", THEIR_HOST, "--property", f"filter_tenant_id={SECRET}")
    assert berth("aggregate", "create", "their-hosts", *kept).returncode == 0
    waiting = wait_for_a_node(house.up, 7, SECRET)
    assert len(builds) == 2
    return (SECRET, "their-web", "their-hosts", group["id"], *builds, waiting.request, *waiting.instances)


MINE = ("--project", "mine")
ASKED = {
    "placed": (),
    "their host": ("--host", THEIR_HOST),
    "too large": ("--vcpus", "999"),
    "too large, and their host": ("--vcpus", "999", "--host", THEIR_HOST),
    "bare metal they wait for": ("--flavor", "metal"),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_a_tenant_sees_nothing_of_other_tenants(
    house: House, theirs: Sequence[str], asked: tuple[str, ...]
) -> None:
    berth = house.berth
    ended = berth("boot", *MINE, *asked, "--wait", "--json")
    printed = json.loads(ended.stdout.splitlines()[0])
    id_ = printed.get("build") or printed["request"]
    sent = [ended, berth("what-if", *MINE, *asked), berth("what-if", *MINE, *asked, "--json")]
    sent += [berth("why", id_, *flags) for flags in ((), ("--json",), ("--now",), ("--now", "--json"))]
    assert all(done.stdout for done in sent)
    for done in sent:
        assert [word for word in theirs if word in output(done)] == [], output(done)
    if asked[:1] == ("--host",):
        assert "its aggregates are for projects other than mine" in output(sent[3])


def test_a_waiting_tenant_does_not_see_other_requests(house: House, theirs: Sequence[str]) -> None:
    mine = wait_for_a_node(house.up, 8, "mine")
    sent = [house.berth("why", mine.request, *flags) for flags in ((), ("--json",))]
    sent.append(house.berth("waiting", "--project", "mine", "--json"))
    for done in sent:
        assert "CUSTOM_BAREMETAL" in output(done)
        assert [word for word in theirs if word in output(done)] == [], output(done)


# Policy tests


def test_a_changed_policy_is_tested_on_recorded_decisions(house: House) -> None:
    berth = house.berth
    same = berth("rules", "test", "--since", "1h")
    assert (same.returncode, "would get the same host" in same.stdout) == (0, True), output(same)
    none = ("--with", "rules.filters=+few_failures", "--with", "rules.few_failures.max_build_failures=0")
    fewer = berth("rules", "test", "--since", "1h", *none)
    assert fewer.returncode == 1 and "would get no host any more" in fewer.stdout
    allowed = berth("rules", "test", "--since", "1h", *none, "--allow", "100", "--json")
    decisions = [json.loads(line) for line in allowed.stdout.splitlines()]
    assert allowed.returncode == 0 and {"nowhere"} <= {decision["verdict"] for decision in decisions}
    assert berth("boot", "--wait").returncode == 0  # the hosts differ now, so its record has the weigher ram
    packed = berth("rules", "test", "--since", "1h", "--with", "weights.ram=-9", "--json")
    assert "record" in {json.loads(line)["by"] for line in packed.stdout.splitlines()}
    for change in ("rules.filters=+nonsense", "weights.nonsense=1", "nonsense"):
        assert berth("rules", "test", "--with", change).returncode == 2, change
