"""Measures a scheduler's replica of placement's index: time to load it, its memory, and the cost of changes.

    python -m bench.replica [--hosts 10000,100000] [--claims 20000]

PostgreSQL, RabbitMQ, one placement worker and the replica, each a process. The hosts are flat and equal, in
several cells, with different usages. RSS is the growth of the replica's process; the cost of changes is its
processor time per claim.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from time import process_time
from typing import Any

from rich.console import Console
from sqlalchemy import text

from bench.figures import figure_table
from bench.loading import a_worker, placement_answers
from bench.own_servers import broker_and_database, of_berth, running
from bench.processes import processor_time
from berth.composition import open_placement
from berth.features import packages
from berth.settings import Settings
from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim
from bus.clock import Clock, monotonic
from bus.delivery.runner import Bus
from bus.rabbit import RabbitTransport
from bus.sql.database import Database
from bus.sql.migrations import migrate
from placement_worker import BusReader, replica

TRAITS = 12
PER_ORDER = 100  # claims in one message
STOCK = (("VCPU", 64, 0, 4.0), ("MEMORY_MB", 262_144, 4096, 1.0), ("DISK_GB", 2000, 0, 1.0))
ASKED = {"VCPU": 1, "MEMORY_MB": 1}
UUID = "lpad(to_hex(n), 8, '0') || '-0000-4000-8000-' || lpad(to_hex(n), 12, '0')"


async def fill(url: str, hosts: int) -> None:
    """Insert hosts into placement's database as agents' reports would."""
    database = Database(url, namespace="placement")
    await migrate(database, *packages("placement"))
    await open_placement(Settings(), database, Clock()).start()
    every = f"FROM generate_series(1, {hosts}) AS n"
    now = "0, 0"
    async with database.unhurried() as slow, slow.write() as tx:

        async def do(statement: str) -> None:
            await tx.execute(text(statement))

        await do(
            "INSERT INTO resource_providers (id, uuid, name, generation, shape, root_provider_id, reported,"
            " created_at, updated_at)"
            f" SELECT n, {UUID}, 'host-' || n, 1 + n % 1000, 1, n, true, {now} {every}"
        )
        await do(
            "INSERT INTO hosts (root, cell, agent, host, zone, sequence, gone, created_at, updated_at)"
            f" SELECT {UUID}, 'c' || n % 10, 'agent-' || n % 500, 'host-' || n, 'az' || n % 3, 1, false,"
            f" {now} {every}"
        )
        for name, total, reserved, ratio in STOCK:
            await do(
                "INSERT INTO inventories (resource_provider_id, resource_class_id, total, reserved, min_unit,"
                " max_unit, step_size, allocation_ratio, used, created_at, updated_at)"
                f" SELECT n, c.id, {total}, {reserved}, 1, {total}, 1, {ratio},"
                f" floor(random() * {total // 2}), {now} {every},"
                f" resource_classes c WHERE c.name = '{name}'"
            )
        await do(
            "INSERT INTO resource_provider_traits (resource_provider_id, trait_id, created_at, updated_at)"
            f" SELECT n, t.id, {now} {every}, (SELECT id FROM traits WHERE name LIKE 'HW_CPU_X86_%'"
            f" ORDER BY id LIMIT {TRAITS}) t"
        )
        await do(
            f"INSERT INTO changes (id, number) VALUES (4, {hosts}) ON CONFLICT (id) DO UPDATE"
            f" SET number = {hosts}"
        )
    await database.close()


def measure(hosts: int, claims: int) -> dict[str, float]:
    with ExitStack() as stack:
        amqp_url, database_url = stack.enter_context(broker_and_database())
        asyncio.run(fill(database_url, hosts))
        stack.enter_context(a_worker(of_berth(amqp_url, database_url, 1, 1), "placement"))
        asyncio.run(answering(amqp_url))
        before = processor_time()
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        following = stack.enter_context(running("bench.replica", "--follow", amqp_url, **pipes))
        loaded = _figures(following)
        spent: defaultdict[str, float] = defaultdict(float)
        for one, seconds in processor_time().items():
            spent[one[1]] += seconds - before.get(one, 0.0)
        last = asyncio.run(claim(amqp_url, hosts, claims))
        assert following.stdin is not None
        print(last, file=following.stdin, flush=True)
        followed = _figures(following)
    return {
        "loading, s": loaded["seconds"],
        "processor time of it, s": loaded["processor"],
        "... of placement, s": spent["placement"],
        "... of PostgreSQL, s": spent["PostgreSQL"],
        "... of RabbitMQ, s": spent["RabbitMQ"],
        "RSS grown by, MB": loaded["megabytes"],
        "following, µs a claim": followed["processor"] / claims * 1e6,
        "claims a message": claims / followed["messages"],
    }


def _figures(one: "subprocess.Popen[str]") -> dict[str, float]:
    assert one.stdout is not None
    figures: dict[str, float] = json.loads(one.stdout.readline())
    return figures


def transport(url: str) -> RabbitTransport:
    return RabbitTransport(url, exchange="berth", quorum=True, coalesce=True, name="bench")


async def answering(url: str) -> None:
    async with Bus(transport(url)) as bus:
        await placement_answers(bus)


async def claim(url: str, hosts: int, claims: int) -> int:
    """Claim resources on many hosts; return the change number of the last claim."""
    last = 0
    async with Bus(transport(url)) as bus:
        ask = bus.asker_of_many(topics.CLAIM, timeout=60.0)
        for first in range(0, claims, PER_ORDER):
            orders = [
                ClaimRequested(
                    claims=(
                        ConsumerClaim(
                            consumer=bus.clock.uuid(),
                            generation=None,
                            choices=(
                                Choice({_uuid((first + position) % hosts + 1): {"VCPU": 1, "MEMORY_MB": 1}}),
                            ),
                        ),
                    )
                )
                for position in range(PER_ORDER)
            ]
            for answer in await ask(orders):
                (result,) = answer.results
                assert isinstance(result, Claimed), result
                last = max(last, result.number)
    return last


def _uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


async def follow(url: str) -> None:
    """Run the replica's process; print the cost of loading, and of the changes up to the change number that
    standard input gives.
    """
    async with Bus(transport(url)) as bus, asyncio.TaskGroup() as group:
        ask = bus.asker
        reader = BusReader(ask(topics.TREES), ask(topics.CHANGES), ask(topics.AGGREGATES), ask(topics.CELLS))
        kept, worker = replica(reader, bus.clock)
        await asyncio.sleep(0)
        before, spent, began = _megabytes(), process_time(), monotonic()
        stopping = asyncio.Event()
        group.create_task(bus.serve(worker, stopping))
        await kept.loaded()
        print_figures(
            seconds=monotonic() - began, processor=process_time() - spent, megabytes=_megabytes() - before
        )
        spent, seen = process_time(), kept.index.seen
        last = int(await asyncio.to_thread(sys.stdin.readline))
        while kept.index.seen < last:
            await asyncio.sleep(0.01)
        print_figures(processor=process_time() - spent, messages=last - seen)
        stopping.set()


def print_figures(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def _megabytes() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default="10000,100000")
    parser.add_argument("--claims", type=int, default=20_000)
    parser.add_argument("--follow", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.follow:
        asyncio.run(follow(given.follow))
        return
    sizes = [int(count) for count in given.hosts.split(",")]
    figures = [measure(size, given.claims) for size in sizes]
    title = "a replica of placement's memory: flat hosts"
    table = figure_table(title, "", *(f"{size:,}" for size in sizes))
    for name in figures[0]:
        table.add_row(name, *(f"{figure[name]:,.1f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
