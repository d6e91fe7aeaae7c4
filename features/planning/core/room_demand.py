"""The builds for which a plan makes room, and the domains (such as racks) in which their targets may be."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bus.candidates import Bools, Floats, Ints
from bus.packing import instances_in
from features.planning.core.moved_cloud import CloudState
from scheduler_worker.core.extension import Shape

MOST_DOMAINS = 16  # domains for which a plan is made, if all builds must be in one domain


@dataclass(frozen=True, eq=False)
class RoomPart:
    """Builds of one flavor: the amounts of one build, and the hosts that accept the flavor."""

    amounts: Floats
    accepted: Bools  # hosts that the flavor's filters accept, as if they were empty
    count: int = 1
    shapes: tuple[Shape, ...] = ()  # of one build: several if it stands for several on one host

    def could_hold(self, cloud: CloudState) -> Bools:
        """Return a mask of the accepted hosts that are large enough for a build if they are empty."""
        return self.accepted & cloud.packing.fits_empty(self.amounts)

    def fitting(self, amounts: Floats) -> Floats:
        """Return for each accepted host how many builds fit into `amounts` (a row for each host)."""
        return np.where(self.accepted, np.minimum(instances_in(self.amounts, amounts), self.count), 0.0)


@dataclass(frozen=True, eq=False)
class DomainLimit:
    """The most builds in one domain of a level, such as a rack, or a host for an anti-affinity group."""

    domains: Ints  # by host: the number of its domain; 0: no domain, and so no build
    most: int
    there: Mapping[int, int] = field(default_factory=dict)  # domain → members of the group that it has

    def key(self, host: int) -> Hashable:
        """Return a key that is equal for hosts that the limit treats alike, whatever builds they get."""
        domain = int(self.domains[host])
        is_alone = domain > 0 and int((self.domains == domain).sum()) == 1
        return (0, self.there.get(domain, 0)) if is_alone else (1, domain)


@dataclass(frozen=True, eq=False)
class RoomDemand:
    """The builds that a plan makes room for, and the constraints on the domains of their hosts."""

    parts: Sequence[RoomPart]
    limits: Sequence[DomainLimit] = ()
    packed: Ints | None = None  # by host: its domain; all builds must be in one. 0: no domain

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def could_hold(self, cloud: CloudState) -> Bools:
        """Return a mask of the hosts that would fit a build of any part if they were empty."""
        mask: Bools = np.logical_or.reduce([part.could_hold(cloud) for part in self.parts])
        return mask

    def open_to(self, hosts: Bools, targets: Sequence[int]) -> Bools:
        """Return which of the given hosts may get a further build, if earlier builds are on `targets`."""
        mask = hosts
        for limit in self.limits:
            counts = dict(limit.there)
            for domain in limit.domains[list(targets)].tolist():
                counts[domain] = counts.get(domain, 0) + 1
            full = [domain for domain, several in counts.items() if several >= limit.most]
            mask = mask & (limit.domains > 0) & ~np.isin(limit.domains, full)
        return mask

    def domains(self, cloud: CloudState) -> Iterator[Bools]:
        """Yield masks of hosts: each domain that could take all builds if its hosts were empty. Domains that
        fit more of the builds now come first, then domains whose hosts lack less. Without a packed level,
        yield all hosts as one domain.
        """
        if self.packed is None:
            yield np.ones(len(cloud.packing), np.bool_)
            return
        for domain in self._promising(cloud, self.packed)[:MOST_DOMAINS]:
            yield self.packed == domain

    def _promising(self, cloud: CloudState, packed: Ints) -> list[int]:
        count = int(packed.max(initial=0)) + 1
        could, lacks, fit_now = np.ones(count, np.bool_), np.zeros(count), np.zeros(count)
        for part in self.parts:
            could &= np.bincount(packed, part.fitting(cloud.packing.whole), count) >= part.count
            now = np.bincount(packed, part.fitting(cloud.packing.free), count)
            fit_now += np.minimum(now, part.count)
            lack = np.where(part.could_hold(cloud), cloud.packing.distances(part.amounts), np.inf)
            order = np.lexsort((lack, packed))
            begins = np.searchsorted(packed[order], packed[order], side="left")
            first = order[np.arange(len(order)) - begins < part.count]  # of each domain
            lacks += np.bincount(packed[first], np.minimum(lack[first], 1e9), count)
        could[0] = False  # hosts without a domain
        domains = np.flatnonzero(could)
        best_first: list[int] = domains[np.lexsort((lacks[domains], -fit_now[domains]))].tolist()
        return best_first

    def in_reading_order(self, cloud: CloudState) -> Ints:
        """Return the hosts that could become targets, the hosts with the best chances first."""
        least = np.full(len(cloud.packing), np.inf)
        for part in self.parts:
            lack = np.where(part.could_hold(cloud), cloud.packing.distances(part.amounts), np.inf)
            least = np.minimum(least, lack)
        hosts: list[Ints] = []
        for mask in self.domains(cloud):
            rows = np.flatnonzero(mask & np.isfinite(least))
            hosts.append(rows[np.argsort(least[rows], kind="stable")])
        return np.concatenate(hosts) if hosts else np.zeros(0, np.intp)
