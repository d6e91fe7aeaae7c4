"""Fail-overs of the database under load: to a synchronous standby, and to one that lacks the last commits."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

import pytest

from berth.kit.publishing import publish
from berth.operations.audit import audit
from berth.operations.cell_records import builds_by_cell, places_by_cell
from berth.operations.guest_differences import compare_guests
from berth.operations.healing import repaired
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.messages import BuildDeleted, BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.queries import FindCandidates
from bus.requests import Flavor, ResourceGroup
from deploy.servers import Postgres, RabbitMQ
from tests.support.berth_processes import running, settled
from tests.support.servers import url_of
from tests.support.standby import NAME, Standby, execute, url_of_both
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.soak]


RATE = 30.0  # requests a second
FLAVOR = Flavor(name="small", vcpus=1, memory_mb=64, disk_gb=1)
HOSTS = 60
ACTIVE = 20  # builds that stay active before the client begins to delete
REPLY_TO = "test"


@dataclass
class BootingClient:
    """A client that boots and deletes continuously, and records the ends that it receives."""

    bus: Bus
    asked: list[str] = field(default_factory=list)
    ends: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # status and host
    cells: dict[str, str] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    listens: asyncio.Event = field(default_factory=asyncio.Event)
    loads: bool = True
    pauses: bool = False

    async def receive(self) -> None:
        ended = await self.bus.listen(topics.BUILD_ENDED.at(reply_to=REPLY_TO))
        unplaceable = await self.bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=REPLY_TO))
        deleted = await self.bus.listen(topics.BUILD_DELETED.at(reply_to=REPLY_TO))
        self.listens.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(receive_all(ended, self._ended))
            group.create_task(receive_all(unplaceable, self._unplaceable))
            group.create_task(receive_all(deleted, self._deleted))

    def _ended(self, end: BuildEnded) -> None:
        self.cells[end.build] = end.cell
        self._record(end.build, end.status, end.host)

    def _unplaceable(self, end: BuildUnplaceable) -> None:
        for build in end.instances:
            self._record(build, "unplaceable", "")

    def _deleted(self, deleted: BuildDeleted) -> None:
        self._record(deleted.build, "deleted", "")

    def _record(self, build: str, status: str, host: str) -> None:
        known = self.ends.setdefault(build, [])
        if known[-1:] != [(status, host)]:
            known.append((status, host))

    async def boot(self, build: str) -> None:
        await publish(
            self.bus, BuildRequested(request=build, instances=(build,), flavor=FLAVOR, reply_to=REPLY_TO)
        )

    async def load(self) -> None:
        """Boot RATE builds a second, and delete one active build for five boots."""
        while self.loads:
            if self.pauses:
                await asyncio.sleep(1 / RATE)
                continue
            self.asked.append(self.bus.clock.uuid())
            await self.boot(self.asked[-1])
            active = [
                b for b, ends in self.ends.items() if ends[-1][0] == "active" and b not in self.deleting
            ]
            if len(active) > ACTIVE and len(self.asked) % 5 == 0:
                await self.delete(active[0])
            await asyncio.sleep(1 / RATE)

    async def delete(self, build: str) -> None:
        self.deleting.add(build)
        await publish(self.bus, BuildDeleteRequested(build=build, cell=self.cells[build], reply_to=REPLY_TO))

    @property
    def open(self) -> set[str]:
        """Return the builds without an end, and those whose deletion is not confirmed."""
        undeleted = {build for build in self.deleting if ("deleted", "") not in self.ends[build]}
        return {*self.asked} - self.ends.keys() | undeleted

    @property
    def active_twice(self) -> list[str]:
        hosts = {
            build: {host for status, host in ends if status == "active"} for build, ends in self.ends.items()
        }
        return [build for build, active in hosts.items() if len(active) > 1]


def settings_for(amqp_url: str, database_url: str, bus_name: str) -> Settings:
    return Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1", "c2"),
        simulator={"hosts": HOSTS, "agents_per_cell": 4, "fail": 0.1, "build_time": "exponential:0.3"},
        build_timeout=30.0,
        heartbeat=2.0,
    )


FREE = """
    SELECT json_object_agg(p.name, CAST((i.total - i.reserved) * i.allocation_ratio AS bigint) - i.used)
    FROM placement.inventories i JOIN placement.resource_providers p ON p.id = i.resource_provider_id
    JOIN placement.resource_classes c ON c.id = i.resource_class_id WHERE c.name = 'VCPU'
"""


async def differing(bus: Bus, server: Postgres) -> int:
    """Return how many hosts have other free VCPUs in placement's index than in its database."""
    question = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),), limit=10 * HOSTS)
    found = (await bus.asker(topics.FIND_CANDIDATES)(question)).candidates
    index = {candidate.host: candidate.free["VCPU"] for candidate in found}
    stored = json.loads(await execute(server, FREE))
    return sum(index.get(host, 0) != free for host, free in stored.items())


