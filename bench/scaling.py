"""Compares configurations: more processes of a worker, more cells, or the other queue type.

    python -m bench.scaling [--boots 6000] [--hosts 10000] [schedulers placements conductors agents cells ...]

Each worker is a process, and flavors are mixed. The first line of each comparison measures the same, usual
configuration again; the differences between these lines are noise.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.loading import LoadedBoots, a_berth, a_worker
from bench.processes import parts_of
from berth.loadtest import LoadPlan, mixed

CELLS = 4


@dataclass(frozen=True)
class Variant:
    """A configuration to measure, given by its differences from the usual one."""

    name: str
    cells: int = CELLS
    settings: dict[str, Any] = field(default_factory=dict)
    in_parallel: tuple[str, ...] = ()  # additional workers, as arguments of `berth run`


def _times(worker: str, several: int) -> Variant:
    """Return the configuration with this number of processes of a worker (of a conductor: in each cell)."""
    names = [f"c{index}" for index in range(1, CELLS + 1)]
    commands = [f"{worker} --cell {cell}" for cell in names] if worker == "conductor" else [worker]
    in_parallel = tuple(command for command in commands for _ in range(several - 1))
    return Variant(f"{several} {worker}{'s' if several > 1 else ''}", in_parallel=in_parallel)


KINDS: dict[str, Sequence[Variant]] = {
    "schedulers": [_times("scheduler", several) for several in (1, 2, 4)],
    "placements": [_times("placement", several) for several in (1, 2, 4)],
    "conductors": [_times("conductor", several) for several in (1, 2, 4)],
    "agents": [
        Variant(f"{several} agents in each cell", settings={"simulator_agents_per_cell": several})
        for several in (1, 2, 4)
    ],
    "cells": [*(Variant(f"{several} cells", cells=several) for several in (4, 1, 16))],
}


def measured(variant: Variant, boots: int, hosts: int, mix: int, window: int) -> LoadedBoots:
    """Measure a load of boots on a configuration, after a smaller load that is not counted. `mix`: flavors;
    `window`: concurrent boots.
    """
    with ExitStack() as stack:
        berth = stack.enter_context(a_berth(hosts, variant.cells, simulator_fail=0.1, **variant.settings))
        for worker in variant.in_parallel:
            stack.enter_context(a_worker(berth.environment, *worker.split()))
        berth.load(LoadPlan(boots=boots // 4, flavors=mixed(mix)))
        run = berth.load(LoadPlan(boots=boots, flavors=mixed(mix), window=window))
        berth.judge()
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=", ".join(KINDS), default=[*KINDS])
    parser.add_argument("--boots", type=int, default=6000)
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--mix", type=int, default=20, help="flavors in the mix")
    parser.add_argument("--window", type=int, default=2000, help="boots in progress at most")
    arguments = parser.parse_args()
    if unknown := [kind for kind in arguments.kinds if kind not in KINDS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(KINDS)}")
    for kind in arguments.kinds:
        print(
            f"{kind:26} {'boots/s':>8} {'of first':>9} {'CPU ms/boot':>12} {'of first':>9}  of which",
            flush=True,
        )
        first: LoadedBoots | None = None
        for variant in KINDS[kind]:
            run = measured(variant, arguments.boots, arguments.hosts, arguments.mix, arguments.window)
            first = first or run
            print(
                f"{variant.name:26} {run.outcome.per_second:8.0f}"
                f" {run.outcome.per_second / first.outcome.per_second:9.2f}"
                f" {run.in_all:12.2f} {run.in_all / first.in_all:9.2f}  {parts_of(run.cost)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
