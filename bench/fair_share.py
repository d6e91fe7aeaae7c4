"""Measures how much a flood of one project delays the single boots of another, alternating in one run.

Single boots at a fixed rate are measured without a flood, and while another process publishes one as fast as
it can, until all of it is built.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from bench.loading import BenchBerth, a_berth, berth_on, refuse_the_unclean
from berth import wiring
from berth.loadtest import Load, LoadOutcome, LoadPlan, percentile
from bus.delivery.runner import Bus
from bus.requests import Flavor

SMALL = (Flavor(name="small", vcpus=1, memory_mb=256, disk_gb=1),)  # many fit
FLOOD, SINGLE = "flood", "single"
PATIENCE = 300.0


@dataclass(frozen=True)
class FairSizes:
    flood: int = 200_000
    rounds: int = 2
    hosts: int = 2000
    rate: float = 4.0  # single boots a second
    quiet: float = 60.0  # seconds


async def _load(berth: BenchBerth, plan: LoadPlan) -> LoadOutcome:
    async with Bus(wiring.transport(berth.settings, "bench")) as bus:
        return await Load(bus, plan).run()


def _singles(berth: BenchBerth, sizes: FairSizes, seconds: float) -> LoadOutcome:
    plan = LoadPlan(
        boots=max(int(seconds * sizes.rate), 1),
        rate=sizes.rate,
        flavors=SMALL,
        project=SINGLE,
        patience=PATIENCE,
    )
    return uvloop.run(_load(berth, plan))


def _flood(berth: BenchBerth, boots: int, project: str = FLOOD) -> "subprocess.Popen[bytes]":
    words = ["--publish", str(boots), "--project", project, "--amqp", berth.settings.bus.amqp_url]
    return subprocess.Popen([sys.executable, "-m", "bench.fair_share", *words], env=berth.environment)


def _text(name: str, outcomes: Sequence[LoadOutcome]) -> str:
    latencies = [boot.latency * 1000 for outcome in outcomes for boot in outcome.boots.values() if boot.ended]
    shares = ", ".join(f"{label} {percentile(latencies, share):.0f}" for label, share in QUANTILES)
    return f"{name}: {len(latencies)} boots, ms: {shares}"


QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))


def measure(sizes: FairSizes) -> float:
    """Return the p99 of single boots during the flood, divided by their p99 without it."""
    quiet, flooded = list[LoadOutcome](), list[LoadOutcome]()
    with a_berth(sizes.hosts) as berth:
        _singles(berth, sizes, 10.0)  # warm
        for _ in range(sizes.rounds):
            quiet.append(_singles(berth, sizes, sizes.quiet))
            print(_text("without a flood", quiet[-1:]), flush=True)
            began, flood = time.monotonic(), _flood(berth, sizes.flood)
            while flood.poll() is None:
                flooded.append(_singles(berth, sizes, 20.0))
                print(_text(f"{time.monotonic() - began:.0f} s into the flood", flooded[-1:]), flush=True)
            if flood.returncode:
                raise SystemExit("the flood did not end cleanly")
        quiet.append(_singles(berth, sizes, sizes.quiet))
        print(_text("without a flood", quiet[-1:]), flush=True)
        berth.judge()
    for outcome in (*quiet, *flooded):
        refuse_the_unclean(outcome)
    print(_text("without", quiet))
    print(_text("with", flooded))
    p99 = [
        percentile([boot.latency for outcome in outcomes for boot in outcome.boots.values()], 0.99)
        for outcomes in (quiet, flooded)
    ]
    print(f"p99 with the flood / without: {p99[1] / p99[0]:.2f}")
    return p99[1] / p99[0]


async def _publish(berth: BenchBerth, boots: int, project: str) -> None:
    plan = LoadPlan(boots=boots, window=boots, flavors=SMALL, project=project, patience=PATIENCE)
    async with Bus(wiring.transport(berth.settings, "bench")) as bus, asyncio.TaskGroup() as group:
        load = Load(bus, plan)
        running = group.create_task(load.run())
        while load.open + load.ended < boots:
            await asyncio.sleep(0.1)
        print(f"{project}: {boots} published in {load.now():.0f} s, {load.ended} ended", flush=True)
        outcome = await running
    refuse_the_unclean(outcome)
    print(f"{project}: all ended after {outcome.seconds:.0f} s, {outcome.per_second:.0f}/s", flush=True)


def main() -> None:
    default = FairSizes()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flood", type=int, default=default.flood, help="requests of the flood")
    parser.add_argument("--rounds", type=int, default=default.rounds, help="of both, alternating")
    parser.add_argument("--hosts", type=int, default=default.hosts)
    parser.add_argument("--rate", type=float, default=default.rate, help="single boots a second")
    parser.add_argument("--quiet", type=float, default=default.quiet, help="seconds without a flood")
    parser.add_argument("--publish", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--project", default=FLOOD, help=argparse.SUPPRESS)
    parser.add_argument("--amqp", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish:
        uvloop.run(_publish(berth_on(given.amqp, "", 1), given.publish, given.project))
        return
    measure(FairSizes(given.flood, given.rounds, given.hosts, given.rate, given.quiet))


if __name__ == "__main__":
    main()
