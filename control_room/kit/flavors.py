"""Parses flavors that operators enter, such as VCPU:2,MEMORY_MB:4096 with traits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

MOST_PARTS = 10_000  # instances of a flavor in one mix


MOST_WORDS = 50  # classes and traits in a line


RESOURCE_NAME = re.compile(r"[A-Z0-9_]{1,255}")


AMOUNT = re.compile(r"[0-9]{1,10}")


_COUNTED = re.compile(r"(\d{1,6})\s*x\s*(.+)", re.IGNORECASE | re.DOTALL)


_MOST_AMOUNT = 2**31 - 1  # as in placement


@dataclass(frozen=True, kw_only=True)
class PlannedFlavor:
    """A flavor of a mix, with amounts and traits; one mix contains `parts` instances of this flavor."""

    name: str
    amounts: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    parts: int = 1


def parse_flavor(text: str) -> PlannedFlavor:
    """Parse a flavor of a mix such as `3xVCPU:2,MEMORY_MB:4096,TRAIT,!TRAIT`; raise ValueError if it is
    invalid.
    """
    parts, rest = split_count(text, MOST_PARTS)
    terms = FlavorTerms(rest)
    if not terms.amounts or terms.zone:
        such_as = "CLASS:AMOUNT,... and traits, such as 3xVCPU:2,MEMORY_MB:4096"
        raise ValueError(f"{text!r}: a flavor is {such_as}")
    traits, forbidden = frozenset(terms.traits), frozenset(terms.forbidden)
    return PlannedFlavor(name=rest, amounts=terms.amounts, required=traits, forbidden=forbidden, parts=parts)


def split_count(text: str, most: int) -> tuple[int, str]:
    """Split `3xTEXT` into the number and the text; without a number it is 1."""
    found = _COUNTED.fullmatch(text)
    if found is None:
        return 1, text
    if not 1 <= int(found[1]) <= most:
        raise ValueError(f"{text!r}: the number before x is from 1 to {most:,}")
    return int(found[1]), found[2]


class FlavorTerms:
    """Parses a line about a flavor or new hosts, a list of CLASS:AMOUNT, TRAIT, !TRAIT and zone=NAME."""

    def __init__(self, text: str) -> None:
        self.amounts: dict[str, int] = {}
        self.traits: set[str] = set()
        self.forbidden: set[str] = set()
        self.zone = ""
        terms = [term for part in text.split(",") if (term := part.strip())]
        if len(terms) > MOST_WORDS:
            raise ValueError(f"{text[:60]!r}…: {MOST_WORDS} classes and traits at most")
        for term in terms:
            name, colon, amount = (part.strip() for part in term.partition(":"))
            if term.startswith("zone="):
                self.zone = term.removeprefix("zone=")
            elif not RESOURCE_NAME.fullmatch(name.removeprefix("!")):
                raise ValueError(f"{term!r}: CLASS:AMOUNT or a trait, of A to Z, 0 to 9 and _")
            elif not colon:
                (self.forbidden if name.startswith("!") else self.traits).add(name.removeprefix("!"))
            elif not (AMOUNT.fullmatch(amount) and 0 < int(amount) <= _MOST_AMOUNT):
                raise ValueError(f"{term!r}: the amount is a whole number from 1 to {_MOST_AMOUNT:,}")
            else:
                self.amounts[name] = int(amount)
