"""Compares boots over the REST API with boots on the bus: batches of 128, alternating on one berth.

Over HTTP the client is a member of a project, so the server also checks that no id in a batch belongs to
another project. All boots are of this project: after requests of several projects a scheduler limits its
batches for a minute.
"""

import argparse
import asyncio
from collections.abc import Sequence
from statistics import median

import uvloop

from bench.loading import BenchBerth, LoadedBoots, a_berth, check_clean
from bench.processes import parts_of, processor_time, share_of
from berth import composition
from berth.client import RestClient
from berth.commands.run import ready
from berth.loadtest import Load, LoadOutcome, LoadPlan
from bus.delivery.runner import Bus
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.protocol import decode
from deploy.processes import free_port

AT_ONCE = 8  # batches that are sent concurrently
PROJECT = "web"


class RestLoad(Load):
    """A load test that sends its requests over the REST API, and reads results from its event stream."""

    def __init__(self, bus: Bus, plan: LoadPlan, client: RestClient) -> None:
        super().__init__(bus, plan)
        self._client = client
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def measure(self) -> LoadOutcome:
        async with asyncio.TaskGroup() as self._group:
            following = self._group.create_task(self._follow(await self._client.newest_event()))
            outcome = await self.run()
            following.cancel()
        return outcome

    async def _follow(self, after: int) -> None:
        async for event in self._client.events(after):
            if event.event == "build.ended":
                end = decode(BuildEnded, event.data)
                self._end(end.build, end.status, end.host, end.reason, len(end.attempts))
            elif event.event == "build.unplaceable":
                refusal = decode(BuildUnplaceable, event.data)
                for build in refusal.instances:
                    self._end(build, "unplaceable", "", refusal.reason, 0)

    async def _send(self, requests: Sequence[BuildRequested]) -> None:
        async with self._slots:
            self._group.create_task(self._boot(requests))

    async def _boot(self, requests: Sequence[BuildRequested]) -> None:
        async with self._slots:
            await self._client.boot_many(requests)


async def over_http(berth: BenchBerth, url: str, plan: LoadPlan) -> LoadedBoots:
    member = RestClient(url, f"load:{PROJECT}", headers={"x-roles": "member"})
    async with Bus(composition.transport(berth.settings, "bench")) as bus, member as client:
        await ready(bus, berth.settings)
        before = processor_time()
        outcome = await RestLoad(bus, plan, client).measure()
        cost = share_of(before, processor_time(), plan.boots)
    check_clean(outcome)
    return LoadedBoots(outcome, cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--boots", type=int, default=5000)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layout", default="separate", choices=("separate", "compact"))
    arguments = parser.parse_args()
    address = f"127.0.0.1:{free_port()}"
    plan = LoadPlan(boots=arguments.boots, window=arguments.boots, project=PROJECT)
    rates, costs = [], []
    with a_berth(arguments.hosts, simulator_fail=0.0, layout=arguments.layout, rest_http=address) as berth:
        berth.load(LoadPlan(boots=500, project=PROJECT))
        print(f"{'':>5} {'boots/s':>8} {'p50 ms':>7} {'p99 ms':>7} {'CPU ms/boot':>12}", flush=True)
        for _ in range(arguments.rounds):
            bus, rest = berth.load(plan), uvloop.run(over_http(berth, f"http://{address}", plan))
            for name, run in (("bus", bus), ("REST", rest)):
                print(
                    f"{name:>5} {run.outcome.per_second:8.0f} {run.latency(0.5):7.0f}"
                    f" {run.latency(0.99):7.0f} {run.in_all:12.2f}  {parts_of(run.cost)}",
                    flush=True,
                )
            rates.append(rest.outcome.per_second / bus.outcome.per_second)
            costs.append(rest.in_all / bus.in_all)
        berth.judge()
    for name, ratios in (("boots/s", rates), ("processor time of a boot", costs)):
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"{name} over HTTP relative to the bus: {median(ratios):.2f} ({each})")


if __name__ == "__main__":
    main()
