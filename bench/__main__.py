"""Runs `make bench`: all or named benchmarks; stores the results and compares them with a recorded run."""

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from bench import machine, runs
from bench.durable import DurableRates
from bench.figures import BenchRun, Measured, compared, machine_ratio, rows, with_unit
from bench.own_servers import broker_and_database
from bench.suite import LONG, SHORT, SUITE, BenchSizes
from berth.kit.terminal import console
from berth.loadtest import MIX, MOST_MIXED

_BY_THEMSELVES = "amqp_client, boot_profile, boots, scaling"


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments(words)
    sizes = replace(LONG if given.long else SHORT, flavors=given.mix)
    named = given.name or list(SUITE)
    before = (given.against, runs.read(given.against)) if given.against else runs.last(given.long)
    run = measured(named, sizes, given.long)
    path = runs.keep(run, given.json)
    if given.record:
        if run.failed or set(run.benches) != set(SUITE):
            print("not recorded: only a whole run is, with nothing failed", file=sys.stderr)
            given.record = False
        else:
            runs.keep(run, runs.RECORDED)
    show(run, before)
    print(f"kept: {path}" + (f"; recorded: {runs.RECORDED}" if given.record else ""))
    for name, why in run.failed.items():
        print(f"FAILED: {name}: {why}", file=sys.stderr)
    return 1 if run.failed else 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    listed = "\n".join(
        f"  {name:12} {benchmark.says} (~{benchmark.seconds:.0f} s)" for name, benchmark in SUITE.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"{__doc__}\n\n{listed}",
        epilog=f"Others run by themselves only, as python -m bench.NAME: {_BY_THEMSELVES}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", help="which of them (default: all)")
    parser.add_argument(
        "--long", action="store_true", help="50,000 boots a load, 200,000 in the backlog, ..."
    )
    parser.add_argument("--mix", type=int, default=MIX, help=f"flavors in a load (default: {MIX})")
    parser.add_argument("--json", type=Path, help="keep the run in this file (default: bench/runs/...)")
    parser.add_argument("--against", type=Path, help="compare with this run (default: the recorded one)")
    parser.add_argument("--record", action="store_true", help="make it the recorded one, bench/recorded.json")
    given = parser.parse_args(words)
    if unknown := [name for name in given.name if name not in SUITE]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are:\n{listed}\n{parser.epilog}")
    if not 1 < given.mix <= MOST_MIXED:
        parser.error(f"--mix {given.mix}: 2 to {MOST_MIXED}; one flavor is measured anyway")
    return given


def measured(names: Sequence[str], sizes: BenchSizes, long: bool) -> BenchRun:
    """Run the named benchmarks one after the other, also after a failure, and return their results. `long`
    selects the sizes that take much longer.
    """
    facts, at = machine.facts(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    expected = sum(SUITE[name].seconds for name in names) / 60
    how_long = "long sizes" if long else f"about {max(expected, 1):.0f} min on two quiet cores"
    print(f"{len(names)} to run, {how_long}; load {facts.load} on {facts.cores} cores", flush=True)
    benches: dict[str, Measured] = {}
    failed: dict[str, str] = {}
    with broker_and_database() as idle_servers:  # for the yardstick only
        for place, name in enumerate(names, 1):
            print(f"[{place}/{len(names)}] {name}: {SUITE[name].says}", end=" ... ", flush=True)
            before, began = machine.yardstick(*idle_servers), time.perf_counter()
            try:
                figures = SUITE[name].measure(sizes)
            except (Exception, SystemExit) as problem:
                traceback.print_exception(problem)
                failed[name] = f"{type(problem).__name__}: {problem}"
                continue
            seconds = time.perf_counter() - began
            speed = machine.between(before, machine.yardstick(*idle_servers))
            benches[name] = Measured(figures, speed, round(seconds, 1))
            first = f"{figures[0].name} {with_unit(figures[0].value, figures[0].unit)}"
            rates = DurableRates(speed.publishes, speed.inserts)
            print(f"{seconds:.0f} s: {first}; yardstick: {rates}", flush=True)
    return BenchRun(at=at, commit=runs.commit(), long=long, machine=facts, benches=benches, failed=failed)


def show(run: BenchRun, before: tuple[Path, BenchRun] | None) -> None:
    table = Table(
        box=None, title=f"{run.commit}, {run.at}, {run.seconds / 60:.1f} minutes", title_justify="left"
    )
    for heading in ("", "", "times as good", "now", "then", ""):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    found = compared(run, before[1] if before else None)
    for row in rows(found):
        table.add_row(*row, style="red" if row[-1] else None)
    console(sys.stdout).print(table)
    if before is None:
        print("nothing is recorded yet to compare it with: --record makes this run the one")
        return
    path, then = before
    speed = machine_ratio(run, then)
    print(f"then: {path.name}, {then.commit} of {then.at}")
    print(
        f"by the yardstick the machine is {speed.processor:.2f} × as quick as then in a second of processor,"
        f" {speed.clock:.2f} × in one of the clock; the ratios are as if it were the same"
    )
    if worse := [compared for compared in found if compared.worse]:
        print(f"worse by more than a tenth: {', '.join(f'{row.bench} {row.figure.name}' for row in worse)}")


if __name__ == "__main__":
    sys.exit(main())
