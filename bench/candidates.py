"""Measures the candidate index at 1,000, 10,000 and 100,000 hosts: search, update, loading, memory.

    python -m bench.candidates [--hosts 1000,10000,100000] [--trees 1000,10000]

A third of the flat hosts is full, and a tenth has the trait that searches require. The trees have seven
providers each: two NUMA cells with two cards below each. The engine alone is measured: no bus, no SQL.
"""

import argparse
import random
import tracemalloc
from collections.abc import Callable
from time import perf_counter

import msgspec
from msgspec import structs
from rich.console import Console

from bench.figures import figure_table
from bus.candidates import OnChange, OnWakes
from bus.queries import FindCandidates
from bus.replication import ProviderChange
from bus.reports import Inventory
from bus.requests import ResourceGroup
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.search import SearchResult, answer, at_once, search_steps
from placement_worker.core.trees import ProviderState, Tree
from placement_worker.memory import IndexedSource

CELLS = 10
RESERVED = 200
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


def search(index: Index, query: FindCandidates) -> SearchResult:
    return at_once(search_steps(Snapshot(index), query))


def a_query(limit: int, *, cell: str = "", required: tuple[str, ...] = (), vcpus: int = 4) -> FindCandidates:
    group = ResourceGroup(resources={**ASKED, "VCPU": vcpus}, required=required)
    return FindCandidates(groups=(group,), limit=limit, cell=cell)


def milliseconds(work: Callable[[], object], times: int) -> float:
    """Return the median duration of one call of `work`, in milliseconds."""
    taken = []
    for _ in range(times):
        started = perf_counter()
        work()
        taken.append(perf_counter() - started)
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
    started = perf_counter()
    for tree in trees:
        index.put(tree, 1)
    filled = (perf_counter() - started) * 1000
    chance = random.Random(4)
    updates = [
        ProviderChange(root, root, 2, {"VCPU": chance.randrange(200), "MEMORY_MB": 512, "DISK_GB": 1})
        for root in (chance.choice(trees).root for _ in range(5000))
    ]
    started = perf_counter()
    for number, change in enumerate(updates, 2):
        index.accept(number, (change,))
    updated = (perf_counter() - started) / len(updates) * 1e6
    encode = msgspec.json.Encoder().encode
    found = search(index, a_query(256))
    return {
        "search, 1 candidate, ms": milliseconds(lambda: search(index, a_query(1)), 200),
        "with trait and cell, ms": milliseconds(
            lambda: search(index, a_query(1, cell="cell-0", required=("CUSTOM_FAST",))), 200
        ),
        "nothing fits, and why, ms": milliseconds(lambda: search(index, a_query(1, vcpus=500)), 50),
        "search, 256 candidates, ms": milliseconds(lambda: search(index, a_query(256)), 200),
        "search, 1,000 candidates, ms": milliseconds(lambda: search(index, a_query(1000)), 100),
        "an answer with 256 as JSON, ms": milliseconds(lambda: encode(answer(found)), 50),
        "one usage update, µs": updated,
        "filling, ms": filled,
        "memory, MiB": megabytes,
    }


