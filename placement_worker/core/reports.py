"""Checks an agent's report of a provider tree and applies it; contents that operators added are preserved.

If a report moves inventory in use within a tree, for example from the root to NUMA cells, the amount still
allocated on the old inventory is withheld from the new one, as additional `reserved`, until it is released.
A node is indivisible: while a consumer holds it by one class, its other reported classes are withheld.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from operator import attrgetter

from msgspec import structs

from bus.domains import HostLabels, LabelEditRequested
from bus.messages import InventoryReported
from bus.reports import Inventory, ProviderReport
from bus.resources import OwnerEditRequested
from placement_worker.core.labels import edited_labels, reserved_level
from placement_worker.core.reshape import NO_MOVES, Moves
from placement_worker.core.trees import ProviderState, Reported, Tree, shut, withheld_node

_CONTENT = attrgetter("inventories", "parent", "traits", "aggregates")


def withheld(before: Tree, after: Tree) -> Tree:
    """Return the reshaped tree `after`, with as much of its new inventory withheld as consumers still have
    allocated of the old inventory."""
    after = replace(after, providers=tuple(map(withheld_node, after.providers)))
    beyond: Counter[str] = Counter()  # class → sum over the tree of used amounts above the capacity
    for provider, name, inventory in _inventories(after):
        beyond[name] += max(provider.used.get(name, 0) - inventory.capacity, 0)
    if not any(beyond.values()):
        return after
    stood = {(provider.uuid, name): inventory for provider, name, inventory in _inventories(before)}
    providers = []
    for provider in after.providers:
        inventories, kept = dict(provider.inventories), {}
        for name, inventory in provider.inventories.items():
            if not beyond.get(name):
                continue
            old = stood.get((provider.uuid, name))
            opens = inventory.capacity - max(old.capacity if old else 0, provider.used.get(name, 0))
            if opens > 0:
                most = inventory.capacity - min(opens, beyond[name])
                less = structs.replace(
                    inventory, reserved=inventory.total - int(most / inventory.allocation_ratio)
                )
                while less.capacity > most:
                    less = structs.replace(inventory, reserved=less.reserved + 1)
                # The allocation ratio is rounded, but never withhold more than was added.
                beyond[name] = max(beyond[name] - min(inventory.capacity - less.capacity, opens), 0)
                inventories[name] = less
                kept[name] = less.reserved - inventory.reserved
        providers.append(replace(provider, inventories=inventories, withheld=kept) if kept else provider)
    return replace(after, providers=tuple(providers))


def opened(provider: ProviderState) -> ProviderState:
    """Return the provider without withheld amounts, so that its capacity can be claimed again."""
    if not provider.withheld:
        return provider
    inventories = dict(provider.inventories)
    for name, amount in provider.withheld.items():
        inventories[name] = structs.replace(inventories[name], reserved=inventories[name].reserved - amount)
    return replace(provider, inventories=inventories, withheld={})


def _inventories(tree: Tree) -> Iterator[tuple[ProviderState, str, Inventory]]:
    for provider in tree.providers:
        for name, inventory in provider.inventories.items():
            yield provider, name, inventory


def reported(before: Tree, report: InventoryReported, number: int = 0, moves: Moves = NO_MOVES) -> Tree:
    """Return a provider tree as an agent's report changes it; unchanged if the report is outdated. `number`
    is the last change number of placement; `moves` are the allocations that the report moves.
    """
    if report.sequence <= before.sequence:
        return before
    if report.gone:
        cell = before.cell or report.cell  # an unknown root gets the cell that reports its deletion
        return swept(replace(before, cell=cell, sequence=report.sequence, gone=True))
    left = {provider.uuid: opened(provider) for provider in moves.left(before.providers)}
    named = [_named(left.pop(provider.id, None), provider, number + 1) for provider in report.providers]
    stay = _left_out(left, {provider.uuid for provider in named}, report.root)
    facts = (report.host, report.cell, report.agent, report.zone)
    labels = structs.replace(
        before.labels, reported=report.labels, of_fields=report.field_labels, closed=report.closed
    )
    labels = before.labels if labels == before.labels else labels
    after = Tree(report.root, *facts, report.sequence, False, moves.arrived((*named, *stay)), labels)
    moved = facts != (before.host, before.cell, before.agent, before.zone) or labels != before.labels
    return _advanced(before, withheld(before, after), root_too=moved)


def given(tree: Tree, order: OwnerEditRequested) -> Tree:
    """Return the tree with the owner that an operator requests (cell and agent); the next report of the tree
    is accepted with any sequence number.
    """
    same = tree
    if tree.cell != order.cell:
        labels = HostLabels(of_operator=tree.labels.of_operator)
        same = replace(tree, host="", cell=order.cell, agent="", zone="", labels=labels)
    if order.agent:
        same = replace(same, host=order.host, agent=order.agent, zone=order.zone)
    return _advanced(tree, replace(same, sequence=0, gone=False), root_too=True)


def labelled(tree: Tree, order: LabelEditRequested) -> Tree:
    """Return a provider tree with the labels that an operator sets; the same tree if it has them already."""
    now = edited_labels(tree.labels.of_operator, order.set, order.unset)
    if now == tree.labels.of_operator:
        return tree
    labels = structs.replace(tree.labels, of_operator=now)
    return _advanced(tree, replace(tree, labels=labels), root_too=True)


def swept(tree: Tree) -> Tree:
    """Return the next state of a tree that was reported as deleted: a tree with allocations keeps its
    providers, without free capacity; a tree without allocations loses all providers.
    """
    if not tree.in_use:
        return replace(tree, providers=())
    return _advanced(tree, replace(tree, providers=tuple(map(_closed_to_all, tree.providers))))


def settled(tree: Tree) -> Tree:
    """Return a reshaped tree with only as much capacity withheld as consumers still have allocated of its old
    inventory.
    """
    return _advanced(tree, withheld(tree, replace(tree, providers=tuple(map(opened, tree.providers)))))


def released(tree: Tree, classes: Collection[str]) -> Tree:
    """Return a node's tree after the release of the last unit of `classes`: without these classes if the node
    has another class since, whose capacity is no longer withheld.
    """
    if tree.gone:
        return tree
    providers = []
    for provider in tree.providers:
        reported = provider.reported.classes & provider.inventories.keys()
        closed = {name for name in reported if not provider.inventories[name].capacity}
        former = closed.intersection(classes)
        present = reported - former
        if former and present and provider.is_node and not any(provider.used[name] for name in reported):
            put = replace(provider.reported, classes=provider.reported.classes - former)
            inventories = {name: has for name, has in provider.inventories.items() if name not in former}
            used = {name: provider.used[name] for name in inventories}
            provider = replace(provider, inventories=inventories, used=used, reported=put)
        providers.append(provider)
    return _advanced(tree, settled(replace(tree, providers=tuple(providers))))


def _named(was: ProviderState | None, now: ProviderReport, shape: int) -> ProviderState:
    if was is None:
        names = frozenset(now.inventories), frozenset(now.traits), frozenset(now.aggregates)
        inventories, used = dict(now.inventories), dict.fromkeys(now.inventories, 0)
        traits, aggregates = tuple(sorted(names[1])), tuple(sorted(names[2]))
        place, put = (now.id, now.name, now.parent), Reported(True, *names)
        return ProviderState(0, *place, 1, shape, inventories, used, traits, aggregates, put)
    put = was.reported
    inventories = {name: inventory for name, inventory in was.inventories.items() if name not in put.classes}
    inventories |= now.inventories
    left = {name for name, used in was.used.items() if used and name not in inventories}
    inventories |= {name: shut(was.inventories[name]) for name in left}
    own_traits, own_aggregates = {*was.traits} - put.traits, {*was.aggregates} - put.aggregates
    return replace(
        was,
        name=now.name,
        parent=now.parent,
        inventories=inventories,
        used={name: was.used.get(name, 0) for name in inventories},
        traits=tuple(sorted(own_traits.union(now.traits))),
        aggregates=tuple(sorted(own_aggregates.union(now.aggregates))),
        reported=Reported(
            put.provider,
            frozenset(now.inventories) | left,
            frozenset(now.traits) - own_traits,
            frozenset(now.aggregates) - own_aggregates,
        ),
        withheld={},
    )


def _left_out(left: dict[str, ProviderState], named: Collection[str], root: str) -> list[ProviderState]:
    stay = {uuid for uuid, provider in left.items() if provider.in_use}
    for provider in left.values():
        ancestor = None if provider.reported.provider else provider.uuid
        while ancestor is not None and ancestor in left:
            stay.add(ancestor)
            ancestor = left[ancestor].parent
    remaining = []
    for provider in left.values():
        if provider.uuid not in stay:
            continue
        changed = provider
        if provider.reported.provider:
            closed = {
                name: shut(provider.inventories[name])
                for name in provider.reported.classes & provider.inventories.keys()
            }
            changed = replace(provider, inventories=provider.inventories | closed)
        if changed.parent not in named and changed.parent not in stay:
            changed = replace(changed, parent=root)
        remaining.append(changed)
    return remaining


def _advanced(before: Tree, after: Tree, *, root_too: bool = False) -> Tree:
    """Return the tree `after`; each provider that differs from `before` has a new generation, and a new shape
    if more than its usage differs. With `root_too`, the root has a new shape anyway.
    """
    old = {provider.uuid: provider for provider in before.providers}
    providers = []
    for provider in after.providers:
        was = old.get(provider.uuid)
        if was is not None:
            reshaped = _CONTENT(provider) != _CONTENT(was)
            if reshaped or provider.used != was.used:
                provider = replace(provider, generation=was.generation + 1)
            if reshaped or (root_too and provider.uuid == after.root):
                provider = replace(provider, shape=was.shape + 1)
        providers.append(provider)
    return replace(after, providers=tuple(providers))


def _closed_to_all(provider: ProviderState) -> ProviderState:
    other_reserved = {
        name: provider.withheld.get(name, 0) + inventory.total - inventory.reserved
        for name, inventory in provider.inventories.items()
        if name not in provider.reported.classes
    }
    closed = {name: shut(inventory) for name, inventory in provider.inventories.items()}
    return replace(provider, inventories=closed, withheld=dict(+Counter(other_reserved)))


_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
MAX_NAMES = 100_000  # characters of names in a provider: candidates contain these names several times


def complaint(report: InventoryReported, known: Callable[[str, str], bool]) -> str:
    """Return the error in a report of a provider tree, with the invalid field's name; "" if the report is
    valid. `known` returns whether a resource class or trait exists.
    """
    if report.gone:
        return "reshape: not possible for a deleted tree" if report.reshape else ""
    if not report.providers:
        return "providers: empty; to report the tree as deleted, set gone"
    if report.providers[0].id != report.root:
        return f"providers[0].id: the first provider must be the root, {report.root}"
    if level := reserved_level((*report.labels, *report.field_labels)):
        return f"labels: {level!r} is a level that every host has; a label cannot set it"
    ids: set[str] = set()
    names: set[str] = set()
    for position, provider in enumerate(report.providers):
        at = f"providers[{position}]"
        if provider.id in ids:
            return f"{at}.id: {provider.id} is there twice"
        if provider.name in names:
            return f"{at}.name: {provider.name!r} is there twice"
        ids.add(provider.id)
        names.add(provider.name)
        if wrong := wrong_contents(provider, known):
            return f"{at}.{wrong}"
    return _wrong_parents(report.providers) or _wrong_reshape(report)


def wrong_contents(provider: ProviderReport, known: Callable[[str, str], bool]) -> str:
    """Return the error in inventories, traits or aggregates of a provider, with the invalid field's name; ""
    if there is none. `known` returns whether a resource class or trait exists.
    """
    for name, inventory in provider.inventories.items():
        if not (known("resource class", name) or is_custom(name)):
            return f"inventories.{name}: no such resource class; custom names begin with CUSTOM_"
        if inventory.reserved > inventory.total:
            return f"inventories.{name}.reserved: {inventory.reserved} exceeds the total {inventory.total}"
    for name in provider.traits:
        if not (known("trait", name) or is_custom(name)):
            return f"traits: no such trait {name}; custom names begin with CUSTOM_"
    size = sum(map(len, (*provider.inventories, *provider.traits)))
    if size > MAX_NAMES:
        return f"inventories and traits: their names are {size} characters together, at most {MAX_NAMES}"
    return ""


def is_custom(name: str) -> bool:
    """Return whether this is a valid name of a custom resource class or trait."""
    return _CUSTOM.fullmatch(name) is not None


def _wrong_parents(providers: tuple[ProviderReport, ...]) -> str:
    parents = {provider.id: provider.parent for provider in providers}
    for position, provider in enumerate(providers):
        at = f"providers[{position}].parent"
        if position == 0:
            if provider.parent is not None:
                return f"{at}: the first provider is the root and has none"
        elif provider.parent is None:
            return f"{at}: only the first provider, the root, has none"
        elif provider.parent not in parents:
            return f"{at}: {provider.parent} is not in this tree"
    rooted = {providers[0].id}
    for position, provider in enumerate(providers):
        path: list[str] = []
        ancestor: str | None = provider.id
        while ancestor is not None and ancestor not in rooted:
            if ancestor in path:
                return f"providers[{position}].parent: {provider.id} is its own ancestor"
            path.append(ancestor)
            ancestor = parents[ancestor]
        rooted.update(path)
    return ""


def _wrong_reshape(report: InventoryReported) -> str:
    if report.reshape is None:
        return ""
    has = {provider.id: provider.inventories for provider in report.providers}
    seen: set[tuple[str, str]] = set()
    for position, move in enumerate(report.reshape.moves):
        at = f"reshape.moves[{position}]"
        if (move.provider, move.resource_class) in seen:
            return f"{at}: {move.resource_class} of {move.provider} is there twice"
        seen.add((move.provider, move.resource_class))
        if move.resource_class in has.get(move.provider, {}):
            return f"{at}.resource_class: {move.provider} still has {move.resource_class} in this report"
        name = move.becomes or move.resource_class
        for to in move.to:
            if to not in has:
                return f"{at}.to: {to} is not in this tree"
            if name not in has[to]:
                return f"{at}.to: {to} has no {name} in this report"
    guests = [(guest.build, guest.attempt) for guest in report.reshape.guests]
    if len(guests) > len(set(guests)):
        build, attempt = next(guest for index, guest in enumerate(guests) if guest in guests[:index])
        return f"reshape.guests: attempt {attempt} of {build} is there twice"
    return ""


DAY = 24 * 3600.0


def bars_report(cell: str, owner: str, *, known: bool, sequence: int, now: float) -> str:
    """Return why a cell's report of a root provider is refused, or "". `owner` is the cell that owns the
    root, `known` is whether the root exists. Reports are refused if another cell or an operator owns the
    root, or if the sequence number is too high.
    """
    if owner and owner != cell:
        return f"root: it is of cell {owner}; reports of cell {cell} are not believed"
    if known and not owner:
        reset = f"`berth resource provider reset ROOT --cell {cell}`"
        return f"root: an operator made it; {reset} gives it to cell {cell}"
    if sequence > (now + DAY) * 1_000_000:
        return f"sequence: {sequence} is more than a day ahead of placement's clock"
    return ""


def distinct_names(name: str, cell: str, provider: str) -> tuple[str, ...]:
    """Return alternative names for a provider, in the order to try them, if another cell uses its name."""
    at = f"@{cell}"
    long = f"{at}@{provider}"
    return f"{name[: 200 - len(at)]}{at}", f"{name[: 200 - len(long)]}{long}"
