"""Tests of operators' drivers of hypervisors and hardware. A test's docstring is the rule that it checks."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from bus.messages import BuildOrdered
from bus.reports import HostState
from bus.resources import AllocationsFound, Consumer, FindAllocations
from bus.vocabulary import Allocations
from compute_sim.agent import SimulatedAgent
from compute_sim.agent_disk import AgentDisk
from compute_sim.core.faults import SimOptions
from compute_sim.driver_kit.stand import AGENT, CELL, DriverStand, Rule, RuleBroken
from compute_sim.guest_driver import DriverError
from compute_sim.recovery import GuestRecovery

INTERRUPTED_AFTER = (0.0, 0.01, 0.1)  # seconds
IMPOSSIBLE_MB = 2**31 - 1  # memory that no host has


async def _tree_is_valid(stand: DriverStand) -> None:
    """A driver of hardware must give a host a provider tree with resources and valid names and amounts."""
    tree = stand.tree()
    if not any(provider.inventories for provider in tree.providers):
        raise RuleBroken("no provider has an inventory")
    msgspec.json.encode(tree.report())


async def _tree_is_stable(stand: DriverStand) -> None:
    """If nothing has changed, a driver of hardware must return the same provider tree at each call."""
    if stand.tree().report() != stand.tree().report():
        raise RuleBroken("update_provider_tree added other contents at the second call")


async def _hosts_are_separate(stand: DriverStand) -> None:
    """A driver of hardware must give the providers of different hosts different names."""
    first, second = ({provider.name for provider in stand.tree(number).providers} for number in range(2))
    if both := sorted(first & second):
        raise RuleBroken(f"both hosts have a provider {both[0]}: begin its name with tree.name")


async def _facts_are_valid(stand: DriverStand) -> None:
    """The properties of the hypervisor that facts() returns must be valid in a heartbeat."""
    facts = stand.guest_driver.facts()
    state = HostState(
        root=stand.roots[0],
        host=stand.hosts[0],
        hypervisor=facts.hypervisor,
        hypervisor_version=facts.version,
        architecture=facts.architecture,
        vm_modes=facts.vm_modes,
        capabilities=dict(facts.capabilities),
        metrics=dict(facts.metrics),
    )
    msgspec.json.decode(msgspec.json.encode(state), type=HostState)


async def _create_runs(stand: DriverStand) -> None:
    """After create(), the guest must run, and guests() must return its build, attempt and host."""
    guest = stand.guest()
    await stand.guest_driver.create(guest, stand.spec)
    await stand.expect(guest.build, (0, 1, "running"))


async def _create_repeats(stand: DriverStand) -> None:
    """After a repeated create(), only one guest must run."""
    guest = stand.guest()
    await stand.guest_driver.create(guest, stand.spec)
    await stand.guest_driver.create(guest, stand.spec)
    await stand.expect(guest.build, (0, 1, "running"))
    await stand.guest_driver.stop(guest)
    await stand.guest_driver.create(guest, stand.spec)
    await stand.expect(guest.build, (0, 1, "running"))


async def _stop_repeats(stand: DriverStand) -> None:
    """After stop(), guests() must return the guest as stopped; a repeated stop() must have no effect."""
    guest = stand.guest()
    await stand.guest_driver.create(guest, stand.spec)
    for _ in range(2):
        await stand.guest_driver.stop(guest)
        await stand.expect(guest.build, (0, 1, "stopped"))


async def _start_repeats(stand: DriverStand) -> None:
    """After start(), a stopped guest must run again; a repeated start() must have no effect."""
    guest = stand.guest()
    await stand.guest_driver.create(guest, stand.spec)
    await stand.guest_driver.stop(guest)
    for _ in range(2):
        await stand.guest_driver.start(guest)
        await stand.expect(guest.build, (0, 1, "running"))


async def _destroy_repeats(stand: DriverStand) -> None:
    """After destroy(), guests() must not return the guest; destroy() without a guest must have no effect."""
    guest = stand.guest()
    await stand.guest_driver.destroy(guest)
    await stand.guest_driver.create(guest, stand.spec)
    for _ in range(2):
        await stand.guest_driver.destroy(guest)
        await stand.expect(guest.build)


async def _guests_are_separate(stand: DriverStand) -> None:
    """A hypervisor driver's call for one guest must not change guests of other builds, attempts or hosts."""
    build = stand.new_build()
    guests = [stand.guest(build, 1), stand.guest(build, 2), stand.guest(build, 1, 1)]
    for guest in guests:
        await stand.guest_driver.create(guest, stand.spec)
    await stand.guest_driver.stop(guests[1])
    await stand.expect(build, (0, 1, "running"), (0, 2, "stopped"), (1, 1, "running"))
    await stand.guest_driver.destroy(guests[0])
    await stand.expect(build, (0, 2, "stopped"), (1, 1, "running"))


