"""Computes the labels of hosts by level from what operators, agents, aggregates' metadata and Ironic
set; stores the labels as arrays for the index.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from bus.aggregates import ZONE as ZONE_KEY
from bus.domains import BUILT_IN_LEVELS, CELL, METADATA_PREFIX, NO_LABELS, ZONE, HostLabels, Labels
from placement_worker.core.index_rows import Ints

_decode = msgspec.json.Decoder(HostLabels).decode
_encode_labels = msgspec.json.Encoder(order="deterministic").encode


def stored_labels(text: str) -> HostLabels:
    return _decode(text) if text else NO_LABELS


def as_stored(labels: HostLabels) -> str:
    """Return labels as JSON; "" if there are none."""
    return "" if labels == NO_LABELS else _encode_labels(labels).decode()


def has_labels(metadata: Mapping[str, str]) -> bool:
    """Return whether an aggregate's metadata gives its hosts a label or an availability zone."""
    return any(key == ZONE_KEY or key.startswith(METADATA_PREFIX) for key in metadata)


def effective_labels(
    labels: HostLabels, cell: str, zone: str, of_aggregates: Iterable[Mapping[str, str]] = ()
) -> dict[str, str]:
    """Return a host's label for each level, by precedence: the operator, the host's agent, the metadata of
    its aggregates, Ironic's fields. Of several aggregates the first one decides.
    """
    found: dict[str, str] = {**labels.of_fields}
    by_metadata: dict[str, str] = {}
    for metadata in of_aggregates:
        for key, value in metadata.items():
            if key.startswith(METADATA_PREFIX) and value:
                by_metadata.setdefault(key.removeprefix(METADATA_PREFIX), value)
            elif key == ZONE_KEY and value and not zone:
                zone = value
    found |= by_metadata | labels.reported | labels.of_operator
    for level in BUILT_IN_LEVELS:
        found.pop(level, None)
    if cell:
        found[CELL] = cell
    if zone:
        found[ZONE] = zone
    return found


def reserved_level(levels: Iterable[str]) -> str:
    """Return the first of the given levels that operators cannot label (host, cell, zone), or ""."""
    return next((level for level in levels if level in BUILT_IN_LEVELS), "")


def edited_labels(before: Labels, set_: Labels, unset: Sequence[str]) -> Labels:
    """Return labels after `set_` was applied, without the levels in `unset`."""
    return {level: label for level, label in {**before, **set_}.items() if level not in unset}


class LabelColumn:
    """The labels of one level: for each row of the index the number of its label; 0 is no label."""

    __slots__ = ("_numbers", "ids", "names")

    def __init__(self, size: int) -> None:
        self.ids: Ints = np.zeros(size, np.intp)
        self.names: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}

    def put(self, position: int, label: str) -> None:
        """Set the label of the host at this position."""
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self.names)
            self.names.append(label)
        self.ids[position] = number

    def grow(self, more: int) -> None:
        """Add this many positions."""
        self.ids = np.concatenate([self.ids, np.zeros(more, np.intp)])
