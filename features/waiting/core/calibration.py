"""Quantiles of a request's expected start, corrected by comparison with actual starts.

The time until a queue has served n requests is distributed as a quotient of gamma variables, whose logarithm
is nearly normal. Each estimate is compared with the actual time. After every comparison, the distance of the
next estimates from the mean is adjusted, so that 50 % of the requests start before their p50 and 90 % before
their p90 whatever the pattern of the load.
"""

import math

import msgspec

LEAST_STEP, FIRST_STEP = 0.05, 0.5  # change of a correction by one comparison: at least, and at first
LIMITS = ((-2.5, 2.5), (0.1, 6.0))  # ranges of the p50 and p90 corrections
LONGEST = 10 * 365 * 86400.0  # seconds; a longer estimate counts as unknown
RECENT = 500  # in the calibration error, a comparison counts 1/e after so many further comparisons
P50, P90 = 0, 1
SHARES = (0.5, 0.9)  # fraction of the requests that should start before each quantile


class StartEstimate(msgspec.Struct, frozen=True):
    """The seconds from now within which a request starts with a probability of 50 % and 90 %."""

    p50: float
    p90: float


class Correction(msgspec.Struct, array_like=True):
    """The number of standard deviations from the mean at which 50 % and 90 % of the requests have started."""

    p50: float = 0.0
    p90: float = 2.0  # a normal distribution has 1.28; larger, until estimates have been compared
    compared: list[int] = msgspec.field(default_factory=lambda: [0, 0])

    def compare(self, quantile: int, *, late: bool) -> None:
        """Raise the correction of a quantile (`P50` or `P90`) after a late start, or lower it after a start
        in time. The steps cancel out if the share of late starts is as intended.
        """
        self.compared[quantile] += 1
        step = max(LEAST_STEP, FIRST_STEP / math.sqrt(self.compared[quantile]))
        share = SHARES[quantile]
        moved = step * share if late else step * (share - 1)
        lowest, highest = LIMITS[quantile]
        if quantile == P50:
            self.p50 = min(max(self.p50 + moved, lowest), highest)
        else:
            self.p90 = min(max(self.p90 + moved, lowest), highest)

    def estimate(self, mean: float, deviation: float) -> StartEstimate | None:
        """Return the quantiles of a time whose logarithm has this mean and standard deviation, or None if it
        is too long to be known.
        """
        p90 = mean + deviation * max(self.p90, self.p50)
        if p90 > math.log(LONGEST):
            return None
        return StartEstimate(math.exp(mean + deviation * self.p50), math.exp(p90))

    def rounded(self) -> "Correction":
        return Correction(round(self.p50, 3), round(self.p90, 3), self.compared)


class Calibration:
    """Counts how many of the recently compared estimates were in time."""

    def __init__(self) -> None:
        self.overall = Correction()  # the correction with which new queues begin
        self._counted = [[0.0, 0.0], [0.0, 0.0]]  # by quantile: recent comparisons, starts in time

    def compare(self, correction: Correction, quantile: int, *, late: bool) -> None:
        """Count an actual start, and adjust the `correction` of its estimate."""
        correction.compare(quantile, late=late)
        self.overall.compare(quantile, late=late)
        counted = self._counted[quantile]
        counted[:] = [counted[0] * (1 - 1 / RECENT) + 1, counted[1] * (1 - 1 / RECENT) + (not late)]

    def new_correction(self) -> Correction:
        """Return the correction of estimates that follows from all compared ones."""
        return Correction(self.overall.p50, self.overall.p90)

    def error(self, quantile: int) -> float:
        """Return the recent share of requests that started before this quantile, minus the intended share."""
        compared, in_time = self._counted[quantile]
        return in_time / compared - SHARES[quantile] if compared else 0.0


def log_wait(position: float, served: float, seconds: float) -> tuple[float, float]:
    """Return the mean and the variance of the logarithm of the seconds until `position` requests are served,
    if `served` requests were served in the last `seconds`, independently of each other.
    """
    mean = math.log(seconds) + _digamma(position) - _digamma(served)
    return mean, _trigamma(position) + _trigamma(served)


def _digamma(x: float) -> float:
    """Return the mean of the logarithm of a gamma variable of shape `x`."""
    less = 0.0
    while x < 6.0:
        less, x = less + 1 / x, x + 1
    return math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - less


def _trigamma(x: float) -> float:
    """Return the variance of the logarithm of a gamma variable of shape `x`."""
    more = 0.0
    while x < 6.0:
        more, x = more + 1 / x**2, x + 1
    return 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + more
