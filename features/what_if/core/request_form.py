"""Parses the form of what-if questions about a request."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bus.messages import BuildRequested
from control_room.core.flavor_form import NAME
from control_room.core.forms import FormField, InvalidForm, words
from control_room.core.words import address
from features.groups.messages import group_of
from features.reservations.messages import reservation_of
from features.topology.messages import topology_of
from features.waiting.messages import priority_of

MOST_INSTANCES = 1000
MOST_PRIORITY = 9
_DIGITS = 15


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


def address_of(request: BuildRequested) -> str:
    """Return the URL of the what-if page with its form filled in from the values of this request."""
    flavor, topology = request.flavor, topology_of(request.parts)
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
        "group": group_of(request.parts) or "",
        "host": request.wanted_host or request.forced_host,
        "avoid": " ".join(request.ignore_hosts),
        "project": request.project,
        "priority": str(priority_of(request.parts) or ""),
        "reservation": reservation_of(request.parts) or "",
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
        if NAME.fullmatch(name) and _is_number(amount):
            yield f"resources:{name}={amount}"
        else:
            problems.append(f"{_label('resources')}: {item!r} is not CLASS:AMOUNT, such as CUSTOM_GPU:1.")
    for item in words(texts["traits"]):
        name = item.removeprefix("!")
        if NAME.fullmatch(name):
            yield f"trait:{name}={'required' if name == item else 'forbidden'}"
        else:
            problems.append(f"{_label('traits')}: {name!r} is no trait (A to Z, 0 to 9, _).")
    for line in filter(None, map(str.strip, texts["specs"].splitlines())):
        key, equals, _ = line.partition("=")
        if not key or not equals:
            problems.append(f"{_label('specs')}: {line!r} is not KEY=VALUE.")
        yield line
