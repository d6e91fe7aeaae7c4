"""Sorts the domains in which instances of a request may fit, by how many instances each domain can take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from bus.candidates import Bools, CandidateSource, Floats, Ints
from features.groups.core.domain_rules import DomainRules
from features.topology.core.gang_shortage import Best, Chance

LOOSE_DOMAINS = 8  # domains that are tried one after another if a preferred pack level cannot be satisfied


@dataclass
class DomainOrder:
    """The domains that a request's constraints allow, such as racks, in the order in which they are tried."""

    source: CandidateSource
    chances: Sequence[Chance]
    rules: DomainRules
    needed: int
    best: Best

    def domains(self) -> Iterator[tuple[str, Bools]]:
        """Yield the name of each domain in which enough instances may fit, and a mask of its hosts. Domains
        that may take more instances come first, then domains with less capacity to spare, then domains with
        better hosts.

        Without a level to pack, all permitted hosts are one domain with the name "". For a preferred level
        that no domain can satisfy, yield the largest domains, then all permitted hosts.
        """
        open_to = self.rules.open_to()
        if self.rules.constraints.loose_pack:
            yield from self._loose_domains(open_to)
        elif self.rules.packs:
            yield from self._packed_domains(open_to)
        else:
            bound = self._bound(open_to)
            self.best.note("", bound if bound < self.needed else 0)
            if bound >= self.needed:
                yield "", open_to

    def _packed_domains(self, open_to: Bools) -> Iterator[tuple[str, Bools]]:
        rules, chances = self.rules, self.chances
        level = "/".join(rules.constraints.pack)
        size = len(rules.names) + 1
        ids = np.where(open_to, rules.domains, 0)
        sums = [np.bincount(ids, weights=chance.fits, minlength=size) for chance in chances]
        counts = [len(chance.part.instances) for chance in chances]
        placed = np.zeros(size)
        for total, count in zip(sums, counts, strict=True):
            placed += np.minimum(total, count)
        tightness = np.minimum.reduce([total / count for total, count in zip(sums, counts, strict=True)])
        placed[0] = 0
        for domain in np.flatnonzero(placed).tolist():
            if placed[domain] < self.needed:
                self.best.note(f"{level} {rules.names[domain]}", int(placed[domain]))
        enough = np.flatnonzero(placed >= self.needed)
        worth = self._worths(ids, size)[enough]
        for at in np.lexsort((-worth, tightness[enough], -placed[enough])).tolist():
            domain = int(enough[at])
            name, mask = f"{level} {rules.names[domain]}", open_to & (rules.domains == domain)
            bound = self._bound(mask)
            if bound >= self.needed:
                yield name, mask
            else:
                self.best.note(name, bound)

    def _worths(self, ids: Ints, size: int) -> Floats:
        first = self.chances[0]
        worth = np.full(size, -np.inf)
        found = first.ranking.found
        of_hosts = np.where(first.fits[found.positions] > 0, first.ranking.worths, -np.inf)
        np.maximum.at(worth, ids[found.positions], of_hosts)
        return worth

    def _loose_domains(self, open_to: Bools) -> Iterator[tuple[str, Bools]]:
        level = self.rules.constraints.loose_pack
        ids, labels = self.source.labels(level)
        fits = self.chances[0].fits
        sums = np.bincount(np.where(open_to, ids, 0), weights=fits, minlength=len(labels))
        for domain in np.argsort(-sums, kind="stable")[:LOOSE_DOMAINS].tolist():
            if domain and sums[domain]:
                yield f"{level} {labels[domain]}", open_to & (ids == domain)
        yield "", open_to

    def _bound(self, mask: Bools) -> int:
        """Return an upper limit of the number of instances that fit on the hosts of a mask."""
        placed, total = 0, 0
        for chance in self.chances:
            count = len(chance.part.instances)
            total += count
            placed += min(int(chance.fits[mask].sum()), count)
        for level, most in self.rules.spreads:
            there = self.rules.counts(level)
            fits = reduce(np.add, [chance.fits for chance in self.chances])
            sums = np.bincount(np.where(mask, level.ids, 0), weights=fits)
            left = [
                min(most - there.get(domain, 0), int(sums[domain]))
                for domain in np.flatnonzero(sums).tolist()
                if domain
            ]
            placed = min(placed, sum(max(each, 0) for each in left))
        return min(placed, total)
