"""Measures boots per second and processor time per boot, on RabbitMQ and PostgreSQL, with a process per
worker.

Throughput depends on other work of the machine; processor time per boot hardly does. p50 and p99 measure the
time from a request to the end of its build and include the simulated build, 0.1 s on average.
"""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from bench import hop_times
from bench.durable import of_new_servers
from bench.loading import a_berth, load_parser
from bench.processes import of_berth, parts_of
from berth.loadtest import LoadPlan, latency_svg, mixed


def main() -> None:
    parser = load_parser(__doc__, boots=10_000, hosts=1000)
    parser.add_argument(
        "--build-time", default="exponential:0.1", help="as the option build_time of the simulator"
    )
    parser.add_argument("--hops", action="store_true", help="also print what each message waits for")
    parser.add_argument("--picture", type=Path, help="an SVG file of the latencies")
    arguments = parser.parse_args()
    print(f"yardstick: {of_new_servers()}", flush=True)
    plan = LoadPlan(boots=arguments.boots, rate=arguments.rate, flavors=mixed(arguments.mix))
    with hop_times.recorded() if arguments.hops else nullcontext() as records:
        with a_berth(
            arguments.hosts,
            arguments.cells,
            simulator_fail=arguments.fail,
            simulator_build_time=arguments.build_time,
            layout=arguments.layout,
        ) as berth:
            if records:  # the first boots wait for the first checks of the agents
                berth.load(replace(plan, boots=200))
            began = time.time()
            run = berth.load(plan)
            berth.judge()
        hops = hop_times.table(records, began) if records else ""
    print(f"{'boots/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'CPU ms/boot':>12}  of which")
    print(
        f"{run.outcome.per_second:8.0f} {run.latency(0.5):7.0f} {run.latency(0.99):7.0f} "
        f"{run.in_all:12.2f}  {parts_of(run.cost)}; the load: {run.cost['load']:.2f}"
    )
    print(f"without the simulated agents (compute): {of_berth(run.cost):.2f} ms of processor time a boot")
    if hops:
        print(hops)
    if arguments.picture:
        boots = f"{arguments.boots} boots on {arguments.hosts} hosts"
        picture = latency_svg(run.outcome, f"{boots}: {run.outcome.per_second:.0f} boots/s")
        arguments.picture.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
