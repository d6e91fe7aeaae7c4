"""Reads times and durations from options, and shows ages."""

import re
from datetime import UTC, datetime

from berth.settings import BadSetting
from bus.vocabulary import seconds_of


def time_given(option: str, given: str, now: float) -> float:
    """Return the time that an option's text such as `+2h` or `2026-12-24T08:00` means (UTC without another
    offset); 0 for an empty text. Raise BadSetting, which names the `option`, for any other text.
    """
    if not given:
        return 0.0
    try:
        if given.startswith("+"):
            return now + seconds_of(given[1:])
        read = datetime.fromisoformat(given)
    except (ValueError, KeyError, IndexError):
        raise BadSetting(f"{option} {given}: a time like 2026-12-24T08:00, or +2h from now") from None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


_TIME = re.compile(r"[0-9]{1,6}[smhd]")


def is_time(text: str) -> bool:
    """Return whether a text is a duration, such as 90s or 30m."""
    return bool(_TIME.fullmatch(text))


def seconds_since(since: str) -> float:
    """Return the seconds of the option --since, such as 30m; raise BadSetting if it is no duration."""
    return seconds_given("--since", since)


def seconds_given(option: str, given: str) -> float:
    """Return the seconds of an option's value, such as 30m; raise BadSetting if it is no duration."""
    if not is_time(given):
        raise BadSetting(f"{option} {given}: takes a time (90s, 30m, 12h, 7d)")
    return seconds_of(given)


def waiting_time(wait: str | None) -> str:
    """Return the longest wait for capacity from the option --wait, as text such as 30m; empty without it."""
    if wait and not is_time(wait):
        raise BadSetting(f"--wait {wait}: takes a time (90s, 30m, 12h, 7d), or nothing to follow it only")
    return wait or ""


def age_text(seconds: float) -> str:
    """Return a number of seconds as text in one unit, rounded down, such as 90s, 3m or 5h."""
    left = max(int(seconds), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if left >= 2 * size:
            return f"{left // size}{unit}"
    return f"{left}s"
