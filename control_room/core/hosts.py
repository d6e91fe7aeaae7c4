"""Computes hosts' inventories and usage from placement's provider trees, and the data of the heat map."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.host_health import HostHealth
from bus.replication import TreesFound
from bus.resources import Provider
from control_room.kit.flavors import AMOUNT
from control_room.kit.hosts import KnownHost, host_of_tree

MOST_DEPTH = 6  # depth to which the page indents providers


def rows(tree: Sequence[Provider]) -> list[tuple[int, Provider]]:
    """Return a provider tree as pairs of depth and provider: parents before children, siblings by name."""
    below: dict[str | None, list[Provider]] = {}
    known = {provider.id for provider in tree}
    for provider in sorted(tree, key=lambda provider: provider.name, reverse=True):
        below.setdefault(provider.parent if provider.parent in known else None, []).append(provider)
    found = []
    left = [(0, provider) for provider in below.get(None, ())]
    while left:  # a tree may be deeper than Python's stack
        depth, provider = left.pop()
        found.append((min(depth, MOST_DEPTH), provider))
        left += [(depth + 1, child) for child in below.get(provider.id, ())]
    return found


MOST_CLASSES = 40
CLASSES = ("VCPU", "MEMORY_MB", "DISK_GB")  # whose used shares are kept for each host


@dataclass
class Fleet:
    """All hosts by root provider, as placement reported them up to change number `number`."""

    number: int = 0
    hosts: dict[str, KnownHost] = field(default_factory=dict)
    # root → the used share of each of CLASSES; -1: the host has none of it
    shares: dict[str, tuple[float, ...]] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)  # aggregate → zone
    layout: int = 0  # counts changes of hosts, names and total amounts
    health: Mapping[str, HostHealth] = field(default_factory=dict)  # by root, if not up
    down: frozenset[str] = frozenset()  # roots of hosts that are down or disabled by their agents
    moved: dict[str, int] = field(default_factory=dict)  # root → number of its last change
    _drawn: tuple[int, list[str], list[str]] = (-1, [], [])  # layout, roots in order, classes

    def take(self, found: TreesFound, number: int = 0) -> None:
        """Apply changed provider trees, and count the changes of the layout of the page."""
        for tree in found.trees:
            host = host_of_tree(found, tree, self.zones)
            if host is not None and (known := self.hosts.get(host.root)) != host:
                self.layout += known is None or known.layout != host.layout
                self.hosts[host.root] = host
                self.shares[host.root] = tuple([_share(*host.amounts(name)) for name in CLASSES])
                self.moved[host.root] = number
            elif not tree.providers:
                self.layout += self.hosts.pop(tree.root or "", None) is not None
                self.shares.pop(tree.root or "", None)
                self.moved.pop(tree.root or "", None)

    def set_health(self, health: Mapping[str, HostHealth]) -> None:
        """Set the health of the hosts that are not up, by root. If other hosts are down or disabled by their
        agents, open browsers draw the whole heat map again.
        """
        down = frozenset(root for root, each in health.items() if each.recorded)
        self.layout += down != self.down
        self.health, self.down = health, down

    def is_closed(self, host: KnownHost) -> bool:
        """Return whether a host takes no new builds."""
        return host.closed or host.root in self.down

    def fits(self, host: KnownHost, flavor: Mapping[str, int]) -> int:
        """Return how many instances of a flavor fit on a host; 0 if it is down."""
        return 0 if host.root in self.down else host.fits(flavor)

    def in_order(self) -> list[KnownHost]:
        """Return the hosts sorted by cell, zone and name, as the heat map draws them."""
        layout, roots, _ = self._drawn
        if layout != self.layout:
            hosts = sorted(self.hosts.values(), key=lambda host: (host.cell, host.zone, natural(host.name)))
            roots = [host.root for host in hosts]
            self._drawn = self.layout, roots, classes_of(hosts)
        return [self.hosts[root] for root in roots]

    @property
    def classes(self) -> list[str]:
        """Return the resource classes of all hosts, in the order of the page."""
        self.in_order()
        return self._drawn[2]


def _share(capacity: int, used: int) -> float:
    return used / capacity if capacity else -1.0


def classes_of(hosts: Sequence[KnownHost]) -> list[str]:
    """Return the most common resource classes of hosts, at most 40: the heat map can show their usage."""
    found = Counter(name for host in hosts for name in {stock.resource_class for stock in host.stocks})
    first = {name: place for place, name in enumerate(("VCPU", "MEMORY_MB", "DISK_GB", "PCPU"))}
    names = (name for name, _ in found.most_common(MOST_CLASSES))
    return sorted(names, key=lambda name: (first.get(name, len(first)), name))


def columns(fleet: Fleet, flavor: Mapping[str, int]) -> dict[str, Any]:
    """Return the heat map's data as one list per field, with the hosts in the order of the map; `fits` is how
    many instances of `flavor` (amounts by class) fit.
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
        "capacity": {name: [capacity for capacity, _ in amounts[name]] for name in classes},
        "used": {name: [used for _, used in amounts[name]] for name in classes},
        "fits": [fleet.fits(host, flavor) for host in hosts],
    }


def changed_columns(fleet: Fleet, since: int, flavor: Mapping[str, int]) -> dict[str, Any]:
    """Return the heat map's data of the hosts that changed after placement's change number `since`, as lists;
    `at` has their positions in the map.
    """
    if since >= fleet.number:  # the usual case: there are no changes
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
    """Return the key that sorts host names with numbers in order: h2 before h10."""
    prefix = name.rstrip("0123456789")
    digits = name[len(prefix) :]
    return prefix, int(digits or 0), name


def parse_flavor(text: str) -> dict[str, int]:
    """Return the amount by resource class in a text such as `VCPU:2,MEMORY_MB:4096`; may raise ValueError."""
    flavor = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, amount = (piece.strip() for piece in part.partition(":"))
        if not (colon and AMOUNT.fullmatch(amount) and 0 < int(amount) < 2**31):
            raise ValueError(f"{part!r}: CLASS:AMOUNT, such as VCPU:2")
        flavor[name.upper()] = int(amount)
    if len(flavor) > MOST_CLASSES:
        raise ValueError(f"a flavor has {MOST_CLASSES} classes at most")
    if not flavor:
        raise ValueError("enter at least one CLASS:AMOUNT, such as VCPU:2")
    return flavor
