"""Parses what-if questions about a mix of flavors, with hosts to add and to remove."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from control_room.core.what_if_form import NAME
from features.quotas.messages import INSTANCES

T = TypeVar("T")

# Limits of one plan: each of them multiplies its computing time or memory.
MOST_FLAVORS = 8
MOST_PARTS = 10_000  # instances of a flavor in one mix
MOST_KINDS = 20  # lines that add hosts
MOST_ADDED = 20_000  # added hosts in all lines
MOST_WITHOUT = 50  # names and patterns of hosts to take away
MOST_WORDS = 50  # classes and traits in a line
LONGEST = 4000  # characters of a line
MOST_NAME = 255
AMOUNT = re.compile(r"[0-9]{1,10}")
_TIMES = re.compile(r"(\d{1,6})\s*x\s*(.+)", re.IGNORECASE | re.DOTALL)
_MOST_AMOUNT = 2**31 - 1  # as in placement


class InvalidPlan(Exception):
    """Error: a what-if question has invalid flavors or hosts; each argument is one mistake."""


@dataclass(frozen=True, kw_only=True)
class PlannedFlavor:
    """A flavor of a mix, with amounts and traits; one mix contains `parts` instances of this flavor."""

    name: str
    amounts: Mapping[str, int]
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()
    parts: int = 1

    def growth(self, instances: int) -> Counter[str]:
        """Return the usage that this number of instances adds to a project's quota, by resource."""
        return Counter({INSTANCES: instances, **{name: n * instances for name, n in self.amounts.items()}})


@dataclass(frozen=True, kw_only=True)
class AddedHosts:
    """New hosts without guests in a what-if question: like the host `like`, or with given amounts."""

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
    without: tuple[str, ...] = ()  # names of hosts, with * and ?, or root uuids
    zone: str = ""
    cell: str = ""


def parse_plan(
    mix: Sequence[str], add: Sequence[str], without: Sequence[str], zone: str = "", cell: str = ""
) -> Plan:
    """Parse flavors (`mix`), new hosts (`add`) and names of hosts to remove (`without`); raise InvalidPlan if
    an entry is invalid. With `zone` or `cell`, the plan uses only hosts in this zone or cell.
    """
    problems = list(_beyond_limits(mix, add, (*without, zone, cell)))
    if problems:
        raise InvalidPlan(*problems)
    flavors = _parsed(_flavor, mix, problems)
    added = _parsed(_added, add, problems)
    if not flavors and not problems:
        problems.append("enter at least one flavor, such as VCPU:2,MEMORY_MB:4096")
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
        such_as = "CLASS:AMOUNT,... and traits, such as 3xVCPU:2,MEMORY_MB:4096"
        raise ValueError(f"{text!r}: a flavor is {such_as}")
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
        such_as = "10xlike:HOST, or 10xCLASS:AMOUNT,... with traits and zone=NAME"
        raise ValueError(f"{text!r}: hosts are {such_as}")
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
            elif not NAME.fullmatch(name.removeprefix("!")):
                raise ValueError(f"{term!r}: CLASS:AMOUNT or a trait, of A to Z, 0 to 9 and _")
            elif not colon:
                (self.forbidden if name.startswith("!") else self.traits).add(name.removeprefix("!"))
            elif not (AMOUNT.fullmatch(amount) and 0 < int(amount) <= _MOST_AMOUNT):
                raise ValueError(f"{term!r}: the amount is a whole number from 1 to {_MOST_AMOUNT:,}")
            else:
                self.amounts[name] = int(amount)
