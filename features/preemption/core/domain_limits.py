"""Limits on the hosts of a request that may preempt instances: domains, and most instances in each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bus.candidates import Bools, Ints
from features.preemption.core.victims import UNLIMITED
from scheduler_worker.extension import Choosing, Order


@dataclass(frozen=True, slots=True, eq=False)
class DomainLimits:
    """The limits of all hosts, by position in placement's index."""

    is_open: Bools  # whether the host may take a further instance
    domains: Ints  # number of the host's domain; all instances of the request must be in one. 0: in none
    several: int  # number of domains, with the domain 0
    hosts: Ints  # most instances of the request on the host
    spread: Ints  # number of the host's spread domain
    left: Mapping[int, int] | None = None  # spread domain → instances that it may take; None: no limits

    @classmethod
    def none(cls, size: int) -> "DomainLimits":
        """Return no limits for this number of hosts."""
        return cls(
            is_open=np.ones(size, np.bool_),
            domains=np.ones(size, np.intp),
            several=2,
            hosts=np.full(size, UNLIMITED),
            spread=np.zeros(size, np.intp),
        )


# Returns the limits of the order of a request; None: it has none.
LimitsOf = Callable[[Choosing, Order], DomainLimits | None]
