"""What a rule may read of one host: a value, as it was when it was looked at."""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

import msgspec

from bus.aggregates import Aggregate
from bus.reports import HostState


class HostFacts(msgspec.Struct, frozen=True, gc=False):
    """A host as placement knows it, and what it says of itself."""

    root: str
    host: str
    cell: str
    agent: str
    zone: str = ""  # as its owner reports it; those of its aggregates are in their metadata
    traits: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    free: Mapping[str, int] = msgspec.field(
        default_factory=dict
    )  # in its whole tree, without what is promised
    capacity: Mapping[str, int] = msgspec.field(default_factory=dict)
    state: HostState | None = None  # None: it has not reported yet
    down: str = ""  # why it is held to be down
    building: int = 0  # as it reported, and what was sent there since
    failures: float = 0.0  # builds that failed there by its fault, fading with time

    def metadata(self, key: str) -> Iterator[str]:
        """What its aggregates say under this key."""
        for aggregate in self.aggregates:
            if key in aggregate.metadata:
                yield aggregate.metadata[key]

    def limit(self, key: str, otherwise: float) -> float:
        """The least number that its aggregates say under this key; where they say none, the other."""
        return min(numbers(self.metadata(key)), default=otherwise) if self.aggregates else otherwise

    @property
    def sent(self) -> int:
        """The builds that went there a moment ago."""
        return self.building - (self.state.building if self.state is not None else 0)


def numbers(texts: Iterable[str]) -> Iterator[float]:
    """Those of the texts that are finite numbers: an operator may have written anything."""
    for text in texts:
        try:
            number = float(text)
        except ValueError:
            continue
        if isfinite(number):
            yield number
