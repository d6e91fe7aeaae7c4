"""Hosts with their state, use, instances and last heartbeat, as lists of hosts show them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from berth.kit.hosts import every_provider
from berth.operations.host_states import HostStandings
from bus.delivery.runner import Bus
from bus.host_health import HostCapabilities, HostStanding
from bus.resources import FindProviders, Provider

SECONDS = 60.0  # for a page of a large region


@dataclass(frozen=True)
class Use:
    """How much of a resource class is used."""

    used: int
    capacity: int

    @property
    def share(self) -> float:
        return self.used / self.capacity if self.capacity else 0.0

    def __add__(self, other: "Use") -> "Use":
        return Use(self.used + other.used, self.capacity + other.capacity)

    def __str__(self) -> str:
        percent = f"{100 * self.share:.0f} %"
        return "<1 %" if self.used and percent == "0 %" else percent


NOT_USED = Use(0, 0)


@dataclass(frozen=True)
class HostSummary:
    """A host, its state, and how much of each resource class of its whole tree is used."""

    root: Provider
    standing: HostStanding
    capabilities: HostCapabilities
    use: Mapping[str, Use]

    @property
    def fullest(self) -> tuple[str, Use]:
        """Return the resource class of which the largest share is used, and its use."""
        return max(self.use.items(), key=lambda item: (item[1].share, item[0]), default=("", NOT_USED))

    @property
    def instances(self) -> int | None:
        """Return how many instances its agent reports; None if no heartbeat has arrived."""
        return self.capabilities.instances if self.capabilities.heard else None


def use_of_trees(providers: Sequence[Provider]) -> dict[str, dict[str, Use]]:
    """Return for each root the use of each resource class of its tree."""
    found: defaultdict[str, dict[str, Use]] = defaultdict(dict)
    for provider in providers:
        of_tree = found[provider.root]
        for class_, stock in provider.inventories.items():
            use = Use(provider.used.get(class_, 0), stock.capacity)
            of_tree[class_] = of_tree.get(class_, NOT_USED) + use
    return found


async def host_summaries(bus: Bus, cell: str = "", agent: str = "") -> list[HostSummary]:
    """Return the hosts that agents report, by cell and name: all, or those of a cell or an agent."""
    query = FindProviders(
        parts=("inventories", "traits", "owner", "labels"), agents=(agent,) if agent else ()
    )
    found = [provider async for provider in every_provider(bus, query, SECONDS)]
    roots = [one for one in found if one.parent is None and one.agent and cell in ("", one.cell)]
    uses = use_of_trees(found)
    standings = await HostStandings.ask(bus, described=[root.id for root in roots])
    return [
        HostSummary(root, standings.of(root), standings.capabilities(root), uses[root.id])
        for root in sorted(roots, key=lambda root: (root.cell, root.host))
    ]
