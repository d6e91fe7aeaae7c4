"""Shadow mode in parallel to a nova-scheduler during 200 boots: Nova is not affected, the report is right."""

import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median, pstdev
from typing import Any

import aio_pika
import pytest
import pytest_asyncio

from berth import composition
from berth.kit import Settings
from bus.delivery.runner import Bus
from deploy.nova import HostCapacity, NovaOptions, NovaRegion, find_nova, running_nova
from deploy.nova_client import wait_until
from deploy.nova_scheduling import berth_scheduling, bus_url
from deploy.servers import find_binaries
from features.nova.core.notifications import NovaNotification, notification_of
from features.nova.tests.real.berth_beside import BerthBeside, berth_of
from features.nova.tests.real.checks import SECONDS
from features.nova.with_what_if.messages import NOVA_REPORT, FindNovaReport, ObservedRequest
from tests.support.servers import installed

pytestmark = [pytest.mark.nova, pytest.mark.services, pytest.mark.asyncio(loop_scope="module")]

ROUND = 50
AT_ONCE = 4
QUEUE = "berth.nova_shadow"
UNREAD = 1000  # messages that the policy of features/nova/README.md leaves in a queue that has no consumer
DEFAULT_FILTERS = (
    "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,"
    "ServerGroupAffinityFilter"
)
OPTIONS = NovaOptions(
    hosts=4,
    capacity=HostCapacity(vcpus=52, memory_mb=52 * 1024, disk_gb=1000),
    sections={"filter_scheduler": {"enabled_filters": f"{DEFAULT_FILTERS},JsonFilter"}},
)


@dataclass
class Seen:
    """Nova's notifications, as a consumer of the test receives them, by instance."""

    asked: dict[str, NovaNotification] = field(default_factory=dict)
    selected: dict[str, NovaNotification] = field(default_factory=dict)
    used: dict[str, NovaNotification] = field(default_factory=dict)
    refused: dict[str, NovaNotification] = field(default_factory=dict)
    ended: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    searches: int = 0  # calls of select_destinations that Nova's scheduler has published

    def add(self, body: bytes) -> None:
        if (found := notification_of(body)) is None:
            return
        getattr(self, found.event)[found.instance] = found
        self.searches += found.event == "asked"
        if found.event in ("used", "refused"):
            self.ended[found.instance].set()


@dataclass
class MeasuredRound:
    """The boots of one round: seconds from the request to ACTIVE, and in Nova's scheduler."""

    servers: list[str] = field(default_factory=list)
    boot: list[float] = field(default_factory=list)
    search: list[float] = field(default_factory=list)


