"""Lists the benchmarks of `make bench` by name, with their durations, and measures their figures.

Each benchmark starts new servers, so it has the same figures alone as in the suite.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from bench import backlog, doors, embedded_boots, ironic, overload
from bench.decisions import decisions_a_second, policy
from bench.figures import Figure, middle, middle_of
from bench.loading import LoadedBoots, a_berth
from bench.processes import BESIDE, in_all, memory
from berth.features import added, features
from berth.loadtest import MIX, LoadPlan, mixed, percentile
from scheduler_worker.dependencies import REQUESTS_AT_ONCE

Figures = tuple[Figure, ...]
_WARM = 1000  # boots before the measurement, which load code and caches


@dataclass(frozen=True)
class BenchSizes:
    """The numbers of hosts, boots and other objects that each benchmark uses."""

    hosts: int = 10_000
    other_hosts: tuple[int, ...] = (1000,)  # hosts of virtual machines at the same time
    boots: int = 5000  # boots of one run
    runs: int = 3
    flavors: int = MIX
    one_by_one: int = 300
    embedded: int = 3000
    embedded_hosts: int = 1000
    decisions: int = 20_000
    seconds: float = 4.0  # seconds of each measurement of claims
    offered: float = 8.0  # seconds at each rate of boots
    backlog: int = 20_000
    nodes: int = 10_000  # nodes of the simulated Ironic
    events: float = 12.0  # seconds of events from Ironic
    boots_beside: float = 300.0  # boots of virtual machines per second at the same time
    hosts_beside: int = 1000  # hosts of virtual machines for them


SHORT = BenchSizes()
LONG = replace(
    SHORT,
    other_hosts=(1000, 100_000),
    boots=50_000,
    embedded=20_000,
    offered=30.0,
    backlog=200_000,
    events=60.0,
)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the suite: its description, its usual duration, and the function that measures."""

    says: str
    seconds: float  # expected duration on two idle cores
    measure: Callable[[BenchSizes], Figures]


@dataclass(frozen=True)
class BenchmarksPart:
    """The value PART of a feature's module `bench.suite`: its benchmarks by name."""

    benchmarks: Mapping[str, Benchmark]


def other_hosts(sizes: BenchSizes) -> Figures:
    found: list[Figure] = []
    for hosts in sizes.other_hosts:
        few = replace(sizes, boots=min(sizes.boots, 3 * hosts))
        for figure in _boots(few, hosts, sizes.flavors)[:2]:
            found.append(structs.replace(figure, name=f"{hosts:,} hosts: {figure.name}"))
    return tuple(found)


def _boots(sizes: BenchSizes, hosts: int, flavors: int) -> Figures:
    """Measure loads on one berth: boots per second, processor time and memory; one in ten attempts fails."""
    with a_berth(hosts, simulator_fail=0.1) as berth:
        berth.load(LoadPlan(boots=min(_WARM, sizes.boots), flavors=mixed(flavors)))
        runs = [
            berth.load(LoadPlan(boots=sizes.boots, flavors=mixed(flavors), seed=number + 1))
            for number in range(sizes.runs)
        ]
        has = memory()
        berth.judge()
    return (
        Figure("boots/s", middle([run.outcome.per_second for run in runs]), "/s", "up"),
        *processor(runs),
        *(Figure(f"memory of {worker}", has[worker], "MB", "down", "") for worker in sorted(has)),
    )


def processor(runs: Sequence[LoadedBoots]) -> Figures:
    """Return the processor time per boot in milliseconds: the total, then by type of process."""
    cost = middle_of([run.cost for run in runs])
    dearest = sorted((name for name in cost if name not in BESIDE), key=lambda name: -cost[name])
    return (
        Figure("processor a boot", in_all(cost), "ms", "down", "processor"),
        *(Figure(f"processor of {name}", cost[name], "ms", "down", "processor") for name in dearest),
    )


def idle(sizes: BenchSizes) -> Figures:
    """Measure the latency of boots one after the other, on hosts that build without delay."""
    with a_berth(sizes.hosts, simulator_build_time="constant:0") as berth:
        berth.load(LoadPlan(boots=50, window=1, flavors=mixed(sizes.flavors)))
        run = berth.load(LoadPlan(boots=sizes.one_by_one, window=1, flavors=mixed(sizes.flavors)))
        berth.judge()
    return (
        Figure("one boot at a time, no build time: p50", run.latency(0.5), "ms", "down"),
        Figure("one boot at a time, no build time: p99", run.latency(0.99), "ms", "down"),
        *processor([run])[:1],
    )


def rates(sizes: BenchSizes) -> Figures:
    return overload.measure(
        overload.RateSizes(
            hosts=sizes.hosts,
            peak=sizes.boots,
            seconds=sizes.offered,
            overload=sizes.offered,
            flavors=sizes.flavors,
        )
    )


def decisions(sizes: BenchSizes) -> Figures:
    found = []
    for flavors in (1, sizes.flavors):
        chosen = policy()
        work = decisions_a_second(sizes.hosts, flavors, REQUESTS_AT_ONCE, sizes.decisions, chosen)
        name = f"decisions/s, {flavors} flavor{'s' if flavors > 1 else ''}"
        found.append(Figure(name, asyncio.run(work)[0], "/s", "up", "processor"))
    return tuple(found)


def news(sizes: BenchSizes) -> Figures:
    alone = ironic.delays(sizes.nodes, 200.0, sizes.events)
    busy = ironic.delays(sizes.nodes, 200.0, sizes.events, boots=sizes.boots_beside, hosts=sizes.hosts_beside)
    each = {"": alone, f" with {sizes.boots_beside:.0f} boots/s": busy}
    return tuple(
        Figure(f"event → claimable{when}: {name}", percentile(found, share), "ms", "down")
        for when, found in each.items()
        for name, share in (("p50", 0.5), ("p99", 0.99))
    )


SUITE = {
    "boots": Benchmark(
        "10,000 hosts, 20 flavors, one attempt in ten failing",
        60,
        lambda sizes: _boots(sizes, sizes.hosts, sizes.flavors),
    ),
    "one_flavor": Benchmark("the same of one flavor", 60, lambda sizes: _boots(sizes, sizes.hosts, 1)),
    "other_hosts": Benchmark("the same with 1,000 hosts", 40, other_hosts),
    "rates": Benchmark("boots at 100/s, 300/s, half of the peak, and three times the peak", 105, rates),
    "idle": Benchmark("one boot at a time, hosts that build at once", 40, idle),
    "backlog": Benchmark(
        "20,000 requests that came while every worker was down",
        90,
        lambda sizes: backlog.measure(sizes.backlog, sizes.hosts, sizes.flavors),
    ),
    "embedded": Benchmark(
        "boots in one process",
        15,
        lambda sizes: embedded_boots.embedded_boots(sizes.embedded, sizes.embedded_hosts, sizes.flavors),
    ),
    "demo": Benchmark("`make demo`, once all is installed", 10, lambda sizes: embedded_boots.demo()),
    "decisions": Benchmark("a scheduler's decisions alone", 25, decisions),
    "doors": Benchmark("claims at placement's doors", 30, lambda sizes: doors.measure(seconds=sizes.seconds)),
    "ironic": Benchmark("from Ironic's event to a node that can be claimed, with parallel boots", 110, news),
}
for _feature in features():
    for _part in added(BenchmarksPart, "bench.suite", of=_feature):
        SUITE |= _part.benchmarks
