"""Compares multipliers of the weigher `devices`: how long guests that span NUMA cells wait for a host.

    python -m features.guest_hardware.bench.device_choice [--worlds 20] [--hosts 8] [--arrivals 1500]

Guests arrive at random on hosts with two NUMA cells of 16 processors. Some need one cell, some processors of
two different cells. They wait in the order of their arrival, the two kinds independently, and stay for a
random time. Each world is simulated with each multiplier in turn, with the same guests, and the waiting
times are compared as ratios. Time is simulated, so the load of the machine changes nothing.
"""

import argparse
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean

from berth.kit import InstantPlacement
from berth.kit.testing import add_filters
from bus.queries import FindCandidates
from bus.reports import Inventory
from bus.requests import ResourceGroup
from bus.vocabulary import Allocations
from placement_worker.extension import Index, ProviderState, Tree
from placement_worker.testing import IndexedSource
from scheduler_worker.extension import ChoicePolicy
from scheduler_worker.testing import WAYS_OF_THE_BEST, best_first

add_filters()
CELLS, PROCESSORS = 2, 16
# Mixes of guests: processors of guests of one cell, and processors in each cell of guests that span two
MIXES = {
    "equal sizes": ((2, 4, 8), (2, 4, 8)),
    "wide spanning guests": ((1, 2, 4), (8,)),
    "wide guests of one cell": ((2, 8, 16), (2, 4)),
}


@dataclass(frozen=True)
class Guest:
    at: float
    stays: float
    asks: tuple[int, ...]  # processors, of one NUMA cell each

    @property
    def spans(self) -> bool:
        return len(self.asks) > 1


def guests(chance: Random, mix: str, arrivals: int, hosts: int, share: float, load: float) -> list[Guest]:
    """Return guests whose total demand is `load` of the processors; `share` of them span two cells."""
    one, two = MIXES[mix]
    made, at = list[Guest](), 0.0
    for _ in range(arrivals):
        asks = (chance.choice(two),) * CELLS if chance.random() < share else (chance.choice(one),)
        at += chance.expovariate(1.0)
        made.append(Guest(at, 1.0, asks))
    demand = mean(sum(guest.asks) for guest in made)
    stays = load * hosts * CELLS * PROCESSORS / demand  # by Little's law, with one arrival in a unit of time
    return [Guest(guest.at, chance.expovariate(1 / stays), guest.asks) for guest in made]


def a_host(number: int) -> Tree:
    ids = [f"{number:08x}-0000-4000-8000-{cell:012x}" for cell in range(CELLS + 1)]
    first, disk, processors = number * (CELLS + 1) + 1, Inventory(total=1000), Inventory(total=PROCESSORS)
    root = ProviderState(
        first, ids[0], f"host-{number}", None, 1, 1, {"DISK_GB": disk}, {"DISK_GB": 0}, (), ()
    )
    cells = [
        ProviderState(first + nth, id_, id_, ids[0], 1, 1, {"VCPU": processors}, {"VCPU": 0}, (), ())
        for nth, id_ in enumerate(ids[1:], 1)
    ]
    return Tree(ids[0], f"host-{number}", "c1", f"agent-{number}", "", 1, False, (root, *cells))


class NumaCloud:
    """Hosts with NUMA cells, on which the weighers cpu and `devices` choose."""

    def __init__(self, hosts: int, multiplier: float) -> None:
        index = Index()
        for number in range(hosts):
            index.put(a_host(number), 1)
        self._source = IndexedSource(InstantPlacement(index))
        self._policy = ChoicePolicy.from_names(weighers={"devices": multiplier})

    def place(self, guest: Guest) -> Allocations | None:
        groups = tuple(
            ResourceGroup(suffix=f"_{n}", resources={"VCPU": asked}) for n, asked in enumerate(guest.asks)
        )
        search = self._source.search(FindCandidates(groups=groups, group_policy="isolate", limit=1))
        free = search.free("VCPU")
        for nth in sorted(range(len(free)), key=lambda nth: -free[nth]):
            ways = tuple(search.ways(search.positions.item(nth), WAYS_OF_THE_BEST))
            if ways:
                chosen = best_first(ways, self._policy.of_candidates)[0].allocations
                self._source.packing.claim(chosen)
                return chosen
        return None

    def release(self, allocations: Allocations) -> None:
        self._source.packing.release(allocations)


def waits(cloud: NumaCloud, arriving: Sequence[Guest]) -> tuple[float, float]:
    """Return how long guests waited on average: those of one NUMA cell, and those that span cells."""
    queues: dict[bool, deque[Guest]] = {False: deque(), True: deque()}
    waited: dict[bool, list[float]] = {False: [], True: []}
    ends: list[tuple[float, int, Allocations]] = []
    coming, started = deque(arriving), 0
    while coming or any(queues.values()):
        if ends and (not coming or ends[0][0] <= coming[0].at):
            now, _, allocations = heapq.heappop(ends)
            cloud.release(allocations)
        else:
            guest = coming.popleft()
            now = guest.at
            queues[guest.spans].append(guest)
        for spans in sorted(queues, key=lambda spans: queues[spans][0].at if queues[spans] else now):
            queue = queues[spans]
            while queue and (placed := cloud.place(queue[0])) is not None:
                guest = queue.popleft()
                waited[spans].append(now - guest.at)
                started += 1
                heapq.heappush(ends, (now + guest.stays, started, placed))
    return mean(waited[False]), mean(waited[True])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--arrivals", type=int, default=1500)
    parser.add_argument("--mix", choices=MIXES, action="append")
    given = parser.parse_args()
    multipliers = (1.0, -1.0)
    print("guests, load: waiting of guests of one cell; of spanning guests, relative to multiplier 1")
    for mix, share, load in (
        (mix, share, load) for mix in given.mix or MIXES for share in (0.1, 0.3) for load in (0.7, 0.8)
    ):
        found: dict[float, list[tuple[float, float]]] = {multiplier: [] for multiplier in multipliers}
        for world in range(given.worlds):
            arriving = guests(Random(world), mix, given.arrivals, given.hosts, share, load)
            for multiplier in multipliers:
                found[multiplier].append(waits(NumaCloud(given.hosts, multiplier), arriving))
        for multiplier in multipliers[1:]:
            pairs = [*zip(found[multiplier], found[1.0], strict=True)]
            texts = [_compared([(one[kind], two[kind]) for one, two in pairs]) for kind in (0, 1)]
            print(f"{mix}, {share:.0%} span, {load:.0%}, {multiplier:+g}: {'; '.join(texts)}", flush=True)


def _compared(pairs: Sequence[tuple[float, float]]) -> str:
    ours, others = mean(one for one, _ in pairs), mean(two for _, two in pairs)
    ratio = f"{ours / others:.2f}" if others else "-"
    return f"{ratio} ({others:.2f} -> {ours:.2f}, longer in {sum(a > b for a, b in pairs)} of {len(pairs)})"


if __name__ == "__main__":
    main()
