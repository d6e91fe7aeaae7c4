"""A capacity plan as entered: a mix of flavors, hosts to add and hosts to remove. Nothing is changed."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# Limits of one plan: each of the multiplies the work or the memory that it takes.
MOST_FLAVORS = 8
MOST_PARTS = 10_000  # of a flavor in one mix
MOST_KINDS = 20  # lines of hosts to add
MOST_ADDED = 20_000  # hosts of all lines
MOST_WITHOUT = 50  # names and patterns of hosts to take away
MOST_WORDS = 50  # classes and traits in a line
LONGEST = 4000  # characters of a line
MOST_NAME = 255
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
AMOUNT = re.compile(r"[0-9]{1,10}")
_TIMES = re.compile(r"(\d{1,6})\s*x\s*(.+)", re.IGNORECASE | re.DOTALL)
_MOST_AMOUNT = 2**31 - 1  # as in placement


class InvalidPlan(Exception):
    """The plan is not valid; each argument describes one mistake."""


@dataclass(frozen=True, kw_only=True)
class PlannedFlavor:
    """An instance by amounts and traits; `parts` of it are in one mix."""

    name: str
    amounts: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    parts: int = 1


@dataclass(frozen=True, kw_only=True)
class AddedHosts:
    """A number of empty hosts, like an existing host or with given amounts."""

    number: int
    name: str
    like: str = ""
    amounts: Mapping[str, int]
    traits: frozenset[str] = frozenset()
    zone: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    mix: tuple[PlannedFlavor, ...]
    added: tuple[AddedHosts, ...] = ()
    without: tuple[str, ...] = ()  # names, with * and ?, or roots
    zone: str = ""
    cell: str = ""


def parse_plan(
    mix: Sequence[str], add: Sequence[str], without: Sequence[str], zone: str = "", cell: str = ""
) -> Plan:
    """Return the plan; raise InvalidPlan with all mistakes."""
    problems = list(_beyond_limits(mix, add, (*without, zone, cell)))
    if problems:
        raise InvalidPlan(*problems)
    flavors = _parsed(_flavor, mix, problems)
    added = _parsed(_added, add, problems)
    if not flavors and not problems:
        problems.append("say at least one flavor, such as VCPU:2,MEMORY_MB:4096")
    if sum(hosts.number for hosts in added) > MOST_ADDED:
        problems.append(f"a plan adds {MOST_ADDED:,} hosts at most")
    if problems:
        raise InvalidPlan(*problems)
    return Plan(mix=tuple(flavors), added=tuple(added), without=tuple(without), zone=zone, cell=cell)


def _beyond_limits(mix: Sequence[str], add: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    if len(mix) > MOST_FLAVORS:
        yield f"a mix has {MOST_FLAVORS} flavors at most"
    if len(add) > MOST_KINDS:
        yield f"a plan adds {MOST_KINDS} kinds of hosts at most"
    if len(names) > MOST_WITHOUT + 2:
        yield f"a plan takes away {MOST_WITHOUT} names or patterns of hosts at most"
    if any(len(text) > LONGEST for text in (*mix, *add)) or any(len(name) > MOST_NAME for name in names):
        yield f"a line has {LONGEST:,} characters at most, a name {MOST_NAME}"


def _parsed(parse: Callable[[str], T], lines: Sequence[str], problems: list[str]) -> list[T]:
    found = []
    for line in lines:
        try:
            found.append(parse(line.strip()))
        except ValueError as problem:
            problems.append(str(problem))
    return found


def _flavor(text: str) -> PlannedFlavor:
    parts, rest = _times(text, MOST_PARTS)
    terms = _Terms(rest)
    if not terms.amounts or terms.zone:
        raise ValueError(
            f"{text!r}: a flavor is CLASS:AMOUNT,... and traits, such as 3xVCPU:2,MEMORY_MB:4096"
        )
    traits, forbidden = frozenset(terms.traits), frozenset(terms.forbidden)
    return PlannedFlavor(name=rest, amounts=terms.amounts, required=traits, forbidden=forbidden, parts=parts)


def _added(text: str) -> AddedHosts:
    number, rest = _times(text, MOST_ADDED)
    if rest.startswith("like:"):
        like = rest.removeprefix("like:").strip()
        if not like:
            raise ValueError(f"{text!r}: like which host?")
        return AddedHosts(number=number, name=rest, like=like, amounts={})
    terms = _Terms(rest)
    if not terms.amounts or terms.forbidden:
        raise ValueError(
            f"{text!r}: hosts are 10xlike:HOST, or 10xCLASS:AMOUNT,... with traits and zone=NAME"
        )
    traits = frozenset(terms.traits)
    return AddedHosts(number=number, name=rest, amounts=terms.amounts, traits=traits, zone=terms.zone)


def _times(text: str, most: int) -> tuple[int, str]:
    found = _TIMES.fullmatch(text)
    if found is None:
        return 1, text
    if not 1 <= int(found[1]) <= most:
        raise ValueError(f"{text!r}: the number before x is from 1 to {most:,}")
    return int(found[1]), found[2]


class _Terms:
    """CLASS:AMOUNT, TRAIT, !TRAIT and zone=NAME, separated by commas."""

    def __init__(self, text: str) -> None:
        self.amounts: dict[str, int] = {}
        self.traits: set[str] = set()
        self.forbidden: set[str] = set()
        self.zone = ""
        words = [word for part in text.split(",") if (word := part.strip())]
        if len(words) > MOST_WORDS:
            raise ValueError(f"{text[:60]!r}…: {MOST_WORDS} classes and traits at most")
        for word in words:
            self._add(word)

    def _add(self, word: str) -> None:
        name, colon, amount = (part.strip() for part in word.partition(":"))
        if word.startswith("zone="):
            self.zone = word.removeprefix("zone=")
        elif not _NAME.fullmatch(name.removeprefix("!")):
            raise ValueError(f"{word!r}: CLASS:AMOUNT or a trait, of A to Z, 0 to 9 and _")
        elif not colon:
            (self.forbidden if name.startswith("!") else self.traits).add(name.removeprefix("!"))
        elif not (AMOUNT.fullmatch(amount) and 0 < int(amount) <= _MOST_AMOUNT):
            raise ValueError(f"{word!r}: the amount is a whole number from 1 to {_MOST_AMOUNT:,}")
        else:
            self.amounts[name] = int(amount)
