"""Formats amounts, times, lists of names and addresses of pages as text."""

import math
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode


def duration(seconds: float | None) -> str:
    """Return a duration as text with a fitting unit, from milliseconds to days; "–" for None."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86400:.0f} days"


def expected_start(p50: float | None, p90: float | None, until: float | None, now: float) -> str:
    """Return when a waiting request will probably start, as text: with a probability of 50 % by the time
    `p50`, of 90 % by `p90` (None: unknown). The request waits at most until the time `until`, if given.
    """
    until = math.inf if until is None else until
    if p50 is None or p90 is None:
        return "unknown, no similar request has started recently"
    times = [
        f"{share} within {duration(max(at - now, 0.0))}"
        for share, at in (("50 %", p50), ("90 %", p90))
        if at <= until
    ]
    if p90 > until:
        times.append(
            "probably not before its limit" if p50 > until else "the rest perhaps not before its limit"
        )
    return ", ".join(times)


def expected_evaluation(p50: float | None, p90: float | None, now: float) -> str:
    """Return when a request in the backlog will probably be evaluated, as text: see `expected_start`."""
    if p50 is None or p90 is None:
        return "unknown, few requests of its project were evaluated recently"
    return expected_start(p50, p90, None, now)


def address(path: str, parameters: Mapping[str, object]) -> str:
    """Return the address of a page with the parameters that are not empty."""
    text = urlencode({name: value for name, value in parameters.items() if value})
    return f"{path}?{text}" if text else path


def rate(each_second: float) -> str:
    """Return a rate per second as text, with a decimal if it is below 100."""
    return f"{each_second:.1f}" if 0 < each_second < 100 else f"{each_second:,.0f}"


def count(number: int) -> str:
    """Return a number with separators of thousands."""
    return f"{number:,}"


def several(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def amounts_text(amounts: Sequence[tuple[str, int]]) -> str:
    """Return amounts of resource classes as text, such as `1,024 MEMORY_MB, 2 VCPU`."""
    return ", ".join(f"{count(amount)} {name}" for name, amount in amounts)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return a text such as "a, b and 3 more": the first names, and the number of further names."""
    shown = list(names[:most])
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most:,} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
