"""Runs a berth with virtual machines that follows a simulated Ironic. Every worker is a process or, in the
compact layout, placement and scheduler share one process, and conductors and the agent of virtual machines
share another, as `berth up` runs them.

The processes share their settings in one JSON object, the site.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import httpx
import msgspec

from berth.composition import (
    candidate_source,
    cell_queries,
    open_placement,
    parts_of_scheduler,
    placement_queries,
)
from berth.features import packages
from berth.services import serving_metrics, settle_in, stop_on_signals
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.direct import DirectTransport
from bus.http import listen
from bus.rabbit import RabbitTransport
from bus.rabbit.foreign_publisher import ForeignPublisher
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from cell_conductor import cell_conductor
from compute_sim.core.faults import Durations
from compute_sim.ironic.conductor import Conductor, SimPlan
from compute_sim.ironic.node import SimNode, enrolled
from compute_sim.ironic.notifications import MOST_WAITING, IronicExchange
from compute_sim.ironic.simulation import Simulation
from compute_sim.machines import fleet
from compute_sim.worker import compute_sim
from ironic_sync.agent.right import NodeRight
from ironic_sync.agent.worker import metal_agent, notification_source
from ironic_sync.api import IronicApi
from ironic_sync.core.selection import NodeSelection
from ironic_sync.notifications import Notifications
from ironic_sync.openstack import Access
from ironic_sync.worker import FollowedIronic, ironic_sync
from placement_worker import Memory, placement_worker
from scheduler_worker.worker import SchedulerConnections, scheduler_worker

CELL = "c1"
AGENT = f"{CELL}-metal"
ROLES = ("placement", "scheduler", "conductor", "ironic_sync", "agent")
VIRTUAL_CELL = "c2"
VIRTUAL_ROLES = ("conductor of c2", "agent of c2")
SHARED = {  # processes of the compact layout that run several workers
    "placement+scheduler": ("placement", "scheduler"),
    "conductors+agent": ("conductor", *VIRTUAL_ROLES),
}
_APART = ("ironic_sync", "agent")
STORM = signal.SIGUSR1  # makes the simulated Ironic clean all manageable nodes at the same time
_HOPS = {  # histograms of ironic_sync and placement
    "event → report stored, without a read": "berth_ironic_reported_seconds",
    "read": "berth_ironic_read_seconds",
    "placement": 'berth_handling_seconds{topic="inventory.reported.{cell}",worker="placement"}',
}


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of all parts of a benchmark with Ironic, and the size of the simulated Ironic."""

    amqp_url: str
    database_url: str
    port: int  # of the simulated Ironic's API; the next two are for metrics
    nodes: int = 10_000
    waiting: int = 0  # manageable nodes; the rest are available
    alone: int = 0  # additional nodes, each with a different resource class
    step_time: str = "constant:0"
    churn: float = 0.0  # notifications a second
    hosts: int = 0  # hosts of virtual machines, in a separate cell
    compact: bool = False

    @property
    def workers(self) -> tuple[str, ...]:
        return (*ROLES, *(VIRTUAL_ROLES if self.hosts else ()))

    @property
    def roles(self) -> tuple[str, ...]:
        return ("sim", *SHARED, *_APART) if self.compact else ("sim", *self.workers)

    def metrics_port(self, role: str) -> int:
        """Return the metrics port of the process of this role; 0 if it runs neither ironic_sync nor
        placement.
        """
        if role == "ironic_sync":
            return self.port + 1
        return self.port + 2 if "placement" in self.workers_of(role) else 0

    def workers_of(self, role: str) -> list[str]:
        """Return the names of the workers in the process that `berth run ROLE` has started."""
        if role in SHARED:
            return [name for name in SHARED[role] if name in self.workers]
        return ["replica", role] if role == "scheduler" else [role]

    @property
    def cells(self) -> tuple[str, ...]:
        return (CELL, *((VIRTUAL_CELL,) if self.hosts else ()))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bus(self, name: str) -> RecordingBus:
        way = RabbitTransport(self.amqp_url, exchange="bench", name=name)
        return RecordingBus(DirectTransport(way) if name in SHARED else way)

    def api(self) -> IronicApi:
        return IronicApi(Access(url=self.url))

    def ironic(self) -> FollowedIronic:
        return FollowedIronic(
            selection=NodeSelection(cell=CELL), notifications=Notifications(self.amqp_url), api=self.api()
        )

    def herd(self) -> list[SimNode]:
        now = Clock().now()
        herd = enrolled(self.nodes - self.waiting, now=now)
        herd += enrolled(self.waiting, now=now, state="manageable", prefix="waiting") if self.waiting else []
        kinds = [f"alone{number}" for number in range(self.alone)]
        if kinds:
            herd += enrolled(self.alone, now=now, state="manageable", resource_classes=kinds, prefix="alone")
        return herd


def _agent_of_machines(site: Site, bus: RecordingBus) -> Worker:
    (machines,) = fleet((VIRTUAL_CELL,), site.hosts)
    return compute_sim(machines, clock=Clock(), providers=bus.asker(topics.CELL_PROVIDERS))


