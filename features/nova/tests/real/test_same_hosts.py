"""nova-scheduler and berth find the same feasible hosts for random requests, with equal filters.

Both read the same cloud: Nova its databases and berth's Placement API, berth the mirror of Nova's databases.
"""

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from berth.kit import Settings
from bus.clock import Clock
from deploy.nova import find_nova
from deploy.nova_configuration import write
from deploy.nova_databases import PostgresNova
from deploy.placement import ROOT
from deploy.servers import Postgres, find_binaries, free_port, private_directory
from features.nova.core.scheduler_notifications import payload_of
from features.nova.databases import NovaDatabases
from features.nova.tests.real.berth_feasible import CELLS, BerthOfNova, FeasibleHosts, a_berth_of_nova
from tests.support.servers import installed

pytestmark = [pytest.mark.nova, pytest.mark.services]

SEED, REQUESTS = int(os.environ.get("BERTH_TEST_SEED", "7")), 500
START = Path(__file__).with_name("nova_start.py")
DOWN_SECONDS = 3600.0  # as in nova_cloud.py
METRIC = "cpu.frequency"
DEFAULT_FILTERS = (
    "ComputeFilter",
    "ComputeCapabilitiesFilter",
    "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter",
    "ServerGroupAffinityFilter",
)
FURTHER_FILTERS = (
    "AllHostsFilter", "SameHostFilter", "DifferentHostFilter", "SimpleCIDRAffinityFilter",
    "AggregateMultiTenancyIsolation", "AggregateInstanceExtraSpecsFilter",
    "AggregateImagePropertiesIsolation", "AggregateTypeAffinityFilter", "AggregateIoOpsFilter",
    "AggregateNumInstancesFilter", "JsonFilter", "MetricsFilter", "IsolatedHostsFilter",
)  # fmt: skip
DEFAULTS = Settings().having(scheduler_filters=DEFAULT_FILTERS)
EVERYTHING = Settings().having(
    scheduler_filters=(*DEFAULT_FILTERS, *FURTHER_FILTERS),
    scheduler_rules={
        "metrics": {"weight_setting": {METRIC: 1.0}},
        "isolated_hosts": {"isolated_hosts": ["compute-03"]},
        "io_ops": {"for_nova": True},
    },
    tenant_aggregates="optional",
    isolate_aggregates=True,
    image_traits=("type", "metadata"),
)


@dataclass
class ComparedRequest:
    """A request with the hosts of both schedulers."""

    request: dict[str, Any]
    nova: frozenset[str]
    berth: FeasibleHosts
    error: str  # of Nova's code
    shared: frozenset[str]  # hosts without disks, which use a provider that shares them
    moving: frozenset[str]  # instances whose resources a migration holds

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.request["spec"]["nova_object.data"])

    @property
    def explanation(self) -> str:
        """Return the known difference (features/nova/README.md) that this one is, or an empty text."""
        extra_specs = _data(self.spec["flavor"])["extra_specs"]
        properties = _data(_data(self.spec["image"])["properties"])
        has_all, roots = self.request["all"], self.berth.roots
        if has_all and "group_policy" in extra_specs and not self.nova:
            return "group_policy is taken for metadata of aggregates"
        if has_all and "hw_viommu_model" in properties and roots < self.nova:
            return "hw_viommu_model disables the pre-filter for images"
        hints = self.spec["scheduler_hints"]
        if has_all and self.moving & {*hints.get("same_host", ()), *hints.get("different_host", ())}:
            return "a hint names an instance that is being moved"
        if self._is_restricted and self.nova < roots <= self.nova | self.shared:
            return "restrictions exclude shared disks"
        return ""

    @property
    def _is_restricted(self) -> bool:
        """Return whether the request demands aggregates of its hosts, or names them."""
        destination = _data(self.spec["requested_destination"] or {})
        has_tenant_aggregates = self.request["all"] and self.spec["project_id"] in ("p1", "p2")
        return bool(
            has_tenant_aggregates
            or self.spec["availability_zone"]
            or self.spec["force_hosts"]
            or {"host", "node", "aggregates"} & destination.keys()
        )


def _data(primitive: dict[str, Any]) -> dict[str, Any]:
    return dict(primitive.get("nova_object.data", {}))


@pytest.fixture
def directory() -> Iterator[Path]:
    made = private_directory()
    yield made
    shutil.rmtree(made)


