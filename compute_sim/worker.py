"""The table of a simulated agent: the orders it handles and the reports it sends."""

from collections.abc import Sequence

from bus.clock import Clock
from bus.protocol import Ask
from bus.resources import AllocationsFound, FindAllocations, FindProviders, ProvidersFound
from bus.topics import (
    AGENT_ASKED,
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_MOVE,
    AGENT_MOVED,
    AGENT_REPORT,
    AGENT_TOLD,
    CELL_ALLOCATIONS,
    CELL_PROVIDERS,
    HOST_REPORTED,
    INVENTORY_REPORTED,
    IRONIC_NODE,
)
from bus.worker import Worker, every, on
from compute_sim.agent import SimulatedAgent
from compute_sim.core.faults import CrashPlan, FaultPlan
from compute_sim.disk import AgentDisk
from compute_sim.host_trees import HostTrees
from compute_sim.machines import SimAgent, SimHost
from compute_sim.moving import SimulatedMoves
from compute_sim.recovery import GuestRecovery
from compute_sim.reporting import HostReports

LEAST_ABSENCE = 5.0  # seconds: a busy machine may be slow


def compute_sim(
    agent: str,
    cell: str,
    hosts: Sequence[SimHost],
    *,
    faults: FaultPlan | None = None,
    crashes: CrashPlan | None = None,
    period: float = 10.0,
    announce_every: float = 300.0,
    progress_every: float = 2.0,
    concurrency: int = 5000,
    clock: Clock | None = None,
    disk: AgentDisk | None = None,
    providers: Ask[FindProviders, ProvidersFound] | None = None,
    allocations: Ask[FindAllocations, AllocationsFound] | None = None,
    spares_unknown: bool = False,
) -> Worker:
    """Return an agent with these hosts, with the given faults and power failures.

    With `providers` its reports count even if an earlier run's clock was ahead. With `allocations` too, it
    learns the allocations of guests on reshaped hosts, and their ownership after an absence. State on its
    `disk` survives.
    """
    clock = clock or Clock()
    disk = disk or AgentDisk()
    trees = HostTrees(hosts, cell, agent, disk)
    does = SimulatedAgent(
        agent, faults or FaultPlan(), crashes or CrashPlan(), disk, trees.use_changed, allocations,
        absent_after=max(period, LEAST_ABSENCE),
    )  # fmt: skip
    moves = SimulatedMoves(does)
    recovery = GuestRecovery(does, cell, clock, providers, spares_unknown)
    who = SimAgent(agent, cell, tuple(hosts))
    tells = HostReports(who, does, trees, period, announce_every, clock, providers, allocations)
    return Worker(
        f"agent.{cell}.{agent}",
        consumes=[
            on(
                AGENT_BUILD.at(cell=cell, agent=agent),
                does.build,
                emits=[AGENT_REPORT],
                concurrency=concurrency,
            ),
            on(AGENT_DESTROY.at(cell=cell, agent=agent), does.destroy, emits=[AGENT_REPORT]),
            on(AGENT_ASKED.at(cell=cell, agent=agent), does.report_guests, emits=[AGENT_TOLD]),
            on(
                AGENT_MOVE.at(cell=cell, agent=agent),
                moves.move,
                emits=[AGENT_MOVED],
                concurrency=concurrency,
            ),
        ],
        asks=[*([CELL_PROVIDERS] if providers else []), *([CELL_ALLOCATIONS] if allocations else [])],
        timers=[
            every(0.5, recovery.check, emits=[AGENT_REPORT], at_once=True),
            every(progress_every, moves.progress, emits=[AGENT_MOVED]),
            every(tells.beat_every, tells.beat, emits=[HOST_REPORTED], at_once=True),
            every(0.1, tells.announce, emits=[INVENTORY_REPORTED, IRONIC_NODE], at_once=True),
        ],
    )
