"""The heat map of all hosts as columns: cell and zone, usage by class, and how many more of a flavor fit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.replication import TreesFound
from control_room.core.hosts import KnownHost, host_of_tree
from control_room.core.what_if_form import AMOUNT

MOST_CLASSES = 40


@dataclass
class Fleet:
    """All hosts by their roots, as placement reports them; `number` is that of the last change of placement
    included.
    """

    number: int = 0
    hosts: dict[str, KnownHost] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)  # aggregate → zone
    layout: int = 0  # moves with what is drawn where: hosts, their names and what they have in all
    down: frozenset[str] = frozenset()  # roots that are down, or closed by their agents
    moved: dict[str, int] = field(default_factory=dict)  # root → the change since which it is as it is
    _drawn: tuple[int, list[str], list[str]] = (-1, [], [])  # layout, roots in order, classes

    def take(self, found: TreesFound, number: int = 0) -> None:
        for tree in found.trees:
            host = host_of_tree(found, tree, self.zones)
            if host is not None and (known := self.hosts.get(host.root)) != host:
                self.layout += known is None or known.layout != host.layout
                self.hosts[host.root] = host
                self.moved[host.root] = number
            elif not tree.providers:
                self.layout += self.hosts.pop(tree.root or "", None) is not None
                self.moved.pop(tree.root or "", None)

    def set_down(self, down: frozenset[str]) -> None:
        """Set which hosts are down; browsers draw all hosts again if that has changed."""
        self.layout += down != self.down
        self.down = down

    def is_closed(self, host: KnownHost) -> bool:
        return host.closed or host.root in self.down

    def fits(self, host: KnownHost, flavor: Mapping[str, int]) -> int:
        return 0 if host.root in self.down else host.fits(flavor)

    def in_order(self) -> list[KnownHost]:
        """Return the hosts by cell, zone and name, in the order of the heat map."""
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


def classes_of(hosts: Sequence[KnownHost]) -> list[str]:
    """Return the resource classes that most hosts have: each of them is a column of the heat map."""
    found = Counter(name for host in hosts for name in {stock.resource_class for stock in host.stocks})
    first = {name: place for place, name in enumerate(("VCPU", "MEMORY_MB", "DISK_GB", "PCPU"))}
    names = (name for name, _ in found.most_common(MOST_CLASSES))
    return sorted(names, key=lambda name: (first.get(name, len(first)), name))


def columns(fleet: Fleet, flavor: Mapping[str, int]) -> dict[str, Any]:
    """Return the heat map as a list for each column, with hosts by cell, zone and name, and groups by
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
        "capacity": {name: [capacity for capacity, _ in amounts[name]] for name in classes},
        "used": {name: [used for _, used in amounts[name]] for name in classes},
        "fits": [fleet.fits(host, flavor) for host in hosts],
    }


def changed_columns(fleet: Fleet, since: int, flavor: Mapping[str, int]) -> dict[str, Any]:
    """Return the hosts that changed after change number `since`, by position, for a browser with this
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
    """Return a sort key that orders h2 before h10."""
    word = name.rstrip("0123456789")
    digits = name[len(word) :]
    return word, int(digits or 0), name


def parse_flavor(text: str) -> dict[str, int]:
    """Return the amounts of a text such as `VCPU:2,MEMORY_MB:4096`. Raise ValueError with a description of
    the mistake.
    """
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
