"""The heat map's hosts, as columns: which cell and zone, how full by class, how many more of a flavor fit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.host_marks import DISABLED, FORCED_DOWN
from bus.replication import KnownInventory, KnownTree, TreesFound
from control_room.core.plan import AMOUNT

MOST_FIT = 9999
MOST_CLASSES = 40


@dataclass(frozen=True, slots=True)
class TreeHost:
    root: str
    name: str
    cell: str
    zone: str
    closed: bool


def host_of_tree(found: TreesFound, tree: KnownTree, zones: Mapping[str, str]) -> TreeHost | None:
    """Return the host of a tree, or None if it was deleted or no agent reports it. `zones`: by aggregate."""
    if not tree.providers or not found.owners[tree.owner][1]:
        return None
    top, (cell, _, zone) = tree.providers[0], found.owners[tree.owner]
    traits = found.traits[top.traits]
    return TreeHost(
        root=tree.root or top.id,
        name=tree.host or top.name,
        cell=cell,
        zone=next((zones[one] for one in found.aggregates[top.aggregates] if one in zones), zone),
        closed=DISABLED in traits or FORCED_DOWN in traits,
    )


@dataclass(frozen=True, slots=True)
class ProviderHeat:
    """Inventory and usage of one provider of a host: class → (capacity, used, max_unit)."""

    has: Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostHeat:
    root: str
    name: str
    cell: str
    zone: str
    closed: bool
    providers: tuple[ProviderHeat, ...]

    @property
    def layout(self) -> object:
        """Return all of the host but its usage and whether it is closed."""
        amounts = [{name: has[::2] for name, has in provider.has.items()} for provider in self.providers]
        return self.name, self.cell, self.zone, amounts

    def amounts(self, resource_class: str) -> tuple[int, int]:
        """Capacity and what is used of it, over its whole tree."""
        found = [
            provider.has[resource_class] for provider in self.providers if resource_class in provider.has
        ]
        return sum(one[0] for one in found), sum(one[1] for one in found)

    def fits(self, flavor: Mapping[str, int]) -> int:
        """Return how many more of a flavor fit by amounts alone, without rules. Each class comes from the
        provider with most of it, as for a flavor without groups.
        """
        if self.closed or not flavor:
            return 0
        fitting = []
        for name, amount in flavor.items():
            least = 0
            for provider in self.providers:
                capacity, used, at_once = provider.has.get(name, (0, 0, 0))
                if amount <= at_once:
                    least = max(least, (capacity - used) // amount)
            fitting.append(least)
        return max(0, min(min(fitting), MOST_FIT))


@dataclass
class Fleet:
    """All hosts by their roots, as reported by placement; `number` is that of the last change included."""

    number: int = 0
    hosts: dict[str, HostHeat] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)  # aggregate → zone
    layout: int = 0  # moves with what is drawn where: hosts, their names and what they have in all
    down: frozenset[str] = frozenset()  # roots that are down, or closed by their agents
    moved: dict[str, int] = field(default_factory=dict)  # root → the change since which it is as it is
    _drawn: tuple[int, list[str], list[str]] = (-1, [], [])  # layout, roots in order, classes

    def take(self, found: TreesFound, number: int = 0) -> None:
        for host in hosts_in(found, self.zones):
            known = self.hosts.get(host.root)
            if not host.providers:
                self.layout += self.hosts.pop(host.root, None) is not None
                self.moved.pop(host.root, None)
            elif known != host:
                self.layout += known is None or known.layout != host.layout
                self.hosts[host.root] = host
                self.moved[host.root] = number

    def set_down(self, down: frozenset[str]) -> None:
        """Take over which hosts are down; browsers draw all hosts anew if that has changed."""
        self.layout += down != self.down
        self.down = down

    def is_closed(self, host: HostHeat) -> bool:
        return host.closed or host.root in self.down

    def fits(self, host: HostHeat, flavor: Mapping[str, int]) -> int:
        return 0 if host.root in self.down else host.fits(flavor)

    def in_order(self) -> list[HostHeat]:
        """By cell, zone and name: as they are drawn."""
        layout, roots, _ = self._drawn
        if layout != self.layout:
            hosts = sorted(self.hosts.values(), key=lambda host: (host.cell, host.zone, natural(host.name)))
            roots = [host.root for host in hosts]
            self._drawn = self.layout, roots, classes_of(hosts)
        return [self.hosts[root] for root in roots]

    @property
    def classes(self) -> list[str]:
        self.in_order()
        return self._drawn[2]


def hosts_in(found: TreesFound, zones: Mapping[str, str]) -> list[HostHeat]:
    """Return the hosts. A tree without providers was deleted; a tree that no agent reports is no host."""
    hosts: list[HostHeat] = []
    stocks = [[found.inventories[at] for at in stock] for stock in found.stocks]
    for tree in found.trees:
        if not tree.providers:
            hosts.append(_deleted(tree.root or ""))
            continue
        host = host_of_tree(found, tree, zones)
        if host is None:
            continue
        hosts.append(
            HostHeat(
                root=host.root,
                name=host.name,
                cell=host.cell,
                zone=host.zone,
                closed=host.closed,
                providers=tuple(_heat(stocks[provider.stock], provider.used) for provider in tree.providers),
            )
        )
    return hosts


def _deleted(root: str) -> HostHeat:
    return HostHeat(root=root, name="", cell="", zone="", closed=True, providers=())


def _heat(stock: Sequence[KnownInventory], used: Sequence[int]) -> ProviderHeat:
    has = {}
    for inventory, taken in zip(stock, used, strict=False):
        has[inventory.resource_class] = (inventory.capacity, taken, inventory.max_unit)
    return ProviderHeat(has)


def classes_of(hosts: Sequence[HostHeat]) -> list[str]:
    """Return the classes that most hosts have: each of them is a column for every host."""
    found = Counter(
        name for host in hosts for name in {name for provider in host.providers for name in provider.has}
    )
    return sorted((name for name, _ in found.most_common(MOST_CLASSES)), key=_usual_first)


def columns(fleet: Fleet, flavor: Mapping[str, int]) -> dict[str, Any]:
    """Return the table for the browser: a list for each column, hosts by cell, zone and name; groups by
    number.
    """
    hosts = fleet.in_order()
    classes = fleet.classes
    groups = list(dict.fromkeys((host.cell, host.zone) for host in hosts))
    number = {group: at for at, group in enumerate(groups)}
    amounts = {name: [host.amounts(name) for host in hosts] for name in classes}
    return {
        "number": fleet.number,
        "layout": fleet.layout,
        "groups": groups,
        "group": [number[host.cell, host.zone] for host in hosts],
        "name": [host.name for host in hosts],
        "root": [host.root for host in hosts],
        "closed": [at for at, host in enumerate(hosts) if fleet.is_closed(host)],
        "classes": classes,
        "capacity": {name: [one[0] for one in amounts[name]] for name in classes},
        "used": {name: [one[1] for one in amounts[name]] for name in classes},
        "fits": [fleet.fits(host, flavor) for host in hosts],
    }


def changed_columns(fleet: Fleet, since: int, flavor: Mapping[str, int]) -> dict[str, Any]:
    """Return only the hosts that changed after this change, by position, for a browser with the same
    layout.
    """
    if since >= fleet.number:  # most times: nothing is worked out
        return {"number": fleet.number, "layout": fleet.layout, "at": []}
    hosts = fleet.in_order()
    at = [place for place, host in enumerate(hosts) if fleet.moved.get(host.root, 0) > since]
    moved = [hosts[place] for place in at]
    return {
        "number": fleet.number,
        "layout": fleet.layout,
        "at": at,
        "closed": [place for place, host in enumerate(hosts) if fleet.is_closed(host)],
        "used": {name: [host.amounts(name)[1] for host in moved] for name in fleet.classes},
        "fits": [fleet.fits(host, flavor) for host in moved],
    }


def natural(name: str) -> tuple[str, int, str]:
    """h2 before h10."""
    word = name.rstrip("0123456789")
    digits = name[len(word) :]
    return word, int(digits or 0), name


def _usual_first(name: str) -> tuple[int, str]:
    usual = ("VCPU", "MEMORY_MB", "DISK_GB", "PCPU")
    return (usual.index(name) if name in usual else len(usual)), name


def parse_flavor(text: str) -> dict[str, int]:
    """Return the amounts of `VCPU:2,MEMORY_MB:4096`. Raise ValueError with a description of the mistake."""
    flavor = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, amount = (word.strip() for word in part.partition(":"))
        if not (colon and AMOUNT.fullmatch(amount) and 0 < int(amount) < 2**31):
            raise ValueError(f"{part!r}: CLASS:AMOUNT, such as VCPU:2")
        flavor[name.upper()] = int(amount)
    if len(flavor) > MOST_CLASSES:
        raise ValueError(f"a flavor has {MOST_CLASSES} classes at most")
    if not flavor:
        raise ValueError("say at least one CLASS:AMOUNT, such as VCPU:2")
    return flavor
