"""The capacity of the whole cloud by resource class."""

from bus.candidates import CandidateSource, SenselessQuery
from bus.clock import Clock
from bus.errors import Unavailable
from bus.queries import FindCandidates
from bus.requests import ResourceGroup

MOST_KNOWN = 1000  # resource classes: requests can name any
RECENT = 30.0  # seconds for which a capacity is not computed again


class CloudCapacity:
    """Sums the capacities of all hosts, as placement's index has them."""

    def __init__(self, source: CandidateSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._known: dict[str, tuple[float, float]] = {}

    def of(self, resource_class: str) -> float:
        """Return the capacity of a resource class, at most half a minute old."""
        now = self._clock.monotonic()
        capacity, until = self._known.get(resource_class, (0.0, 0.0))
        if until <= now:
            capacity = self._sum(resource_class)
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            self._known[resource_class] = capacity, now + RECENT
        return capacity

    def _sum(self, resource_class: str) -> float:
        group = ResourceGroup(resources={resource_class: 1})
        try:
            found = self._source.search(FindCandidates(groups=(group,)), empty=True)
        except (SenselessQuery, Unavailable):  # the index may not be loaded
            return 0.0
        return float(found.capacity(resource_class).sum())
