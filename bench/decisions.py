"""Measures a scheduler's decisions alone: claims are granted immediately, and no message is encoded.

    python -m bench.decisions [--hosts 1000,10000] [--flavors 1,20] [--batch 1024] [--profile spread]

Placement's index is in the process and learns each claim before the next batch, which is not measured. Times
are processor seconds, with garbage collection as in a worker. All hosts have reported their states, and all
default filters and weighers are enabled.
"""

import argparse
import asyncio
import random
from collections.abc import Sequence
from time import process_time

from rich.console import Console
from rich.table import Table

from berth.composition import parts_of_scheduler
from berth.features import add_filters
from berth.kit.instant_cloud import InstantPlacement
from berth.loadtest import mixed
from berth.services import settle_in
from berth.settings import Settings
from bus.claims import ClaimAnswered, ClaimRequested
from bus.clock import Clock
from bus.messages import BuildRequested, HostReported
from bus.reports import HostState, Inventory
from placement_worker import IndexedSource
from placement_worker.core.index import Index
from placement_worker.core.trees import ProviderState, Tree
from scheduler_worker import ChoicePolicy, default_profile
from scheduler_worker.composition import plain_scheduler
from scheduler_worker.dependencies import REQUESTS_AT_ONCE, SchedulerOptions

add_filters()
CELLS = 10
TRAITS = tuple(f"HW_CPU_X86_{number}" for number in range(20))
PARTS = parts_of_scheduler(Settings())
DEFAULT = "default"  # names the shipped default profile
PERIOD = 600.0  # seconds; so long that no host counts as down during a slow measurement


def fleet(hosts: int) -> list[Tree]:
    """Return hosts in CELLS cells, of which a third is full, and a tenth has the trait CUSTOM_FAST."""
    chance = random.Random(3)
    trees = []
    for number in range(hosts):
        root = f"{number:08x}-0000-4000-8000-{number:012x}"
        stock = {
            "VCPU": Inventory(total=64, allocation_ratio=4.0),
            "MEMORY_MB": Inventory(total=262_144, reserved=4096),
            "DISK_GB": Inventory(total=2000),
        }
        used = {
            "VCPU": 256 if chance.random() < 0.33 else chance.randrange(200),
            "MEMORY_MB": 0,
            "DISK_GB": 0,
        }
        traits = (*TRAITS, "CUSTOM_FAST") if number % 10 == 0 else TRAITS
        provider = ProviderState(number, root, f"host-{number}", None, 1, 1, stock, used, traits, ())
        agent, cell = f"agent-{number}", f"cell-{number % CELLS}"
        trees.append(Tree(root, f"host-{number}", cell, agent, "az1", 1, False, (provider,)))
    return trees


class TimedPlacement(InstantPlacement):
    """Measures the processor seconds spent in it, which are subtracted."""

    seconds = 0.0

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        started = process_time()
        answers = await super().claim_many(orders)
        self.seconds += process_time() - started
        return answers


def policy(profile: str = DEFAULT) -> ChoicePolicy:
    """Return the policy of a profile that is measured; by default that of the profile shipped as default."""
    # max_builds: no build ends here, and the limit of builds in progress on a host must not be reached.
    chosen = default_profile() if profile == DEFAULT else profile
    return ChoicePolicy.from_names(max_builds=1_000_000, profile=chosen)


async def decisions_a_second(
    hosts: int, flavors: int, batch: int, decisions: int, chosen: ChoicePolicy
) -> tuple[float, int]:
    index = Index()
    for tree in fleet(hosts):
        index.put(tree, 0)
    placement, clock = TimedPlacement(index), Clock(chance=random.Random(1))
    source, queries = IndexedSource(placement), placement.queries()
    scheduler = plain_scheduler(source, queries, clock, SchedulerOptions(policy=chosen), PARTS)
    await scheduler.opened()
    for row in placement.index.at[: placement.index.high]:
        if row is not None:
            state = HostState(root=row.uuid, host=row.host, load=0.1 * (row.position % 7))
            report = HostReported(cell=row.cell, agent=row.agent, sequence=1, period=PERIOD, hosts=(state,))
            await scheduler.handle(report)
    kinds = mixed(flavors)
    batches = [
        [
            BuildRequested(
                request=clock.uuid(), instances=(clock.uuid(),), flavor=kinds[(first + index) % len(kinds)]
            )
            for index in range(batch)
        ]
        for first in range(0, decisions, batch)
    ]
    await scheduler.place_many(batches[0])
    settle_in()
    placement.seconds, placement.granted = 0.0, 0
    started = process_time()
    for requests in batches[1:]:
        await scheduler.place_many(requests)
    taken = process_time() - started - placement.seconds
    return placement.granted / taken, placement.granted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hosts", default="1000,10000")
    parser.add_argument("--flavors", default="1,20")
    parser.add_argument("--batch", type=int, default=REQUESTS_AT_ONCE)
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--profile", default=DEFAULT, help="default: the shipped default")
    arguments = parser.parse_args()
    chosen = policy(arguments.profile)
    table = Table("hosts", "flavors", "decisions/s", "µs each", "decided", title=f"in {CELLS} cells")
    for hosts in map(int, arguments.hosts.split(",")):
        for flavors in map(int, arguments.flavors.split(",")):
            speed, decided = asyncio.run(
                decisions_a_second(hosts, flavors, arguments.batch, arguments.decisions, chosen)
            )
            table.add_row(str(hosts), str(flavors), f"{speed:,.0f}", f"{1e6 / speed:.0f}", str(decided))
    Console().print(table)


if __name__ == "__main__":
    main()
