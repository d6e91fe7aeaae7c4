"""The weigher of the feature: it weighs the allocation candidates of all hosts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bus.candidates import Floats, FreeProvider
from bus.queries import Candidate
from features.fragmentation.core.values import HostValues
from scheduler_worker.core.extension import (
    Alternative,
    MoreRules,
    Number,
    PlacementProfile,
    View,
    WayValues,
    Weigher,
    shape_of,
)

SPREAD = 0.02
THOUSANDTHS = 1000.0  # values are in thousandths of an average host
DIGITS = 6  # equal candidates have equal values, in whatever order their amounts were added


@dataclass(frozen=True)
class CandidateValues:
    """The values of the candidates for one request; implements `WayValues`."""

    highest: Floats
    values: HostValues

    def of(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> Sequence[float]:
        return [round(THOUSANDTHS * value, DIGITS) for value in self.values.of_ways(tree, ways)]


def fragmentation(*, spread: float = SPREAD) -> Weigher:
    """Prefer what leaves most of use for the usual requests, so no GPUs without processors.

    The value of a candidate is that of the host after it, less that before, in thousandths of an average
    host. While less than half of the cloud is used, emptier hosts are preferred by up to `spread` of a host.
    """
    values = HostValues(spread)

    def of_ways(view: View, alternative: Alternative) -> WayValues:
        asked = shape_of(alternative.question)
        values.follow(view.providers(), view.demand, asked)
        slots = values.slots(view.positions())
        return CandidateValues(np.round(THOUSANDTHS * values.best_of(asked, slots), DIGITS), values)

    def no_value(view: View, alternative: Alternative) -> Number:
        return 0.0

    return Weigher("fragmentation", no_value, 0.0, of_ways=of_ways)


FILTERS = ()
# Other weighers decide between hosts whose values are nearly equal: 0.05 is half a thousandth of a host.
_OTHERS = {
    "ram": 0.0,
    "cpu": 0.0,
    "disk": 0.0,
    "pci": 0.0,
    "io_ops": -0.05,
    "load": -0.25,
    "devices": 0.01,
    "image_cached": 0.05,
}
PROFILES = {
    "balanced": PlacementProfile(
        says="places so that most remains usable for the usual requests, and spreads while much is free",
        multipliers={"fragmentation": 0.1, **_OTHERS},
    ),
    "pack": PlacementProfile(
        says="places so that most remains usable for the usual requests",
        multipliers={"fragmentation": 0.1, **_OTHERS},
        options={"fragmentation": {"spread": 0.0}},
    ),
}
WEIGHERS = (MoreRules(made=(fragmentation,), profiles=PROFILES),)