async def _interruption_leaves_nothing(stand: DriverStand) -> None:
    """After an interrupted create(), a new create() must complete the guest, and destroy() remove it."""
    for seconds in INTERRUPTED_AFTER:
        guest = stand.guest()
        try:
            async with asyncio.timeout(seconds):
                await stand.guest_driver.create(guest, stand.spec)
        except TimeoutError:
            pass
        await stand.guest_driver.create(guest, stand.spec)
        await stand.expect(guest.build, (0, 1, "running"))
        await stand.guest_driver.destroy(guest)
        await stand.expect(guest.build)


async def _failure_is_reported(stand: DriverStand) -> None:
    """If a host cannot hold a guest, create() must raise DriverError, and destroy() must remove all parts."""
    guest = stand.guest()
    flavor = replace(stand.flavor, memory_mb=IMPOSSIBLE_MB)
    allocations: Allocations = {stand.roots[0]: {"MEMORY_MB": IMPOSSIBLE_MB}}
    try:
        impossible = replace(guest, allocations=allocations)
        await stand.guest_driver.create(impossible, replace(stand.spec, flavor=flavor))
    except DriverError as problem:
        if not problem.cause:
            raise RuleBroken("the DriverError has no cause") from None
    else:
        raise RuleBroken(f"a guest with {IMPOSSIBLE_MB} MB of memory was created")
    await stand.guest_driver.destroy(guest)
    await stand.expect(guest.build)


async def _restart_finds_guests(stand: DriverStand) -> None:
    """A new driver object must find, stop, start and destroy the guests that an earlier object created."""
    guest = stand.guest()
    await stand.guest_driver.create(guest, stand.spec)
    stand.restart()
    await stand.expect(guest.build, (0, 1, "running"))
    await stand.guest_driver.stop(guest)
    stand.restart()
    await stand.expect(guest.build, (0, 1, "stopped"))
    await stand.guest_driver.start(guest)
    await stand.guest_driver.destroy(guest)
    await stand.expect(guest.build)


def _agent(
    stand: DriverStand, disk: AgentDisk, holders: Mapping[str, Allocations] | None = None
) -> SimulatedAgent:
    async def allocations(question: FindAllocations) -> AllocationsFound:
        found = tuple(
            Consumer(id=id_, generation=1, project="p", user="u", type="INSTANCE", allocations=held)
            for id_, held in (holders or {}).items()
            if id_ in question.consumers
        )
        return AllocationsFound(consumers=found, generations={})

    ask = allocations if holders is not None else None
    return SimulatedAgent(AGENT, SimOptions(), disk, allocations=ask, driven=stand.driven)


async def _built(agent: SimulatedAgent, order: BuildOrdered) -> None:
    report = await agent.build(order)
    if report is None or report.outcome != "built":
        raise RuleBroken(f"the agent reported {report.cause or report.outcome if report else 'nothing'}")


async def _agent_ignores_late_orders(stand: DriverStand) -> None:
    """If a build order is repeated, an agent must create only one guest; after an order to destroy, none."""
    agent, build = _agent(stand, AgentDisk()), stand.new_build()
    order = stand.build_order(build)
    await asyncio.gather(_built(agent, order), _built(agent, order))
    await stand.expect(build, (0, 1, "running"))
    await agent.destroy(stand.destroy_order(build))
    await agent.destroy(stand.destroy_order(build))
    await stand.expect(build)
    late = await agent.build(order)
    await stand.expect(build)
    if late is None or late.outcome != "destroyed":
        raise RuleBroken("the agent did not report the late order as destroyed")


async def _agent_interrupts_a_build(stand: DriverStand) -> None:
    """A deletion during a build must leave no guest, even if the agent has no record of the guest."""
    agent, build = _agent(stand, AgentDisk()), stand.new_build()
    async with asyncio.TaskGroup() as group:
        group.create_task(agent.build(stand.build_order(build)))
        await asyncio.sleep(0)
        await agent.destroy(stand.destroy_order(build))
    await stand.expect(build)
    await stand.guest_driver.create(stand.guest(build, 2), stand.spec)
    await _agent(stand, AgentDisk()).destroy(stand.destroy_order(build, 2))
    await stand.expect(build)


async def _agent_restarts(stand: DriverStand) -> None:
    """A restarted agent must start the guests that placement has on its host, and destroy all others."""
    disk, ours, departed = AgentDisk(), stand.new_build(), stand.new_build()
    for build in (ours, departed):
        await _built(_agent(stand, disk), stand.build_order(build))
    stand.restart()
    await stand.guest_driver.stop(stand.guest(ours))
    disk.lose_power()
    agent = _agent(stand, disk, {ours: stand.allocations()})
    await GuestRecovery(agent, CELL, stand.clock, None).check()
    await stand.expect(ours, (0, 1, "running"))
    await stand.expect(departed)


RULES: Mapping[str, Sequence[Rule]] = {
    "inventory": (_tree_is_valid, _tree_is_stable, _hosts_are_separate),
    "guests": (
        _facts_are_valid,
        _create_runs,
        _create_repeats,
        _stop_repeats,
        _start_repeats,
        _destroy_repeats,
        _guests_are_separate,
        _interruption_leaves_nothing,
        _failure_is_reported,
        _restart_finds_guests,
    ),
    "agent": (_agent_ignores_late_orders, _agent_interrupts_a_build, _agent_restarts),
}
