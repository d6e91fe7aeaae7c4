"""What this process has chosen and not yet seen in placement: it counts as used."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from types import MappingProxyType

from bus.vocabulary import Resources

NOTHING: Mapping[str, int] = MappingProxyType({})
TIMEOUT = 15.0  # longer than a claim may take to be answered


@dataclass(slots=True, eq=False)
class PendingChoice:
    """One choice, from the moment it is made until placement's answers show it."""

    allocations: Mapping[str, Resources]
    until: float
    open: bool = True


class PendingChoices:
    """What is taken by open choices, provider by provider."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._taken: dict[str, dict[str, int]] = {}
        self._open: deque[PendingChoice] = deque()  # in the order in which they time out
        self._confirmed: list[tuple[int, int, PendingChoice]] = []
        self._seen = 0
        self._ties = 0

    def enter(self, allocations: Mapping[str, Resources], now: float) -> PendingChoice:
        """A choice is made."""
        self._expire(now)
        entry = PendingChoice(allocations, now + self.timeout)
        for provider, resources in allocations.items():
            taken = self._taken.setdefault(provider, {})
            for resource_class, amount in resources.items():
                taken[resource_class] = taken.get(resource_class, 0) + amount
        self._open.append(entry)
        return entry

    def confirm(self, entry: PendingChoice, number: int) -> None:
        """It was claimed, as this change of placement."""
        if number <= self._seen:
            self.drop(entry)
            return
        self._ties += 1
        heappush(self._confirmed, (number, self._ties, entry))

    def drop(self, entry: PendingChoice) -> None:
        """It came to nothing, or placement counts it now. Dropping twice is dropping once."""
        if not entry.open:
            return
        entry.open = False
        for provider, resources in entry.allocations.items():
            taken = self._taken[provider]
            for resource_class, amount in resources.items():
                left = taken[resource_class] - amount
                if left:
                    taken[resource_class] = left
                else:
                    del taken[resource_class]
            if not taken:
                del self._taken[provider]

    def seen(self, number: int, now: float) -> None:
        """Placement's answers know of everything up to this change."""
        self._seen = number
        confirmed = self._confirmed
        while confirmed and confirmed[0][0] <= number:
            self.drop(heappop(confirmed)[2])
        self._expire(now)

    def taken(self, provider: str) -> Mapping[str, int]:
        """What is chosen there and not yet seen. A view: copy it before entering more."""
        return self._taken.get(provider, NOTHING)

    def _expire(self, now: float) -> None:
        while self._open and (not self._open[0].open or self._open[0].until <= now):
            self.drop(self._open.popleft())
