"""`berth why` and `berth request what-if`: their answers, which tell a tenant nothing about other tenants."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from msgspec import structs

from berth.kit.boot_options import BootOptions
from berth.kit.boot_requests import boot_request
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
            "unknown": uid(1),
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
    ("waiting", (), 0, ("waits for room", "evaluated again when 1 CUSTOM_BAREMETAL", "came closest")),
    ("unknown", (), 1, ("there is no build, request or move",)),
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


WHAT_IF = [
    (("--count", "3"), 0, ("it fits: 3 instances", "1 on c", "room for ", f"on {HOSTS} hosts")),
    (("--vcpus", "999"), 1, ("it does not fit [class]", "VCPU: 999 free", "would help", "came closest")),
    (("--mix", "2xVCPU:1", "--add-hosts", "2xVCPU:64"), 0, ("with 2 hosts more", "fit then")),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "code", "says"), WHAT_IF)
async def test_what_if_reports_whether_a_flavor_fits(
    berth: LivingBerth, flags: tuple[str, ...], code: int, says: tuple[str, ...]
) -> None:
    done = await berth.done("request", "what-if", *flags)
    assert done.code == code, done.output
    assert all(one in done.output for one in says), done.output


# Other tenants

SECRET, THEIR_HOST = "secret-project", "c2-host00001"


async def instances_of_others(berth: LivingBerth) -> Sequence[str]:
    """Create objects of another tenant; return words that no output for this tenant may have."""
    group = await sent(
        berth, "instance", "group", "create", "their-web", "--policy", "anti-affinity", "--project", SECRET
    )
    asked = ("--project", SECRET, "--group", "their-web", "--count", "2", "--wait", "--json")
    builds = [json.loads(line)["build"] for line in (await berth("boot", *asked)).splitlines()]
    kept = ("--host", THEIR_HOST, "--property", f"filter_tenant_id={SECRET}")
    await berth("resource", "aggregate", "create", "their-hosts", *kept)
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
            done.append(await berth.done("request", "what-if", *MINE, *asked, *flags))
        for shown in ((), ("--json",), ("--now",), ("--now", "--json")):
            done.append(await berth.done("why", id_, *shown))
        assert all(one.stdout for one in done), what
        sees_nothing(theirs, *done)
        if asked[:1] == ("--host",):
            assert "its aggregates are for projects other than mine" in done[3].output

    waits = await wait_for_a_node(berth.bus, 8, "mine")
    done = [await berth.done("why", waits.request, *flags) for flags in ((), ("--json",))]
    done.append(await berth.done("request", "list", "--project", "mine", "--json"))
    assert all("CUSTOM_BAREMETAL" in one.output for one in done)
    sees_nothing(theirs, *done)


def sees_nothing(theirs: Sequence[str], *done: Done) -> None:
    for one in done:
        assert [word for word in theirs if word in one.output] == [], one.output
