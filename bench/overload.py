"""Measures boots at given rates: the latency below the peak rate, and the behaviour above the peak.

Measures the peak first; then latencies at the given rates and at half of the peak; then runs at three times
the peak for some time. Excess requests wait in the scheduler's queue on the broker's disk: no other queue may
grow, nor any worker's memory.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aio_pika
import uvloop

from bench.durable import of_new_servers
from bench.figures import Figure
from bench.loading import BenchBerth, LoadedBoots, NotClean, berth_on, berth_up
from bench.own_servers import own_directory
from bench.processes import memory
from berth.loadtest import Boot, LoadPlan, mixed
from deploy.servers import Postgres, RabbitMQ

TIMES = 3.0  # the overload is this multiple of the peak
FRONT = "build.requested"  # part of the name of the only queue that may grow


@dataclass(frozen=True)
class RateSizes:
    """The numbers of boots, and the rates, at which the benchmark measures."""

    hosts: int = 10_000
    peak: int = 4000  # number of boots that measure the peak
    rates: tuple[float, ...] = (100.0, 300.0)  # boots per second; and half of the peak
    seconds: float = 8.0  # at each rate
    overload: float = 8.0  # seconds of overload
    flavors: int = 20


def measure(sizes: RateSizes) -> tuple[Figure, ...]:
    with own_directory() as directory, RabbitMQ(directory / "r") as rabbitmq, Postgres(directory / "p") as pg:
        berth = berth_on(rabbitmq.url, pg.url, sizes.hosts, simulator_fail=0.1)
        with berth_up(berth.environment, sizes.hosts):
            berth.load(LoadPlan(boots=sizes.peak // 4, flavors=mixed(sizes.flavors)))  # warm-up
            peak = berth.load(LoadPlan(boots=sizes.peak, flavors=mixed(sizes.flavors))).outcome.per_second
            # near the peak, latency is mostly waiting in a queue
            named = {f"{rate:,.0f}/s offered": rate for rate in sizes.rates if rate < 0.9 * peak}
            named["half of the peak offered"] = peak / 2
            asked = [figure for name, rate in named.items() for figure in _offered(berth, sizes, name, rate)]
            beyond = _beyond(berth, rabbitmq, sizes, peak)
        berth.judge()
    return (Figure("peak", peak, "/s", "up"), *asked, *beyond)


def _offered(berth: BenchBerth, sizes: RateSizes, name: str, rate: float) -> tuple[Figure, ...]:
    plan = LoadPlan(boots=max(int(rate * sizes.seconds), 1), rate=rate, flavors=mixed(sizes.flavors))
    run = berth.load(plan)
    # Latency includes the build by a simulated agent, 0.1 s on average.
    return (
        Figure(f"{name}: p50 with the build", run.latency(0.5), "ms", "down"),
        Figure(f"{name}: p99 with the build", run.latency(0.99), "ms", "down"),
        Figure(f"{name}: processor a boot", run.in_all, "ms", "down", "processor"),
    )


def _beyond(berth: BenchBerth, rabbitmq: RabbitMQ, sizes: RateSizes, peak: float) -> tuple[Figure, ...]:
    rate = TIMES * peak
    plan = LoadPlan(boots=int(rate * sizes.overload), rate=rate, flavors=mixed(sizes.flavors), patience=120.0)
    names = list(uvloop.run(_lengths(rabbitmq.url, rabbitmq.control("list_queues", "name").split())))
    before = memory()
    run, longest = uvloop.run(_watched(berth, rabbitmq.url, plan, names))
    after = memory()
    left = [name for name, waiting in uvloop.run(_lengths(rabbitmq.url, names)).items() if waiting]
    if left:
        raise NotClean(f"not drained: {left}")
    boots = list(run.outcome.boots.values())
    offered, while_offered, afterwards = pace(boots)
    behind = max((most for name, most in longest.items() if FRONT not in name), default=0)
    return (
        Figure(f"{TIMES:g} × the peak offered: share of it kept", while_offered / peak, "of 1", "up", ""),
        Figure("drained afterwards, share of the peak", afterwards / peak, "of 1", "up", ""),
        Figure("longest queue behind the first, frames", behind, "", "down", ""),
        Figure("offered, times the peak", offered / peak, "×", "up", ""),
        Figure("all workers grew by", sum(after.values()) - sum(before.values()), "MB", "down", ""),
    )


def pace(boots: Sequence[Boot]) -> tuple[float, float, float]:
    """Return three rates in boots per second: requested, ended before the last request was sent, and ended
    after it.
    """
    until = max(boot.asked for boot in boots)
    end = max(boot.ended for boot in boots)
    meanwhile = sum(boot.ended <= until for boot in boots)
    afterwards = (len(boots) - meanwhile) / (end - until) if end > until else 0.0
    return (len(boots) / until, meanwhile / until, afterwards) if until else (0.0, 0.0, afterwards)


async def _watched(
    berth: BenchBerth, url: str, plan: LoadPlan, names: Sequence[str]
) -> tuple[LoadedBoots, dict[str, int]]:
    """Run a load; return its result, and the greatest depth of each queue during the load."""
    longest: dict[str, int] = {}
    over = asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            for name, waiting in (await _lengths(url, names)).items():
                longest[name] = max(longest.get(name, 0), waiting)
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        try:
            return await berth.loaded(plan), longest
        finally:
            over.set()  # do not cancel the watcher: a cancelled AMQP client may hang


async def _lengths(url: str, names: Sequence[str]) -> dict[str, int]:
    """Return the number of messages in each queue, except queues that were deleted or belong exclusively to
    another connection.
    """
    lengths: dict[str, int] = {}
    async with await aio_pika.connect(url) as connection:
        for name in names:
            channel = await connection.channel()
            try:
                queue = await channel.get_queue(name)
            except aio_pika.exceptions.ChannelClosed:
                continue
            lengths[name] = queue.declaration_result.message_count or 0
            await channel.close()
    return lengths


def main() -> None:
    default = RateSizes()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", type=int, default=default.hosts)
    parser.add_argument("--peak", type=int, default=default.peak, help="boots, to find the peak")
    parser.add_argument(
        "--rates", type=float, nargs="*", default=default.rates, help="boots a second, then half of the peak"
    )
    parser.add_argument("--seconds", type=float, default=default.seconds, help="at each rate")
    parser.add_argument("--overload", type=float, default=default.overload, help="seconds of more than go")
    parser.add_argument("--mix", type=int, default=default.flavors, help="flavors in the mix")
    given = parser.parse_args()
    sizes = RateSizes(given.hosts, given.peak, (*given.rates,), given.seconds, given.overload, given.mix)
    print(f"yardstick: {of_new_servers()}", flush=True)
    for figure in measure(sizes):
        print(f"{figure.name}: {figure.value:.2f} {figure.unit}")


if __name__ == "__main__":
    main()
