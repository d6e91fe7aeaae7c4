"""Measures how fast requests are handled that arrived while every worker was down, and the memory used.

A berth is started once, so that its hosts and queues exist, and stopped. Requests are published to the
broker, which stores them; then the berth starts again and all requests must end.
"""

import asyncio
from contextlib import ExitStack

import uvloop

from bench.figures import Figure
from bench.loading import BenchBerth, berth_on, berth_up, check_clean
from bench.own_servers import broker_and_database
from bench.processes import memory
from berth import composition
from berth.loadtest import Load, LoadOutcome, LoadPlan, mixed
from bus.delivery.runner import Bus

PATIENCE = 600.0  # seconds until the first build must have ended


def measure(requests: int, hosts: int = 10_000, flavors: int = 20) -> tuple[Figure, ...]:
    with broker_and_database() as (amqp_url, database_url):
        berth = berth_on(amqp_url, database_url, hosts, simulator_fail=0.1)
        with berth_up(berth.environment, hosts):
            pass
        plan = LoadPlan(boots=requests, window=requests, flavors=mixed(flavors), patience=PATIENCE)
        outcome, most = uvloop.run(_worked_off(berth, plan, hosts))
        berth.judge()
    check_clean(outcome)
    ends = sorted(boot.ended for boot in outcome.boots.values())
    return (
        Figure(f"{requests:,} worked off", (len(ends) - 1) / max(ends[-1] - ends[0], 0.001), "/s", "up"),
        *(Figure(f"most memory of {worker}", had, "MB", "down", "") for worker, had in most.items()),
    )


async def _worked_off(berth: BenchBerth, plan: LoadPlan, hosts: int) -> tuple[LoadOutcome, dict[str, float]]:
    async with Bus(composition.transport(berth.settings, "bench")) as bus, asyncio.TaskGroup() as group:
        load = Load(bus, plan)
        running = group.create_task(load.run())
        while load.open < plan.boots:
            await asyncio.sleep(0.1)
        with ExitStack() as stack:
            await asyncio.to_thread(stack.enter_context, berth_up(berth.environment, hosts))
            outcome = await running
            return outcome, memory("VmHWM")
