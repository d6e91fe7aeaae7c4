"""Limits of a load test, such as `p99>2s`: it fails if one of them holds."""

import re
from dataclasses import dataclass

from berth.loadtest import LoadOutcome
from berth.settings import BadSetting

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
_LIMIT = re.compile(r"(p50|p90|p95|p99|max|failed|lost|speed)\s*([<>])\s*(\d+(?:\.\d+)?)\s*(ms|s|m|%|/s)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_HOW = (
    "it is a measure, < or >, and a value: p50, p90, p95, p99 or max with a time (p99>2s, p50>250ms), failed"
    " or lost with a number or a share (failed>1%), speed with boots a second (speed<100/s)"
)


@dataclass(frozen=True)
class LoadLimit:
    """A condition under which a load test fails. `value` is in seconds, boots a second, boots, or their share
    in percent.
    """

    text: str
    measure: str
    above: bool
    value: float
    is_share: bool = False

    def measured(self, outcome: LoadOutcome) -> float:
        """Return the measure of a load test to which the condition refers."""
        if self.measure in SHARES:
            return outcome.percentile(SHARES[self.measure])
        if self.measure == "speed":
            return outcome.per_second
        boots = outcome.failed if self.measure == "failed" else outcome.lost
        return 100.0 * boots / max(len(outcome.boots), 1) if self.is_share else float(boots)

    def is_broken(self, outcome: LoadOutcome) -> bool:
        """Return whether the load test fails by this condition."""
        found = self.measured(outcome)
        return found > self.value if self.above else found < self.value

    def sentence(self, outcome: LoadOutcome) -> str:
        """Return what was measured."""
        found = self.measured(outcome)
        unit = " s" if self.measure in SHARES else " boots/s" if self.measure == "speed" else ""
        return f"--fail-if {self.text}: {self.measure} is {found:.4g}{'%' if self.is_share else unit}"


def limit_given(text: str) -> LoadLimit:
    """Return the limit that the option --fail-if names; raise BadSetting for another text."""
    found = _LIMIT.fullmatch(text.strip())
    if found is None:
        raise BadSetting(f"--fail-if {text!r}: {_HOW}")
    measure, way, number, unit = found.groups()
    fits = (
        unit in _SECONDS if measure in SHARES
        else unit in (None, "/s") if measure == "speed"
        else unit in (None, "%")
    )  # fmt: skip
    if not fits:
        raise BadSetting(f"--fail-if {text!r}: {_HOW}")
    value = float(number) * _SECONDS.get(unit or "", 1.0)
    return LoadLimit(text.strip(), measure, way == ">", value, unit == "%")