async def test_the_same_hosts_are_feasible(directory: Path) -> None:
    installed(find_nova)
    installed(find_binaries)
    postgres = Postgres(directory / "postgres")
    await asyncio.to_thread(postgres.start)
    try:
        compared = await _compare(postgres, directory)
    finally:
        await asyncio.to_thread(postgres.stop)
    assert len(compared) == REQUESTS
    different = [each for each in compared if each.nova != each.berth.roots]
    unexplained = [each for each in different if not each.explanation]
    feasible = sum(bool(each.nova) for each in compared)
    print(f"{len(compared) - len(different)} equal, {feasible} with feasible hosts; ", end="")
    print(f"{len(unexplained)} differences without explanation; with:", end=" ")
    print(dict(Counter(each.explanation for each in different if each.explanation)))
    if path := os.environ.get("BERTH_TEST_DIFFERENCES"):
        Path(path).write_text("\n".join(json.dumps(_described(each)) for each in unexplained))
    assert feasible > REQUESTS / 3
    payloads = [(payload_of(each.request["spec"]), each.request["payload"]) for each in compared]
    assert not [pair for pair in payloads if pair[0] != pair[1]][:1]
    assert not unexplained, [_described(each) for each in unexplained[:3]]


def _described(each: ComparedRequest) -> dict[str, Any]:
    return {
        "all": each.request["all"], "why": each.berth.why, "error": each.error,
        "only_nova": sorted(each.nova - each.berth.roots), "only_berth": sorted(each.berth.roots - each.nova),
        "common": len(each.nova & each.berth.roots), "spec": each.spec,
    }  # fmt: skip


async def _compare(postgres: Postgres, directory: Path) -> list[ComparedRequest]:
    made = PostgresNova(postgres)
    await made.create(["nova_api", "cell0", *CELLS])
    clock, address = Clock(), f"127.0.0.1:{free_port()}"
    databases = NovaDatabases(
        made.url("nova_api").replace("+psycopg2", ""), {}, clock, down_seconds=DOWN_SECONDS
    )
    try:
        async with a_berth_of_nova(databases, address, clock) as berth:
            return await _compare_with(berth, made, address, directory)
    finally:
        await databases.close()


async def _compare_with(
    berth: BerthOfNova, databases: PostgresNova, address: str, directory: Path
) -> list[ComparedRequest]:
    configuration = _configuration(databases, address, directory)
    async with _nova_scheduler(configuration, databases, directory / "nova.log") as process:
        assert process.stdin is not None and process.stdout is not None
        ready = await process.stdout.readline()
        assert ready, (directory / "nova.log").read_text()[-4000:]
        shared, moving = (frozenset(json.loads(ready)[name]) for name in ("shared_disks", "moving"))
        await berth.mirror.refresh()
        process.stdin.write(b"go\n")
        lines = [json.loads(line) async for line in process.stdout]
    schedulers = {False: berth.scheduler(DEFAULTS), True: berth.scheduler(EVERYTHING)}
    await berth.mirror.refresh()
    await berth.report()
    return [
        ComparedRequest(
            line, frozenset(line["hosts"]), await berth.feasible(schedulers[line["all"]], line["spec"]),
            line["error"], shared, moving,
        )
        for line in lines
    ]  # fmt: skip


@asynccontextmanager
async def _nova_scheduler(
    configuration: Path, databases: PostgresNova, log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    cells = [f"{name}={databases.url(name)}" for name in ("cell0", *CELLS)]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OS_", "PYTHON", "BERTH_"))
    } | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            str(find_nova()), str(START), str(configuration), str(SEED), str(REQUESTS),
            *cells, env=environment, cwd=ROOT, stderr=errors, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, limit=1 << 22,
        )  # fmt: skip
    try:
        yield process
        assert await process.wait() == 0, log.read_text()[-4000:]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _configuration(databases: PostgresNova, address: str, directory: Path) -> Path:
    return write(
        directory / "nova.conf",
        {
            "DEFAULT": {
                "transport_url": "fake:///", "state_path": directory, "service_down_time": int(DOWN_SECONDS),
                "log_file": "", "use_stderr": True, "host": "scheduler",
            },
            "api_database": {"connection": databases.url("nova_api")},
            "database": {"connection": databases.url("cell0")},
            "placement": {
                "auth_type": "admin_token", "endpoint": f"http://{address}", "token": "admin",
                "endpoint_override": f"http://{address}",
            },
            "filter_scheduler": {"track_instance_changes": False, "isolated_hosts": "compute-03"},
            "metrics": {"weight_setting": f"{METRIC}=1.0"},
            "oslo_concurrency": {"lock_path": directory / "locks"},
            # without an active driver, Nova's classes make no payloads
            "oslo_messaging_notifications": {"driver": "log"},
            "notifications": {"notification_format": "versioned"},
        },
    )  # fmt: skip
