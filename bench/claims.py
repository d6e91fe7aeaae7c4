"""Measures claims per second of Placement.claim_many, by claims per transaction, on PostgreSQL and SQLite.

    python -m bench.claims [--database-url URL] [--hosts N] [--seconds S]

Without a URL it starts a private PostgreSQL, and prints the processor time per claim of this process and of
PostgreSQL. Every claim takes three resource classes of one host; two transactions are in flight, as in the
worker; the relay publishes to a dummy bus. With `--hosts 1` all claims are for one host with capacity for
all, so every claim must succeed.
"""

import argparse
import asyncio
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import uvloop
from rich.console import Console

from bench.figures import figure_table
from bench.own_servers import own_directory
from bench.processes import processor_time
from berth.composition import open_placement
from berth.features import packages
from berth.operations.audit import placement_breaches
from berth.settings import Settings
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim
from bus.clock import Clock, monotonic
from bus.messages import InventoryReported
from bus.reports import Inventory, ProviderReport
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from deploy.servers import Postgres
from placement_worker import Placement

BATCHES = (1, 10, 50, 200)
IN_FLIGHT = 2
ASKED = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
ROOM = {
    "VCPU": Inventory(total=2**30),
    "MEMORY_MB": Inventory(total=2**31 - 1),
    "DISK_GB": Inventory(total=2**30),
}


async def fleet(placement: Placement, hosts: int) -> list[tuple[str, int]]:
    """Create this number of hosts; return the root and the shape of each."""
    reports = [
        InventoryReported(
            root=(root := placement.clock.uuid()),
            host=f"host-{number}",
            cell="c1",
            agent=f"agent-{number}",
            sequence=1,
            providers=(ProviderReport(id=root, name=f"host-{number}", inventories=ROOM),),
        )
        for number in range(hosts)
    ]
    for at in range(0, hosts, 500):
        await placement.reports.report_many(reports[at : at + 500])
    return [(row.root, row.shapes[row.root]) for row in placement.memory.index.rows.values()]


def order(clock: Clock, hosts: Sequence[tuple[str, int]]) -> ClaimRequested:
    root, shape = clock.chance.choice(hosts)
    choice = Choice({root: ASKED}, {root: shape})
    return ClaimRequested(claims=(ConsumerClaim(consumer=clock.uuid(), generation=None, choices=(choice,)),))


class Figures(NamedTuple):
    a_second: float
    ours: float  # this process's microseconds of processor time per claim
    theirs: float  # PostgreSQL's, if this benchmark started it


async def claims_a_second(
    placement: Placement, hosts: Sequence[tuple[str, int]], batch: int, seconds: float
) -> Figures:
    made = 0
    ours, theirs = time.process_time(), _postgres_seconds()
    until = monotonic() + seconds
    started = monotonic()

    async def claim() -> None:
        nonlocal made
        while monotonic() < until:
            orders = [order(placement.clock, hosts) for _ in range(batch)]
            answers = await placement.claims.claim_many(orders)
            assert all(isinstance(answer.results[0], Claimed) for answer in answers)
            made += len(answers)

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(claim())
    return Figures(
        made / (monotonic() - started),
        (time.process_time() - ours) * 1e6 / made,
        (_postgres_seconds() - theirs) * 1e6 / made,
    )


def _postgres_seconds() -> float:
    return sum(seconds for (_, kind), seconds in processor_time().items() if kind == "PostgreSQL")


async def measure(url: str, namespace: str, hosts: int, seconds: float) -> list[Figures]:
    async def to_nobody(*messages: Message) -> None:
        await asyncio.sleep(0)

    clock = Clock(chance=random.Random(1))
    database = Database(url, namespace=namespace)
    try:
        await migrate(database, *packages("placement"))
        placement = open_placement(Settings(), database, clock)
        await placement.start()
        known = await fleet(placement, hosts)
        relay = asyncio.create_task(placement.log.relay.run(to_nobody))
        await claims_a_second(placement, known, 50, min(1.0, seconds))  # warm-up
        figures = [await claims_a_second(placement, known, batch, seconds) for batch in BATCHES]
        relay.cancel()
        await asyncio.wait([relay])
        if broken := await placement_breaches(database):
            raise SystemExit(f"breaches: {broken[:3]}")
        return figures
    finally:
        await database.close()


@contextmanager
def databases(url: str | None) -> Iterator[list[tuple[str, str, str]]]:
    """Yield the databases to measure, each as name, URL and namespace."""
    with own_directory() as directory, ExitStack() as stack:
        url = url or stack.enter_context(Postgres(directory / "postgres")).url
        lite = ("SQLite", f"sqlite+aiosqlite:///{directory}/", "placement")
        yield [("PostgreSQL", url, f"bench_{secrets.token_hex(4)}"), lite]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database-url")
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    title = f"claims/s, {given.hosts} hosts, 3 classes each, {IN_FLIGHT} transactions in flight"
    table = figure_table(title, "", *(f"{batch} a transaction" for batch in BATCHES), "200 : 1")
    with databases(given.database_url) as measured:
        for name, url, namespace in measured:
            figures = uvloop.run(measure(url, namespace, given.hosts, given.seconds))
            ratio = f"{figures[-1].a_second / figures[0].a_second:.0f} x"
            table.add_row(name, *(f"{figure.a_second:,.0f}" for figure in figures), ratio)
            spent = (f"{figure.ours:,.0f} + {figure.theirs:,.0f}" for figure in figures)
            table.add_row("µs a claim", *spent, "", style="dim")
    Console().print(table)


if __name__ == "__main__":
    main()
