"""After schedulers were killed, no build goes to a host that was dead, disabled or forced down before."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from msgspec.structs import replace

from berth import composition, worker_roles
from berth.commands.run import ready
from berth.configuration import EFFECTIVE_ENV, SUPERVISED_ENV
from berth.kit.boot_options import BootOptions
from berth.kit.boot_requests import boot_request
from berth.kit.host_marks import forcing_down
from berth.kit.hosts import host_named
from berth.services import Supervisor, embedded
from berth.settings import Settings
from berth.worker_roles import Role
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus, Listener
from bus.messages import BuildEnded, BuildRequested, HostReported, InventoryReported
from bus.protocol import Envelope
from bus.removed_agents import AgentEditRequested
from bus.replication import PlacementChanged
from bus.reports import HostState, Inventory
from bus.requests import Flavor
from bus.resources import FindProviders
from bus.topics import QUERIES, TOPICS
from bus.vocabulary import MAX_INT, Message
from features.what_if.messages import WHAT_IF, WhatIf
from scheduler_worker import host_records
from tests.support.berth_processes import LAYOUTS, running
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report, last_published
from tests.support.waiting import in_time, until


@asynccontextmanager
async def another(settings: Settings, worker: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run one more process of a worker while the block runs; it may be killed there."""
    environment = {
        **os.environ,
        EFFECTIVE_ENV: msgspec.json.encode(settings).decode(),
        SUPERVISED_ENV: "1",  # it ends with us
    }
    process = await asyncio.create_subprocess_exec(
        *Supervisor.command([worker_roles.Role(worker)]),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
        ended = process.returncode
        assert ended in (None, -signal.SIGKILL), f"the other {worker} ended with {ended}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


KINDS: dict[type[Message], str] = {t.message: t.pattern for t in TOPICS} | {
    kind: f"ask.{query.name}" for query in QUERIES for kind in (query.answer, query.asks)
}
NONSENSE = tuple(
    msgspec.Raw(text.encode())
    for text in (
        "-9223372036854775808", "-1", "0", "2147483648", "4611686018427387905", "18446744073709551616",
        "1e-300", "1.5", "3e38", "1e300", "1e999", "null", "true", '""', '"\\u0000"', "[]", "{}",
    )
)  # fmt: skip
BULKY = tuple(
    msgspec.Raw(text.encode())
    for text in (
        "9" * 5000,
        '"' + "x" * 100_000 + '"',
        "[" * 20_000 + "]" * 20_000,
        "[" + "1," * 100_000 + "1]",
        "{" + ",".join(f'"{index}": {index}' for index in range(50_000)) + "}",
    )
)
SPECS: dict[str, Sequence[str]] = {
    "resources:VCPU": ("1", "2147483647", "99999999999"),
    "resources1:CUSTOM_A": ("1", "2147483647"),
    "trait:CUSTOM_A": ("required", "forbidden", "preferred:1e308", "any1"),
    "hw:numa_nodes": ("1", "2", "64", "2147483647"),
    "hw:numa_cpus.0": ("0-99999", ",".join(["0-99999"] * 100), "0-4294967295"),
    "hw:numa_mem.0": ("1", "2147483647"),
    "hw:cpu_policy": ("shared", "dedicated", "mixed"),
    "hw:cpu_dedicated_mask": ("0-99999,^0", "^0-99999", "0"),
    "hw:mem_page_size": ("large", "any", "999999999GB", "1"),
    "pci_passthrough:alias": ("a:999", ",".join(["a:64"] * 100)),
    "group_policy": ("none", "isolate"),
    "same_subtree": (",".join(["1"] * 500), "1"),
    "capabilities:x": ("<in> " * 200, "s== 1"),
    "accel:device_profile": ("x",),
}
QUERY_TEXTS: Sequence[str] = (
    '[">=", "$free_ram_mb", 1]',
    '["and", ' + ", ".join(['["not", ["=", "$vcpus_total", 1]]'] * 120) + "]",
    '["or", ' * 500 + "1" + "]" * 500,
    '["in", "$host", "' + "x" * 3900 + '"]',
)


MOST_VALUES = 3000  # in one message


class RandomMessages:
    def __init__(self, seed: int, cells: Sequence[str], agents: Sequence[str]) -> None:
        self._chance = Random(seed)
        self._kinds = list(KINDS)
        self._types = {kind: inspect.type_info(kind) for kind in KINDS}
        self._words = {"cell": cells, "agent": agents, "event": ("updated",), "client": ("shop",)}
        self._ids = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(200)]

    def envelope(self, number: int) -> Envelope:
        """Return the message with this number; all kinds come in turn."""
        chance, kind = self._chance, self._kinds[number % len(self._kinds)]
        self._wildness = chance.choice((0.0, 0.0, 0.02, 0.2))  # how much of it cannot be decoded
        self._bulky, self._left = False, MOST_VALUES
        self._notifier = {name: chance.choice(words) for name, words in self._words.items()}
        of_agents = (AgentEditRequested, HostReported, InventoryReported)
        if issubclass(kind, of_agents) or kind.__name__ == "HeartbeatsMerged":
            self._notifier["agent"] = "nobody"
        fields = self._value(self._types[kind], kind.__name__)
        key = KINDS[kind].format_map(defaultdict(lambda: "a", self._notifier))
        return Envelope(
            id=f"random-{number}",
            type=kind.__name__,
            key=key,
            body=msgspec.Raw(msgspec.json.encode(fields)),
            framed=False,
        )

    def _value(self, type_: Any, name: str) -> Any:
        chance = self._chance
        self._left -= 1
        if chance.random() < self._wildness:
            return self._nonsense()
        match type_:
            case inspect.Metadata(type=inner):
                return self._value(inner, name)
            case inspect.UnionType(types=types):
                return self._value(chance.choice(types), name)
            case inspect.StructType():
                return self._struct(type_)
            case inspect.LiteralType(values=values):
                return chance.choice(values)
            case inspect.BoolType():
                return chance.random() < 0.5
            case inspect.IntType(ge=least, le=most) | inspect.FloatType(ge=least, le=most):
                number = chance.choice((least, most, 0, 1, 2, 10, 1000, MAX_INT))
                return min(max(number or 0, least or 0), most or MAX_INT)
            case inspect.StrType():
                return self._text(type_, name)
            case inspect.TupleType(item_types=items):
                return [self._value(item, name) for item in items]
            case inspect.VarTupleType(item_type=item, max_length=most, min_length=least):
                several = self._several()
                return [
                    self._value(item, name) for _ in range(min(max(several, least or 0), most or several))
                ]
            case inspect.DictType(key_type=key, value_type=value):
                if name in ("extra_specs", "properties"):
                    return self._specs()
                return {str(self._value(key, name)): self._value(value, name) for _ in range(self._several())}
        return None

    def _struct(self, type_: inspect.StructType) -> Any:
        chance = self._chance
        given = {
            field.encode_name: self._value(field.type, field.name)
            for field in type_.fields
            if field.required or type_.array_like or chance.random() < 0.3
        }
        if type_.cls.__name__ in ("RegisterCell", "DropCell"):
            given["cell"] = "another"
        if type_.array_like:
            return list(given.values())
        return given | ({type_.tag_field: type_.tag} if type_.tag_field else {})

    def _several(self) -> int:
        if self._left < 0:
            return 0
        return self._chance.choice((0, 1, 1, 2, 3, 20)) if self._chance.random() < 0.99 else 1000

    def _specs(self) -> dict[str, Any]:
        chance = self._chance
        specs = {
            key: chance.choice(SPECS[key]) for key in chance.sample(list(SPECS), chance.choice((0, 1, 2, 5)))
        }
        many = chance.choice((0, 0, 0, 200))
        return specs | {f"resources{index}:CUSTOM_A": "1" for index in range(many)}

    def _text(self, type_: inspect.StrType, name: str) -> str:
        chance = self._chance
        if name in ("cell", "agent", "client", "to_cell") and chance.random() < 0.9:
            return self._notifier["cell" if name == "to_cell" else name]
        if name == "query":
            return chance.choice(QUERY_TEXTS)
        pattern = type_.pattern or ""
        if pattern.startswith("^[0-9a-f]{8}"):
            return chance.choice(self._ids)
        if "[A-Z0-9_]" in pattern:
            return chance.choice(("VCPU", "MEMORY_MB", "CUSTOM_A", "CUSTOM_B"))
        if "(s|m|h|d)" in pattern:
            return chance.choice(("", "1s", "999999d", "5m"))
        if pattern:
            return chance.choice(("a", "b", "c1"))
        longest = type_.max_length or 255
        return chance.choice((chance.choice(self._ids), "a", "1" * longest, "é" * longest, "a,b*#."))

    def _nonsense(self) -> Any:
        chance = self._chance
        if self._bulky or chance.random() < 0.5:
            return chance.choice(NONSENSE)
        self._bulky = True
        return chance.choice(BULKY)


