"""What a rule may read of one host: a value, as it was when it was looked at."""

from collections.abc import Iterator, Mapping

import msgspec

from bus.vocabulary import Aggregate, HostState


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
