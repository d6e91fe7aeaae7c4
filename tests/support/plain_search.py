"""A slow search for candidates that tries all combinations of providers; reference for the real search."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.vocabulary import Allocations
from placement_worker.core.fits import Fit
from placement_worker.core.trees import ProviderState, Tree
from tests.support.provider_trees import SHARES

Given = dict[str, ProviderState]
Way = tuple[frozenset[tuple[str, str, int]], frozenset[tuple[str, frozenset[str]]]]  # amounts, mappings


class PlainSearch:
    def __init__(self, trees: Sequence[Tree], zones: Mapping[str, str] | None = None) -> None:
        self.zones = zones or {}
        self.trees = [tree for tree in trees if tree.providers]
        self.all = {provider.uuid: provider for tree in self.trees for provider in tree.providers}
        self.root = {provider.uuid: tree.root for tree in self.trees for provider in tree.providers}

    def search(self, query: FindCandidates) -> frozenset[Way]:
        return frozenset(way for ways in self.by_anchor(query).values() for way in ways)

    def by_anchor(self, query: FindCandidates) -> dict[str, set[Way]]:
        return {tree.root: self._ways(query, tree) for tree in self.trees}

    def _ways(self, query: FindCandidates, tree: Tree) -> set[Way]:
        anchor = self.all[tree.root]
        if query.cell not in ("", tree.cell) or not has([anchor], query.root_required, query.root_forbidden):
            return set()
        if tree.cell in query.not_cells:
            return set()
        if not all(set(some) & set(anchor.aggregates) for some in query.root_member_of):
            return set()
        if set(query.root_not_member_of) & set(anchor.aggregates):
            return set()
        zones = {tree.zone, *(self.zones.get(uuid, "") for uuid in anchor.aggregates)}
        if query.zone and query.zone not in zones:
            return set()
        if (query.roots and tree.root not in query.roots) or tree.root in query.not_roots:
            return set()
        near = [provider for provider in self.all.values() if self.serves(provider, anchor)]
        options = [list(self.options(group, near, anchor)) for group in query.groups]
        suffixes = [group.suffix for group in query.groups]
        chosen = (dict(zip(suffixes, option, strict=True)) for option in product(*options))
        return {sent(query, one) for one in chosen if self.goes_together(query, one)}

    def serves(self, state: ProviderState, anchor: ProviderState) -> bool:
        tree = [other for other in self.all.values() if self.root[other.uuid] == anchor.uuid]
        return state in tree or (
            SHARES in state.traits and any(set(state.aggregates) & set(other.aggregates) for other in tree)
        )

    def options(
        self, group: ResourceGroup, near: Iterable[ProviderState], anchor: ProviderState
    ) -> Iterator[Given]:
        wanted = [
            provider
            for provider in near
            if group.in_tree is None or self.root.get(group.in_tree) == self.root[provider.uuid]
        ]
        if group.suffix:
            for provider in wanted:
                if (
                    all(fits(provider, name, amount) for name, amount in group.resources.items())
                    and has([provider], group.required, group.forbidden, group.required_any)
                    and is_member(provider, group)
                    and is_stranger(provider, group)
                ):
                    yield dict.fromkeys(group.resources or ("",), provider)
            return
        usable = [provider for provider in wanted if self.usable(group, provider, anchor)]
        each = [[provider for provider in usable if fits(provider, *ask)] for ask in group.resources.items()]
        for chosen in product(*each):
            if has(chosen, group.required, group.forbidden, group.required_any):
                yield dict(zip(group.resources, chosen, strict=True))

    def usable(self, group: ResourceGroup, state: ProviderState, anchor: ProviderState) -> bool:
        if self.root[state.uuid] != anchor.uuid:
            return group.in_tree is None and is_member(state, group) and is_stranger(state, group)
        either = is_member(state, group) or is_member(anchor, group)
        return either and is_stranger(state, group) and is_stranger(anchor, group)

    def goes_together(self, query: FindCandidates, chosen: Mapping[str, Given]) -> bool:
        single = {suffix: next(iter(given.values())) for suffix, given in chosen.items() if suffix}
        if query.group_policy == "isolate" and len({provider.uuid for provider in single.values()}) < len(
            single
        ):
            return False
        isolated = [single[suffix].uuid for suffix in query.isolated]
        if len(set(isolated)) < len(isolated):
            return False
        for suffixes in query.same_subtree:
            members = [single[suffix] for suffix in suffixes]
            if not any(all(top.uuid in self.path(member) for member in members) for top in members):
                return False
        taken = amounts(query, chosen)
        used = {uuid for uuid, _ in taken}
        if not query.nested and any(self.root[one] == self.root[two] for one, two in combinations(used, 2)):
            return False
        for (uuid, name), amount in taken.items():
            one = self.all[uuid]
            stock = one.inventories[name]
            if one.used.get(name, 0) + amount > stock.capacity or amount > stock.max_unit:
                return False
        return True

    def path(self, state: ProviderState) -> list[str]:
        return [state.uuid] + (self.path(self.all[state.parent]) if state.parent else [])


def fits(state: ProviderState, name: str, amount: int) -> bool:
    stock = state.inventories.get(name)
    return (
        stock is not None
        and state.used.get(name, 0) + amount <= stock.capacity
        and stock.min_unit <= amount <= stock.max_unit
        and amount % stock.step_size == 0
    )


def has(
    providers: Iterable[ProviderState],
    required: Iterable[str],
    forbidden: Iterable[str],
    required_any: Iterable[Iterable[str]] = (),
) -> bool:
    traits = {trait for provider in providers for trait in provider.traits}
    return (
        set(required) <= traits
        and not set(forbidden) & traits
        and all(set(some) & traits for some in required_any)
    )


def is_member(state: ProviderState, group: ResourceGroup) -> bool:
    return all(set(some) & set(state.aggregates) for some in group.member_of)


def is_stranger(state: ProviderState, group: ResourceGroup) -> bool:
    return not set(group.not_member_of) & set(state.aggregates)


def amounts(query: FindCandidates, chosen: Mapping[str, Given]) -> dict[tuple[str, str], int]:
    taken: dict[tuple[str, str], int] = {}
    for group in query.groups:
        for name, provider in chosen[group.suffix].items():
            if name:
                taken[provider.uuid, name] = taken.get((provider.uuid, name), 0) + group.resources[name]
    return taken


def sent(query: FindCandidates, chosen: Mapping[str, Given]) -> Way:
    return way(
        amounts(query, chosen),
        {suffix: [provider.uuid for provider in given.values()] for suffix, given in chosen.items()},
    )


def way(taken: Mapping[tuple[str, str], int], mappings: Mapping[str, Iterable[str]]) -> Way:
    return (
        frozenset((uuid, name, amount) for (uuid, name), amount in taken.items()),
        frozenset((suffix, frozenset(uuids)) for suffix, uuids in mappings.items()),
    )


def taken(allocations: Allocations) -> dict[tuple[str, str], int]:
    return {(uuid, name): amount for uuid, asked in allocations.items() for name, amount in asked.items()}


def as_way(fit: Fit) -> Way:
    return way(taken(fit.allocations), fit.mappings)