@dataclass
class ObservedRegion:
    region: NovaRegion
    berth: BerthBeside
    seen: Seen
    flavors: dict[str, str]

    async def boots(self) -> MeasuredRound:
        """Boot `ROUND` servers, 1 in 10 of which cannot be placed, delete them, and return the latencies."""
        found, slots = MeasuredRound(), asyncio.Semaphore(AT_ONCE)

        async def boot(number: int) -> None:
            async with slots:
                began = time.time()
                server = await self.region.nova.boot(**self._request(number))
                async with asyncio.timeout(SECONDS):
                    await self.seen.ended[server].wait()
                found.servers.append(server)
                if used := self.seen.used.get(server):
                    found.boot.append(used.at - began)
                    found.search.append(self.seen.selected[server].at - self.seen.asked[server].at)

        await asyncio.gather(*map(boot, range(ROUND)))
        assert len(found.boot) == ROUND * 9 // 10
        await self.region.nova.delete(*found.servers, seconds=SECONDS)
        return found

    def _request(self, number: int) -> dict[str, Any]:
        if number % 20 == 0:  # Placement has no candidates, so Nova's scheduler does not search
            return {"flavor": self.flavors["huge"]}
        if number % 20 == 10:  # a filter refuses that berth does not use by default
            return {"hints": {"query": '["=", "$host", "nowhere"]'}}
        return {"flavor": self.flavors["wide"]} if number % 20 == 1 else {}

    async def queues(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of messages and of consumers of each queue on Nova's virtual host."""
        names = ("name", "messages", "consumers")
        output = await self._control("list_queues", "--no-table-headers", *names)
        rows = [line.split("\t") for line in output.splitlines()]
        return {name: (int(messages), int(consumers)) for name, messages, consumers in rows}

    async def _control(self, command: str, *words: str) -> str:
        broker, host = self.region.foundation.rabbitmq, self.region.bus_urls[""].rpartition("/")[2]
        return await asyncio.to_thread(broker.control, command, "-p", host, *words)

    async def limit_unread_queues(self) -> None:
        """Set the policy of features/nova/README.md."""
        policy = ("nova-notifications", r"^versioned_notifications\.", f'{{"max-length":{UNREAD}}}')
        await self._control("set_policy", "--apply-to", "queues", *policy)

    @asynccontextmanager
    async def shadow(self) -> AsyncIterator["ShadowProcess"]:
        """Run shadow mode with the data of Nova's Placement, until the block ends."""
        await self.berth.copy(self.region.placement_url, self.berth.url, "--prune")
        workers = ("scheduler", "nova-shadow")
        settings = Settings().having(amqp_url=bus_url(self.region.foundation))
        async with (
            berth_scheduling(self.region, self.berth.worker_settings, workers) as running,
            Bus(composition.transport(settings, "test")) as bus,
        ):
            yield ShadowProcess(self, running["nova-shadow"], bus)


@dataclass
class ShadowProcess:
    shadowed: ObservedRegion
    worker: Any
    bus: Bus

    async def requests(self, server: str) -> tuple[ObservedRequest, ...]:
        ask = self.bus.asker(NOVA_REPORT, timeout=SECONDS)
        return (await ask(FindNovaReport(instance=server))).listed

    async def has_hosts(self) -> None:
        """Boot and delete servers until berth has a host for one."""
        nova = self.shadowed.region.nova

        async def is_decided() -> bool:
            server = await nova.boot()
            await nova.active(server, seconds=SECONDS)
            await nova.delete(server, seconds=SECONDS)
            return any(request.berth_hosts for request in await self.requests(server))

        await wait_until(is_decided, "berth has a host", SECONDS)

    async def knows(self, servers: list[str]) -> list[ObservedRequest]:
        """Wait until each server has one request with a result, and return these requests."""
        found: dict[str, ObservedRequest] = {}

        async def is_known() -> bool:
            for server in servers:
                if server not in found:
                    listed = await self.requests(server)
                    assert len(listed) <= 1, "each request is counted once"
                    if listed and listed[0].verdict != "open":
                        found[server] = listed[0]
            return len(found) == len(servers)

        await wait_until(is_known, "all requests are known", SECONDS)
        return list(found.values())


@pytest_asyncio.fixture(loop_scope="module")
async def shadowed() -> AsyncIterator[ObservedRegion]:
    installed(find_binaries)
    installed(find_nova)
    async with (
        running_nova(OPTIONS) as region,
        berth_of(region) as berth,
        await aio_pika.connect(region.bus_urls[""]) as connection,
    ):
        seen = Seen()
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind("nova", "versioned_notifications.*")

        async def add(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            seen.add(message.body)

        await queue.consume(add, no_ack=True)
        vcpus = {"huge": 53, "wide": 26}
        flavors = {
            name: await region.nova.create_flavor(name, vcpus=number) for name, number in vcpus.items()
        }
        found = ObservedRegion(region, berth, seen, flavors)
        await found.limit_unread_queues()
        yield found


async def test_nova_is_not_affected_and_the_report_is_right(shadowed: ObservedRegion) -> None:
    await shadowed.boots()  # Nova's caches are filled
    problems, rounds = errors(shadowed.region), list[tuple[str, MeasuredRound]]()
    queues = set(await shadowed.queues())
    for state in ("off", "on", "on", "off"):  # in this order, because Nova gets slower with each round
        if state == "off":
            rounds.append((state, await shadowed.boots()))
            continue
        async with shadowed.shadow() as shadow:
            await shadow.has_hosts()
            rounds.append((state, measured := await shadowed.boots()))
            await check_report(shadowed, shadow, measured)
    print(f"\n{figures(rounds)}")
    on, off = ([each for name, each in rounds if name == state] for state in ("on", "off"))
    for latency in ("boot", "search"):
        assert typical(on, latency) < 2 * typical(off, latency)

    missed = await killed_and_restarted(shadowed)
    assert missed == 0
    assert errors(shadowed.region) == problems
    found = await shadowed.queues()
    assert {name for name in found if not name.startswith("reply_")} - queues == {QUEUE}
    unread = {name: messages for name, (messages, consumers) in found.items() if not consumers}
    assert max(messages for name, messages in unread.items() if name != QUEUE) <= UNREAD
    arguments = await shadowed._control("list_queues", "--no-table-headers", "name", "arguments")
    [limits] = [line for line in arguments.splitlines() if line.startswith(f"{QUEUE}\t")]
    assert "x-expires" in limits and "x-max-length" in limits


async def killed_and_restarted(shadowed: ObservedRegion) -> int:
    """Kill shadow mode in the middle of a round, start it again, and return how many requests are missing."""
    async with shadowed.shadow() as shadow:
        await shadow.has_hosts()
        began, searches = time.time(), shadowed.seen.searches
        booting = asyncio.create_task(shadowed.boots())

        async def is_half() -> bool:
            return shadowed.seen.searches >= searches + ROUND // 3

        await wait_until(is_half, "a third of the round is requested", SECONDS)
        await shadow.worker.stop(signal.SIGKILL)
        await booting
        await shadow.worker.start()
        await shadow.worker.wait_until_ready()
        servers = (await booting).servers
        known = await shadow.knows(servers)
        report = await shadowed.berth.value("openstack", "report", "--since", f"{time.time() - began:.0f}s")
        assert report.get("missing", []) == [], "the queue has kept the notifications"
        print(f"killed in a round: {Counter(each.verdict for each in known)}")
    return len(servers) - len(known)


async def check_report(shadowed: ObservedRegion, shadow: ShadowProcess, measured: MeasuredRound) -> None:
    """Compare the report about a round with what the test has received from Nova."""
    seen, found = shadowed.seen, {each.instance: each for each in await shadow.knows(measured.servers)}
    first = min(each.at for each in found.values())
    report = await shadow.bus.asker(NOVA_REPORT, timeout=SECONDS)(FindNovaReport(since=first, listed=1000))
    assert report.requests == ROUND and not report.unread
    verdicts = Counter(each.verdict for each in found.values())
    assert {name: getattr(report, name.replace(" ", "_")) for name in verdicts} == dict(verdicts)
    refusals = {server for server in found if server in seen.refused}
    late = verdicts["late"]
    assert verdicts["nova refused"] + verdicts["both refused"] + late >= len(refusals) == ROUND // 10
    for each in report.listed:
        if each.verdict == "nova refused":
            assert each.berth_hosts and set(each.berth_hosts) <= set(shadowed.region.hosts)
            assert "No valid host" in each.nova_reason
    assert late or (verdicts["nova refused"], verdicts["both refused"]) == (2, 3), verdicts
    compared = [each for each in found.values() if each.verdict in ("same", "different")]
    hosts = {each.instance: seen.used[each.instance].host for each in compared}
    assert all(each.nova_hosts == (hosts[each.instance],) for each in compared)
    by_host = Counter(hosts.values())
    numbers = [by_host[host] for host in shadowed.region.hosts]
    assert (report.nova.instances, report.nova.hosts) == (len(compared), len(by_host))
    assert report.nova.imbalance == pytest.approx(pstdev(numbers) / (sum(numbers) / len(numbers)))
    placed = found.keys() & seen.used.keys()
    seconds = {key: seen.selected[key].at - seen.asked[key].at for key in placed}
    assert {key: found[key].nova_seconds for key in placed} == pytest.approx(seconds, abs=0.001)
    assert report.nova.p99 == pytest.approx(max(seconds.values()), abs=0.001)
    assert report.nova.p50 and report.berth.p50 and report.berth.p99
    assert report.nova.fragmentation and report.berth.fragmentation
    print(f"\nverdicts {dict(verdicts)}; Nova {report.nova}; berth {report.berth}")


def errors(region: NovaRegion) -> list[str]:
    """Return the errors in Nova's logs, except for the boots that the test lets Nova refuse."""
    return [line for line in region.problems() if "NoValidHost" not in line and "Traceback" not in line]


def typical(rounds: list[MeasuredRound], latency: str) -> float:
    found = [each.boot if latency == "boot" else each.search for each in rounds]
    return median([seconds for each in found for seconds in each])


def figures(rounds: list[tuple[str, MeasuredRound]]) -> str:
    medians = [
        f"{name} boot {median(each.boot):.2f} s, select_destinations {1000 * median(each.search):.0f} ms"
        for name, each in rounds
    ]
    on, off = ([each for name, each in rounds if name == state] for state in ("on", "off"))
    boot, search = (typical(on, latency) / typical(off, latency) for latency in ("boot", "search"))
    return f"{'; '.join(medians)}; with / without shadow: boot {boot:.2f}, select_destinations {search:.2f}"
