"""Parses the forms of what-if questions: a request, or a mix of flavors with hosts to add and remove."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bus.messages import BuildRequested
from bus.quotas import INSTANCES
from control_room.core.words import address

MOST_INSTANCES = 1000
MOST_PRIORITY = 9
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_APART = re.compile(r"[\s,]+")
_DIGITS = 15


class InvalidForm(Exception):
    """Error: a form is invalid; each argument names a field and its mistake."""


@dataclass(frozen=True, kw_only=True)
class FormField:
    name: str
    label: str
    number: bool = False
    placeholder: str = ""
    lines: bool = False


FIELDS = (
    FormField(name="vcpus", label="Virtual CPUs", number=True),
    FormField(name="memory_mb", label="Memory in MB", number=True),
    FormField(name="disk_gb", label="Disk in GB", number=True),
    FormField(name="count", label="Instances", number=True),
)
MORE_FIELDS = (
    FormField(name="resources", label="Other resources", placeholder="CUSTOM_GPU:1, VGPU:2"),
    FormField(
        name="traits", label="Traits; !NAME: without this trait", placeholder="HW_CPU_X86_AVX2, !CUSTOM_OLD"
    ),
    FormField(name="zone", label="In this zone only"),
    FormField(name="cell", label="In this cell only"),
    FormField(name="group", label="Server group, name or id"),
    FormField(name="aggregates", label="In one of these aggregates"),
    FormField(name="host", label="On this host only"),
    FormField(name="avoid", label="Hosts to avoid", placeholder="names or ids"),
    FormField(name="project", label="Project"),
    FormField(name="at_least", label="Minimum number of instances", number=True),
    FormField(name="priority", label="Priority, 0 to 9", number=True),
    FormField(name="reservation", label="Reservation, name or id"),
    FormField(name="pack", label="Pack into one domain of", placeholder="rack"),
    FormField(name="spread", label="Spread over domains of", placeholder="rack:2"),
    FormField(name="specs", label="Extra specs, one per line", placeholder="hw:numa_nodes=2", lines=True),
)
_AS_GIVEN = ("zone", "cell", "group", "host", "project", "reservation", "pack", "spread")
NAMES = tuple(field.name for field in (*FIELDS, *MORE_FIELDS))


@dataclass(frozen=True, kw_only=True)
class WhatIfRequest:
    """A what-if question as entered in a form; the fields have the names of the options of `berth boot`."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    count: int = 1
    at_least: int = 0
    extra_spec: tuple[str, ...] = ()  # KEY=VALUE
    zone: str = ""
    cell: str = ""
    group: str = ""
    aggregate: tuple[str, ...] = ()
    host: str = ""
    ignore_host: tuple[str, ...] = ()
    project: str = ""
    priority: int = 0
    reservation: str = ""
    pack: str = ""
    spread: str = ""


