"""The parts of a request that may preempt instances, as arrays: what each host lacks, and its limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bus.candidates import Bools, Floats, Ints
from bus.packing import RowPacking
from features.preemption.core.domain_limits import DomainLimits
from features.preemption.core.victims import CrowdedHost, Replaceable, RequestedParts
from scheduler_worker.extension import OrderSection


@dataclass(frozen=True, eq=False)
class PreemptingParts:
    """The parts of a request, and the hosts that would accept them if they were empty."""

    parts: Sequence[OrderSection]
    limits: DomainLimits
    packing: RowPacking  # the hosts by position
    demands: Floats  # requested amounts by part and resource class
    accepted: Bools  # by part and position: whether the host would accept the part if it were empty

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of instances of each part."""
        return tuple([len(part.instances) for part in self.parts])

    @cached_property
    def lacking(self) -> Floats:
        """Return an array by part and position: how much the host lacks for one instance of the part."""
        return np.array([self.packing.distances(demand) for demand in self.demands])

    @property
    def wanted(self) -> RequestedParts:
        """Return what the parts need of hosts, for the search for victims."""
        return RequestedParts(self.demands, self.counts, self.limits.left)

    def crowded(self, at: int, instances: Sequence[Replaceable], accepts: Bools) -> CrowdedHost:
        """Return a host with its replaceable instances, and how many of each part it may take."""
        limits = self.limits
        most = tuple([count if yes else 0 for count, yes in zip(self.counts, accepts, strict=True)])
        domain, spread = int(limits.domains[at]), int(limits.spread[at])
        return CrowdedHost(at, instances, most, int(limits.hosts[at]), domain, spread)

    def nearest(self) -> list[int]:
        """Return the positions of the hosts that accept any part, in the order in which to search them: first
        the domains whose hosts lack little. Within a domain, the nearest host of each spread domain comes
        first, then the second nearest of each, and so on.
        """
        domains, spread = self.limits.domains, self.limits.spread
        far = np.zeros(self.limits.several + 1)
        for count, lacks, accepted in zip(self.counts, self.lacking, self.accepted, strict=True):
            rows = np.flatnonzero(accepted)
            rows = rows[_ranks(domains[rows], lacks[rows]) < count]
            several = np.bincount(domains[rows], minlength=len(far))
            sums = np.bincount(domains[rows], weights=lacks[rows], minlength=len(far))
            far += np.where(several > 0, count * sums / np.maximum(several, 1), np.inf)
        turns = np.full(len(domains), len(domains))
        for lacks, accepted in zip(self.lacking, self.accepted, strict=True):
            rows = np.flatnonzero(accepted & np.isfinite(far[domains]))
            turn = _ranks(spread[rows], lacks[rows]) if spread.any() else np.zeros(len(rows))
            rows = rows[np.lexsort((lacks[rows], turn, domains[rows], far[domains[rows]]))]
            turns[rows] = np.minimum(turns[rows], np.arange(len(rows)))
        rows = np.flatnonzero(turns < len(domains))
        return list(rows[np.argsort(turns[rows], kind="stable")].tolist())


def _ranks(groups: Ints, values: Floats) -> Ints:
    """Return the rank of each value within its group: 0 for the lowest value."""
    order = np.lexsort((values, groups))
    ranks = np.empty(len(order), np.intp)
    ranks[order] = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])
    return ranks
