"""Forms of allocations, by which allocations on different hosts are compared.

Two sets of allocations have the same form if the provider trees of their hosts are alike, and the same
amounts are at providers with the same place in the tree. Providers are alike if they have the same traits,
aggregates and resource classes, with the same smallest amounts and steps, and if their children are alike. A
request that was satisfied by one set is therefore satisfied by the other, whatever traits, groups and
subtrees it asked for. If all amounts are at the root, the tree is not compared.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bus.aggregates import Aggregate
from bus.candidates import CandidateSource, PlacedHost, PlacedProvider
from bus.domains import METADATA_PREFIX
from bus.host_health import CLOSED, HELD
from bus.packing import ProviderPacking
from bus.vocabulary import Allocations

Size = tuple[tuple[str, int], ...]  # resource classes with their amounts, sorted


class Form(NamedTuple):
    """The form of allocations on a provider and its descendants. Children without amounts are left out."""

    kind: tuple[Hashable, ...]  # of the provider and all its descendants; empty: only the root has amounts
    amounts: Size
    children: tuple["Form", ...] = ()  # sorted

    @property
    def total(self) -> Size:
        """Return the sum of the amounts at all providers, by resource class."""
        total = dict(self.amounts)
        for child in self.children:
            for name, amount in child.total:
                total[name] = total.get(name, 0) + amount
        return tuple(sorted(total.items()))


@dataclass(frozen=True, slots=True, eq=False)
class ProviderNode:
    """A provider in the tree of its host, with its kind, which is equal for providers that are alike."""

    uuid: str
    kind: tuple[Hashable, ...]
    most: Mapping[str, int]  # resource class → largest amount of one claim
    children: tuple["ProviderNode", ...]

    def uuids(self) -> Iterable[str]:
        yield self.uuid
        for child in self.children:
            yield from child.uuids()


def node_of(rows: Sequence[PlacedProvider]) -> ProviderNode:
    """Return the tree of a host from its rows of the index, the root first. The traits and aggregates of the
    root are not part of its kind: compare them in addition.
    """
    below: dict[str, list[PlacedProvider]] = {}
    for row in rows[1:]:
        below.setdefault(row.parent or "", []).append(row)

    def node(row: PlacedProvider) -> ProviderNode:
        children = tuple([node(child) for child in below.get(row.uuid, ())])
        limits = tuple(
            sorted([(name, each.min_unit, each.step_size) for name, each in row.inventories.items()])
        )
        own = () if row is rows[0] else (row.traits, row.aggregates)
        kind = (limits, own, tuple(sorted(child.kind for child in children)))
        most = {name: each.max_unit for name, each in row.inventories.items()}
        return ProviderNode(row.uuid, kind, most, children)

    return node(rows[0])


def form_of(held: Allocations, root: str, tree: ProviderNode | None) -> Form | None:
    """Return the amounts of allocations on one host by the position of their providers in the host's tree, so
    that equal allocations on different hosts are equal; None if some are not in the tree. `tree` is needed
    only for allocations on other providers than the root.
    """
    if len(held) == 1 and root in held:
        return _of_root(tuple(held[root].items()))
    if tree is None or not held.keys() <= set(tree.uuids()):
        return None
    return _form(tree, held)


@lru_cache(maxsize=4096)
def _of_root(amounts: Size) -> Form:
    return Form((), tuple(sorted(amounts)))


def _form(node: ProviderNode, held: Allocations) -> Form:
    forms = [_form(child, held) for child in node.children]
    children = tuple(sorted(form for form in forms if form.amounts or form.children))
    return Form(node.kind, tuple(sorted(held.get(node.uuid, {}).items())), children)


def placed(form: Form, root: str, tree: ProviderNode | None, packing: ProviderPacking) -> Allocations | None:
    """Return allocations of this form on a host, or None if too little is free."""
    if form.kind:
        return _placed(form, tree, packing) if tree is not None else None
    return {root: dict(form.amounts)} if packing.fits(root, form.amounts) else None


def _placed(form: Form, node: ProviderNode, packing: ProviderPacking) -> Allocations | None:
    permitted = all(amount <= node.most.get(name, 0) for name, amount in form.amounts)
    if not permitted or node.kind != form.kind or not packing.fits(node.uuid, form.amounts):
        return None
    options = [[_placed(each, child, packing) for child in node.children] for each in form.children]
    chosen = _matched([[at for at, found in enumerate(some) if found is not None] for some in options])
    if chosen is None:
        return None
    found: Allocations = {node.uuid: dict(form.amounts)} if form.amounts else {}
    for some, at in zip(options, chosen, strict=True):
        found |= some[at] or {}
    return found


def _matched(options: Sequence[Sequence[int]]) -> list[int] | None:
    """Return a different option for each element (by augmenting paths); None if there is no such choice."""
    taken: dict[int, int] = {}  # option → element

    def find(element: int, tried: set[int]) -> bool:
        for option in options[element]:
            if option not in tried:
                tried.add(option)
                if option not in taken or find(taken[option], tried):
                    taken[option] = element
                    return True
        return False

    if not all(find(element, set()) for element in range(len(options))):
        return None
    chosen = {element: option for option, element in taken.items()}
    return [chosen[element] for element in range(len(options))]


# The kind of a host, and the form of allocations with it.


def kind_of(host: PlacedHost, aggregates: Mapping[str, Aggregate]) -> Hashable:
    """Return a key of a host's cell, zone, traits and metadata of aggregates, without labels and traits that
    disable the host. Hosts with equal keys accept the same requests, apart from capacity.
    """
    metadata = frozenset(
        (key, value)
        for uuid in host.aggregates
        if uuid in aggregates
        for key, value in aggregates[uuid].metadata.items()
        if not key.startswith(METADATA_PREFIX)
    )
    traits = frozenset(trait for trait in host.traits if trait not in CLOSED and not trait.startswith(HELD))
    return host.cell, host.zone, traits, metadata


def form_in(source: CandidateSource, held: Allocations) -> Hashable | None:
    """Return the kind of the host with these allocations, and their form: equal for allocations that satisfy
    the same requests. None if they are not on one known host.
    """
    rows = next((rows for provider in held if (rows := source.tree_of(provider))), ())
    if not rows:
        return None
    form = form_of(held, rows[0].uuid, node_of(rows) if len(rows) > 1 else None)
    return None if form is None else (kind_of(rows[0], source.aggregates), form)