LAST_CHANGE = "SELECT number FROM placement.changes WHERE id = 1"


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_failover_to_a_synchronous_standby_loses_nothing(
    restarted_rabbitmq: RabbitMQ, primary: Postgres, standby: Standby, bus_name: str, fenced: bool
) -> None:
    """Also while the former primary still runs: a commit there waits for the standby, and never succeeds."""
    await execute(primary, f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
    await execute(primary, "SELECT pg_reload_conf()")
    settings = settings_for(url_of(restarted_rabbitmq), url_of_both(primary, standby), bus_name)
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        client = BootingClient(berth.bus)
        receiving = group.create_task(client.receive())
        await client.listens.wait()
        loading = group.create_task(client.load())
        await until(lambda: len(client.ends) > 5 * ACTIVE)
        if fenced:
            await asyncio.to_thread(primary.kill)
        await standby.promote()
        promoted, before = monotonic(), len(client.ends)
        await until(lambda: len(client.ends) > before + 5, "builds end again")
        again = monotonic() - promoted
        await asyncio.sleep(3.0)
        number = 0 if fenced else await execute(primary, LAST_CHANGE)
        await asyncio.sleep(7.0)
        if not fenced:
            assert number == await execute(primary, LAST_CHANGE)
        client.loads = False
        await loading
        await until(lambda: not client.open, "every build has an end", picture=lambda: client.open)
        found = await settled(settings)
        guests = await compare_guests(settings)
        assert (found.breaches, guests.differences, guests.silent) == ([], [], [])
        assert client.active_twice == []
        assert await berth.bus.transport.dead_letters(10) == []
        print(f"{len(client.asked)} builds, {len(client.deleting)} deleted, ends again after {again:.1f} s")
        assert again < 10.0
        receiving.cancel()


@pytest.mark.parametrize("fenced", [True, False])
async def test_heal_repairs_what_a_failover_to_an_asynchronous_standby_lost(
    restarted_rabbitmq: RabbitMQ, primary: Postgres, standby: Standby, bus_name: str, fenced: bool
) -> None:
    """Also if the former primary still runs: no transaction started after the promotion commits there."""
    settings = settings_for(url_of(restarted_rabbitmq), url_of_both(primary, standby), bus_name)
    async with running(settings) as berth, asyncio.TaskGroup() as group:
        client = BootingClient(berth.bus)
        receiving = group.create_task(client.receive())
        await client.listens.wait()
        loading = group.create_task(client.load())
        await until(lambda: len(client.ends) > 5 * ACTIVE)
        await standby.cut_off()
        before = len(client.ends)
        await until(lambda: len(client.ends) > before + 60, "commits that will be lost")
        last = await execute(primary, LAST_CHANGE)
        lost = last - await execute(standby, LAST_CHANGE)
        client.pauses = fenced  # so that index and database can be compared
        if fenced:
            await asyncio.to_thread(primary.kill)
        await standby.promote()
        promoted = monotonic()
        if not fenced:
            asked = len(client.asked)
            await until(lambda: len(client.asked) > asked + RATE, "a second of requests after the promotion")
            client.pauses = True  # so that index and database can be compared

        async def equal() -> bool:
            return not await differing(berth.bus, standby)

        await until(equal, "the index equals the database")
        index = monotonic() - promoted
        client.pauses = False
        if not fenced:
            last, after = await execute(primary, LAST_CHANGE), last
            lost += last - after
            print(
                f"{last - after} changes on the former primary by transactions started before the promotion"
            )
        before = len(client.ends)
        await until(lambda: len(client.ends) > before + 60, "builds end again")
        assert fenced or last == await execute(primary, LAST_CHANGE)
        client.loads = False
        await loading
        assert lost > 20

        async def quiet() -> bool:
            return not (await audit(settings)).builds.keys() & {"building", "swapping", "deleting"}

        await until(quiet, "no build is in progress")
        for build in client.open:  # docs/running.md: clients repeat what has not ended
            await (client.delete(build) if build in client.deleting else client.boot(build))
        await until(lambda: not client.open, "every build has an end", picture=lambda: client.open)
        await until(quiet, "no build is in progress")
        assert not await differing(berth.bus, standby)

        found, guests = await audit(settings), await compare_guests(settings)
        kinds = Counter(each.wrong for each in guests.differences)
        proven, doubts = await repaired(settings, found, yes=True)
        print(f"{lost} changes lost, index equal after {index:.1f} s, {len(client.asked)} builds")
        print(
            f"differences {dict(kinds)}, breaches {found.breaches}, active twice {len(client.active_twice)}"
        )
        assert doubts == {} and [repair for repair in proven if not repair.done] == []
        assert kinds.keys() >= {"unknown", "missing"}
        healed, left = await audit(settings), await compare_guests(settings)
        assert (healed.breaches, left.differences, left.silent) == ([], [], [])
        guests_of = Counter(guest.build for listed in left.books.values() for guest in listed)
        assert max(guests_of.values()) == 1
        places = await places_by_cell(settings, settings.cell_names)
        records = (await builds_by_cell(settings, settings.cell_names)).builds
        for build in client.asked:
            status, host = client.ends[build][-1]
            if status == "active":
                assert places[build].host.host == host, (build, client.ends[build])
            elif status == "deleted":
                assert build not in places, (build, client.ends[build], records.get(build))
        assert index < 5.0
        receiving.cancel()