class HeldIndex:
    """Wraps an index in the interface of placement's memory, which a source of candidates needs."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def watch_wakes(self, on_wakes: OnWakes) -> None: ...

    def watch(self, heard: OnChange) -> None:
        """Do nothing, because this index does not change."""

    async def fresh(self) -> None: ...


def measure_source(hosts: int) -> dict[str, float]:
    """Measure a scheduler's reads for one decision: find all hosts that fit, and their free amounts of two
    resource classes."""
    index = Index()
    for tree in fleet(hosts):
        index.put(tree, 1)
    source = IndexedSource(HeldIndex(index))
    flavors = [
        structs.replace(a_query(1, vcpus=vcpus), root_forbidden=("CUSTOM_FAST",)) for vcpus in range(1, 21)
    ]

    def decide(query: FindCandidates) -> None:
        search = source.search(query)
        search.free("VCPU")
        search.free("MEMORY_MB")

    def all_flavors() -> None:
        for query in flavors:
            decide(query)

    microseconds = milliseconds(lambda: decide(flavors[0]), 300) * 1000
    twenty = milliseconds(all_flavors, 50) * 1000
    for number in range(RESERVED):
        source.packing.claim({f"{number:08x}-0000-4000-8000-{number:012x}": ASKED})
    return {
        "search and two free(), µs": microseconds,
        "of 20 flavors, µs for all": twenty,
        f"with {RESERVED} reserved hosts, µs": milliseconds(lambda: decide(flavors[0]), 300) * 1000,
    }


def numa_tree(number: int) -> Tree:
    """Return a tree with a root, two NUMA cells, and two network cards with VFs below each cell."""

    def uuid(position: int) -> str:
        return f"{number:08x}-0000-4000-8000-{position:012x}"

    def provider(position: int, parent: int | None, stock: dict[str, int], *traits: str) -> ProviderState:
        inventories = {name: Inventory(total=total) for name, total in stock.items()}
        above = None if parent is None else uuid(parent)
        name = f"host-{number}-{position}"
        return ProviderState(position + 1, uuid(position), name, above, 1, 1, inventories, {}, traits, ())

    providers = [provider(0, None, {"MEMORY_MB": 4096, "DISK_GB": 100})]
    for cell in (1, 4):
        providers.append(provider(cell, 0, {"VCPU": 8}, "HW_NUMA_ROOT"))
        providers += [
            provider(cell + card, cell, {"SRIOV_NET_VF": 4}, f"CUSTOM_PHYSNET{card}") for card in (1, 2)
        ]
    return Tree(uuid(0), f"host-{number}", "cell-0", "agent-0", "az1", 1, False, tuple(providers))


def wide_tree(children: int) -> Tree:
    root = ProviderState(1, "root", "root", None, 1, 1, {}, {}, (), ())
    stock = {"SRIOV_NET_VF": Inventory(total=64)}
    below = (
        ProviderState(position + 2, f"card-{position}", f"card-{position}", "root", 1, 1, stock, {}, (), ())
        for position in range(children)
    )
    return Tree("root", "root", "cell-0", "agent-0", "az1", 1, False, (root, *below))


def measure_nested(trees: int) -> dict[str, float]:
    index = Index()
    world = [numa_tree(number) for number in range(trees)]
    started = perf_counter()
    for tree in world:
        index.put(tree, 1)
    filled = (perf_counter() - started) * 1000
    related = FindCandidates(
        groups=(
            ResourceGroup(resources={"MEMORY_MB": 512, "DISK_GB": 5}),
            ResourceGroup(suffix="_cpu", resources={"VCPU": 2}),
            ResourceGroup(suffix="_net", resources={"SRIOV_NET_VF": 1}, required=("CUSTOM_PHYSNET1",)),
            ResourceGroup(suffix="_cell", required=("HW_NUMA_ROOT",)),
        ),
        same_subtree=(("_cell", "_cpu", "_net"),),
        limit=100,
    )
    spread = FindCandidates(groups=(ResourceGroup(resources={"MEMORY_MB": 512, "VCPU": 2}),), limit=100)
    return {
        "same_subtree, 100 fits, ms": milliseconds(lambda: search(index, related), 20),
        "without suffix, 100 fits, ms": milliseconds(lambda: search(index, spread), 20),
        "filling, ms": filled,
    }


def measure_wide(children: int, groups: int) -> float:
    index = Index()
    index.put(wide_tree(children), 1)
    asked = tuple(
        ResourceGroup(suffix=f"_{position}", resources={"SRIOV_NET_VF": 1}) for position in range(groups)
    )
    return milliseconds(lambda: search(index, FindCandidates(groups=asked, limit=1000)), 10)


def show(title: str, sizes: list[int], figures: list[dict[str, float]], console: Console) -> None:
    table = figure_table(title, "", *(f"{size:,}" for size in sizes), "last : first")
    for name in figures[0]:
        row = [one[name] for one in figures]
        table.add_row(name, *(f"{figure:,.3f}" for figure in row), f"{row[-1] / row[0]:,.1f} x")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default="1000,10000,100000")
    parser.add_argument("--trees", default="1000,10000")
    given = parser.parse_args()
    console = Console()
    hosts = [int(count) for count in given.hosts.split(",")]
    trees = [int(count) for count in given.trees.split(",")]
    show("the candidate index: flat hosts", hosts, [measure(size) for size in hosts], console)
    show("in a scheduler's own process", hosts, [measure_source(size) for size in hosts], console)
    show("trees of seven providers", trees, [measure_nested(size) for size in trees], console)
    for children, groups in ((8, 6), (30, 8)):
        taken, ways = measure_wide(children, groups), children**groups
        console.print(
            f"one tree of {children} children, {groups} groups: 1,000 of {ways:,} ways in {taken:.1f} ms"
        )


if __name__ == "__main__":
    main()
