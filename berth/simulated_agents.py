"""Makes the simulated agents from the settings, with their hosts, faults and files."""

from __future__ import annotations

from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from berth import __version__
from berth.features import parts_of
from berth.settings import BadSetting, Settings, SimulatorSettings
from bus import topics
from bus.agent_builds import AgentBuilds
from bus.broker_urls import vhost_of
from bus.delivery.runner import Bus
from bus.sql.addresses import parse_url
from bus.worker import Worker
from compute_sim.agent_disk import AgentDisk, GuestFile
from compute_sim.core.faults import CrashPlan, Durations, FaultPlan, MoveFaults, SimOptions
from compute_sim.extension import AgentNeeds, ForAgent
from compute_sim.machines import BadMachine, Hardware, SimAgent, fleet, machines
from compute_sim.worker import compute_sim

if TYPE_CHECKING:
    from berth.worker_roles import Role


def agents(settings: Settings) -> list[SimAgent]:
    """Return the simulated agents that the settings describe."""
    simulator = settings.simulator
    try:
        hardware = Hardware(
            zones=simulator.zones or ("",),
            architectures=simulator.architectures or ("x86_64",),
            machines=machines(simulator.drivers, simulator.machines, simulator.provider_config),
            baremetal=simulator.baremetal,
            labels={level: int(several) for level, several in simulator.labels.items() if several >= 1},
        )
    except BadMachine as problem:
        raise BadSetting(f"simulator.drivers: {problem}") from None
    per_cell = simulator.agents_per_cell
    return fleet(settings.cell_names, simulator.hosts, per_cell, seed=simulator.seed, hardware=hardware)


def at_work(role: Role, settings: Settings, bus: Bus, disks: ExitStack | None) -> list[Worker]:
    """Return the simulated agents of a role as workers; the exit stack `disks` closes the files of their
    guests (None: agents without files).
    """
    simulator = settings.simulator
    options = SimOptions(
        faults=_faults(simulator),
        crashes=CrashPlan(seed=simulator.seed, orders=simulator.crash_after),
        period=settings.agents.heartbeat,
        keeps_unknown_guests=settings.agents.keep_unknown_guests,
        version=__version__,
        probe_port=settings.agents.probe_port,
        probe_command=settings.agents.probe_command,
    )
    parts = parts_of(ForAgent, "agent", AgentNeeds(options=options), settings)
    found = []
    for agent in agents(settings):
        if agent.cell != role.cell or role.agent not in ("", agent.agent):
            continue
        disk = None
        if disks is not None:
            builds = AgentBuilds(seconds=settings.keep.ended)
            disk = AgentDisk(builds, file=GuestFile(guest_file(settings, agent.agent)))
            disks.callback(disk.close)
        found.append(
            compute_sim(
                agent,
                options,
                clock=bus.clock,
                disk=disk,
                providers=bus.asker(topics.CELL_PROVIDERS),
                allocations=bus.asker(topics.CELL_ALLOCATIONS),
                parts=parts,
            )
        )
    return found


def guest_file(settings: Settings, agent: str) -> Path:
    """Return the path of a simulated agent's file of guests. The name depends on virtual host, exchange and
    database, but not on the servers' addresses, so a region that moves to other servers finds its file.
    """
    directory = Path(settings.database.state_dir)
    if settings.embedded:  # without a broker, and perhaps without a URL of a database
        return directory / f"{agent}.guests"
    database = parse_url(settings.database.url).url.database
    cloud = f"{vhost_of(settings.bus.amqp_url)} {settings.bus.exchange} {database}"
    return directory / f"{agent}-{blake2b(cloud.encode(), digest_size=4).hexdigest()}.guests"


def _faults(simulator: SimulatorSettings) -> FaultPlan:
    try:
        return FaultPlan(
            seed=simulator.seed,
            reschedule=simulator.fail,
            abort=simulator.abort,
            hang=simulator.hang,
            durations=Durations.parse(simulator.build_time),
            moves=MoveFaults.of_each(simulator.move_fail, simulator.move_hang),
            move_durations=Durations.parse(simulator.move_time) if simulator.move_time else None,
        )
    except ValueError as problem:
        raise BadSetting(str(problem)) from None