DEADLINE = 150.0
DEAD, DISABLED, FORCED_DOWN = HOSTS = (1, 2, 3)
LARGE = {
    "VCPU": Inventory(total=10_000),
    "MEMORY_MB": Inventory(total=10_000_000),
    "DISK_GB": Inventory(total=1_000_000),
}
BUILDS = 6
ANSWERS = 8  # each of two schedulers gives some of them


@dataclass
class BerthWithAgents:
    """A berth with simulated hosts, and three further hosts with an agent each."""

    settings: Settings
    bus: Bus
    sequence: int = 0

    async def report_hosts(self) -> None:
        for number in HOSTS:
            await self.bus.publish(a_report(number, inventories=LARGE))
            await self.heartbeat(number)
        await until(self.reported, "placement has the hosts")
        await forcing_down(True)(self.bus, await host_named(self.bus, f"host-{FORCED_DOWN}"))

    async def reported(self) -> bool:
        asked = FindProviders(ids=tuple(uid(number, "a") for number in HOSTS))
        return len((await self.bus.asker(topics.PROVIDERS)(asked)).providers) == len(HOSTS)

    async def heartbeat(self, number: int, enabled: bool = True) -> None:
        self.sequence += 1
        state = HostState(root=uid(number, "a"), host=f"host-{number}", enabled=enabled)
        report = HostReported(
            cell="c1", agent=f"agent-{number}", sequence=self.sequence, period=1.0, hosts=(state,)
        )
        await self.bus.publish(report)

    async def refused(self) -> bool:
        """Return whether all schedulers refuse the three hosts, of which two still send heartbeats."""
        await self.heartbeat(DISABLED, enabled=False)
        await self.heartbeat(FORCED_DOWN)
        ask = self.bus.asker(WHAT_IF)
        found = [await ask(WhatIf(request=a_boot())) for _ in range(ANSWERS)]
        best = {host.host for answer in found for host in answer.best}
        known = bool(best) and best.isdisjoint(f"host-{number}" for number in HOSTS)
        return known and {"host-1", "host-2"} <= await self.recorded()

    async def recorded(self) -> set[str]:
        """Return the hosts whose health is stored: a scheduler stores changes within a second."""
        database = composition.database_of(self.settings, Role("scheduler"))
        try:
            async with database.read() as tx:
                return {host.host for host in await host_records.page(tx, ("", ""), 10)}
        finally:
            await database.close()

    async def hosts_of_builds(self, ended: Listener[BuildEnded]) -> set[str]:
        """Boot BUILDS instances, and return their hosts."""
        for _ in range(BUILDS):
            await self.bus.publish(a_boot())
        ends = [await ended.get() for _ in range(BUILDS)]
        assert {(end.status, len(end.attempts)) for end in ends} == {("active", 1)}
        return {end.host for end in ends}


