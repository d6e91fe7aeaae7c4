"""Twenty projects at their limits, many clients, several schedulers, and workers that are killed."""

import asyncio
import random
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest

from berth import composition
from berth.kit import Settings, publish
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from bus.parts import RequestParts
from bus.requests import Flavor
from features.quotas.edits import set_quota
from features.quotas.messages import DEFAULT, INSTANCES
from features.waiting.messages import WaitPart
from placement_worker.testing import LAST_CHANGE
from tests.support.berth_processes import PatientBus
from tests.support.replicas import ReplicatedBerth, WorkerProcess, replicated
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

PROJECTS = [f"p{number:02}" for number in range(20)]
LIMIT = 4  # instances of each project
LIMITED_VCPUS = PROJECTS[10:]  # projects with a limit on VCPU, too
VCPUS = 6  # of each such project
BUILT_A_KILL = 40  # a worker is killed each time so many more were built
# For this time a project's waiting request may fit while nothing of the project is built and no worker is
# killed. A request that a kill interrupts pauses 30 s; after 60 s a sweep finds requests with a lost wake-up.
STUCK_SECONDS = 45.0
OPEN = 3 * LIMIT  # requests of each project that run or wait
FLAVORS = {vcpus: Flavor(name=f"f{vcpus}", vcpus=vcpus, memory_mb=128, disk_gb=1) for vcpus in (1, 2)}
_USED = """
    SELECT p.external_id AS project, count(DISTINCT a.consumer_id) AS instances,
    sum(a.used) FILTER (WHERE r.name = 'VCPU') AS vcpus FROM placement.consumers c
    JOIN placement.projects p ON p.id = c.project_id JOIN placement.allocations a ON a.consumer_id = c.id
    JOIN placement.resource_classes r ON r.id = a.resource_class_id
    LEFT JOIN placement.consumer_types t ON t.id = c.consumer_type_id
    WHERE COALESCE(t.name, '') NOT IN ('CLEANUP', 'MIGRATION') GROUP BY p.external_id
"""
# Each commit of placement takes the next change number in its last statement, one commit at a time.
_NOTE_EACH_COMMIT = f"""
    CREATE TABLE placement.noted_usage (number bigint, instances bigint, vcpus bigint);
    CREATE FUNCTION placement.note_usage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO placement.noted_usage SELECT NEW.number, max(u.instances),
    max(u.vcpus) FILTER (WHERE u.project >= '{LIMITED_VCPUS[0]}') FROM ({_USED}) u;
    RETURN NULL; END $$;
    CREATE TRIGGER note_usage AFTER UPDATE OF number ON placement.changes FOR EACH ROW
    WHEN (NEW.id = {LAST_CHANGE} AND NEW.number > OLD.number) EXECUTE FUNCTION placement.note_usage()
"""


class QuotaTrial(NamedTuple):
    """The size of a test."""

    replicas: int
    kills: int
    clients: int
    quiet: float = 0.0  # least seconds between two kills


class Used(NamedTuple):
    """The usage of a project."""

    instances: int = 0
    vcpus: int = 0


@dataclass
class QuotaClient:
    """A client with its own connection, which keeps requests of its projects waiting. It deletes instances of
    projects that are at their limits.
    """

    name: str
    projects: list[str]
    open: int  # requests of each project that it keeps open
    chance: random.Random
    full: set[str]  # projects at their limits
    waiting: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))  # VCPUs of builds
    active: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))  # cells of builds
    built: Counter[str] = field(default_factory=Counter)  # by project
    deleting: bool = True

    async def run(self, settings: Settings) -> None:
        async with (
            PatientBus(composition.transport(settings, self.name)) as bus,
            asyncio.TaskGroup() as group,
        ):
            ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=self.name))
            group.create_task(receive_all(ended, self.on_end))
            while self.deleting:
                for project in self.projects:
                    await self._request(bus, project)
                await asyncio.sleep(0.05)

    async def _request(self, bus: Bus, project: str) -> None:
        waiting, active = self.waiting[project], self.active[project]
        while len(waiting) + len(active) < self.open:
            build, vcpus = bus.clock.uuid(), self.chance.choice([*FLAVORS])
            waiting[build] = vcpus
            await publish(
                bus,
                BuildRequested(
                    request=build, instances=(build,), flavor=FLAVORS[vcpus], project=project,
                    reply_to=self.name, parts=RequestParts(WaitPart(wait="1h")),
                ),
            )  # fmt: skip
        if active and project in self.full and self.chance.random() < 0.5:
            self.full.discard(project)
            build, cell = active.popitem()
            await publish(bus, BuildDeleteRequested(build=build, cell=cell, reply_to=self.name))

    def on_end(self, end: BuildEnded) -> None:
        assert end.status == "active"
        for project, builds in self.waiting.items():
            if builds.pop(end.build, None) is not None:  # else the message is redelivered
                self.active[project][end.build] = end.cell
                self.built[project] += 1


