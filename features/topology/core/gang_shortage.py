"""Explains why the instances of a request do not fit together. The explanation names the domain that fits the
most instances, and how many.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bus.candidates import Ints
from bus.decisions import Removal
from features.groups.core.domain_rules import DomainRules
from scheduler_worker.extension import EXAMPLES, Alternative, OrderSection, Ranking, Shortage

TOPOLOGY_CODE = "topology"


@dataclass(frozen=True, slots=True)
class Chance:
    """A part of a request (instances of one flavor), with an upper limit of its instances on each host, by
    position in placement's index.
    """

    part: OrderSection
    alternative: Alternative
    ranking: Ranking  # the order of all hosts for this flavor
    fits: Ints


@dataclass(slots=True)
class Best:
    """The domain in which the most instances of a request fit, among the domains tried so far."""

    domain: str = ""  # such as `rack r7`; empty: no domain was tried
    placed: int = 0
    cut: bool = False  # an exact search ended because of its limit of steps

    def note(self, domain: str, placed: int) -> None:
        """Remember the domain in which most instances could be placed."""
        if placed > self.placed:
            self.domain, self.placed = domain, placed


@dataclass(frozen=True, slots=True)
class Wanted:
    """The numbers of instances of a request: all, the least number that must get a host (`needed`), and by
    part (`counts`).
    """

    instances: int
    needed: int
    counts: Sequence[int]


def shortage_of(chances: Sequence[Chance], rules: DomainRules, best: Best, wanted: Wanted) -> Shortage:
    """Return why the parts of a request do not fit: either one part lacks capacity even without constraints,
    or the constraints leave too few hosts.
    """
    for chance in chances:
        count = len(chance.part.instances)
        fitting = int(chance.fits.sum())
        if fitting < min(count, wanted.needed):
            short = chance.ranking.verdicts.shortage()
            if not fitting or not chance.part.name:
                return replace(short, fitted=min(fitting, count))
            constraint = f"role {chance.part.name}: free capacity for {fitting} of {count} instances"
            return _with_removal(short, chance, constraint, "room")
    first = chances[0]
    short = first.ranking.verdicts.shortage()
    return _with_removal(short, first, _sentence(rules, best, wanted, chances), TOPOLOGY_CODE)


def _sentence(rules: DomainRules, best: Best, wanted: Wanted, chances: Sequence[Chance]) -> str:
    constraints, of = rules.constraints, f"of {wanted.needed} instances"
    cut = " (the search was cut: other combinations may fit)" if best.cut else ""
    if constraints.pack:
        level = "/".join(constraints.pack)
        if best.domain:
            placed = min(best.placed, wanted.needed)
            spread = f" with {_spread(rules)}" if rules.spreads else ""
            together = " by itself, but not together" if placed == wanted.needed and wanted.counts[1:] else ""
            domain = best.domain.removeprefix(f"{level} ")
            return f"{level}: best domain {domain} fits {placed} {of}{together}{spread}{cut}"
        return f"{level}: no domain fits any {of}"
    if rules.spreads:
        return f"{_spread(rules)}: fits {min(best.placed, wanted.needed)} {of}{cut}"
    return f"roles: fits {min(best.placed, wanted.needed)} {of}{cut}"


def _spread(rules: DomainRules) -> str:
    return ", ".join(f"spread {level.name}:{most}" for level, most in rules.spreads)


def _with_removal(short: Shortage, chance: "Chance", constraint: str, code: str) -> Shortage:
    positions = np.flatnonzero(chance.fits).tolist()
    hosts = tuple([chance.ranking.found.search.host(position).host for position in positions[:EXAMPLES]])
    removal = Removal(constraint=constraint, removed=len(positions), left=0, code=code, hosts=hosts)
    return replace(short, removals=(*short.removals, removal))
