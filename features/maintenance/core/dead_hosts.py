"""Decides which hosts with missing heartbeats may be fenced and evacuated automatically.

Hosts that were lost at nearly the same time are probably not dead: a network fault separates many hosts
simultaneously, in one rack, cell or availability zone, or in all cells. If more hosts of such a domain are
lost than the limits allow, no lost host of the domain is evacuated.
The decision depends on the times of loss, not on the present time, so it does not change by waiting.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Domain = tuple[str, str]  # level and label, such as ("rack", "r1")
CLOUD: Domain = ("whole", "cloud")


def domains_of(cell: str, zone: str, level: str, label: str) -> tuple[Domain, ...]:
    """Return the domains in which a host is counted. `level` and `label` name its rack, and an empty zone or
    label no domain.
    """
    named = (level, label), ("cell", cell), ("zone", zone), CLOUD
    return tuple(dict.fromkeys(domain for domain in named if domain[1]))


@dataclass(frozen=True, slots=True)
class MissingHost:
    """A host without heartbeats. It may have been fenced and evacuated already."""

    root: str
    since: float  # time of the last heartbeat
    domains: tuple[Domain, ...]  # see `domains_of`
    released: bool = False  # an operator has permitted the evacuation despite the limits
    evacuated: float = 0.0  # time when the host was fenced; 0: not fenced


@dataclass(frozen=True, slots=True)
class EvacuationLimits:
    """The limits of automatic evacuation: the time without heartbeats before it begins, and the most hosts of
    one domain that may be lost or evacuated within a period.
    """

    after: float = 300.0  # seconds without heartbeats before an evacuation may begin
    within: float = 600.0  # hosts lost within so many seconds of each other count together
    # most hosts of one rack, cell or availability zone that may be lost or evacuated; twice as many in the
    # whole cloud
    most: int = 2
    share: float = 0.25  # the same limit as a fraction of the hosts of a domain; one host is always permitted


@dataclass
class EvacuationJudge:
    """Decides for each host without heartbeats, one after the other, whether it may be evacuated. Each
    permitted evacuation counts against the limits for the following hosts.
    """

    limits: EvacuationLimits
    missing: Sequence[MissingHost]
    sizes: Mapping[Domain, int]  # number of hosts by domain
    now: float
    _lost: dict[Domain, list[float]] = field(init=False)  # times at which hosts of a domain were lost
    _recent: Counter[Domain] = field(init=False)  # number of hosts fenced in the last `within` seconds

    def __post_init__(self) -> None:
        self._lost = {}
        for host in self.missing:
            for domain in host.domains:
                self._lost.setdefault(domain, []).append(host.since)
        fenced = (host for host in self.missing if host.evacuated > self.now - self.limits.within)
        self._recent = Counter(domain for host in fenced for domain in host.domains)

    def is_candidate(self, host: MissingHost) -> bool:
        """Return whether the host has been missing for so long that it may be evacuated."""
        return self.now - host.since >= self.limits.after

    def why_held(self, host: MissingHost) -> str:
        """Return why a host without heartbeats must not be evacuated now. If it may be fenced, return "", and
        count it against the limits for the following hosts.
        """
        if not host.released:
            for domain in host.domains:
                near = sum(abs(since - host.since) <= self.limits.within for since in self._lost[domain])
                if self._exceeds(domain, near):
                    return (
                        f"{near} hosts of the {' '.join(domain)} were lost within {self.limits.within:.0f} s:"
                        " probably a network fault"
                    )
                if self._exceeds(domain, self._recent[domain] + 1):
                    return (
                        f"{self._recent[domain]} hosts of the {' '.join(domain)} were evacuated in the"
                        f" last {self.limits.within:.0f} s"
                    )
        self._recent.update(host.domains)
        return ""

    def _exceeds(self, domain: Domain, count: int) -> bool:
        most = self.limits.most * (2 if domain == CLOUD else 1)
        return count > most or (count > 1 and count > self.limits.share * self.sizes[domain])


def domain_sizes(of_each: Iterable[tuple[Domain, ...]]) -> Counter[Domain]:
    """Return the number of hosts of each domain, from the domains of all hosts."""
    return Counter(domain for domains in of_each for domain in domains)
