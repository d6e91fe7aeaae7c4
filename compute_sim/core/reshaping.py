"""Computes a reshape: which inventory moves to which providers, and where each guest's allocations go.

A class that a provider lost goes to the providers that gained it. A guest goes to one of them as a whole if
it fits, so that it stays within a NUMA cell; else it is spread, like a guest that no cell could hold before.
"""

from collections.abc import Iterable, Mapping, Sequence

from bus.reports import GuestPlace, InventoryMove, Reshaping
from bus.vocabulary import Allocations
from compute_sim.core.provider_tree import ProviderTree, TreeProvider

Held = tuple[tuple[str, int], Allocations]  # a guest (build and attempt) and its allocations


def reshaping(stored: Sequence[TreeProvider], tree: ProviderTree, guests: Iterable[Held]) -> Reshaping | None:
    """Return what a report of this tree moves, or None if nothing in use moves."""
    moves = tuple(_moves(stored, tree))
    if not moves:
        return None
    by_source = {(move.provider, move.resource_class): move.to for move in moves}
    room, most = _room(stored, tree)
    going: list[tuple[tuple[str, int], list[tuple[str, int, tuple[str, ...]]]]] = []
    for key, held in guests:
        goes = [
            (name, amount, by_source[provider, name])
            for provider, amounts in held.items()
            for name, amount in amounts.items()
            if (provider, name) in by_source
        ]
        if goes:
            going.append((key, goes))
    # Largest first and in a fixed order of guests, so that a repeated report is identical.
    going.sort(key=lambda one: (-max(amount for _, amount, _ in one[1]), one[0]))
    guests_now = [GuestPlace(*key, _place(goes, room, most)) for key, goes in going]
    return Reshaping(moves=moves, guests=tuple(place for place in guests_now if place.allocations))


def _moves(stored: Sequence[TreeProvider], tree: ProviderTree) -> Iterable[InventoryMove]:
    had = {provider.id: provider.inventories.keys() for provider in stored}
    for was in stored:
        now = tree.by_id(was.id)
        for name in was.inventories:
            if not was.used.get(name) or (now is not None and name in now.inventories):
                continue
            to = tuple(
                provider.id
                for provider in tree.providers
                if name in provider.inventories and name not in had.get(provider.id, ())
            )
            if to:
                yield InventoryMove(provider=was.id, resource_class=name, to=to)


_Amounts = dict[tuple[str, str], int]  # by provider and class


def _room(stored: Sequence[TreeProvider], tree: ProviderTree) -> tuple[_Amounts, _Amounts]:
    """Return the free amounts, and the maximum for one guest."""
    used = {provider.id: provider.used for provider in stored}
    free: _Amounts = {}
    most: _Amounts = {}
    for provider in tree.providers:
        for name, has in provider.inventories.items():
            free[provider.id, name] = max(has.capacity - used.get(provider.id, {}).get(name, 0), 0)
            most[provider.id, name] = has.max_unit
    return free, most


def _place(goes: Sequence[tuple[str, int, tuple[str, ...]]], room: _Amounts, most: _Amounts) -> Allocations:
    """Return the guest's new allocations, or an empty result if it does not fit; placement then decides."""
    wanted: dict[tuple[str, tuple[str, ...]], int] = {}
    for name, amount, to in goes:
        wanted[name, to] = wanted.get((name, to), 0) + amount
    place: dict[str, dict[str, int]] = {}
    for among in dict.fromkeys(to for _, to in wanted):
        together = {name: amount for (name, to), amount in wanted.items() if to == among}
        for one, name, amount in _spread(together, among, room, most):
            place.setdefault(one, {})[name] = amount
            room[one, name] -= amount
            together[name] -= amount
        if any(together.values()):
            return {}
    return place


def _spread(
    together: Mapping[str, int], among: Sequence[str], room: _Amounts, most: _Amounts
) -> list[tuple[str, str, int]]:
    """Return the amounts on one provider if it has enough of everything, else spread over several."""
    for one in among:
        if all(min(room[one, name], most[one, name]) >= amount for name, amount in together.items()):
            return [(one, name, amount) for name, amount in together.items()]
    found = []
    for name, amount in together.items():
        for one in among:
            if here := min(amount, room[one, name], most[one, name]):
                found.append((one, name, here))
                amount -= here
    return found


def fits_tree(held: Allocations, tree: ProviderTree, others: Mapping[str, object]) -> bool:
    """Return whether all allocations exist in the tree. `others` are known providers of shared pools."""
    for provider, amounts in held.items():
        one = tree.by_id(provider)
        if one is None:
            if provider not in others:
                return False
        elif not amounts.keys() <= one.inventories.keys() | one.others.classes:
            return False
    return True
