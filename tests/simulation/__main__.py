"""Command `python -m tests.simulation`: run many seeds of the simulated world, or find a planted bug."""

import argparse
import gc
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial

from tests.simulation.faults import SERVER_FAULTS
from tests.simulation.planted import PLANTED, planted
from tests.simulation.running import LONG, SHORT, SWARM, WorldOptions, WorldOutcome, attempt

_PROGRESS_SECONDS = 10.0


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0-99", help="FROM-TO, or one seed (default: 0-99)")
    parser.add_argument(
        "--faults",
        default="",
        help=f"{SWARM} (the default: a random choice for each seed), servers, harsh, none, field=value,"
        f" {', '.join(SERVER_FAULTS)}; separated by commas",
    )
    parser.add_argument(
        "--requests", type=int, default=0, help=f"requests of a world (default: {SHORT}, with --plant {LONG})"
    )
    parser.add_argument("--moves", choices=("yes", "no"), help="worlds with moves (default: half of them)")
    parser.add_argument("--preempts", choices=("yes", "no"), help="worlds with preemption (default: a third)")
    parser.add_argument("--headroom", action="store_true", help="worlds with failover headroom")
    parser.add_argument("--metal", action="store_true", help="worlds whose requests are for nodes")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--plant", choices=sorted(PLANTED), metavar="NAME", help="plant a bug, and find it")
    parser.add_argument("--list", action="store_true", help="list the faults and the planted bugs")
    parser.add_argument("--keep-going", action="store_true", help="continue after a failure")
    parser.add_argument("--history", action="store_true", help="show more of a failing world's history")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    asked = _arguments(given)
    if asked.list:
        _list()
        return 0
    logging.disable()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    bug = PLANTED.get(asked.plant)
    moves, preempts = _choice(asked.moves), _choice(asked.preempts)
    faults = asked.faults or (bug.faults if bug else SWARM)
    options = WorldOptions(
        faults="" if faults == "none" else faults,
        requests=asked.requests or (LONG if bug else SHORT),
        moves=bug.moves if bug and moves is None else moves,
        preempts=preempts,
        headroom=asked.headroom or bool(bug and bug.headroom),
        metal=asked.metal or bool(bug and bug.metal),
    )
    failures = _run(seeds, options, asked)
    if bug is not None:
        return 0 if failures else 1
    return 1 if failures else 0


def _choice(given: str | None) -> bool | None:
    return None if given is None else given == "yes"


def _run(seeds: range, options: WorldOptions, asked: argparse.Namespace) -> int:
    began = shown = time.monotonic()
    simulated = took = 0.0
    done = failures = victims = losses = 0
    outcome = None
    for outcome in _outcomes(seeds, options, asked.jobs, asked.plant):
        done, simulated, took = done + 1, simulated + outcome.simulated, took + outcome.took
        victims, losses = victims + outcome.victims, losses + outcome.losses
        if outcome.broken:
            failures += 1
            _show(outcome, options, asked.plant)
            if not asked.keep_going:
                break
        if time.monotonic() - shown > _PROGRESS_SECONDS:
            shown = time.monotonic()
            rate = done / (shown - began)
            print(f"{done}/{len(seeds)} seeds, {rate:.1f}/s, {simulated / 3600:.1f} h simulated", flush=True)
    elapsed = time.monotonic() - began
    print(
        f"{done} seeds, {failures} failures, {simulated / 3600:.1f} h simulated, {elapsed:.0f} s elapsed,"
        f" {took:.1f} s of processor time, {victims} victims of preemption,"
        f" {losses} losses of hosts or racks replayed",
        flush=True,
    )
    return failures


def _outcomes(seeds: range, options: WorldOptions, jobs: int, plant: str | None) -> Iterator[WorldOutcome]:
    if jobs <= 1:
        with planted(plant) if plant else nullcontext():
            for seed in seeds:
                yield attempt(seed, options)
        return
    prepare = partial(_prepare, plant)
    with ProcessPoolExecutor(jobs, initializer=prepare) as pool:
        try:
            yield from pool.map(partial(attempt, options=options), seeds, chunksize=4)
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare(plant: str | None) -> None:
    logging.disable()
    if plant:
        planted(plant).__enter__()


def _show(outcome: WorldOutcome, options: WorldOptions, plant: str | None) -> None:
    print(f"seed {outcome.seed}: {outcome.broken}")
    for event in outcome.last_events:
        print(f"    {event[:300]}")
    again = f"--seeds {outcome.seed} --faults {options.faults or 'none'} --requests {options.requests}"
    again += f" --plant {plant}" if plant else ""
    again += " --headroom" if options.headroom else ""
    again += " --metal" if options.metal else ""
    for name, value in (("moves", options.moves), ("preempts", options.preempts)):
        if value is not None:
            again += f" --{name} {'yes' if value else 'no'}"
    print(f"  again: python -m tests.simulation {again}", flush=True)


def _list() -> None:
    print("faults of servers:")
    for name, rates in SERVER_FAULTS.items():
        print(f"  {name:12} {', '.join(f'{field} = {value}' for field, value in rates.items())}")
    print("planted bugs, each without one fence of the product:")
    for name, bug in PLANTED.items():
        print(f"  {name:24} {bug.fence}")


if __name__ == "__main__":
    gc.freeze()
    sys.exit(main())
