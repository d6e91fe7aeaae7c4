"""Drains hosts during a load of boots, and measures the duration of the drain and its effect on the boots.

Each worker is a process, on RabbitMQ and PostgreSQL. Hosts are filled first; then boots arrive and are
deleted at a steady rate, for some time alone, and then while `berth drain` empties all hosts of one agent.
The difference of the latencies is the cost of the drain; an audit shows whether anything was lost.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable

from bench.loading import berth_up, latencies_of
from bench.own_servers import broker_and_database, of_berth
from berth import composition
from berth.loadtest import Boot, Load, LoadPlan, percentile
from berth.operations.publishing import publish
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested

_AGENTS = 4  # agents per cell: one is drained, the rest take its instances


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--drained", type=int, default=50, help="hosts that are drained")
    parser.add_argument("--each", type=int, default=20, help="instances on a host")
    parser.add_argument("--cells", type=int, default=2)
    parser.add_argument("--rate", type=float, default=100.0, help="boots a second meanwhile")
    parser.add_argument("--max", type=int, default=40, help="moves at a time")
    parser.add_argument("--alone", type=float, default=30.0, help="seconds of boots without a drain")
    arguments = parser.parse_args()
    hosts = arguments.drained * _AGENTS * arguments.cells
    with broker_and_database() as (amqp_url, database_url):
        environment = of_berth(
            amqp_url,
            database_url,
            arguments.cells,
            hosts,
            simulator_agents_per_cell=_AGENTS,
            simulator_fail=0.1,
        )
        with berth_up(environment):
            filled = _berth(
                environment, "load", "--attach", "--json", "--boots", str(hosts * arguments.each),
                "--vcpus", "1", "--memory-mb", "512", "--disk-gb", "1",
            )  # fmt: skip
            print(f"{hosts} hosts filled: {json.loads(filled)['ended']}", flush=True)
            settings = Settings().having(amqp_url=amqp_url, database_url=database_url)
            alone = asyncio.run(_boots(settings, arguments.rate, _after(arguments.alone)))
            _show("boots alone", alone)
            began = time.monotonic()
            with tempfile.TemporaryFile("w+") as output:
                words = ["drain", "--agent", "c1-agent1", "--max", str(arguments.max), "--json"]
                drain = subprocess.Popen(
                    [sys.executable, "-m", "berth", *words], env=environment, stdout=output
                )
                busy = asyncio.run(_boots(settings, arguments.rate, lambda: drain.poll() is not None))
                seconds = time.monotonic() - began
                output.seek(0)
                ends = [json.loads(line) for line in output]
            _show("during the drain", busy)
            last = ends[-1]
            stay = f"{len(last['stay'])} stay {Counter(last['stay'].values()).most_common(3) or ''}"
            print(
                f"drain: {len(last['moved'])} moved, {len(last['gone'])} gone, {stay} after {seconds:.1f} s,"
                f" {len(last['moved']) / seconds:.0f} a second; exit {drain.returncode}"
            )
            print(f"boots' p99: {_share(busy, 0.99) / _share(alone, 0.99):.2f} × as long as alone")
            audit = subprocess.run(
                [sys.executable, "-m", "berth", "audit"], env=environment, capture_output=True, text=True
            )
            print(audit.stdout.strip())
    if drain.returncode or audit.returncode or any(boot.status == "lost" for boot in alone + busy):
        sys.exit("not clean")


def _berth(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "berth", *words], env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"berth {words[0]} failed: {done.stdout}")
    return done.stdout


async def _boots(settings: Settings, rate: float, over: Callable[[], bool]) -> list[Boot]:
    """Publish boots at this rate until `over()` is true; return them with the times at which they ended."""
    found: list[Boot] = []
    async with Bus(composition.transport(settings, "bench")) as bus:
        while not over():
            plan = LoadPlan(boots=max(int(rate * 5), 1), rate=rate, seed=len(found) + 1)
            booted = (await Load(bus, plan).run()).boots
            found += booted.values()
            await publish(bus, *(_deletion(build, boot) for build, boot in booted.items() if boot.host))
    return found


def _deletion(build: str, booted: Boot) -> BuildDeleteRequested:
    """Return the request to delete a measured build; the cell is the first part of the host's name."""
    return BuildDeleteRequested(build=build, cell=booted.host.partition("-")[0])


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _share(boots: list[Boot], share: float) -> float:
    return percentile([boot.latency for boot in boots if boot.ended], share) * 1000


def _show(what: str, boots: list[Boot]) -> None:
    ends = ", ".join(f"{count} {status}" for status, count in Counter(boot.status for boot in boots).items())
    print(
        f"{what}: {len(boots)} boots, {ends}; request to end, build included: {latencies_of(boots)}",
        flush=True,
    )


if __name__ == "__main__":
    main()
