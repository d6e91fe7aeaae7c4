"""Random small clouds with trees, shared providers and aggregates, and random queries with request groups."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from msgspec import structs

from bus.aggregates import Aggregate
from bus.queries import FindCandidates
from bus.reports import Inventory
from bus.requests import ResourceGroup
from bus.vocabulary import MAX_INT
from placement_worker.core.index import Index, Snapshot
from placement_worker.core.search import SearchResult, at_once, search_steps
from placement_worker.core.trees import ProviderState, Tree
from tests.support.ids import uid

CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_VF")
TRAITS = ("CUSTOM_A", "CUSTOM_B", "CUSTOM_C")
SHARES = "MISC_SHARES_VIA_AGGREGATE"
AGGREGATES = tuple(uid(number, "e") for number in range(4))
CELLS = ("c1", "c2")


def state(
    number: int,
    parent: int | None = None,
    inventories: dict[str, Inventory | int] | None = None,
    used: dict[str, int] | None = None,
    traits: Sequence[str] = (),
    aggregates: Sequence[int] = (),
    shape: int = 1,
) -> ProviderState:
    """Return provider `number`; an int in `inventories` is a total, in `aggregates` an aggregate's number."""
    stock = {
        name: one if isinstance(one, Inventory) else Inventory(total=one)
        for name, one in (inventories or {}).items()
    }
    return ProviderState(
        id=number + 1, uuid=uid(number, "a"), name=f"p{number}", generation=1, shape=shape,
        parent=None if parent is None else uid(parent, "a"), inventories=stock,
        used={name: (used or {}).get(name, 0) for name in stock}, traits=tuple(sorted(traits)),
        aggregates=tuple(sorted(uid(aggregate, "e") for aggregate in aggregates)),
    )  # fmt: skip


def tree(*providers: ProviderState, cell: str = "c1") -> Tree:
    root = providers[0]
    return Tree(root.uuid, root.name, cell, f"agent-{root.id}", "", 1, False, providers)


def a_host_of_cells(number: int, cells: int, vcpus: int) -> Tree:
    """Return a host with NUMA cells, each with processors and memory of its own."""
    first = 10_000 * number
    children = [
        state(first + index, first, {"VCPU": vcpus, "MEMORY_MB": 10_000}) for index in range(1, cells + 1)
    ]
    return tree(state(first, None, {}), *children)


ZONES = {AGGREGATES[0]: "north", AGGREGATES[1]: "south", AGGREGATES[2]: "north"}


def in_zones(chance: Random, world: Sequence[Tree]) -> list[Tree]:
    return [replace(tree, zone=chance.choice(("", "", "north", "west"))) for tree in world]


def with_zones(index: Index) -> Index:
    """Give the aggregates of an index the zones in ZONES, and return the index."""
    for uuid, zone in ZONES.items():
        index.aggregate_facts[uuid] = Aggregate(id=uuid, metadata={"availability_zone": zone})
    return index


def narrowed(chance: Random, query: FindCandidates, world: Sequence[Tree]) -> FindCandidates:
    roots = [*(tree.root for tree in world), uid(99, "a")]
    return structs.replace(
        query,
        zone=chance.choice(("", "", "", "north", "south", "west", "nowhere")),
        roots=tuple(some(chance, roots, 0.7)) if chance.random() < 0.2 else (),
        not_roots=some(chance, roots, 0.3) if chance.random() < 0.2 else (),
    )


def an_index(trees: Sequence[Tree]) -> Index:
    index = Index()
    for tree in trees:
        index.put(tree, 1)
    return index


def search(index: Index, query: FindCandidates) -> SearchResult:
    return at_once(search_steps(Snapshot(index), query))


def some(chance: Random, of: Sequence[str], probability: float) -> tuple[str, ...]:
    return tuple(one for one in of if chance.random() < probability)


