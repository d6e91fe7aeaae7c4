"""Boots a second, end to end, on RabbitMQ and PostgreSQL with every worker its own process; what each costs.

Seconds depend on what else the machine does; processor time a boot hardly does. Both are printed, for frames
on and off, so that their ratio comes from one run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.own_servers import broker_and_database, of_berth

_TICKS = os.sysconf("SC_CLK_TCK")

ProcessorTime = dict[tuple[int, str], float]  # process id and kind → seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--boots", type=int, default=10_000)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.0, help="boots a second; 0: as fast as possible")
    parser.add_argument("--fail", type=float, default=0.1)
    parser.add_argument("--mix", type=int, default=20, help="flavors in the mix")
    parser.add_argument("--frames", choices=("on", "off", "both"), default="both")
    parser.add_argument("--picture", help="an SVG file for the run with frames")
    arguments = parser.parse_args()
    modes = {"on": (True,), "off": (False,), "both": (True, False)}[arguments.frames]
    print(
        f"{'frames':7} {'boots/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'CPU ms/boot':>12}  of which", flush=True
    )
    for coalesce in modes:
        boots = arguments.boots if coalesce else max(arguments.boots // 5, 500)
        result, cost = _run(arguments, boots, coalesce)
        total = sum(cost.values())
        most_first = sorted(cost.items(), key=lambda one: -one[1])
        parts = ", ".join(f"{name} {milliseconds:.2f}" for name, milliseconds in most_first)
        latency = result["latency_ms"]
        print(
            f"{'on' if coalesce else 'off':7} {result['boots_per_second']:8.0f} {latency['p50']:7.0f} "
            f"{latency['p99']:7.0f} {total:12.2f}  {parts}",
            flush=True,
        )
        if result["audit"] or result["ended"].get("lost"):
            sys.exit(f"not clean: {result}")


def _run(
    arguments: argparse.Namespace, boots: int, coalesce: bool
) -> tuple[dict[str, Any], dict[str, float]]:
    """One load on servers of its own: the result, and milliseconds of processor time a boot by process."""
    with broker_and_database() as (amqp_url, database_url):
        environment = of_berth(
            amqp_url,
            database_url,
            arguments.cells,
            arguments.hosts,
            fail=arguments.fail,
            coalesce=str(coalesce).lower(),
        )
        with berth_up(environment):
            command = [sys.executable, "-m", "berth", "load", "--attach", "--json", "--boots", str(boots)]
            command += ["--mix", str(arguments.mix)]
            command += ["--rate", str(arguments.rate)] if arguments.rate else []
            command += ["--picture", arguments.picture] if arguments.picture and coalesce else []
            before = processor_time()
            loader = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            after = processor_time()
        if loader.returncode:
            sys.exit(f"the load failed: {loader.stdout.decode()}")
    return json.loads(loader.stdout), share_of(before, after, boots)


@contextmanager
def berth_up(environment: dict[str, str]) -> Iterator[str]:
    """A berth in service mode, from ready to stopped; what it said when it was ready."""
    with tempfile.TemporaryFile("w+") as said:
        up = subprocess.Popen([sys.executable, "-m", "berth", "up"], env=environment, stdout=said)
        try:
            for _ in range(600):
                said.seek(0)
                if "berth is up" in said.read() or up.poll() is not None:
                    break
                time.sleep(0.1)
            said.seek(0)
            yield said.read()
        finally:
            up.terminate()
            up.wait(30)


def share_of(before: ProcessorTime, after: ProcessorTime, boots: int) -> defaultdict[str, float]:
    """Milliseconds of it a boot, by kind of process."""
    cost: defaultdict[str, float] = defaultdict(float)
    for process, seconds in after.items():
        cost[process[1]] += (seconds - before.get(process, 0.0)) * 1000 / boots
    return defaultdict(float, {name: spent for name, spent in cost.items() if spent > 0.005})


def processor_time() -> ProcessorTime:
    """Seconds used so far by every process of ours: its workers, the broker, the database."""
    ours: ProcessorTime = {}
    family = _descendants(os.getpid())
    for pid in family:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        ours[pid, _kind(command)] = (int(fields[11]) + int(fields[12])) / _TICKS
    return ours


def _descendants(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat[stat.rindex(")") + 2 :].split()[1]), []).append(int(entry.name))
    found, fresh = set(), [root]
    while fresh:
        pid = fresh.pop()
        found.add(pid)
        fresh += children.get(pid, [])
    return found


def _kind(command: str) -> str:
    if "beam" in command:
        return "RabbitMQ"
    if "postgres" in command:
        return "PostgreSQL"
    for worker in ("placement", "scheduler", "conductor", "compute", "ironic"):
        if f"berth run {worker}" in command:
            return worker
    return "other"


if __name__ == "__main__":
    main()
