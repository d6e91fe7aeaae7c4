"""Twenty projects at their limits, several schedulers, and workers that are killed."""

import asyncio
import random
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import pytest

from berth.operations.publishing import publish
from berth.operations.quotas import set_quota
from berth.settings import Settings
from bus import topics
from bus.clock import monotonic
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from bus.quotas import DEFAULT, INSTANCES
from bus.requests import Flavor
from placement_worker.store.changes import LAST_CHANGE
from tests.support.replicas import ReplicatedBerth, replicated
from tests.support.waiting import receive_all, until

pytestmark = [pytest.mark.services, pytest.mark.slow]

PROJECTS = [f"p{number:02}" for number in range(20)]
LIMIT = 4  # instances of each project
BUILT_A_KILL = 40  # a worker is killed each time so many more were built
OPEN = 3 * LIMIT  # requests of each project that run or wait
SMALL = Flavor(name="small", vcpus=1, memory_mb=128, disk_gb=1)
_USED = """
    SELECT p.external_id, count(DISTINCT a.consumer_id) FROM placement.consumers c
    JOIN placement.projects p ON p.id = c.project_id JOIN placement.allocations a ON a.consumer_id = c.id
    LEFT JOIN placement.consumer_types t ON t.id = c.consumer_type_id
    WHERE COALESCE(t.name, '') NOT IN ('CLEANUP', 'MIGRATION') GROUP BY p.external_id
"""
# Each commit of placement takes the next change number in its last statement, one commit at a time.
_NOTE_EACH_COMMIT = f"""
    CREATE TABLE placement.noted_usage (number bigint, most bigint);
    CREATE FUNCTION placement.note_usage() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO placement.noted_usage SELECT NEW.number, max(u.used) FROM ({_USED}) u (project, used);
    RETURN NULL; END $$;
    CREATE TRIGGER note_usage AFTER UPDATE OF number ON placement.changes FOR EACH ROW
    WHEN (NEW.id = {LAST_CHANGE} AND NEW.number > OLD.number) EXECUTE FUNCTION placement.note_usage()
"""


@dataclass
class QuotaClients:
    """Two clients of each project: they keep requests waiting, and delete instances soon after the build."""

    berth: ReplicatedBerth
    open: Counter[str] = field(default_factory=Counter)
    project_of: dict[str, str] = field(default_factory=dict)
    active: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    built: int = 0
    deleting: bool = True

    async def request(self, chance: random.Random) -> None:
        bus = self.berth.bus
        while self.deleting:
            for project in PROJECTS:
                while self.open[project] < OPEN:
                    build = bus.clock.uuid()
                    self.project_of[build] = project
                    self.open[project] += 1
                    await publish(
                        bus,
                        BuildRequested(
                            request=build, instances=(build,), flavor=SMALL, project=project, wait="1h",
                            reply_to="quota",
                        ),
                    )  # fmt: skip
                if self.active[project] and chance.random() < 0.5:
                    build, cell = self.active[project].popitem()
                    await publish(bus, BuildDeleteRequested(build=build, cell=cell, reply_to="quota"))
                    self.open[project] -= 1
            await asyncio.sleep(0.05)

    def on_end(self, end: BuildEnded) -> None:
        assert end.status == "active"
        self.active[self.project_of[end.build]][end.build] = end.cell
        self.built += 1


async def used(connection: asyncpg.Connection) -> dict[str, int]:
    return dict(await connection.fetch(_USED))


@pytest.mark.parametrize(
    ("replicas", "kills"), [(2, 2), pytest.param(4, 12, marks=pytest.mark.soak)], ids=str
)
async def test_a_limit_is_never_exceeded_and_always_used(
    replicas: int, kills: int, amqp_url: str, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    settings = Settings().having(
        amqp_url=amqp_url, database_url=database_url, exchange=bus_name, cells=("c1",), hosts=50,
        build_time="constant:0.05", state_dir=str(tmp_path), log_level="info", log_format="json",
    )  # fmt: skip
    chance = random.Random(7)
    async with replicated(settings, tmp_path, replicas=replicas) as berth, asyncio.TaskGroup() as group:
        clients, connection = QuotaClients(berth), await asyncpg.connect(database_url.replace("+asyncpg", ""))
        await connection.execute(_NOTE_EACH_COMMIT)
        await set_quota(berth.bus, DEFAULT, {INSTANCES: LIMIT})
        ended = await berth.bus.listen(topics.BUILD_ENDED.at(reply_to="quota"))
        listening = group.create_task(receive_all(ended, clients.on_end))
        requesting = group.create_task(clients.request(chance))
        began, killed = monotonic(), 0
        victims = [replica for replica in berth.replicas if replica.role.worker in ("scheduler", "placement")]
        while killed < kills or clients.built < (kills + 1) * BUILT_A_KILL:
            assert monotonic() - began < 30 * (kills + 1), clients.built
            if clients.built >= (killed + 1) * BUILT_A_KILL:
                killed += 1
                victim = chance.choice(victims)
                await victim.stop(signal.SIGKILL)
                await victim.start()
            await asyncio.sleep(0.1)
        clients.deleting = False
        await requesting

        async def all_use_their_limit() -> bool:
            return await used(connection) == dict.fromkeys(PROJECTS, LIMIT)

        await until(all_use_their_limit, "each project uses its limit", seconds=45)
        commits, most = await connection.fetchrow("SELECT count(*), max(most) FROM placement.noted_usage")
        assert most == LIMIT
        assert commits > len(PROJECTS)
        listening.cancel()
        await connection.close()
