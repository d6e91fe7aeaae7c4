"""Measures how many claims are refused because of another scheduler, and the cost of the refusals.

Each worker is a process. There are 1, 2 and 4 schedulers, which spread instances (the default), or pack them:
then all schedulers choose the same host. p99 is the time from a request to the end of its build and includes
the simulated build, 0.1 s on average.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from urllib.request import urlopen

from bench.loading import a_worker, berth_up
from bench.own_servers import broker_and_database, of_berth
from bench.processes import in_all, processor_time, share_of
from deploy.servers import free_port

WAYS = {"spreading": {}, "packing": {"ram": -1.0, "cpu": -1.0}}
_OWN_PORT = re.compile(r"scheduler: process \d+, metrics at http://127\.0\.0\.1:(\d+)")
_REFUSED = 'berth_scheduler_claims result="refused"'
_SAMPLE = re.compile(r"^(\w+?)(?:_total)?(?:\{(.*)\})? ([0-9.e+]+)$", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--boots", type=int, default=6000)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--mix", type=int, default=20)
    parser.add_argument(
        "--fail", type=float, default=0.1, help="of attempts; conductors then take alternates"
    )
    parser.add_argument("--window", type=int, default=2000, help="boots in flight at most")
    parser.add_argument("--schedulers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    arguments = parser.parse_args()
    print(
        f"{'':10} {'schedulers':>10} {'boots/s':>8} {'p99 ms':>7} {'CPU ms/boot':>12} {'of schedulers':>13}"
        f" {'claims refused':>14} {'hosts too':>10} {'crossed':>8}  ended",
        flush=True,
    )
    for way in arguments.ways:
        for several in arguments.schedulers:
            result, cost, counted = _run(arguments, WAYS[way], several)
            boots = arguments.boots
            print(
                f"{way:10} {several:10} {result['boots_per_second']:8.0f} {result['latency_ms']['p99']:7.0f}"
                f" {in_all(cost):12.2f} {cost['scheduler']:13.2f}"
                f" {100 * counted[_REFUSED] / boots:13.2f}%"
                f" {100 * counted['berth_scheduler_choices_refused'] / boots:9.2f}%"
                f" {100 * counted['berth_scheduler_crossings'] / boots:7.2f}%"
                f"  {', '.join(f'{count} {status}' for status, count in result['ended'].items())}",
                flush=True,
            )
            for reason, count in result["reasons"].items():
                print(f"{'':10} {count} × {reason[:200]}", flush=True)
            if result["audit"] or result["ended"].get("lost"):
                sys.exit(f"not clean: {result}")


def _run(
    arguments: argparse.Namespace, weighers: dict[str, float], several: int
) -> tuple[dict[str, Any], defaultdict[str, float], defaultdict[str, float]]:
    """Run one load on new servers; return its result, processor time per boot, and schedulers' counters."""
    with ExitStack() as stack:
        amqp_url, database_url = stack.enter_context(broker_and_database())
        environment = of_berth(
            amqp_url,
            database_url,
            arguments.cells,
            arguments.hosts,
            fail=arguments.fail,
            scheduler_weighers=",".join(f"{name}={by}" for name, by in weighers.items()),
        )
        output = stack.enter_context(
            berth_up({**environment, "BERTH_METRICS_HTTP": f"127.0.0.1:{free_port(24)}"})
        )
        ports = [int(port) for port in _OWN_PORT.findall(output)]
        for _ in range(several - 1):
            ports.append(free_port())
            more = {**environment, "BERTH_METRICS_HTTP": f"127.0.0.1:{ports[-1]}"}
            stack.enter_context(a_worker(more, "scheduler"))
        command = [sys.executable, "-m", "berth", "load", "--attach", "--json"]
        command += ["--boots", str(arguments.boots), "--mix", str(arguments.mix)]
        command += ["--window", str(arguments.window)]
        before = processor_time()
        loader = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        after = processor_time()
        counted = _counted(ports)
    if loader.returncode:
        sys.exit(f"the load failed: {loader.stdout.decode()}")
    return json.loads(loader.stdout), share_of(before, after, arguments.boots), counted


def _counted(ports: Sequence[int]) -> defaultdict[str, float]:
    """Return the sum of each metric over all processes: under "NAME" over all its labels, under "NAME LABELS"
    over these labels only.
    """
    counted: defaultdict[str, float] = defaultdict(float)
    for port in ports:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            for name, labels, value in _SAMPLE.findall(page.read().decode()):
                counted[name] += float(value)
                counted[f"{name} {labels}"] += float(value)
    return counted


if __name__ == "__main__":
    main()
