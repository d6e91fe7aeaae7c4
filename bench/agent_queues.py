"""Compares agents with queues of their own and agents that share queues, under the same rate of boots.

    python -m bench.agent_queues [--agents 100] [--rate 300] [--seconds 40] [--turns 3]

Each turn measures both settings, one after the other, each on new servers. Every agent has a connection of
its own; the agents of a cell run in one process, because a hundred processes of agents would use most
processor time of this machine. In a region, agents run on other machines.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import uvloop

from bench.loading import BenchBerth, LoadedBoots, a_worker, berth_on
from bench.own_servers import own_directory, running
from bench.processes import parts_of
from berth import composition, worker_roles
from berth.configuration import read
from berth.loadtest import LoadPlan, mixed
from berth.services import stop_on_signals
from berth.settings import Settings
from deploy.servers import Postgres, RabbitMQ

KINDS = ("own", "shared")
_CONNECTING = 10  # agents that connect at a time
_WARMING = 1000  # boots before the measured boots


@dataclass(frozen=True)
class AgentQueuesTurn:
    """One measurement: the boots, the durable queues on the broker, and the load of the machine."""

    kind: str
    boots: LoadedBoots
    queues: int
    machine: float

    @property
    def figures(self) -> tuple[float, ...]:
        boots = self.boots
        return boots.outcome.per_second, boots.in_all, boots.latency(0.5), boots.latency(0.99)


def main() -> None:
    if sys.argv[1:2] == ["berth"]:  # the process of a cell's agents; bench/processes.py reads its words
        uvloop.run(_run_agents(sys.argv[-1]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--rate", type=float, default=300.0, help="boots a second")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    print(f"{'':14} {'boots/s':>8} {'CPU/boot':>8} {'p50 ms':>8} {'p99 ms':>8}  queues  load  of which")
    turns = []
    for turn in range(given.turns):
        for kind in KINDS if turn % 2 == 0 else KINDS[::-1]:
            turns.append(_measured(kind, given))
            _show(turns[-1])
    for kind in KINDS:
        figures = zip(*(turn.figures for turn in turns if turn.kind == kind), strict=True)
        print(f"median {kind:7} " + " ".join(f"{median(values):8.2f}" for values in figures))


def _measured(kind: str, given: argparse.Namespace) -> AgentQueuesTurn:
    with (
        own_directory() as directory,
        RabbitMQ(directory / "rabbitmq") as rabbitmq,
        Postgres(directory / "postgres") as postgres,
    ):
        berth = berth_on(
            rabbitmq.url, postgres.url, given.hosts, given.cells, state_dir=str(directory / "state"),
            simulator_agents_per_cell=given.agents // given.cells, agent_queues=kind,
        )  # fmt: skip
        with _workers(berth):
            berth.load(LoadPlan(boots=_WARMING, rate=given.rate, flavors=mixed(20)))
            run = berth.load(
                LoadPlan(boots=int(given.rate * given.seconds), rate=given.rate, flavors=mixed(20), seed=2)
            )
            machine = os.getloadavg()[0]
            queues = _durable_queues(rabbitmq)
    return AgentQueuesTurn(kind, run, queues, machine)


@contextmanager
def _workers(berth: BenchBerth) -> Iterator[None]:
    cells = berth.settings.cell_names
    with ExitStack() as stack:
        stack.enter_context(a_worker(berth.environment, "placement"))
        for cell in cells:
            stack.enter_context(a_worker(berth.environment, "conductor", "--cell", cell))
            words = ("bench.agent_queues", "berth", "run", "compute", "--cell", cell)
            stack.enter_context(running(*words, env=berth.environment, stderr=subprocess.DEVNULL))
        stack.enter_context(a_worker(berth.environment, "scheduler"))
        yield


async def _run_agents(cell: str) -> None:
    settings = read().settings
    stopping, connecting = asyncio.Event(), asyncio.Semaphore(_CONNECTING)
    stop_on_signals(stopping)
    async with asyncio.TaskGroup() as group:
        for agent in worker_roles.agents_of(cell, settings):
            group.create_task(_run_agent(cell, agent, settings, connecting, stopping))


async def _run_agent(
    cell: str, agent: str, settings: Settings, connecting: asyncio.Semaphore, stopping: asyncio.Event
) -> None:
    role = worker_roles.Role("compute", cell, agent)
    way = composition.transport(settings, str(role), cell)
    async with connecting:
        serving = asyncio.create_task(composition.serve([role], settings, way, stopping))
        await asyncio.wait([serving], timeout=1.0)  # `serve` returns only when it is stopped
    await serving


def _durable_queues(rabbitmq: RabbitMQ) -> int:
    listed = json.loads(rabbitmq.control("list_queues", "name", "type", "--formatter", "json"))
    return Counter("quorum" in str(queue["type"]) for queue in listed)[True]


def _show(turn: AgentQueuesTurn) -> None:
    figures = " ".join(f"{value:8.2f}" for value in turn.figures)
    print(
        f"{turn.kind:14} {figures}  {turn.queues:6}  {turn.machine:4.1f}  {parts_of(turn.boots.cost)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
