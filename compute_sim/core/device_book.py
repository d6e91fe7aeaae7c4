"""Device usage by guest, as the agent knows it; refuses what does not fit.

Placement decides first. An order that does not fit was claimed for hardware that has changed meanwhile, or
that a guest unknown to placement still uses.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from bus.vocabulary import Allocations
from compute_sim.core.provider_tree import ProviderTree

GuestKey = tuple[str, int]  # build and attempt
_NOTHING: Mapping[str, int] = MappingProxyType({})


class DeviceBook:
    """The providers of all hosts of one agent. Unknown providers are shared pools of other owners."""

    def __init__(self) -> None:
        self.held: dict[GuestKey, Allocations] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._has: dict[str, tuple[str, Mapping[str, int]]] = {}  # provider → name, class → capacity
        self._others: dict[str, frozenset[str]] = {}  # provider → classes added by an operator
        self._of_root: dict[str, tuple[str, ...]] = {}
        self.root_of: dict[str, str] = {}  # provider → root of its tree
        self._departed: dict[str, str] = {}  # provider → name, for providers that were removed

    def furnish(self, tree: ProviderTree, moving: Collection[str] = ()) -> None:
        """Replace the host's tree. Allocations of `moving` providers will be moved when placement has applied
        the report.
        """
        now = {provider.id: provider for provider in tree.providers}
        for id_ in self._of_root.get(tree.root, ()):
            name, _ = self._has.pop(id_)
            del self.root_of[id_]
            self._others.pop(id_, None)
            self._departed[id_] = name
        self._departed.update(
            (provider.id, provider.name) for provider in tree.others if provider.inventories
        )
        for id_ in moving:
            self._departed.pop(id_, None)
        self._of_root[tree.root] = tuple(now)
        for id_, provider in now.items():
            self._departed.pop(id_, None)
            self.root_of[id_] = tree.root
            self._has[id_] = (
                provider.name,
                {class_: has.capacity for class_, has in provider.inventories.items()},
            )
            self._others[id_] = provider.others.classes

    def in_use(self, provider: str) -> Mapping[str, int]:
        return self._used.get(provider, _NOTHING)

    def misplaced(self, wanted: Allocations) -> bool:
        """Return whether some of it is on a provider or class that this host lacks: the host may have been
        reshaped.
        """
        return any(
            provider in self._departed
            or (
                provider in self._has
                and not amounts.keys() <= self._has[provider][1].keys() | self._others[provider]
            )
            for provider, amounts in wanted.items()
        )

    def on_root(self, root: str, allocations: Allocations) -> bool:
        """Return whether any of it may be on this host."""
        return any(
            allocation in self._of_root.get(root, ()) or allocation in self._departed
            for allocation in allocations
        )

    def refusal(self, guest: GuestKey, wanted: Allocations) -> str:
        """Return why this guest cannot have it, or an empty string if it can or has it already."""
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
        if guest not in self.held:
            self.held[guest] = allocations
            self._count(allocations, 1)

    def move(self, guest: GuestKey, allocations: Allocations) -> None:
        """Replace what the guest holds."""
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
