"""Values of extra specs and image properties, and the error for values that cannot be read."""

import re
from dataclasses import dataclass

from bus.vocabulary import MAX_INT

_LONGEST = 2000  # most characters of a warning, which may quote a long value


_NUMBER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True)
class SpecValue:
    """The value of an extra spec or image property, with the field's name for error messages."""

    value: str
    at: str

    def whole(self, least: int = 0, most: int = MAX_INT) -> int:
        """Return the value as a whole number; raise Unreadable if it is none or outside of the limits."""
        if not _NUMBER.fullmatch(self.value) or not least <= int(self.value) <= most:
            raise Unreadable(f"{self.at}: {self.value!r} is no whole number from {least} to {most}")
        return int(self.value)


class Unreadable(ValueError):
    """The error for a request that contradicts itself or is invalid; the text names the field."""

    def __init__(self, why: str) -> None:
        super().__init__(why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…")
