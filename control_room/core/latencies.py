"""Percentiles of durations that are counted in buckets. Bounds grow by a tenth, so the error is at most
that.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

_BOUNDS = tuple(0.001 * 1.1**step for step in range(160))  # a millisecond to an hour


def bucket(seconds: float) -> int:
    return bisect_left(_BOUNDS, seconds)


def percentiles(counts: Mapping[int, int], shares: Iterable[float]) -> list[float | None]:
    """Return, for each share, the bound that this share did not exceed, or None without durations."""
    total = sum(counts.values())
    return [_percentile(counts, total, share) for share in shares]


def _percentile(counts: Mapping[int, int], total: int, share: float) -> float | None:
    passed = 0
    for number in sorted(counts):
        passed += counts[number]
        if passed >= share * total:
            return _BOUNDS[min(number, len(_BOUNDS) - 1)]
    return None


def together(several: Iterable[Mapping[int, int]]) -> Counter[int]:
    whole: Counter[int] = Counter()
    for mapping in several:
        whole.update(mapping)
    return whole
