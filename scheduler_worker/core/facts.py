"""The facts of one host that rules read, as of the moment when they were read."""

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

import msgspec

from bus.aggregates import Aggregate
from bus.reports import HostState


class HostFacts(msgspec.Struct, frozen=True, gc=False):
    """A host: what placement has of it, and what it reported."""

    root: str
    host: str
    cell: str
    agent: str
    zone: str = ""  # as its owner reports it; zones of aggregates are in their metadata
    traits: tuple[str, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    free: Mapping[str, int] = msgspec.field(
        default_factory=dict
    )  # in its whole tree, without what is promised
    capacity: Mapping[str, int] = msgspec.field(default_factory=dict)
    state: HostState | None = None  # None: no report so far
    down: str = ""  # why it is held to be down
    building: int = 0  # as it reported, and what was sent there since
    failures: float = 0.0  # builds that failed there by its fault, fading with time

    def metadata(self, key: str) -> Iterator[str]:
        """Return the values of this key in the metadata of its aggregates."""
        for aggregate in self.aggregates:
            if key in aggregate.metadata:
                yield aggregate.metadata[key]

    def limit(self, key: str, otherwise: float) -> float:
        """Return the lowest number under this key in its aggregates, or the given one."""
        return min(numbers(self.metadata(key)), default=otherwise) if self.aggregates else otherwise

    @property
    def sent(self) -> int:
        """Return the number of builds sent there since the last report."""
        return self.building - (self.state.building if self.state is not None else 0)


def numbers(texts: Iterable[str]) -> Iterator[float]:
    """Return the texts that are finite numbers; operators may write anything into metadata."""
    for text in texts:
        try:
            number = float(text)
        except ValueError:
            continue
        if isfinite(number):
            yield number
