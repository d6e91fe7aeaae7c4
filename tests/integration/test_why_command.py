"""`berth why`, `berth what-if` and `berth boot`: output and exit codes."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from msgspec import structs

from berth.operations.boot_options import BootOptions, boot_request
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from bus.queries import FindWaiting
from tests.support.command_line import Done
from tests.support.ids import uid
from tests.support.living_berth import LivingBerth, RunningBerth, a_running_berth
from tests.support.scheduler_builders import METAL, a_request
from tests.support.waiting import in_time, until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

HOSTS = 6


@dataclass(frozen=True)
class House:
    """A berth that runs for all tests, with a build of each kind."""

    berth: RunningBerth
    ids: Mapping[str, str]


async def wait_for_a_node(bus: Bus, number: int, project: str = "admin") -> BuildRequested:
    """Publish a request that waits for bare metal, and return when it waits."""
    request = a_request(number, flavor=METAL, wait="10m", project=project)
    await bus.publish(request)

    async def waits() -> bool:
        return bool((await bus.asker(topics.WAITING)(FindWaiting(requests=(request.request,)))).waiting)

    await until(waits)
    return request


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    directory = tmp_path_factory.mktemp("why")
    async with a_running_berth(directory, "c1", "c2", simulator={"hosts": HOSTS}) as running:
        bus, sender = running.bus, running.bus.clock.uuid()
        placed, unplaceable = (
            structs.replace(boot_request(BootOptions(vcpus=vcpus)), reply_to=sender) for vcpus in (1, 999)
        )
        ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=sender))
        await bus.publish(placed, unplaceable)
        assert (await in_time(ended.get())).status == "active"
        waiting = await wait_for_a_node(bus, 1)
        ids = {
            "placed": placed.instances[0], "unplaceable": unplaceable.request, "waiting": waiting.request,
            "unknown": uid(1), "no uuid": "x",
        }  # fmt: skip
        yield House(running, ids)


@pytest.fixture
def berth(house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> LivingBerth:
    return house.berth.commands(monkeypatch, capsys)


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
async def test_the_decision_of_a_build_is_explained(
    house: House, berth: LivingBerth, of: str, flags: tuple[str, ...], code: int, says: tuple[str, ...]
) -> None:
    done = await berth.done("why", house.ids[of], *flags)
    assert done.code == code, done.output
    assert all(one in done.output for one in says), done.output


async def sent(berth: LivingBerth, *words: str) -> dict[str, Any]:
    [line] = (await berth.done(*words, "--json")).stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


async def test_why_prints_json_lines(house: House, berth: LivingBerth) -> None:
    placed = await sent(berth, "why", house.ids["placed"])
    assert (placed["build"], placed["status"]) == (house.ids["placed"], "active")
    again = await sent(berth, "why", house.ids["placed"], "--replay")
    assert again["same"] is True and again["recorded"] == again["again"]
    for of, waits in (("unplaceable", False), ("waiting", True)):
        decided = await sent(berth, "why", house.ids[of])
        assert (decided["known"], decided["waits"]) == (True, waits)
    assert (await sent(berth, "why", house.ids["unplaceable"], "--now"))["fits"] is False


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
async def test_what_if_reports_whether_a_flavor_fits(
    berth: LivingBerth, flags: tuple[str, ...], code: int, says: tuple[str, ...]
) -> None:
    done = await berth.done("what-if", *flags)
    assert done.code == code, done.output
    assert all(one in done.output for one in says), done.output


async def test_a_capacity_plan_equals_the_schedulers_count(berth: LivingBerth) -> None:
    answer = await sent(berth, "what-if", "--vcpus", "2", "--memory-mb", "2048", "--disk-gb", "10")
    plan = await sent(berth, "what-if", "--mix", "VCPU:2,MEMORY_MB:2048,DISK_GB:10")
    assert plan["now"]["flavors"][0]["fits"] == 1 + sum(one["instances"] for one in answer["room"]) > 1


EAST = "c1-host00001"
NOSUCH = "note: ignore_hosts: there is no host 'nosuch'"
NO_AGGREGATE = "there is no aggregate 'aest'; the nearest is 'east'"


BOOT = [
    (("--ignore-host", "nosuch"), 0, "active on", (NOSUCH,)),
    (("--ignore-host", "nosuch", "--count", "2", "--json"), 0, '"active"', (NOSUCH,)),
    (("--ignore-host", "nosuch", "--vcpus", "999"), 1, "no host", (NOSUCH,)),
    (("--spec", "hw:cpu_polcy=shared"), 0, "active on", ("note: flavor.extra_specs: hw:cpu_polcy",)),
    ((), 0, "active on", ()),
]  # fmt: skip


@pytest.mark.parametrize(("options", "code", "answer", "notes"), BOOT, ids=str)
async def test_boot_prints_each_note_once(
    berth: LivingBerth, options: tuple[str, ...], code: int, answer: str, notes: tuple[str, ...]
) -> None:
    done = await berth.done("boot", "--wait", *options)
    assert done.code == code, done.output
    assert answer in done.stdout
    sent = done.stderr.splitlines()
    assert len(sent) == len(notes), sent
    assert all(line.startswith(one) for line, one in zip(sent, notes, strict=True)), sent


async def test_commands_take_names_of_aggregates(berth: LivingBerth) -> None:
    await berth("aggregate", "create", "east", "--host", EAST)
    assert f"active on {EAST} in" in await berth("boot", "--wait", "--aggregate", "east")
    assert "no host" in await berth(
        "boot", "--wait", *("--aggregate", "east", "--not-aggregate", "east"), ends=1
    )
    assert f"▸ {EAST}" in await berth("what-if", "--aggregate", "east")
    for command in ("boot", "what-if"):
        for unknown in (("--aggregate", "aest"), ("--not-aggregate", "east,aest")):
            done = await berth.done(command, *unknown)
            assert (done.code, done.stdout) == (1, "")
            [line] = done.stderr.splitlines()
            assert line.startswith(NO_AGGREGATE)


# Other tenants

SECRET, THEIR_HOST = "secret-project", "c2-host00001"


async def instances_of_others(berth: LivingBerth) -> Sequence[str]:
    """Create objects of another tenant; return words that no output for this tenant may have."""
    group = await sent(
        berth, "group", "create", "their-web", "--policy", "anti-affinity", "--project", SECRET
    )
    asked = ("--project", SECRET, "--group", "their-web", "--count", "2", "--wait", "--json")
    builds = [json.loads(line)["build"] for line in (await berth("boot", *asked)).splitlines()]
    kept = ("--host", THEIR_HOST, "--property", f"filter_tenant_id={SECRET}")
    await berth("aggregate", "create", "their-hosts", *kept)
    waiting = await wait_for_a_node(berth.bus, 7, SECRET)
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


async def test_a_tenant_sees_nothing_of_other_tenants(berth: LivingBerth) -> None:
    theirs = await instances_of_others(berth)
    for what, asked in ASKED.items():
        ended = await berth.done("boot", *MINE, *asked, "--wait", "--json")
        printed = json.loads(ended.stdout.splitlines()[0])
        id_ = printed.get("build") or printed["request"]
        done = [ended]
        for flags in ((), ("--json",)):
            done.append(await berth.done("what-if", *MINE, *asked, *flags))
        for shown in ((), ("--json",), ("--now",), ("--now", "--json")):
            done.append(await berth.done("why", id_, *shown))
        assert all(one.stdout for one in done), what
        sees_nothing(theirs, *done)
        if asked[:1] == ("--host",):
            assert "its aggregates are for projects other than mine" in done[3].output

    waits = await wait_for_a_node(berth.bus, 8, "mine")
    done = [await berth.done("why", waits.request, *flags) for flags in ((), ("--json",))]
    done.append(await berth.done("waiting", "--project", "mine", "--json"))
    assert all("CUSTOM_BAREMETAL" in one.output for one in done)
    sees_nothing(theirs, *done)


def sees_nothing(theirs: Sequence[str], *done: Done) -> None:
    for one in done:
        assert [word for word in theirs if word in one.output] == [], one.output


# Policy tests


async def test_a_changed_policy_is_tested_on_recorded_decisions(berth: LivingBerth) -> None:
    tested = ("rules", "test", "--since", "1h")
    assert "would get the same host" in await berth(*tested)
    none = ("--with", "rules.filters=+few_failures", "--with", "rules.few_failures.max_build_failures=0")
    assert "would get no host any more" in await berth(*tested, *none, ends=1)
    allowed = await berth(*tested, *none, "--allow", "100", "--json")
    assert "nowhere" in {json.loads(line)["verdict"] for line in allowed.splitlines()}
    await berth("boot", "--wait")  # the hosts differ now, so its record has the weigher ram
    packed = await berth.done(*tested, "--with", "weights.ram=-9", "--json")
    assert "record" in {json.loads(line)["by"] for line in packed.stdout.splitlines()}
    for change in ("rules.filters=+nonsense", "weights.nonsense=1", "nonsense"):
        assert (await berth.done("rules", "test", "--with", change)).code == 2, change
