"""Declares the orders that a simulated agent handles, and the reports that it sends."""

from collections.abc import Sequence

from bus import topics
from bus.clock import Clock
from bus.protocol import Ask
from bus.resources import AllocationsFound, FindAllocations, FindProviders, ProvidersFound
from bus.topics import AGENT_REPORT
from bus.worker import Worker, every, on
from compute_sim.agent import SimulatedAgent
from compute_sim.agent_disk import AgentDisk
from compute_sim.core.faults import SimOptions
from compute_sim.driven_guests import DrivenGuests
from compute_sim.extension import AgentPart
from compute_sim.machines import SimAgent
from compute_sim.recovery import GuestRecovery
from compute_sim.reporting import HostReports, HostTrees


def compute_sim(
    sim_agent: SimAgent,
    options: SimOptions | None = None,
    *,
    clock: Clock | None = None,
    disk: AgentDisk | None = None,
    # queried for the sequence numbers of earlier reports: new reports must have higher numbers
    providers: Ask[FindProviders, ProvidersFound] | None = None,
    # queried after an absence for the guests to run, and after a reshape for the guests' allocations
    allocations: Ask[FindAllocations, AllocationsFound] | None = None,
    parts: Sequence[AgentPart] = (),
) -> Worker:
    """Return a worker that simulates an agent and its hosts. A later worker with the same `disk` continues
    as after a restart of the agent. `providers` and `allocations` query placement.
    """
    clock, disk, options = clock or Clock(), disk or AgentDisk(), options or SimOptions()
    trees = HostTrees(sim_agent, disk)
    drivers = {host.root: host.guest_driver for host in sim_agent.hosts}
    driven = DrivenGuests({root: driver for root, driver in drivers.items() if driver is not None})
    agent = SimulatedAgent(sim_agent.agent, options, disk, trees.use_changed, allocations, driven)
    recovery = GuestRecovery(agent, sim_agent.cell, clock, providers, options.keeps_unknown_guests)
    reports = HostReports(sim_agent, agent, trees, options, clock, providers, parts)
    address, concurrency = {"cell": sim_agent.cell, "agent": sim_agent.agent}, options.concurrency
    worker = Worker(
        f"agent.{sim_agent.cell}.{sim_agent.agent}",
        consumes=[
            on(topics.AGENT_BUILD.at(**address), agent.build, emits=[AGENT_REPORT], concurrency=concurrency),
            on(topics.AGENT_DESTROY.at(**address), agent.destroy, emits=[AGENT_REPORT]),
            on(topics.AGENT_ASKED.at(**address), agent.report_guests, emits=[topics.AGENT_GUESTS]),
        ],
        asks=[
            *([topics.CELL_PROVIDERS] if providers else []),
            *([topics.CELL_ALLOCATIONS] if allocations else []),
        ],
        timers=[
            every(0.5, recovery.check, emits=[AGENT_REPORT], at_once=True),
            every(reports.beat_every, reports.beat, emits=[topics.HOST_REPORTED], at_once=True),
            every(0.1, reports.announce, emits=[topics.INVENTORY_REPORTED, topics.IRONIC_NODE], at_once=True),
        ],
    )
    return worker.with_rows([part.rows(agent, sim_agent.cell) for part in parts])
