"""Measures how well a scheduler places, not how fast: replays traces, and prints published results too.

    python -m bench.quality                                     # small synthetic traces, a minute
    python -m bench.quality --gpu FOLDER --workloads default,gpushare40 --seeds 1-5
    python -m bench.quality --numa Huawei-East-1-lt.csv --starts valid_random_time_150.npy
    python -m bench.quality --vm batched_relevant-vm-1pcnt_1.csv --factors 1.0,1.04
    python -m bench.quality --contention --seeds 11-12              # how evenly clouds of VMs are used
    python -m bench.quality --live --policies balanced --seeds 1    # also on RabbitMQ and PostgreSQL

The real decision code runs over placement's index in memory; claims are granted immediately. With --live,
traces of GPUs and virtual machines are also replayed through processes of berth, with durable claims and
builds. docs/quality.md says where the traces are from, and what the figures mean.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.quality import contention, gpu_trace, numa_trace, vm_trace
from bench.quality.cloud import OpenCloud, TraceCloud
from bench.quality.live import LiveCloud
from scheduler_worker import ChoicePolicy, default_profile

AMPLE = 1.2  # from which factor of the bound on it matters how evenly hosts are used
EPISODES = 20  # of the synthetic trace of NUMA nodes
UNLIMITED = 1_000_000  # builds in progress on a host: no agent reports that they have ended
# Requests follow each other faster than in the trace, so builds of the last seconds must not count.
NO_BUILDS: Mapping[str, float] = {"+io_ops": 0.0, "+load": 0.0}


class Line(NamedTuple):
    """A row of the table: the figure of one policy on one workload, the mean over seeds."""

    workload: str
    metric: str
    policy: str
    figure: float
    decided_by: str  # berth, a reference, or a paper
    seconds: float = 0.0


Run = Callable[[int], dict[str, float]]


def parts_of_policy(name: str) -> tuple[str, dict[str, float]]:
    """Return the profile that the name of a policy contains, and its changes of weighers."""
    profile, changes = default_profile(), {}
    for part in map(str.strip, name.split(",")):
        weigher, is_change, multiplier = part.partition("=")
        if is_change:
            changes[f"+{weigher}"] = float(multiplier)
        elif part != "default":
            profile = part
    return profile, changes


def policy_named(name: str) -> ChoicePolicy:
    """Return a policy by its name: a profile, changes of its weighers, or both: `spread,ram=-1,cpu=-1`."""
    profile, changes = parts_of_policy(name)
    return ChoicePolicy.from_names(weighers=changes or None, max_builds=UNLIMITED, profile=profile)


def in_memory(name: str) -> OpenCloud:
    """Return how a cloud in memory is opened that chooses hosts by a named policy."""
    policy = policy_named(name)
    return lambda hosts, seed: TraceCloud(hosts, policy, seed)


def live(name: str) -> OpenCloud:
    """Return how a berth on RabbitMQ and PostgreSQL is opened that chooses hosts by a named policy."""
    profile, changes = parts_of_policy(name)
    weighers = {**NO_BUILDS, **changes}
    settings = {
        "placement_profile": profile,
        "scheduler_weighers": ",".join(f"{weigher}={by}" for weigher, by in weighers.items()),
        "scheduler_rules": f"io_ops.max_io_ops_per_host={UNLIMITED}",
    }
    return lambda hosts, seed: LiveCloud(hosts, settings, seed)


class ComparedPolicies(NamedTuple):
    """The compared policies, and the clouds that choose hosts by them, each by its name in the table."""

    policies: Mapping[str, ChoicePolicy]
    clouds: Mapping[str, OpenCloud]


def compared_policies(names: str, also_live: bool) -> ComparedPolicies:
    clouds: dict[str, OpenCloud] = {}
    each = [name.strip() for name in names.split(";")]
    for name in each:
        clouds[name] = in_memory(name)
        if also_live:
            clouds[f"{name}, live"] = live(name)
    return ComparedPolicies({name: policy_named(name) for name in each}, clouds)


def means(workload: str, metric: str, policy: str, run: Run, seeds: Sequence[int], by: str = "berth") -> Line:
    return next(each_mean(workload, policy, run, seeds, by, [metric]))


def each_mean(
    workload: str, policy: str, run: Run, seeds: Sequence[int], by: str = "berth", metrics: Sequence[str] = ()
) -> Iterator[Line]:
    """Yield the mean over seeds of each figure of some runs, or of the given ones."""
    begun = process_time()
    found = [run(seed) for seed in seeds]
    taken = process_time() - begun
    for metric in metrics or found[0]:
        yield Line(workload, metric, policy, fmean([figures[metric] for figures in found]), by, taken)


def gpu_lines(
    name: str, trace: gpu_trace.GpuTrace, clouds: Mapping[str, OpenCloud], seeds: Sequence[int]
) -> Iterator[Line]:
    metric = "allocated"
    if name in gpu_trace.PUBLISHED:
        best_fit, fgd = gpu_trace.PUBLISHED[name]
        yield Line(name, metric, "best fit", best_fit, "published")
        yield Line(name, metric, "FGD", fgd, "published")
    yield means(name, metric, "best fit", lambda seed: gpu_trace.with_best_fit(trace, seed), seeds, "here")
    for policy, opened in clouds.items():
        yield means(name, metric, policy, partial(gpu_trace.with_berth, trace, open_cloud=opened), seeds)


def numa_lines(
    name: str,
    trace: Sequence[numa_trace.NumaInstance],
    starts: Sequence[int],
    policies: Mapping[str, ChoicePolicy],
    forgets: bool = False,
) -> Iterator[Line]:
    metric = "wait"
    for policy, figure in numa_trace.PUBLISHED.get(name, {}).items():
        yield Line(name, metric, policy, figure, "published")
    for policy, choose in numa_trace.REFERENCES.items():
        hosts = numa_trace.PlainHosts(choose)
        run = lambda seed, hosts=hosts: numa_trace.waiting(trace, starts, hosts)  # noqa: E731
        yield means(name, metric, policy, run, [0], "here")
    for policy, chosen in policies.items():
        run_berth = partial(numa_trace.with_berth, trace, starts, chosen, forgets=forgets)
        yield means(name, metric, f"{policy}, demand forgotten" if forgets else policy, run_berth, [0])


def vm_lines(
    name: str, trace: vm_trace.VmTrace, factors: Sequence[float], clouds: Mapping[str, OpenCloud]
) -> Iterator[Line]:
    metric = "rejected"
    for factor in factors:
        hosts = trace.hosts(factor)
        workload = f"{name}, {hosts} hosts (bound: {trace.bound:.1f})"
        for policy, best in (("first fit", False), ("best fit", True)):
            run = lambda seed, best=best, hosts=hosts: vm_trace.rejected(  # noqa: E731
                trace, vm_trace.PlainFleet(hosts, best)
            )
            yield means(workload, metric, policy, run, [0], "here")
        metrics = (metric, *contention.EVENNESS) if factor >= AMPLE else (metric,)
        for policy, opened in clouds.items():
            run_berth = partial(vm_trace.with_berth, trace, hosts, opened)
            yield from each_mean(workload, policy, run_berth, [0], metrics=metrics)


def contention_lines(clouds: Mapping[str, OpenCloud], seeds: Sequence[int]) -> Iterator[Line]:
    """Yield how evenly clouds of virtual machines are used, from an almost empty one to a full one."""
    for policy, opened in clouds.items():
        run = partial(contention.nearly_empty, opened)
        yield from each_mean(f"{contention.HOSTS} boots, as many hosts", policy, run, seeds)
    for share in contention.SHARES:
        for policy, opened in clouds.items():
            run = partial(contention.steady, share, opened)
            yield from each_mean(f"steady, {share:.0%} used", policy, run, seeds)


def synthetic_lines(compared: ComparedPolicies, seeds: Sequence[int]) -> Iterator[Line]:
    """Yield the figures on small traces that are made here, so that nothing must be downloaded."""
    yield from gpu_lines("gpu (synthetic)", gpu_trace.synthetic(1), compared.clouds, seeds)
    trace = numa_trace.synthetic(1)
    starts = numa_trace.random_starts(trace, EPISODES, 1)
    yield from numa_lines("numa (synthetic)", trace, starts, compared.policies)
    yield from vm_lines("vm (synthetic)", vm_trace.synthetic(1), [1.0], compared.clouds)
    yield from contention_lines(in_memory_only(compared), seeds[:1])


def in_memory_only(compared: ComparedPolicies) -> Mapping[str, OpenCloud]:
    return {name: compared.clouds[name] for name in compared.policies}


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments(words)
    lines: list[Line] = []
    for line in _lines(given, compared_policies(given.policies, given.live), _seeds(given.seeds)):
        lines.append(line)
        if given.verbose:
            print(line, file=sys.stderr, flush=True)
    Console().print(table_of(lines))
    return 0


def _lines(given: argparse.Namespace, compared: ComparedPolicies, seeds: Sequence[int]) -> Iterator[Line]:
    if given.contention:
        yield from contention_lines(in_memory_only(compared), seeds)
    elif not (given.gpu or given.numa or given.vm):
        yield from synthetic_lines(compared, seeds)
    for workload in given.workloads.split(",") if given.gpu else ():
        yield from gpu_lines(workload, gpu_trace.read(given.gpu, workload), compared.clouds, seeds)
    if given.numa:
        trace = numa_trace.read(given.numa)
        if given.starts:
            yield from numa_lines(
                "valid", trace, np.load(given.starts).tolist(), compared.policies, given.forget
            )
        else:
            starts = numa_trace.random_starts(trace, 150, seeds[0])
            name = f"150 random starts, seed {seeds[0]}"
            yield from numa_lines(name, trace, starts, compared.policies, given.forget)
    for path in given.vm:
        factors = [float(factor) for factor in given.factors.split(",")]
        yield from vm_lines(path.stem, vm_trace.read(path), factors, compared.clouds)


def table_of(lines: Sequence[Line]) -> Table:
    table = Table("workload", "figure", "policy", "mean", "from", "CPU s", title="quality of placement")
    for before, line in zip([None, *lines], lines, strict=False):
        new = before is None or before.workload != line.workload
        table.add_row(
            line.workload if new else "",
            line.metric if new or before is None or before.metric != line.metric else "",
            line.policy,
            f"{line.figure:,.2f}" if line.metric == "allocated" else f"{line.figure:,.0f}",
            line.decided_by,
            f"{line.seconds:,.0f}" if line.seconds else "",
        )
    return table


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.quality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpu", type=Path, help="folder with openb's nodes and pods (lists as CSV files)")
    parser.add_argument("--workloads", default="default", help="of openb, separated by commas")
    parser.add_argument("--numa", type=Path, help="the trace Huawei-East-1 with lifetimes (CSV)")
    parser.add_argument(
        "--starts", type=Path, help="the paper's starts of episodes (NPY); default: 150 random"
    )
    parser.add_argument(
        "--vm", type=Path, nargs="*", default=[], help="samples of Azure's packing trace (CSV)"
    )
    parser.add_argument("--contention", action="store_true", help="only how evenly synthetic clouds are used")
    parser.add_argument("--forget", action="store_true", help="--numa: forget the demand between episodes")
    parser.add_argument("--factors", default="1.0", help="hosts for --vm, as factors of the lower bound")
    parser.add_argument(
        "--policies",
        default="balanced;pack;spread",
        help="profiles, or changes of weighers, such as spread,ram=-1,cpu=-1; separated by semicolons",
    )
    parser.add_argument("--seeds", default="1-3", help="FROM-TO, for the order of arrivals (default: 1-3)")
    parser.add_argument(
        "--live",
        action="store_true",
        help="also replay GPUs and virtual machines through processes of berth on new servers, which takes "
        "about 0.05 s for each request and deletion",
    )
    parser.add_argument("--verbose", action="store_true", help="print each result when it is there")
    given = parser.parse_args(words)
    for option, path in (
        ("gpu", given.gpu),
        ("numa", given.numa),
        ("starts", given.starts),
        *(("vm", path) for path in given.vm),
    ):
        if path and not path.exists():
            parser.error(f"--{option}: no such {'folder' if option == 'gpu' else 'file'}: {path}")
    return given


if __name__ == "__main__":
    sys.exit(main())
