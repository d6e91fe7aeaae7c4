"""Which guest holds what of which provider, as their agent has it: it refuses what it cannot hold.

Placement judges first; what comes here although it does not fit was claimed of what had changed meanwhile, or
of what a guest nobody knows of still uses.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from bus.vocabulary import Allocations
from compute_sim.core.provider_tree import ProviderTree

GuestKey = tuple[str, int]  # build and attempt
_NOTHING: Mapping[str, int] = MappingProxyType({})


class DeviceBook:
    """The providers of all hosts of one agent. Those it does not know are others', who share with them."""

    def __init__(self) -> None:
        self.held: dict[GuestKey, Allocations] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._has: dict[str, tuple[str, Mapping[str, int]]] = {}  # provider → its name, class → capacity
        self._others: dict[str, frozenset[str]] = {}  # provider → classes that operators put there
        self._of_root: dict[str, tuple[str, ...]] = {}
        self.root_of: dict[str, str] = {}  # provider → whose tree it is in
        self._departed: dict[str, str] = {}  # provider → name of those that were there

    def furnish(self, tree: ProviderTree, moving: Collection[str] = ()) -> None:
        """From now on this host has what this tree says. What is held of those that are `moving` is held of
        others as soon as placement has taken that in."""
        now = {one.id: one for one in tree.providers}
        for id_ in self._of_root.get(tree.root, ()):
            name, _ = self._has.pop(id_)
            del self.root_of[id_]
            self._others.pop(id_, None)
            self._departed[id_] = name
        self._departed.update((one.id, one.name) for one in tree.others if one.inventories)
        for id_ in moving:
            self._departed.pop(id_, None)
        self._of_root[tree.root] = tuple(now)
        for id_, one in now.items():
            self._departed.pop(id_, None)
            self.root_of[id_] = tree.root
            self._has[id_] = one.name, {class_: has.capacity for class_, has in one.inventories.items()}
            self._others[id_] = one.others.classes

    def in_use(self, provider: str) -> Mapping[str, int]:
        return self._used.get(provider, _NOTHING)

    def misplaced(self, wanted: Allocations) -> bool:
        """Is something of it where this host has none, or none any more? It may have been reshaped since."""
        return any(
            provider in self._departed
            or (
                provider in self._has
                and not amounts.keys() <= self._has[provider][1].keys() | self._others[provider]
            )
            for provider, amounts in wanted.items()
        )

    def on_root(self, root: str, allocations: Allocations) -> bool:
        """Is any of it of this host, as far as is known?"""
        return any(one in self._of_root.get(root, ()) or one in self._departed for one in allocations)

    def refusal(self, guest: GuestKey, wanted: Allocations) -> str:
        """Why this guest cannot have this; empty where it can, or has it already."""
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
                # What the drivers do not say is an operator's, and not the agent's to count.
                if class_ in has and used.get(class_, 0) + amount > has[class_]:
                    free = max(has[class_] - used.get(class_, 0), 0)
                    return f"{name}: asked {amount} {class_}, {free} free on the host"
        return ""

    def hold(self, guest: GuestKey, allocations: Allocations) -> None:
        if guest not in self.held:
            self.held[guest] = allocations
            self._count(allocations, 1)

    def move(self, guest: GuestKey, allocations: Allocations) -> None:
        """It holds this instead."""
        self.give_back(guest)
        self.hold(guest, allocations)

    def give_back(self, guest: GuestKey) -> None:
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
