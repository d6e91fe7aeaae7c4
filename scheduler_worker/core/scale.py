"""Makes the values of different weighers comparable: scaled from the lowest to the highest value of all
fitting hosts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bus.candidates import Floats
from bus.decisions import RecordedHost, RecordedScale
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.rule import View, Weigher

MOST = 1e300  # what is beyond counts as this


@dataclass(frozen=True, slots=True)
class Scale:
    """A weigher fitted to all hosts that fit. It stays as it is while an evaluation is used up."""

    weigher: Weigher
    lowest: float
    highest: float
    values: Floats
    clamps: bool  # is any of them below the lowest?

    @property
    def key(self) -> str:
        return self.weigher.spoken_of_as

    def recorded(self) -> RecordedScale:
        clamped = self.weigher.lowest is not None
        return RecordedScale(self.weigher.name, self.weigher.multiplier, self.lowest, self.highest, clamped)

    def read(self, view: View, alternative: Alternative) -> float:
        """Return the weigher's value of one host."""
        value = float(self.weigher.value(view, alternative))
        return value if -MOST < value < MOST else float(_finite(np.array(value), self.lowest))


def scales_of(
    weighers: Sequence[Weigher], view: View, alternative: Alternative, count: int
) -> tuple[Scale, ...]:
    """Return the scales of the weighers whose values differ between hosts; all other weighers have no
    effect.
    """
    if not count:
        return ()
    scales = []
    for weigher in weighers:
        if not weigher.multiplier and isinstance(view.override(weigher.spoken_of_as, 0.0), float):
            continue
        values: Floats = np.asarray(weigher.value(view, alternative), np.float64)
        if values.ndim == 0:
            continue
        least, highest = float(values.min()), float(values.max())
        if not -MOST < least <= highest < MOST:
            values = _finite(values, 0.0 if weigher.lowest is None else weigher.lowest)
            least, highest = float(values.min()), float(values.max())
        lowest = least if weigher.lowest is None else weigher.lowest
        if least == highest or highest <= lowest:
            continue
        highest = max(highest, lowest + weigher.least_span)
        scales.append(Scale(weigher, lowest, highest, values, clamps=least < lowest))
    return tuple(scales)


def worth(scales: Sequence[Scale], view: View, count: int, near: float) -> Floats:
    """Return the score of every host, rounded to steps of `near`. Operations without effect are skipped,
    because each costs time with ten thousand hosts.
    """
    score, counts = np.zeros(count), np.empty(count)
    for scale in scales:
        values, lowest = scale.values, scale.lowest
        if scale.clamps:
            values = np.maximum(values, lowest)
        if lowest:
            values = values - lowest
        np.divide(values, scale.highest - lowest, out=counts)
        multiplier = view.override(scale.key, scale.weigher.multiplier)
        if np.ndim(multiplier) or multiplier != 1.0:
            counts *= multiplier
        score += counts
    return np.rint(score / near) if near else score


def points(
    scales: Sequence[RecordedScale], values: Sequence[float], multipliers: Iterable[float]
) -> list[float]:
    """Return the weighted contribution of each value of one host, as `worth` computes it for all hosts."""
    return [
        (0.0 if scale.clamped and value < scale.lowest else value - scale.lowest)
        / (scale.highest - scale.lowest)
        * multiplier
        for scale, value, multiplier in zip(scales, values, multipliers, strict=True)
    ]


def score_of_host(
    scales: Sequence[RecordedScale], values: Sequence[float], multipliers: Sequence[float], near: float
) -> float:
    """Return the score of one host, present or recorded."""
    score = 0.0
    for counts in points(scales, values, multipliers):
        score += counts
    return float(round(score / near)) if near else score


def scores(scales: Sequence[RecordedScale], host: RecordedHost) -> dict[str, float]:
    """Return the weights of this host, and their sum, for a decision."""
    otherwise = host.multipliers
    multipliers = [scale.multiplier for scale in scales]
    if otherwise:
        multipliers = [otherwise.get(scale.weigher, scale.multiplier) for scale in scales]
    told: dict[str, float] = {}
    total = 0.0
    for scale, counts in zip(scales, points(scales, host.values, multipliers), strict=True):
        told[scale.weigher] = round(counts, 6)
        total += counts
    told["total"] = round(total, 6)
    return told


def _finite(values: Floats, unknown: float) -> Floats:
    """Replace NaN by the lowest value, and infinity by a large number."""
    return np.nan_to_num(values, nan=unknown, posinf=MOST, neginf=-MOST)
