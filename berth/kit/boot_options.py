"""The options of a build request, of the kernel and of features, as an operator enters them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from berth.features import added
from berth.kit.named_objects import ByName, HostRequestOptions, names_listed
from control_room.kit.forms import RequestField


@dataclass(frozen=True, kw_only=True)
class BootOptions:
    """The options of a build request, as an operator enters them."""

    vcpus: int | None = None
    memory_mb: int | None = None
    disk_gb: int | None = None
    flavor: str = ""
    extra_spec: Sequence[str] = ()
    or_else: Sequence[str] = ()
    image: str = ""
    image_property: Sequence[str] = ()
    count: int = 1
    at_least: int = 0
    zone: str = ""
    cell: str = ""
    aggregate: Sequence[str] = ()
    not_aggregate: Sequence[str] = ()
    host: str = ""
    force_host: str = ""
    ignore_host: Sequence[str] = ()
    hint: Sequence[str] = ()
    prefer_trait: Sequence[str] = ()
    name: str = ""
    project: str = ""
    wait: str = ""  # how long the request may wait for a host, such as 30m; empty: not at all
    more: tuple[HostRequestOptions, ...] = ()  # the options of features


@dataclass(frozen=True)
class BootOptionsPart:
    """Options that a feature adds to build requests, and the fields with these names in the web form."""

    options: type[HostRequestOptions]  # a dataclass
    form_fields: Sequence[RequestField]


@cache
def feature_options() -> tuple[type[Any], ...]:
    """Return the classes of the options that features add, in the order of the list of features."""
    return tuple(part.options for part in added(BootOptionsPart, "boot_options"))


def options_named(**values: Any) -> BootOptions:
    """Return boot options with these values, also of options that features add."""
    more = []
    for class_ in feature_options():
        own = {field.name for field in dataclasses.fields(class_)} & values.keys()
        if own:
            more.append(class_(**{name: values.pop(name) for name in own}))
    return BootOptions(**values, more=tuple(more))


def names_of(options: BootOptions) -> ByName:
    """Return the aggregates that the boot options name, by name or by uuid, and the options of features."""
    return ByName(
        tuple(names_listed("--aggregate", given) for given in options.aggregate),
        tuple(name for given in options.not_aggregate for name in names_listed("--not-aggregate", given)),
        options.more,
    )