def a_boot() -> BuildRequested:
    return boot_request(BootOptions(vcpus=1, memory_mb=512, disk_gb=1))


@pytest.mark.services
@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_no_build_goes_to_a_refused_host_after_both_schedulers_were_killed(
    layout: str, servers: Settings, bus_name: str
) -> None:
    settings = servers.having(
        simulator={"hosts": 2, "build_time": "constant:0"}, heartbeat=1.0, layout=layout
    )
    async with (
        asyncio.timeout(DEADLINE),
        running(settings) as berth,
        another(settings, "scheduler") as second,
    ):
        cloud = BerthWithAgents(settings, berth.bus)
        await cloud.report_hosts()
        await until(cloud.refused, "the dead host is down, the others are closed")
        ended = await cloud.bus.listen(topics.BUILD_ENDED.at())
        second.send_signal(signal.SIGKILL)
        await second.wait()
        await berth.kill("scheduler")  # it starts again
        assert await cloud.hosts_of_builds(ended) <= {"c1-host00001", "c1-host00002"}


RELAY_DEADLINE = 60.0
ROOT = Path(__file__).parent.parent.parent

PROCESS = """
import asyncio, os, signal, sys
from bus.replication import ProviderChange
from placement_worker.store import changes
from tests.support.placement_builders import a_placement, uid

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def publish(*messages):
    print(*(one.number for one in messages), flush=True)
    die()

async def main(url, when):
    async with a_placement(url) as placement:
        for number in (1, 2):
            async with placement.database.write() as tx:
                change = ProviderChange(uid(number, "a"), uid(number, "a"), 1, {})
                await changes.announce(tx, changes.CommitRecord(changes=[change]), 1.0)
                if (number, when) == (2, "committed"):
                    tx.after_commit(die)
        await placement.log.relay.run(publish)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("database_url"))
    return f"sqlite+aiosqlite:///{tmp_path}/store.db"


@pytest.mark.parametrize(("when", "printed"), [("committed", ""), ("published", "1 2\n")])
async def test_commits_of_a_killed_process_are_published(url: str, when: str, printed: str) -> None:
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROCESS, url, when],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RELAY_DEADLINE,
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, printed), killed.stderr

    published: list[int] = []

    async def publish(*messages: PlacementChanged) -> None:
        published.extend(message.number for message in messages)

    async with a_placement(url) as placement:
        assert await last_published(placement) == 0
        relay = asyncio.ensure_future(placement.log.relay.run(publish))
        async with asyncio.timeout(RELAY_DEADLINE):
            while await last_published(placement) < 2:
                await asyncio.sleep(0.01)
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
    assert published == [1, 2]


FEW = 8 * len(KINDS)
AT_ONCE = 50
SECONDS = 1.0
CLOUD: dict[str, Any] = {"cells": ("c1",), "simulator": {"hosts": 20, "build_time": "constant:0.01"}}


ID = "00000000-0000-4000-8000-00000000000a"
ABSURD = BuildRequested(request=ID, instances=(ID,), flavor=Flavor(name="x", vcpus=MAX_INT))


async def publish(bus: Bus, messages: RandomMessages, count: int) -> None:
    """Publish a flavor of as many processors as a number has room for, and random messages."""
    await bus.publish(ABSURD)
    answer = await bus.asker(WHAT_IF)(WhatIf(request=ABSURD, room=True))
    assert not answer.fits
    for start in range(0, count, AT_ONCE):
        some = [messages.envelope(number) for number in range(start, min(start + AT_ONCE, count))]
        await bus.transport.publish(some, expected=[False] * len(some))


async def boot(bus: Bus, patience: float = 60.0) -> float:
    """Return the seconds until a boot is active."""
    request = replace(
        boot_request(BootOptions(vcpus=1, memory_mb=64, disk_gb=1, flavor="small")), reply_to=bus.clock.uuid()
    )
    ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=request.reply_to))
    began = monotonic()
    await bus.publish(request)
    end = await in_time(ended.get(), patience)
    await ended.stop()
    assert end.status == "active", end
    return monotonic() - began


@pytest.mark.slow
async def test_a_boot_is_active_within_a_second_after_random_messages(tmp_path: Path) -> None:
    settings = Settings().having(state_dir=str(tmp_path), **CLOUD)
    async with embedded(settings) as berth:
        await ready(berth.bus, settings)
        await publish(berth.bus, RandomMessages(1, cells=("c1",), agents=("c1-agent1", "nobody")), FEW)
        await boot(berth.bus)  # waits until what is queued before it is handled
        assert await boot(berth.bus) < SECONDS
