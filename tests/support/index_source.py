"""Placement's index of hosts with one provider each, as the source of a scheduler's candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.candidates import OnChange, OnWakes
from bus.queries import Candidate, FindCandidates
from bus.reports import Inventory
from bus.requests import ResourceGroup
from placement_worker.core.index import Index
from placement_worker.core.trees import ProviderState, Tree
from placement_worker.indexed_source import HostSearch, IndexedSource
from tests.support.provider_trees import an_index

ALWAYS_FREE = "CUSTOM_ALWAYS_FREE"


@dataclass
class FilledMemory:
    """Replaces placement's memory of the index by an index that a test filled."""

    index: Index = field(default_factory=Index)

    def watch(self, on_change: OnChange) -> None: ...

    def watch_wakes(self, on_wakes: OnWakes) -> None: ...

    async def fresh(self) -> None: ...


def source_of(trees: Sequence[Tree]) -> IndexedSource:
    return IndexedSource(FilledMemory(an_index(trees)))


class RecordingSource(IndexedSource):
    """Records queries. `left` has the real free amounts; with `lag` searches use the amounts
    of the start. With `spaced` every third position is empty, and every host fits every query.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate] = (),
        left: Mapping[str, Mapping[str, int]] | None = None,
        aggregates: Mapping[str, Aggregate] | None = None,
        *,
        spaced: bool = False,
    ) -> None:
        self.memory = FilledMemory()
        super().__init__(self.memory)
        self.memory.index.aggregate_facts.update(aggregates or {})
        self.spaced, self.lag, self.levelled = spaced, spaced, 0
        self.left = left or {}
        self.questions: list[FindCandidates] = []
        self.unpublished: list[Candidate] = []  # hosts that the index contains from the next `fresh` on
        self.known: dict[str, Candidate] = {}
        self.put(*candidates)

    def put(self, *candidates: Candidate) -> None:
        """Store candidates as the hosts of the index, with their free amounts."""
        index, fillers = self.memory.index, list[str]()
        for one in candidates:
            self.known[one.root] = one
            index.put(_tree(one, one.free), 1)
            if self.spaced and index.high % 3 == 2:
                fillers.append(f"filler {index.high}")
                index.put(_tree(replace(one, root=fillers[-1]), {}), 1)
        for filler in fillers:
            index.put(Tree(filler), 1)

    async def fresh(self) -> None:
        self.levelled += 1
        if self.unpublished:
            self.put(*self.unpublished)
            self.unpublished = []
            self.memory.index.seen += 1

    def search(self, question: FindCandidates, *, empty: bool = False) -> HostSearch:
        self.questions.append(question)
        if self.spaced:
            question = FindCandidates(groups=(ResourceGroup(resources={ALWAYS_FREE: 1}),))
        self.level()
        return super().search(question, empty=empty)

    def free(self, root: str) -> Mapping[str, int]:
        self.level()
        return super().free(root)

    def level(self) -> None:
        """Bring the index up to date with the free amounts."""
        if not self.lag:
            for root in self.known.keys() & self.left.keys():
                self.memory.index.put(_tree(self.known[root], self.left[root]), 1)

    def taken(self, root: str) -> Mapping[str, int]:
        return self.packing.taken.get(root, {})


def _tree(one: Candidate, free: Mapping[str, int]) -> Tree:
    amounts = {name: max(amount, one.free.get(name, 0)) for name, amount in (one.free | one.capacity).items()}
    used = {name: amount - free.get(name, 0) for name, amount in amounts.items()}
    inventories = {name: Inventory(total=amount) for name, amount in amounts.items()}
    traits, aggregates = tuple(sorted(one.traits)), tuple(sorted(one.aggregates))
    root = ProviderState(1, one.root, one.host, None, 1, 1, inventories, used, traits, aggregates)
    return Tree(one.root, one.host, one.cell, one.agent, one.zone, 1, False, (root,))


class Remembered:
    """An index, as a memory keeps one."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.watchers: list[OnChange] = []

    def watch_wakes(self, on_wakes: OnWakes) -> None: ...

    def watch(self, on_change: OnChange) -> None:
        self.watchers.append(on_change)

    async def fresh(self) -> None: ...
