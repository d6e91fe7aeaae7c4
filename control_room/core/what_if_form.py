"""Reads a what-if request from a form or an address."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from bus.messages import BuildRequested

MOST_INSTANCES = 1000
_NAME = re.compile(r"[A-Z0-9_]{1,255}")
_APART = re.compile(r"[\s,]+")
_DIGITS = 15


class InvalidForm(Exception):
    """The form is not valid; each argument names the field and its mistake."""


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
    FormField(name="traits", label="Traits, !NAME is none of it", placeholder="HW_CPU_X86_AVX2, !CUSTOM_OLD"),
    FormField(name="zone", label="In this zone only"),
    FormField(name="cell", label="In this cell only"),
    FormField(name="group", label="Server group, name or id"),
    FormField(name="aggregates", label="In one of these aggregates"),
    FormField(name="host", label="On this host only"),
    FormField(name="avoid", label="Hosts to avoid", placeholder="names or ids"),
    FormField(name="project", label="Project"),
    FormField(name="at_least", label="Minimum number of instances", number=True),
    FormField(name="specs", label="Extra specs, one a line", placeholder="hw:numa_nodes=2", lines=True),
)
NAMES = tuple(field.name for field in (*FIELDS, *MORE_FIELDS))


@dataclass(frozen=True, kw_only=True)
class WhatIfRequest:
    """A request as entered: names, not ids."""

    vcpus: int
    memory_mb: int
    disk_gb: int
    count: int = 1
    at_least: int = 0
    extra_specs: tuple[str, ...] = ()  # KEY=VALUE
    zone: str = ""
    cell: str = ""
    group: str = ""
    aggregates: str = ""
    host: str = ""
    avoid: tuple[str, ...] = ()
    project: str = ""


def form_texts(params: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each field that was filled in."""
    return {name: params.get(name, "").strip() for name in NAMES}


def parse_request(texts: Mapping[str, str]) -> WhatIfRequest | None:
    """Return the request, or None for an empty form. Raise InvalidForm with all mistakes."""
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
        extra_specs=tuple(_extra_specs(texts, problems)),
        avoid=tuple(words(texts["avoid"])),
        **{name: texts[name] for name in ("zone", "cell", "group", "aggregates", "host", "project")},
    )
    if not 1 <= found.count <= MOST_INSTANCES:
        problems.append(f"{_label('count')}: from 1 to {MOST_INSTANCES:,}.")
    amounts = found.vcpus or found.memory_mb or found.disk_gb
    if not problems and not amounts and not any(spec.startswith("resources") for spec in found.extra_specs):
        problems.append("Enter at least one amount: virtual CPUs, memory, disk or another resource.")
    if problems:
        raise InvalidForm(*problems)
    return found


def words(text: str) -> list[str]:
    return [word for word in _APART.split(text) if word]


def address_of(request: BuildRequested) -> str:
    """Return the address of the page for this request, with all that the form can hold."""
    flavor = request.flavor
    texts = {
        "vcpus": str(flavor.vcpus),
        "memory_mb": str(flavor.memory_mb),
        "disk_gb": str(flavor.disk_gb),
        "count": str(len(request.instances)),
        "at_least": str(request.at_least or ""),
        "specs": "\n".join(f"{key}={value}" for key, value in sorted(flavor.extra_specs.items())),
        "zone": request.zone,
        "cell": request.cell,
        "group": request.hints.group,
        "host": request.wanted_host or request.forced_host,
        "avoid": " ".join(request.ignore_hosts),
        "project": request.project,
    }
    return f"/what-if?{urlencode({name: value for name, value in texts.items() if value})}"


def _label(name: str) -> str:
    return next(field.label for field in (*FIELDS, *MORE_FIELDS) if field.name == name)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def _extra_specs(texts: Mapping[str, str], problems: list[str]) -> Iterator[str]:
    """Yield KEY=VALUE for the resources, traits and extra specs of the form."""
    for word in words(texts["resources"]):
        name, _, amount = word.partition(":")
        if _NAME.fullmatch(name) and _is_number(amount):
            yield f"resources:{name}={amount}"
        else:
            problems.append(f"{_label('resources')}: {word!r} is not CLASS:AMOUNT, such as CUSTOM_GPU:1.")
    for word in words(texts["traits"]):
        name = word.removeprefix("!")
        if _NAME.fullmatch(name):
            yield f"trait:{name}={'required' if name == word else 'forbidden'}"
        else:
            problems.append(f"{_label('traits')}: {name!r} is no trait (A to Z, 0 to 9, _).")
    for line in filter(None, map(str.strip, texts["specs"].splitlines())):
        key, equals, _ = line.partition("=")
        if not key or not equals:
            problems.append(f"{_label('specs')}: {line!r} is not KEY=VALUE.")
        yield line
