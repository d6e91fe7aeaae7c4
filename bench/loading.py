"""Starts a berth in service mode on new servers, and runs the measured loads on it.

The load runs in the process of the benchmark, so that its cost is measured separately. The audit reads every
build, so it runs after the measurement.
"""

import argparse
import asyncio
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import uvloop

from bench.own_servers import broker_and_database, of_berth, own_directory, running, started
from bench.processes import in_all, processor_time, share_of
from berth import composition
from berth.commands.run import ready
from berth.kit.publishing import repeated_until_answered
from berth.loadtest import Load, LoadOutcome, LoadPlan
from berth.operations.audit import audit
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.host_health import FindHostHealth
from bus.replication import FindChanges

ACTIVE = 0.98  # least share of active builds; some fail on every host that is tried
_UP_WITHIN = 240.0  # seconds; plus 100 for each 10,000 hosts
_STOPPED_WITHIN = 60.0
_PATIENCE = 120.0  # seconds until placement must answer


def load_parser(description: str | None, *, boots: int, hosts: int) -> argparse.ArgumentParser:
    """Return a parser of the options that all loads of boots have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--boots", type=int, default=boots)
    parser.add_argument("--hosts", type=int, default=hosts)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.0, help="boots a second; 0: as fast as possible")
    parser.add_argument("--fail", type=float, default=0.1)
    parser.add_argument("--mix", type=int, default=20, help="flavors in the mix")
    layouts = ("separate", "compact")
    parser.add_argument("--layout", default=layouts[0], choices=layouts, help="see `berth up`")
    return parser


class NotClean(Exception):
    """Error: a load was not completed, so its figures mean nothing."""


@dataclass(frozen=True)
class LoadedBoots:
    """The result of a load of boots, with the processor time that it used."""

    outcome: LoadOutcome
    cost: defaultdict[str, float]  # milliseconds of processor time per boot, by type of process

    @property
    def in_all(self) -> float:
        return in_all(self.cost)

    def latency(self, share: float) -> float:
        """Return this quantile of the latencies, in milliseconds."""
        return self.outcome.percentile(share) * 1000


@dataclass(frozen=True)
class BenchBerth:
    """The addresses and settings of a berth under load."""

    environment: dict[str, str]
    settings: Settings

    def load(self, plan: LoadPlan) -> LoadedBoots:
        return uvloop.run(self.loaded(plan))

    async def loaded(self, plan: LoadPlan) -> LoadedBoots:
        async with Bus(composition.transport(self.settings, "bench")) as bus:
            await ready(bus, self.settings)
            await all_up(bus)
            before = processor_time()
            outcome = await Load(bus, plan).run()
            cost = share_of(before, processor_time(), plan.boots)
        check_clean(outcome)
        return LoadedBoots(outcome, cost)

    def judge(self) -> None:
        """Audit the databases, and raise NotClean if the audit finds a problem."""
        if breaches := asyncio.run(audit(self.settings)).breaches:
            raise NotClean(f"the audit found {len(breaches)} breaches: {breaches[0]}")


def check_clean(outcome: LoadOutcome) -> None:
    """Raise NotClean unless every boot ended once and nearly all are active."""
    if outcome.lost or outcome.changed:
        raise NotClean(f"{outcome.lost} boots lost, {outcome.changed} ended in two ways")
    if outcome.statuses["active"] < ACTIVE * len(outcome.boots):
        raise NotClean(f"boots ended {dict(outcome.statuses)}: {outcome.reasons(2)}")


@contextmanager
def a_berth(hosts: int, cells: int = 4, **more: object) -> Iterator[BenchBerth]:
    """Run a berth on new servers, with further settings by name (`more`). The caller runs the audit."""
    with broker_and_database() as (amqp_url, database_url), own_directory() as state:
        berth = berth_on(amqp_url, database_url, hosts, cells, **{"state_dir": state, **more})
        with berth_up(berth.environment, hosts):
            yield berth


def berth_on(amqp_url: str, database_url: str, hosts: int, cells: int = 4, **more: object) -> BenchBerth:
    """Return a berth, not started yet, that uses the servers at the given URLs."""
    environment = of_berth(amqp_url, database_url, cells, hosts, **more)
    names = tuple(environment["BERTH_CELLS"].split(","))
    settings = Settings().having(amqp_url=amqp_url, database_url=database_url)
    return BenchBerth(environment, settings.having(cells=names, simulator={"hosts": hosts}))


def a_worker(environment: dict[str, str], *words: str) -> AbstractContextManager[object]:
    """Run an additional worker; `words` are arguments of `berth run`."""
    return running("berth", "run", *words, env=environment, stderr=subprocess.DEVNULL)


async def all_up(bus: Bus, hosts: int = 0) -> None:
    """Wait until the scheduler has received a heartbeat of every agent, and knows at least `hosts` hosts. It
    prefers hosts of agents whose heartbeats it has received, so an earlier load may go to one cell of four,
    which costs a tenth less processor time.
    """
    find = bus.asker(topics.HOST_HEALTH, timeout=5.0)
    late = time.monotonic() + _PATIENCE + hosts / 10
    while True:
        found = await find(FindHostHealth(limit=1, counted=True))
        up = sum(of_cell.get("up", 0) for of_cell in found.counts.values())
        if not found.hosts and up >= hosts:
            return
        if time.monotonic() > late:
            if found.hosts:
                down = found.hosts[0]
                raise NotClean(f"host {down.host} did not come up: {down.why or 'no heartbeat'}")
            raise NotClean(f"only {up} of {hosts} hosts came up")
        await asyncio.sleep(0.2)


async def placement_answers(bus: Bus) -> None:
    """Wait until placement answers queries."""
    await repeated_until_answered(
        bus, partial(bus.asker(topics.CHANGES, timeout=5.0), FindChanges(after=0)), _PATIENCE
    )


@contextmanager
def berth_up(environment: dict[str, str], hosts: int = 0) -> Iterator[str]:
    """Run a berth in service mode; yield its output once it is ready, and stop it at the end."""
    with tempfile.TemporaryFile("w+") as output:

        def words() -> str:
            output.seek(0)
            return output.read()

        def start() -> subprocess.Popen[bytes]:
            return started("berth", "up", env=environment, stdout=output, stderr=subprocess.STDOUT)

        up = start()
        try:
            late = time.monotonic() + _UP_WITHIN + hosts / 100
            while "berth is up" not in words():
                if time.monotonic() > late:
                    raise NotClean(f"berth did not come up: {words()[-1000:]}")
                if up.poll() is not None:  # `berth up` fails after a minute, which a busy machine may need
                    up = start()
                time.sleep(0.1)
            yield words()
        finally:
            up.terminate()
            up.wait(_STOPPED_WITHIN)