@dataclass
class QuotaLoad:
    """All clients, and the watch that no project leaves quota unused that one of its requests waits for."""

    database: asyncpg.Pool
    trial: QuotaTrial
    clients: list[QuotaClient] = field(default_factory=list)
    full: set[str] = field(default_factory=set)  # projects without a request that fits
    used_well: dict[str, tuple[int, float]] = field(default_factory=dict)  # builds and time, by project
    disturbed: float = 0.0  # when a worker was killed last, or its successor began to serve
    longest: float = 0.0  # seconds that a project's waiting request fitted while nothing of it was built

    def __post_init__(self) -> None:
        clients = self.trial.clients
        for number in range(clients):
            projects = [each for at, each in enumerate(PROJECTS) if at % clients == number % len(PROJECTS)]
            open_ = max(1, OPEN * len(PROJECTS) // max(clients, len(PROJECTS)))
            self.clients.append(
                QuotaClient(f"quota-{number}", projects, open_, random.Random(number), self.full)
            )

    @property
    def built(self) -> Counter[str]:
        return sum((client.built for client in self.clients), Counter[str]())

    async def fitting(self) -> dict[str, str]:
        """Return the projects with a waiting request that their limits permit, with a description."""
        used = {
            row["project"]: Used(row["instances"], row["vcpus"]) for row in await self.database.fetch(_USED)
        }
        found = {}
        for project in PROJECTS:
            now = used.get(project, Used())
            waiting = {vcpus for client in self.clients for vcpus in client.waiting[project].values()}
            most = VCPUS if project in LIMITED_VCPUS else LIMIT * max(FLAVORS)
            if waiting and now.instances < LIMIT and now.vcpus + min(waiting) <= most:
                found[project] = f"{project} uses {now}, and requests with {waiting} VCPU wait"
        return found

    async def watch(self) -> None:
        """Raise AssertionError if a waiting request of a project fits for too long and nothing is built."""
        while True:
            fitting, built, now = await self.fitting(), self.built, monotonic()
            self.full.update(PROJECTS)
            self.full.difference_update(fitting)
            for project in PROJECTS:
                builds, since = self.used_well.get(project, (0, now))
                if project not in fitting or builds != built[project]:
                    since = now
                self.used_well[project] = built[project], since
                stuck = now - max(since, self.disturbed)
                self.longest = max(self.longest, stuck)
                assert stuck < STUCK_SECONDS, self.picture(fitting, now)
            await asyncio.sleep(0.25)

    def picture(self, fitting: dict[str, str], now: float) -> str:
        """Describe all projects with a request that fits, and the restart before."""
        since = {project: f"{now - self.used_well[project][1]:.1f} s" for project in fitting}
        lines = [f"{since[project]}: {text}" for project, text in fitting.items()]
        return "\n".join([f"{now - self.disturbed:.1f} s after a restart fit, without a build:", *lines])

    async def kill(self, victim: WorkerProcess) -> None:
        self.disturbed = float("inf")
        await victim.stop(signal.SIGKILL)
        await victim.start()
        await until(victim.serves, f"{victim.role} serves again")
        self.disturbed = monotonic()


async def set_limits(berth: ReplicatedBerth) -> None:
    await set_quota(berth.bus, DEFAULT, {INSTANCES: LIMIT})
    for project in LIMITED_VCPUS:
        await set_quota(berth.bus, project, {"VCPU": VCPUS})


async def kill_workers(load: QuotaLoad, berth: ReplicatedBerth) -> None:
    """Kill schedulers and placement processes under load."""
    kills, quiet = load.trial.kills, load.trial.quiet
    chance, began, killed = random.Random(7), monotonic(), 0
    victims = [replica for replica in berth.replicas if replica.role.worker in ("scheduler", "placement")]
    while killed < kills or load.built.total() < (kills + 1) * BUILT_A_KILL:
        assert monotonic() - began < (30 + quiet) * (kills + 1), load.built
        if load.built.total() >= (killed + 1) * BUILT_A_KILL and monotonic() - load.disturbed >= quiet:
            killed += 1
            await load.kill(chance.choice(victims))
        await asyncio.sleep(0.1)


@pytest.mark.soak
@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(QuotaTrial(2, 2, clients=4), id="2-2"),
        pytest.param(QuotaTrial(4, 12, clients=40, quiet=STUCK_SECONDS + 5), id="4-12"),
    ],
)
async def test_a_limit_is_never_exceeded_and_always_used(
    trial: QuotaTrial, servers: Settings, database_url: str, tmp_path: Path
) -> None:
    settings = servers.having(
        simulator={"hosts": 50, "build_time": "constant:0.05"},
        state_dir=str(tmp_path),
        log_level="info",
        log_format="json",
    )
    async with (
        replicated(settings, tmp_path, replicas=trial.replicas) as berth,
        asyncpg.create_pool(database_url.replace("+asyncpg", ""), min_size=1, max_size=2) as database,
        asyncio.TaskGroup() as group,
    ):
        load = QuotaLoad(database, trial)
        await database.execute(_NOTE_EACH_COMMIT)
        await set_limits(berth)
        tasks = [group.create_task(client.run(settings)) for client in load.clients]
        tasks.append(group.create_task(load.watch()))
        await kill_workers(load, berth)
        for client in load.clients:
            client.deleting = False

        async def all_use_their_limit() -> bool:
            return not await load.fitting()

        await until(all_use_their_limit, "each project uses its limit", picture=load.fitting)
        assert all(any(client.waiting[project] for client in load.clients) for project in PROJECTS)
        commits, instances, vcpus = await database.fetchrow(
            "SELECT count(*), max(instances), max(vcpus) FROM placement.noted_usage"
        )
        assert (instances, vcpus) == (LIMIT, VCPUS)
        assert commits > len(PROJECTS)
        print(f"{load.built.total()} built for {len(load.clients)} clients, {commits} commits;")
        print(f"a project had unused quota that a request waited for during {load.longest:.1f} s at most")
        for task in tasks:
            task.cancel()