def _conductor(site: Site, bus: RecordingBus, cell: str) -> Worker:
    return cell_conductor(
        cell,
        Database(site.database_url, namespace=f"cell_{cell}"),
        bus.asker_of_many(topics.CELL_CLAIM),
        bus.asker_of_many(topics.CELL_RELEASE),
    )


def workers(site: Site, bus: RecordingBus) -> dict[str, Callable[[], Worker]]:
    """Return, by name, a function that creates each worker of the site. The workers share one bus."""
    clock = Clock()
    shared = Memory() if site.compact else None
    place = candidate_source(bus, shared)

    def a_placement() -> Worker:
        database = Database(site.database_url, namespace="placement")
        placement = open_placement(Settings(), database, clock, shared)
        return placement_worker(placement, bus.publish, site.cells)

    return {
        "placement": a_placement,
        "scheduler": lambda: scheduler_worker(
            SchedulerConnections(
                source=place.source,
                placement=placement_queries(bus),
                cells=cell_queries(bus),
                database=Database(site.database_url, namespace="scheduler"),
                bus=bus,
                clock=clock,
                loaded=place.loaded,
            ),
            parts_of_scheduler(Settings()),
        ),
        "replica": lambda: place.workers[0],
        "conductor": lambda: _conductor(site, bus, CELL),
        "conductor of c2": lambda: _conductor(site, bus, VIRTUAL_CELL),
        "agent of c2": lambda: _agent_of_machines(site, bus),
        "ironic_sync": lambda: ironic_sync(
            site.ironic(), bus.publish, bus.asker(topics.PROVIDERS), clock=clock
        ),
        "agent": lambda: metal_agent(
            AGENT,
            CELL,
            site.api(),
            NodeRight(),
            notifications=notification_source(
                Notifications(site.amqp_url, queue="bench.agent", quorum=False)
            ),
            clock=clock,
        ),
    }


async def _serve(site: Site, role: str) -> None:
    stopping = asyncio.Event()
    stop_on_signals(stopping)
    if role == "sim":
        plan = SimPlan(step_time=Durations.parse(site.step_time), churn=site.churn)
        publisher = ForeignPublisher(site.amqp_url, "ironic", "simulated Ironic", limit=MOST_WAITING)
        simulation = Simulation(
            site.herd(), plan=plan, sink=IronicExchange(publisher), listener=listen(f"127.0.0.1:{site.port}")
        )
        asyncio.get_running_loop().add_signal_handler(STORM, _provide, simulation.conductor)
        settle_in()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(simulation.run())
            await stopping.wait()
            running.cancel()
        return
    async with site.bus(role) as bus, serving_metrics(f"127.0.0.1:{site.metrics_port(role)}"):
        made = workers(site, bus)
        served = [made[name]() for name in site.workers_of(role)]
        settle_in()
        async with asyncio.TaskGroup() as group:
            for worker in served:
                group.create_task(bus.serve(worker, stopping, drain=1.0))


def _provide(conductor: Conductor) -> None:
    """Start the cleaning of all manageable nodes at the same time."""
    for node in conductor.nodes.values():
        if node.provision_state == "manageable":
            conductor.begin(node, "provide", "req-storm")


async def prepare(site: Site) -> None:
    schemas = [
        ("placement", "placement"),
        ("scheduler", "scheduler"),
        *(("conductor", f"cell_{cell}") for cell in site.cells),
    ]
    for worker, name in schemas:
        database = Database(site.database_url, namespace=name)
        await migrate(database, *packages(worker))
        await database.close()


async def hop_sums(site: Site) -> dict[str, tuple[float, float]]:
    """Return, for each hop in `_HOPS`, the sum and the count of its histogram in the processes' metrics."""
    values: dict[str, str] = {}
    async with httpx.AsyncClient(trust_env=False) as client:
        for role in ("ironic_sync", "placement"):
            answer = await client.get(f"http://127.0.0.1:{site.metrics_port(role)}/metrics")
            lines = (line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
            # A process reports 0 for the metrics of other workers.
            values |= {name: value for name, value in lines if value != "0.0"}
    found = {}
    for hop, metric in _HOPS.items():
        name, brace, labels = metric.partition("{")
        total, count = (float(values.get(f"{name}_{end}{brace}{labels}", 0)) for end in ("sum", "count"))
        found[hop] = total, count
    return found


def hop_means(before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]]) -> str:
    """Return the mean time in each hop between two results of `hop_sums`, as text."""
    means = []
    for hop, (total, count) in after.items():
        since = count - before[hop][1]
        means.append(f"{hop} {1000 * (total - before[hop][0]) / since:.1f} ms" if since else f"{hop} –")
    return ", ".join(means)


@contextmanager
def processes(site: Site) -> Iterator[dict[int, str]]:
    """Run all processes of the site until the block ends; yield their roles by process id."""
    text = msgspec.json.encode(site).decode()
    roles = site.roles
    running = [subprocess.Popen([sys.executable, "-m", "bench.ironic_site", role, text]) for role in roles]
    try:
        yield {process.pid: role for process, role in zip(running, roles, strict=True)}
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()


def main() -> None:
    role, text = sys.argv[1:]
    work = _serve(msgspec.convert(json.loads(text), Site), role)
    try:
        import uvloop

        uvloop.run(work)
    except ImportError:
        asyncio.run(work)


if __name__ == "__main__":
    main()
