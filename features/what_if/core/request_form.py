"""Parses the form of what-if questions about a request."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.messages import BuildRequested
from control_room.kit import RESOURCE_NAME, FormField, InvalidForm, RequestField, address, split_words

MOST_INSTANCES = 1000
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
    FormField(name="aggregates", label="In one of these aggregates"),
    FormField(name="host", label="On this host only"),
    FormField(name="avoid", label="Hosts to avoid", placeholder="names or ids"),
    FormField(name="project", label="Project"),
    FormField(name="at_least", label="Minimum number of instances", number=True),
    FormField(name="specs", label="Extra specs, one per line", placeholder="hw:numa_nodes=2", lines=True),
)
_AS_GIVEN = ("zone", "cell", "host", "project")


@dataclass(frozen=True)
class RequestForm:
    """The form for what-if questions; `added` are the fields of features."""

    added: Sequence[RequestField] = ()

    @property
    def more_fields(self) -> Sequence[FormField]:
        return (*MORE_FIELDS, *(each.field for each in self.added))

    def texts(self, params: Mapping[str, str]) -> dict[str, str]:
        """Return a mapping of each field to its text; "" for an empty field."""
        return {field.name: params.get(field.name, "").strip() for field in (*FIELDS, *self.more_fields)}

    def options(self, texts: Mapping[str, str]) -> dict[str, Any] | None:
        """Return the options of `berth boot` that the fields describe; None: empty form. Raise InvalidForm
        with all mistakes.
        """
        if not any(texts.values()):
            return None
        problems: list[str] = []
        numbers = {
            field.name: _number(field, texts[field.name], problems)
            for field in (*FIELDS, *self.more_fields)
            if field.number
        }
        numbers["count"] = numbers["count"] if texts["count"] else 1
        found: dict[str, Any] = {
            **numbers,
            "extra_spec": tuple(_extra_specs(texts, problems)),
            "aggregate": (texts["aggregates"],) if texts["aggregates"] else (),
            "ignore_host": tuple(split_words(texts["avoid"])),
            **{name: texts[name] for name in _AS_GIVEN},
        }
        for each in self.added:
            name = each.field.name
            found.setdefault(name, texts[name])
            if each.most and numbers[name] > each.most:
                problems.append(f"{each.field.label}: {numbers[name]} is too high.")
        if not 1 <= numbers["count"] <= MOST_INSTANCES:
            problems.append(f"{_label('count')}: from 1 to {MOST_INSTANCES:,}.")
        amounts = any(numbers[name] for name in ("vcpus", "memory_mb", "disk_gb"))
        resources = any(spec.startswith("resources") for spec in found["extra_spec"])
        if not problems and not amounts and not resources:
            problems.append("Enter at least one amount: virtual CPUs, memory, disk or another resource.")
        if problems:
            raise InvalidForm(*problems)
        return found

    def address_of(self, request: BuildRequested) -> str:
        """Return the URL of the what-if page with its form filled in from the values of this request."""
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
            "host": request.wanted_host or request.forced_host,
            "avoid": " ".join(request.ignore_hosts),
            "project": request.project,
            **{each.field.name: each.text(request) for each in self.added},
        }
        return address("/what-if", texts)


def _number(field: FormField, text: str, problems: list[str]) -> int:
    if text and not _is_number(text):
        problems.append(f"{field.label}: {text!r} is no whole number.")
    return int(text) if _is_number(text) else 0


def _label(name: str) -> str:
    return next(field.label for field in (*FIELDS, *MORE_FIELDS) if field.name == name)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


def _extra_specs(texts: Mapping[str, str], problems: list[str]) -> Iterator[str]:
    """Yield a form's resources, traits and extra specs as KEY=VALUE; add mistakes to `problems`."""
    for item in split_words(texts["resources"]):
        name, _, amount = item.partition(":")
        if RESOURCE_NAME.fullmatch(name) and _is_number(amount):
            yield f"resources:{name}={amount}"
        else:
            problems.append(f"{_label('resources')}: {item!r} is not CLASS:AMOUNT, such as CUSTOM_GPU:1.")
    for item in split_words(texts["traits"]):
        name = item.removeprefix("!")
        if RESOURCE_NAME.fullmatch(name):
            yield f"trait:{name}={'required' if name == item else 'forbidden'}"
        else:
            problems.append(f"{_label('traits')}: {name!r} is no trait (A to Z, 0 to 9, _).")
    for line in filter(None, map(str.strip, texts["specs"].splitlines())):
        key, equals, _ = line.partition("=")
        if not key or not equals:
            problems.append(f"{_label('specs')}: {line!r} is not KEY=VALUE.")
        yield line
