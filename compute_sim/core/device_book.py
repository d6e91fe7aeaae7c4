"""Records which devices each guest uses, and refuses orders for devices that are not free.

Placement's claims normally prevent orders for used devices. An order is refused only if the hardware has
changed since the claim, or if a guest without allocations in placement still uses a device.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from bus.reports import GuestPlace, InventoryMove, Reshaping
from bus.vocabulary import Allocations
from compute_sim.core.provider_tree import ProviderTree, TreeProvider

GuestKey = tuple[str, int]  # build and attempt
_NOTHING: Mapping[str, int] = MappingProxyType({})


class DeviceBook:
    """Records which devices the guests of an agent's hosts use. Providers outside the hosts' trees count as
    shared pools: their capacity is not checked.
    """

    def __init__(self) -> None:
        self.held: dict[GuestKey, Allocations] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._has: dict[str, tuple[str, Mapping[str, int]]] = {}  # provider → name, class → capacity
        self._others: dict[str, frozenset[str]] = {}  # provider → classes added by an operator
        self._of_root: dict[str, tuple[str, ...]] = {}
        self.root_of: dict[str, str] = {}  # provider → root of its tree
        self._departed: dict[str, str] = {}  # provider → name, for providers that were removed

    def set_tree(self, tree: ProviderTree, moving: Collection[str] = ()) -> None:
        """Replace a host's known providers by the providers of this tree. A known provider that the tree
        lacks counts as removed, unless its id is in `moving`: a pending reshape moves inventory from it.
        """
        now = {provider.id: provider for provider in tree.providers}
        for id_ in self._of_root.get(tree.root, ()):
            name, _ = self._has.pop(id_)
            del self.root_of[id_]
            self._others.pop(id_, None)
            self._departed[id_] = name
        self._departed |= {departed.id: departed.name for departed in tree.foreign if departed.inventories}
        for id_ in moving:
            self._departed.pop(id_, None)
        self._of_root[tree.root] = tuple(now)
        for id_, provider in now.items():
            self._departed.pop(id_, None)
            self.root_of[id_] = tree.root
            capacities = {class_: has.capacity for class_, has in provider.inventories.items()}
            self._has[id_] = provider.name, capacities
            self._others[id_] = provider.foreign.classes

    def in_use(self, provider: str) -> Mapping[str, int]:
        """Return the amounts that guests use of a provider."""
        return self._used.get(provider, _NOTHING)

    def misplaced(self, wanted: Allocations) -> bool:
        """Return whether allocations name a removed provider, or a resource class that its provider lacks."""
        for provider, amounts in wanted.items():
            has = self._has.get(provider)
            if has is None:
                if provider in self._departed:
                    return True
            elif not all(name in has[1] or name in self._others[provider] for name in amounts):
                return True
        return False

    def on_root(self, root: str, allocations: Allocations) -> bool:
        """Return whether any allocation is of a provider in this host's tree, or of a removed provider of any
        host.
        """
        of_root = self._of_root.get(root, ())
        return any(provider in of_root or provider in self._departed for provider in allocations)

    def refusal(self, guest: GuestKey, wanted: Allocations) -> str:
        """Return why the hardware cannot serve a guest's allocations; "" if it can, or if the guest is
        recorded already.
        """
        if guest in self.held:
            return ""
        for provider, amounts in wanted.items():
            if provider in self._departed:
                return f"{self._departed[provider]} is not there any more"
            if provider not in self._has:
                continue
            name, has = self._has[provider]
            used = self.in_use(provider)
            for class_, amount in amounts.items():
                # Classes that no driver reports were added by an operator and are not counted here.
                if class_ in has and used.get(class_, 0) + amount > has[class_]:
                    free = max(has[class_] - used.get(class_, 0), 0)
                    return f"{name}: asked {amount} {class_}, {free} free on the host"
        return ""

    def hold(self, guest: GuestKey, allocations: Allocations) -> None:
        """Record the devices of a guest; a repetition changes nothing."""
        if guest not in self.held:
            self.held[guest] = allocations
            self._count(allocations, 1)

    def move(self, guest: GuestKey, allocations: Allocations) -> None:
        """Replace the devices of a guest."""
        self.release(guest)
        self.hold(guest, allocations)

    def release(self, guest: GuestKey) -> None:
        self._count(self.held.pop(guest, {}), -1)

    def _count(self, allocations: Allocations, sign: int) -> None:
        for provider, amounts in allocations.items():
            used = self._used.setdefault(provider, {})
            for class_, amount in amounts.items():
                used[class_] = used.get(class_, 0) + sign * amount
                if not used[class_]:
                    del used[class_]
            if not used:
                del self._used[provider]


Held = tuple[tuple[str, int], Allocations]  # a guest (build and attempt) and its allocations


def reshaping(stored: Sequence[TreeProvider], tree: ProviderTree, guests: Iterable[Held]) -> Reshaping | None:
    """Return the reshape from placement's tree, `stored`, to `tree`: the inventories that move, and where the
    allocations of `guests` move. Return None if no inventory moves.
    """
    moves = tuple(_moves(stored, tree))
    if not moves:
        return None
    by_source = {(move.provider, move.resource_class): move.to for move in moves}
    free, most = _room(stored, tree)
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
    going.sort(key=lambda item: (-max(amount for _, amount, _ in item[1]), item[0]))
    guests_now = [GuestPlace(*key, _place(goes, free, most)) for key, goes in going]
    return Reshaping(moves=moves, guests=tuple(place for place in guests_now if place.allocations))


def _moves(stored: Sequence[TreeProvider], tree: ProviderTree) -> Iterable[InventoryMove]:
    had = {provider.id: provider.inventories.keys() for provider in stored}
    for was in stored:
        now = tree.by_id(was.id)
        for name in was.inventories:
            if not was.used.get(name) or (now is not None and name in now.inventories):
                continue
            gained = (new for new in tree.providers if name not in had.get(new.id, ()))
            to = tuple(new.id for new in gained if name in new.inventories)
            if to:
                yield InventoryMove(provider=was.id, resource_class=name, to=to)


_Amounts = dict[tuple[str, str], int]  # by provider and class


def _room(stored: Sequence[TreeProvider], tree: ProviderTree) -> tuple[_Amounts, _Amounts]:
    used = {provider.id: provider.used for provider in stored}
    free: _Amounts = {}
    most: _Amounts = {}
    for provider in tree.providers:
        for name, has in provider.inventories.items():
            free[provider.id, name] = max(has.capacity - used.get(provider.id, {}).get(name, 0), 0)
            most[provider.id, name] = has.max_unit
    return free, most


def _place(goes: Sequence[tuple[str, int, tuple[str, ...]]], free: _Amounts, most: _Amounts) -> Allocations:
    wanted: dict[tuple[str, tuple[str, ...]], int] = {}
    for name, amount, to in goes:
        wanted[name, to] = wanted.get((name, to), 0) + amount
    place: dict[str, dict[str, int]] = {}
    for among in dict.fromkeys(to for _, to in wanted):
        together = {name: amount for (name, to), amount in wanted.items() if to == among}
        for provider, name, amount in _spread(together, among, free, most):
            place.setdefault(provider, {})[name] = amount
            free[provider, name] -= amount
            together[name] -= amount
        if any(together.values()):
            return {}
    return place


def _spread(
    together: Mapping[str, int], among: Sequence[str], free: _Amounts, most: _Amounts
) -> list[tuple[str, str, int]]:
    # Prefer one provider for all amounts, so that a guest stays within a NUMA cell.
    for to in among:
        if all(min(free[to, name], most[to, name]) >= amount for name, amount in together.items()):
            return [(to, name, amount) for name, amount in together.items()]
    found = []
    for name, amount in together.items():
        for to in among:
            if taken := min(amount, free[to, name], most[to, name]):
                found.append((to, name, taken))
                amount -= taken
    return found


def fits_tree(held: Allocations, tree: ProviderTree, other_providers: Mapping[str, object]) -> bool:
    """Return whether all allocations `held` are of resource classes of the tree's providers, or of
    `other_providers` (shared pools).
    """
    for provider, amounts in held.items():
        provider_found = tree.by_id(provider)
        if provider_found is None:
            if provider not in other_providers:
                return False
        elif not amounts.keys() <= provider_found.inventories.keys() | provider_found.foreign.classes:
            return False
    return True
