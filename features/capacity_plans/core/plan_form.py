"""Parses what-if questions about a mix of flavors, with hosts to add and to remove."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from control_room.kit import FlavorTerms, PlannedFlavor, parse_flavor, split_count

T = TypeVar("T")

# Limits of one plan: each of them multiplies its computing time or memory.
MOST_FLAVORS = 8
MOST_KINDS = 20  # lines that add hosts
MOST_ADDED = 20_000  # added hosts in all lines
MOST_WITHOUT = 50  # names and patterns of hosts to take away
LONGEST = 4000  # characters of a line
MOST_NAME = 255


class InvalidPlan(Exception):
    """Error: a what-if question has invalid flavors or hosts; each argument is one mistake."""


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
    flavors = _parsed(parse_flavor, mix, problems)
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


def _added(text: str) -> AddedHosts:
    number, rest = split_count(text, MOST_ADDED)
    if rest.startswith("like:"):
        like = rest.removeprefix("like:").strip()
        if not like:
            raise ValueError(f"{text!r}: like which host?")
        return AddedHosts(number=number, name=rest, like=like, amounts={})
    terms = FlavorTerms(rest)
    if not terms.amounts or terms.forbidden:
        such_as = "10xlike:HOST, or 10xCLASS:AMOUNT,... with traits and zone=NAME"
        raise ValueError(f"{text!r}: hosts are {such_as}")
    traits = frozenset(terms.traits)
    return AddedHosts(number=number, name=rest, amounts=terms.amounts, traits=traits, zone=terms.zone)
