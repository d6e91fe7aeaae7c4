"""The capacity of hosts that the usual requests could use after moves, which planners compare."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bus.candidates import Floats
from scheduler_worker.core.extension import AlteredHost, Held, Shape, UsableCapacity

NOT_POSSIBLE = -np.inf  # the value of a host on which an added instance does not fit
DIGITS = 9  # equal states have equal values, in whatever order their amounts were added


@dataclass(eq=False)
class UsableAfterMoves:
    """The values of hosts in states that planners try; each is computed once."""

    capacity: UsableCapacity
    _values: dict[AlteredHost, float] = field(default_factory=dict)
    _costs: dict[Shape, Floats] = field(default_factory=dict)

    def values(self, hosts: Sequence[AlteredHost]) -> list[float]:
        """Return the usable capacity of hosts after the supposed moves."""
        unknown = list(dict.fromkeys(host for host in hosts if host not in self._values))
        if unknown:
            found = np.round(self.capacity.values(unknown), DIGITS).tolist()
            self._values.update(zip(unknown, found, strict=True))
        return [self._values[host] for host in hosts]

    def costs(self, shape: Shape) -> Floats:
        """Return for each host what an instance of a shape costs there before any move."""
        if shape not in self._costs:
            self._costs[shape] = np.round(self.capacity.costs(shape), DIGITS)
        return self._costs[shape]

    def cost(self, host: AlteredHost, *shapes: Shape) -> float:
        """Return how much less of a host is usable with further instances of these shapes; infinite if they
        do not fit.
        """
        before, after = self.values([host, with_more(host, shapes)])
        return before - after if after > NOT_POSSIBLE else np.inf

    def lost(self, hosts: Iterable[AlteredHost]) -> float:
        """Return how much less of these hosts is usable than before any move."""
        supposed = list(hosts)
        now, after = self.values([AlteredHost(host.position) for host in supposed]), self.values(supposed)
        return round(sum(now) - sum(after), DIGITS)


def with_more(host: AlteredHost, shapes: Sequence[Shape]) -> AlteredHost:
    """Return the host with further instances."""
    return AlteredHost(host.position, host.without, (*host.added, *shapes))


def with_less(host: AlteredHost, held: Held) -> AlteredHost:
    """Return the host without an instance."""
    return AlteredHost(host.position, (*host.without, held), host.added)