def form_texts(params: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping of each field of the what-if form to its text; "" for an empty field."""
    return {name: params.get(name, "").strip() for name in NAMES}


def whole_numbers(texts: Mapping[str, str], defaults: Mapping[str, int], digits: int) -> dict[str, int]:
    """Return the number in each field that `defaults` names, or the default if the field is empty. Raise
    InvalidForm if a text is no whole number of at most `digits` digits.
    """
    numbers = dict(defaults)
    for name in defaults:
        if text := texts[name]:
            if not (text.isascii() and text.isdecimal() and len(text) <= digits):
                raise InvalidForm(f"{name}: {text[:40]!r} is no whole number")
            numbers[name] = int(text)
    return numbers


def parse_request(texts: Mapping[str, str]) -> WhatIfRequest | None:
    """Parse a what-if question from a form; None: empty form. Raise InvalidForm with all mistakes."""
    if not any(texts.values()):
        return None
    problems: list[str] = []

    def number(name: str, default: int = 0) -> int:
        text = texts[name]
        if _is_number(text):
            return int(text)
        if text:
            problems.append(f"{_label(name)}: {text!r} is no whole number.")
        return default

    found = WhatIfRequest(
        vcpus=number("vcpus"),
        memory_mb=number("memory_mb"),
        disk_gb=number("disk_gb"),
        count=number("count", 1),
        at_least=number("at_least"),
        extra_spec=tuple(_extra_specs(texts, problems)),
        aggregate=(texts["aggregates"],) if texts["aggregates"] else (),
        ignore_host=tuple(words(texts["avoid"])),
        priority=number("priority"),
        **{name: texts[name] for name in _AS_GIVEN},
    )
    if found.priority > MOST_PRIORITY:
        problems.append(f"{_label('priority')}: {found.priority} is too high.")
    if not 1 <= found.count <= MOST_INSTANCES:
        problems.append(f"{_label('count')}: from 1 to {MOST_INSTANCES:,}.")
    amounts = found.vcpus or found.memory_mb or found.disk_gb
    if not problems and not amounts and not any(spec.startswith("resources") for spec in found.extra_spec):
        problems.append("Enter at least one amount: virtual CPUs, memory, disk or another resource.")
    if problems:
        raise InvalidForm(*problems)
    return found


def words(text: str) -> list[str]:
    return [item for item in _APART.split(text) if item]


def address_of(request: BuildRequested) -> str:
    """Return the URL of the what-if page with its form filled in from the values of this request."""
    flavor, topology = request.flavor, request.topology
    spread = topology.required_spread and f"{topology.required_spread}:{topology.max_per_domain}"
    texts = {
        "vcpus": str(flavor.vcpus),
        "memory_mb": str(flavor.memory_mb),
        "disk_gb": str(flavor.disk_gb),
        "count": str(len(request.instances)),
        "at_least": str(request.at_least or ""),
        "specs": "\n".join(f"{key}={value}" for key, value in sorted(flavor.extra_specs.items())),
        "zone": request.zone,
        "cell": request.cell,
        "group": request.hints.group or "",
        "host": request.wanted_host or request.forced_host,
        "avoid": " ".join(request.ignore_hosts),
        "project": request.project,
        "priority": str(request.priority or ""),
        "reservation": request.hints.reservation or "",
        "pack": topology.required_pack,
        "spread": spread,
    }
    return address("/what-if", texts)


def _label(name: str) -> str:
    return next(field.label for field in (*FIELDS, *MORE_FIELDS) if field.name == name)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def _extra_specs(texts: Mapping[str, str], problems: list[str]) -> Iterator[str]:
    """Yield a form's resources, traits and extra specs as KEY=VALUE; add mistakes to `problems`."""
    for item in words(texts["resources"]):
        name, _, amount = item.partition(":")
        if _NAME.fullmatch(name) and _is_number(amount):
            yield f"resources:{name}={amount}"
        else:
            problems.append(f"{_label('resources')}: {item!r} is not CLASS:AMOUNT, such as CUSTOM_GPU:1.")
    for item in words(texts["traits"]):
        name = item.removeprefix("!")
        if _NAME.fullmatch(name):
            yield f"trait:{name}={'required' if name == item else 'forbidden'}"
        else:
            problems.append(f"{_label('traits')}: {name!r} is no trait (A to Z, 0 to 9, _).")
    for line in filter(None, map(str.strip, texts["specs"].splitlines())):
        key, equals, _ = line.partition("=")
        if not key or not equals:
            problems.append(f"{_label('specs')}: {line!r} is not KEY=VALUE.")
        yield line


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
            elif not _NAME.fullmatch(name.removeprefix("!")):
                raise ValueError(f"{term!r}: CLASS:AMOUNT or a trait, of A to Z, 0 to 9 and _")
            elif not colon:
                (self.forbidden if name.startswith("!") else self.traits).add(name.removeprefix("!"))
            elif not (AMOUNT.fullmatch(amount) and 0 < int(amount) <= _MOST_AMOUNT):
                raise ValueError(f"{term!r}: the amount is a whole number from 1 to {_MOST_AMOUNT:,}")
            else:
                self.amounts[name] = int(amount)
