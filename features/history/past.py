"""A past state of placement, computed from a snapshot and the commits after it."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from msgspec import structs

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.replication import ConsumerChange, KnownTrees, ProviderChange
from features.history.messages import LoggedCommit, SnapshotPart
from placement_worker.extension import Index, ProviderState, Tree, unpacked


class PastCloud:
    """The provider trees, consumers, aggregates and cells of placement after a commit."""

    def __init__(self, number: int, at: float) -> None:
        self.number = number  # change number of the last applied commit
        self.at = at
        self.consumers: dict[str, ConsumerChange] = {}
        self.aggregates: dict[str, Aggregate] = {}
        self.cells: dict[str, RegisteredCell] = {}
        self._trees: dict[str, Tree] = {}
        self._used: dict[str, ProviderChange] = {}  # provider → its last change after the tree's last one

    def load(self, part: SnapshotPart) -> None:
        """Add a part of a snapshot."""
        self._put_trees(part.trees)
        self.consumers.update((consumer.consumer, consumer) for consumer in part.consumers)
        self._describe(part.aggregates, part.cells)

    def apply(self, commit: LoggedCommit) -> None:
        """Apply a commit to this state; the commit must directly follow the commit that was applied last."""
        for change in commit.changes:
            if not change.reshaped:
                self._used[change.provider] = change
        self._put_trees(commit.trees)
        self._describe(commit.aggregates, commit.cells)
        if commit.renamed is not None:
            self._rename(*commit.renamed)
        new = {change.consumer: self._completed(change, commit.consumers) for change in commit.consumers}
        for consumer, state in new.items():
            if state.allocations:
                self.consumers[consumer] = state
            else:
                self.consumers.pop(consumer, None)
        self.number, self.at = commit.number, commit.at

    def _put_trees(self, trees: KnownTrees | None) -> None:
        for tree, _ in unpacked(trees) if trees is not None else ():
            for provider in tree.providers:
                self._used.pop(provider.uuid, None)
            if tree.providers:
                self._trees[tree.root] = tree
            else:
                self._trees.pop(tree.root, None)

    def _describe(self, aggregates: Collection[Aggregate], cells: Collection[RegisteredCell]) -> None:
        for aggregate in aggregates:
            self.aggregates[aggregate.id] = aggregate
            if aggregate.gone:
                del self.aggregates[aggregate.id]
        for cell in cells:
            self.cells[cell.name] = cell
            if cell.gone:
                del self.cells[cell.name]

    def _completed(self, change: ConsumerChange, others: Collection[ConsumerChange]) -> ConsumerChange:
        """Return a consumer's state after a commit. A missing project or type is that of the consumer before.
        A consumer that took over allocations gets the project of their former consumer, which may be among
        the commit's consumers (`others`).
        """
        known = self.consumers.get(change.consumer)
        if known is not None:
            project, type_ = change.project or known.project, change.type or known.type
            change = structs.replace(change, project=project, type=type_)
        if not change.project or change.heir_of:
            in_commit = (other for other in others if other.consumer == change.heir_of)
            heir_of = self.consumers.get(change.heir_of) or next(in_commit, None)
            if heir_of is not None:
                change = structs.replace(change, project=heir_of.project)
        return structs.replace(change, heir_of="")

    def _rename(self, old: str, new: str) -> None:
        for consumer in self.consumers.values():
            for resources in consumer.allocations.values():
                if old in resources:
                    resources[new] = resources.pop(old)

    @property
    def roots(self) -> Collection[str]:
        """Return the roots of all trees at this time."""
        return self._trees.keys()

    def tree(self, root: str) -> Tree | None:
        """Return a tree as it was at this time; None if it did not exist."""
        tree = self._trees.get(root)
        if tree is None:
            return None
        return replace(tree, providers=tuple(self._current(provider) for provider in tree.providers))

    def trees(self) -> Iterator[Tree]:
        """Yield all trees as they were at this time."""
        return (tree for root in self._trees if (tree := self.tree(root)) is not None)

    def named(self, name: str) -> list[Tree]:
        """Return the trees with this root or host name, or with a provider of this id or name."""
        return [
            found
            for root, tree in self._trees.items()
            if name in (root, tree.host) or any(name in (each.uuid, each.name) for each in tree.providers)
            if (found := self.tree(root)) is not None
        ]

    def on(self, tree: Tree) -> list[ConsumerChange]:
        """Return the consumers with allocations in a tree."""
        providers = tree.uuids
        return [each for each in self.consumers.values() if not providers.isdisjoint(each.allocations)]

    def used(self) -> Counter[str]:
        """Return the used amount of each resource class in the whole cloud."""
        total = Counter[str]()
        for tree in self.trees():
            for provider in tree.providers:
                total.update(provider.used)
        return total

    def differs_from(self, other: "PastCloud") -> bool:
        """Return whether another state, computed for the same change number, is different."""
        facts = self.consumers != other.consumers or self.aggregates != other.aggregates
        if facts or self.cells != other.cells or self._trees.keys() != other._trees.keys():
            return True
        return any(_facts(self.tree(root)) != _facts(other.tree(root)) for root in self._trees)

    def trees_of(self, consumer: ConsumerChange) -> list[Tree]:
        """Return the trees in which a consumer has allocations."""
        return [tree for tree in self.trees() if not consumer.allocations.keys().isdisjoint(tree.uuids)]

    def index(self) -> Index:
        """Return an index of this state, in which candidates can be searched."""
        index = Index(self.number)
        facts: list[Aggregate | RegisteredCell] = [*self.aggregates.values(), *self.cells.values()]
        for fact in facts:
            index.describe(fact, self.number)
        for tree in self.trees():
            index.put(tree, self.number)
        return index

    def _current(self, provider: ProviderState) -> ProviderState:
        change = self._used.get(provider.uuid)
        if change is None:
            return provider
        return replace(provider, generation=change.generation, used=change.used)


def _facts(tree: Tree | None) -> object:
    """Return the parts of a tree that `differs_from` compares: all except the sequence number of its last
    report.
    """
    if tree is None:
        return None
    providers = {provider.uuid: provider for provider in tree.providers}
    return tree.host, tree.cell, tree.agent, tree.zone, tree.labels, providers
