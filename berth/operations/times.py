"""Reads times from options."""

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