def a_world(chance: Random, *, more: int = 0, nobody_shares: bool = False) -> list[Tree]:
    trees: list[Tree] = []
    number = 0
    for _ in range(chance.choice((1, 2, 2, 3, 3, 4)) + more):
        numbers: list[int] = []
        providers: list[ProviderState] = []
        children = chance.choice((0, 0, 1, 2, 3, 4))
        for _ in range(children + 1):
            parent = chance.choice(numbers) if numbers else None
            sharing = chance.random() < (0.1 if children else 0.35)
            sharing &= not nobody_shares
            traits = (*some(chance, TRAITS, 0.4), *((SHARES,) if sharing else ()))
            aggregates = [one for one in range(4) if chance.random() < (0.6 if sharing else 0.3)]
            stock = {name: _inventory(chance) for name in some(chance, CLASSES, 0.55 if children else 0.8)}
            used = {name: chance.choice((0, 0, 0, 0, 1, 2)) for name in stock}
            providers.append(state(number, parent, stock, used, traits, aggregates))
            numbers.append(number)
            number += 1
        trees.append(tree(*providers, cell=chance.choice(CELLS)))
    return trees


def _inventory(chance: Random) -> Inventory | int:
    return Inventory(
        total=chance.choice((2, 4, 6, 8)),
        reserved=chance.choice((0, 0, 0, 1)),
        allocation_ratio=chance.choice((1.0, 1.0, 1.5)),
        min_unit=chance.choice((1, 1, 1, 2)),
        max_unit=chance.choice((MAX_INT, MAX_INT, MAX_INT, 1, 2, 3)),
        step_size=chance.choice((1, 1, 1, 2)),
    )


def a_query(chance: Random, world: Sequence[Tree]) -> FindCandidates:
    suffixes = ["", "_0", "_1", "2"][chance.choice((0, 0, 0, 1)) : chance.choice((1, 2, 2, 3, 3, 4))] or [""]
    groups = [
        _group(chance, world, suffix, bare=bool(suffix) and position > 0 and chance.random() < 0.2)
        for position, suffix in enumerate(suffixes)
    ]
    granular = [group.suffix for group in groups if group.suffix]
    tied = [
        tuple(dict.fromkeys((group.suffix, *chance.sample(granular, chance.randint(1, len(granular))))))
        for group in groups
        if group.suffix and (not group.resources or chance.random() < 0.2)
    ]
    root_required = some(chance, TRAITS, 0.04)
    return FindCandidates(
        groups=tuple(groups),
        cell=chance.choice(("", "", "", "", "c1")),
        limit=100_000,
        group_policy=chance.choice(("none", "none", "isolate")),
        same_subtree=tuple(tied),
        root_required=root_required,
        root_forbidden=tuple(one for one in some(chance, TRAITS, 0.04) if one not in root_required),
        nested=chance.random() < 0.85,
        isolated=tuple(granular) if chance.random() < 0.1 else (),
        root_member_of=((uid(0, "e"), uid(1, "e")),) if chance.random() < 0.05 else (),
        root_not_member_of=(uid(2, "e"),) if chance.random() < 0.1 else (),
        not_cells=chance.choice((("c1",), ("c9", "c2"))) if chance.random() < 0.1 else (),
    )


def _group(chance: Random, world: Sequence[Tree], suffix: str, *, bare: bool) -> ResourceGroup:
    names = chance.sample(CLASSES, chance.choice((1, 1, 1, 2) if suffix else (1, 1, 2, 3)))
    required = some(chance, (*TRAITS, SHARES), 0.06)
    forbidden = tuple(one for one in some(chance, (*TRAITS, SHARES), 0.05) if one not in required)
    choices = [tuple(chance.sample((*TRAITS, "CUSTOM_NONE"), 2)) for _ in range(chance.random() < 0.1)]
    members = [chance.sample((*AGGREGATES, uid(9, "e")), chance.choice((1, 2, 3))) for _ in range(2)]
    everyone = [provider.uuid for one_tree in world for provider in one_tree.providers]
    return ResourceGroup(
        suffix=suffix,
        resources={} if bare else {name: chance.choice((1, 1, 1, 2, 2, 3)) for name in names},
        required=required,
        forbidden=forbidden,
        required_any=tuple(choice for choice in choices if not set(choice) <= set(forbidden)),
        member_of=tuple(tuple(member) for member in members if chance.random() < 0.07),
        not_member_of=some(chance, AGGREGATES, 0.04),
        in_tree=chance.choice(everyone) if chance.random() < 0.07 else None,
    )
