"""Hosts with their state, use, instances and last heartbeat, as lists of hosts show them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from berth.kit.hosts import every_provider
from berth.operations.host_states import HostStandings
from bus.delivery.runner import Bus
from bus.host_health import HostCapabilities, HostStanding
from bus.resources import FindProviders, Provider

SECONDS = 60.0  # for a page of a large region


@dataclass(frozen=True)
class Use:
    """The used amount and the capacity of a resource class."""

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


def total(uses: Iterable[Mapping[str, Use]]) -> dict[str, Use]:
    """Return the use of each resource class of several providers or hosts together, by class."""
    found: dict[str, Use] = {}
    for use in uses:
        for name, each in use.items():
            found[name] = found.get(name, NOT_USED) + each
    return dict(sorted(found.items()))


def use_of_trees(providers: Sequence[Provider]) -> dict[str, dict[str, Use]]:
    """Return for each root the use of each resource class of its tree."""
    trees: defaultdict[str, list[dict[str, Use]]] = defaultdict(list)
    for one in providers:
        stocks = one.inventories.items()
        trees[one.root].append({name: Use(one.used.get(name, 0), stock.capacity) for name, stock in stocks})
    return {root: total(uses) for root, uses in trees.items()}


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
