"""The candidate index at 1,000, 10,000 and 100,000 hosts: searching, paging, updating, filling, memory.

    python -m bench.candidates [--hosts 1000,10000,100000]

A third of the hosts is full and a tenth has the trait that is asked for. The engine alone is measured: no
bus, no SQL.
"""

import argparse
import random
import tracemalloc
from collections.abc import Callable
from time import perf_counter

import msgspec
from rich.console import Console
from rich.table import Table

from bus.messages import FindCandidates
from bus.vocabulary import Inventory, ProviderChange, ResourceGroup
from placement_worker.core.index import Index
from placement_worker.core.search import search
from placement_worker.core.trees import ProviderState, Tree

CELLS = 10
ASKED = {"VCPU": 4, "MEMORY_MB": 8192, "DISK_GB": 40}
TRAITS = tuple(f"HW_CPU_X86_{number}" for number in range(20))


def fleet(hosts: int) -> list[Tree]:
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


def a_query(limit: int, *, cell: str = "", required: tuple[str, ...] = (), vcpus: int = 4) -> FindCandidates:
    group = ResourceGroup(resources={**ASKED, "VCPU": vcpus}, required=required)
    return FindCandidates(groups=(group,), limit=limit, cell=cell, seed="bench")


def milliseconds(work: Callable[[], object], times: int) -> float:
    """The median of single runs."""
    taken = []
    for _ in range(times):
        begun = perf_counter()
        work()
        taken.append(perf_counter() - begun)
    return sorted(taken)[times // 2] * 1000


def measure(hosts: int) -> dict[str, float]:
    trees = fleet(hosts)
    tracemalloc.start()
    memory = Index()
    for tree in trees:
        memory.put(tree, 1)
    megabytes = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    del memory
    index = Index()
    begun = perf_counter()
    for tree in trees:
        index.put(tree, 1)
    filled = (perf_counter() - begun) * 1000
    chance = random.Random(4)
    updates = [
        ProviderChange(root, root, 2, {"VCPU": chance.randrange(200), "MEMORY_MB": 512, "DISK_GB": 1})
        for root in (chance.choice(trees).root for _ in range(5000))
    ]
    begun = perf_counter()
    for number, change in enumerate(updates, 2):
        index.accept(number, (change,))
    updated = (perf_counter() - begun) / len(updates) * 1e6
    encode = msgspec.json.Encoder().encode
    page = search(index, a_query(256))
    return {
        "search, 1 candidate, ms": milliseconds(lambda: search(index, a_query(1)), 200),
        "with trait and cell, ms": milliseconds(
            lambda: search(index, a_query(1, cell="cell-0", required=("CUSTOM_FAST",))), 200
        ),
        "nothing fits, and why, ms": milliseconds(lambda: search(index, a_query(1, vcpus=500)), 50),
        "search, 256 candidates, ms": milliseconds(lambda: search(index, a_query(256)), 200),
        "the 256 as JSON, ms": milliseconds(lambda: encode(page), 50),
        "one usage update, µs": updated,
        "filling, ms": filled,
        "memory, MiB": megabytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default="1000,10000,100000")
    sizes = [int(one) for one in parser.parse_args().hosts.split(",")]
    figures = [measure(size) for size in sizes]
    table = Table(title="the candidate index")
    for heading in ("hosts", *(f"{size:,}" for size in sizes), "last : first"):
        table.add_column(heading, justify="right")
    for name in figures[0]:
        row = [one[name] for one in figures]
        table.add_row(name, *(f"{figure:,.3f}" for figure in row), f"{row[-1] / row[0]:,.1f} x")
    Console().print(table)


if __name__ == "__main__":
    main()
