"""Measures how much a flood of boots of one project delays the single boots of another project.

Single boots at a fixed rate are measured first without a flood, then while another process publishes boots as
fast as it can. Each round uses a new berth. With --shares: measures in which proportions projects with the
weights 1, 2 and 4 are served while all have a backlog and each instance is deleted when it is active.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from bench.loading import BenchBerth, a_berth, berth_on, check_clean, latencies_of
from berth import composition
from berth.commands.run import ready
from berth.loadtest import Load, LoadOutcome, LoadPlan, percentile
from berth.operations.publishing import publish
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from bus.requests import Flavor
from features.quotas.edits import set_quota
from features.quotas.messages import WEIGHT
from features.waiting.shares import fair_shares

SMALL = (Flavor(name="small", vcpus=1, memory_mb=256, disk_gb=1),)  # many fit
FLOOD, SINGLE = "flood", "single"
PATIENCE = 300.0
SHARING = {"bronze": (1, 1), "silver": (2, 2), "gold": (4, 1)}  # project → weight, VCPU of its requests
SETTLED = 5.0  # seconds after all requests were published


@dataclass(frozen=True)
class FairSizes:
    flood: int = 200_000
    rounds: int = 2
    hosts: int = 2000
    rate: float = 4.0  # single boots a second
    quiet: float = 60.0  # seconds
    flooded: float = 120.0


async def _load(berth: BenchBerth, plan: LoadPlan) -> LoadOutcome:
    async with Bus(composition.transport(berth.settings, "bench")) as bus:
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
    return subprocess.Popen(
        [sys.executable, "-m", "features.waiting.bench.fair_share", *words], env=berth.environment
    )


def _text(name: str, outcomes: Sequence[LoadOutcome]) -> str:
    boots = [boot for outcome in outcomes for boot in outcome.boots.values()]
    return f"{name}: {len(boots)} boots, {latencies_of(boots)}"


def measure(sizes: FairSizes) -> float:
    """Return the p99 of single boots during the flood, divided by their p99 without it."""
    quiet, flooded = list[LoadOutcome](), list[LoadOutcome]()
    for _ in range(sizes.rounds):
        with a_berth(sizes.hosts) as berth:
            _singles(berth, sizes, 10.0)  # warm-up
            quiet.append(_singles(berth, sizes, sizes.quiet))
            print(_text("without a flood", quiet[-1:]), flush=True)
            began, flood = time.monotonic(), _flood(berth, sizes.flood)
            while flood.poll() is None and time.monotonic() - began < sizes.flooded:
                flooded.append(_singles(berth, sizes, 20.0))
                print(_text(f"{time.monotonic() - began:.0f} s into the flood", flooded[-1:]), flush=True)
            if flood.poll():
                raise SystemExit("the flood did not end cleanly")
            flood.terminate()
            flood.wait()
            berth.judge()
    for outcome in (*quiet, *flooded):
        check_clean(outcome)
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
    async with Bus(composition.transport(berth.settings, "bench")) as bus, asyncio.TaskGroup() as group:
        load = Load(bus, plan)
        running = group.create_task(load.run())
        while load.open + load.ended < boots:
            await asyncio.sleep(0.1)
        print(f"{project}: {boots} published in {load.now():.0f} s, {load.ended} ended", flush=True)
        outcome = await running
    check_clean(outcome)
    print(f"{project}: all ended after {outcome.seconds:.0f} s, {outcome.per_second:.0f}/s", flush=True)


async def _publish_sharing(bus: Bus, boots: int) -> None:
    """Publish requests of all projects, in the proportions in which fair share serves the projects."""
    boots_for_weight = {project: weight / vcpus for project, (weight, vcpus) in SHARING.items()}
    each = boots / sum(boots_for_weight.values())
    left = Counter({project: int(each * share) for project, share in boots_for_weight.items()})
    while left.total():
        for project, several in left.items():
            flavor = Flavor(name=project, vcpus=SHARING[project][1], memory_mb=64, disk_gb=1)
            builds = [bus.clock.uuid() for _ in range(min(several, round(32 * boots_for_weight[project])))]
            left[project] -= len(builds)
            requests = [
                BuildRequested(
                    request=build, instances=(build,), flavor=flavor, project=project, reply_to=project
                )
                for build in builds
            ]
            if requests:
                await publish(bus, *requests)


async def _sharing(berth: BenchBerth, boots: int, seconds: float) -> dict[str, int]:
    """Return how many boots of each project ended within `seconds`, while all projects had requests in the
    scheduler's backlog.
    """
    ended, deleting = Counter[str](), list[BuildEnded]()

    async with Bus(composition.transport(berth.settings, "bench")) as bus, asyncio.TaskGroup() as group:

        async def count(project: str) -> None:
            listener = await bus.listen(topics.BUILD_ENDED.at(reply_to=project), 5000)
            while True:
                deleting.append(await listener.get())
                ended[project] += 1

        async def delete() -> None:
            while True:
                await asyncio.sleep(0.05)
                ends, deleting[:] = tuple(deleting), []
                deletes = [BuildDeleteRequested(build=end.build, cell=end.cell) for end in ends]
                if deletes:
                    await publish(bus, *deletes)

        await ready(bus, berth.settings)
        for project, (weight, _) in SHARING.items():
            await set_quota(bus, project, {WEIGHT: weight})
        working = [group.create_task(count(project)) for project in SHARING]
        working.append(group.create_task(delete()))
        await _publish_sharing(bus, boots)
        await asyncio.sleep(SETTLED)
        before = ended.copy()
        await asyncio.sleep(seconds)
        served = ended - before
        found = {each.project: each.backlog for each in await fair_shares(bus)}
        if not all(found.get(project) for project in SHARING):
            raise SystemExit(f"{boots} boots are too few: a project had no backlog at the end: {found}")
        for task in working:
            task.cancel()
    return served


def measure_shares(boots: int, seconds: float, hosts: int) -> float:
    """Return the largest deviation of a project's share from its weight, as a fraction of its weight."""
    with a_berth(hosts) as berth:
        served = uvloop.run(_sharing(berth, boots, seconds))
        berth.judge()
    vcpus = {project: served[project] * SHARING[project][1] for project in SHARING}
    weights = sum(weight for weight, _ in SHARING.values())
    worst = 0.0
    for project, (weight, _) in SHARING.items():
        share, due = vcpus[project] / sum(vcpus.values()), weight / weights
        worst = max(worst, abs(share / due - 1))
        of_boots = served[project] / sum(served.values())
        print(f"{project}: {served[project]} boots ({of_boots:.1%}), {share:.2%} of VCPU, weight {due:.2%}")
    print(f"largest deviation from the weights over {seconds:.0f} s: {worst:.1%}")
    return worst


def main() -> None:
    default = FairSizes()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--flood", type=int, default=default.flood, help="requests of the flood")
    parser.add_argument("--rounds", type=int, default=default.rounds, help="of both, alternating")
    parser.add_argument("--hosts", type=int, default=default.hosts)
    parser.add_argument("--rate", type=float, default=default.rate, help="single boots a second")
    parser.add_argument("--quiet", type=float, default=default.quiet, help="seconds without a flood")
    parser.add_argument("--flooded", type=float, default=default.flooded, help="seconds with a flood")
    parser.add_argument("--shares", type=int, default=0, help="measure the shares, with so many requests")
    parser.add_argument("--publish", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--project", default=FLOOD, help=argparse.SUPPRESS)
    parser.add_argument("--amqp", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.publish:
        uvloop.run(_publish(berth_on(given.amqp, "", 1), given.publish, given.project))
        return
    if given.shares:
        measure_shares(given.shares, given.quiet, given.hosts)
        return
    measure(FairSizes(given.flood, given.rounds, given.hosts, given.rate, given.quiet, given.flooded))


if __name__ == "__main__":
    main()
