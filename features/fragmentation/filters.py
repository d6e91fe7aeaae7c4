"""The weigher of the feature: it weighs the allocation candidates of all hosts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bus.candidates import Floats, FreeProvider
from bus.queries import Candidate
from features.fragmentation.core.usable_hosts import UsableHosts
from features.fragmentation.core.values import HostValues, NextCosts
from scheduler_worker.core.extension import (
    Alternative,
    ExpectedValues,
    MoreRules,
    Number,
    PlacementProfile,
    RulesPart,
    Shape,
    UsableCapacity,
    View,
    WayValues,
    Weigher,
    shape_of,
)

SPREAD = 0.02
PACKED = 0.9  # mean scarcity from which on hosts with little free capacity are preferred in most choices
HALF = 0.1  # what counts half leaves this much less of use than the best, in average hosts


@dataclass(frozen=True)
class CandidateValues(ExpectedValues):
    """The values of the candidates for one request; implements `WayValues`."""

    highest: Floats
    values: HostValues
    next_costs: NextCosts | None

    def of(self, tree: Sequence[FreeProvider], ways: Sequence[Candidate]) -> Sequence[float]:
        return self.values.of_ways(tree, ways)

    def expect(self, indices: list[int]) -> None:
        if self.next_costs is not None:
            self.next_costs.expect(indices)

    def of_expected(self, index: int, free: Mapping[str, int]) -> float | None:
        return None if self.next_costs is None else self.next_costs.of(index, free)


def fragmentation(*, spread: float = SPREAD) -> Weigher:
    """Prefer the least used hosts while much is free, and later what leaves most for scarce usual requests.

    The value of a candidate is that of the host after it, less that before. One that leaves a tenth of an
    average host less of use than the best counts half. A usual shape counts the more, the scarcer it is.
    While none is scarce, less used hosts are preferred by up to `spread` of a host. With the option
    `spread = 0` all shapes count as scarce.
    """
    values = HostValues(spread)

    def of_ways(view: View, alternative: Alternative) -> WayValues:
        asked = shape_of(alternative.question)
        values.follow(view.providers(), view.demand, asked)
        slots = values.slots(view.positions())
        return CandidateValues(values.best_of(asked, slots), values, values.next_costs_of(asked, slots))

    def no_value(view: View, alternative: Alternative) -> Number:
        return 0.0

    def usable(view: View, shapes: Collection[Shape]) -> UsableCapacity:
        return UsableHosts(view.providers(), view.demand, shapes)

    def packs(multiplier: float) -> bool:
        return values.scarcity is None or values.scarcity.overall >= PACKED

    return Weigher(
        "fragmentation",
        no_value,
        0.0,
        of_ways=of_ways,
        half_at=HALF,
        usable=usable,
        packs=packs,
        decided_by=lambda: "" if values.scarcity is None else values.scarcity.sentence,
    )


# What the profile does, in the words of all documents.
SPREADS = "spreads instances while much is free"
KEEPS = "keeps hosts for usual requests that become scarce"
FILLS = "uses small rests first once little is free"

# A failed build, a preferred trait and a soft rule about groups count more than any value. The other
# weighers decide between hosts whose values are nearly equal: 0.005 is half a thousandth of a host.
_MULTIPLIERS = {
    "fragmentation": 1.0,
    "ram": 0.0,
    "cpu": 0.0,
    "disk": 0.0,
    "hypervisor_version": 0.005,
    "pci": 0.0,
    "io_ops": -0.005,
    "load": -0.025,
    "devices": 0.001,
    "image_cached": 0.005,
}
PROFILES = {
    "balanced": PlacementProfile(
        says=f"{SPREADS}, {KEEPS}, and {FILLS}", is_default=True, multipliers=_MULTIPLIERS
    ),
    "pack": PlacementProfile(
        says="places so that most remains usable for the usual requests",
        multipliers=_MULTIPLIERS,
        options={"fragmentation": {"spread": 0.0}},
    ),
}


PART = RulesPart(weighers=(MoreRules(made=(fragmentation,), profiles=PROFILES),))
