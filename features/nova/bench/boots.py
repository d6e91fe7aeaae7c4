"""Compares the boots per second of a real Nova with its own scheduler and Placement, and with berth as both.

    python -m features.nova.bench.boots [--boots N] [--rounds N]

Both regions run at the same time, and rounds of boots alternate between them, so that both see the same
machine. The hosts have no hypervisor; the rest is Nova with Keystone, RabbitMQ and PostgreSQL, from the
environment of `make nova-test`. The conductor and the computes limit the rate, so the figures say what a
region gains or loses, not how fast the schedulers are (`python -m bench nova_selects`).
"""

import argparse
import asyncio
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from bench.loading import NotClean
from bus.clock import monotonic
from deploy.nova import HostCapacity, NovaOptions, NovaRegion, openstack_placement, running_nova
from deploy.nova_scheduling import BerthOnRabbitMQ, berth_scheduling

OPTIONS = NovaOptions(hosts=4, capacity=HostCapacity(vcpus=64, memory_mb=65_536, disk_gb=1000))
DELETE_SECONDS = 240.0
_ENDS = ("ACTIVE", "ERROR")


@dataclass
class MeasuredRegion:
    """A region, and its boots per second in each round."""

    name: str
    region: NovaRegion
    rates: list[float] = field(default_factory=list)

    async def round(self, boots: int) -> None:
        """Boot servers at the same time, and record how many became active per second; then delete them."""
        nova, began = self.region.nova, monotonic()
        servers = await asyncio.gather(*(nova.boot() for _ in range(boots)))
        while True:
            status = {server["id"]: server["status"] for server in await nova.servers()}
            ends = [status.get(server) for server in servers]
            if all(end in _ENDS for end in ends):
                break
            await asyncio.sleep(0.25)
        self.rates.append(boots / (monotonic() - began))
        if failed := ends.count("ERROR"):
            raise NotClean(f"{self.name}: {failed} of {boots} boots failed: {self.region.problems()[-3:]}")
        await nova.delete(*servers, seconds=DELETE_SECONDS)


async def measured(boots: int, rounds: int) -> list[MeasuredRegion]:
    async with AsyncExitStack() as stack:
        berth = BerthOnRabbitMQ()
        theirs = await stack.enter_async_context(running_nova(OPTIONS, placement=openstack_placement))
        without_scheduler = replace(OPTIONS, has_scheduler=False)
        ours = await stack.enter_async_context(running_nova(without_scheduler, placement=berth.placement))
        await stack.enter_async_context(berth_scheduling(ours))
        regions = [MeasuredRegion("nova-scheduler", theirs), MeasuredRegion("berth", ours)]
        for each in regions:
            await each.round(max(boots // 10, 10))  # warm-up
            each.rates.clear()
        for number in range(rounds):
            for each in regions if number % 2 else reversed(regions):
                await each.round(boots)
                print(f"{each.name}: {boots} boots, {each.rates[-1]:.2f}/s", flush=True)
        return regions


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--boots", type=int, default=100, help="of a round")
    parser.add_argument("--rounds", type=int, default=4, help="of each region")
    given = parser.parse_args()
    theirs, ours = asyncio.run(measured(given.boots, given.rounds))
    for each in (theirs, ours):
        print(f"{each.name}: median {statistics.median(each.rates):.2f} boots/s of {given.rounds} rounds")
    ratios = [ours / theirs for ours, theirs in zip(ours.rates, theirs.rates, strict=True)]
    print(f"berth / nova-scheduler: median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
