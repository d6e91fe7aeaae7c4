"""Nova's host aggregates as `openstack aggregate list --long -f json` writes them down."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bus.aggregates import ZONE
from bus.errors import NOT_JSON

_PAIR = re.compile(r"([^=,\s]+)='((?:[^'\\]|\\.)*)'")  # how older clients write properties, even as JSON

HOW = "write it with `openstack aggregate list --long -f json`"


class NoAggregates(ValueError):
    """The file has another format; the text says what is wrong."""


@dataclass(frozen=True)
class NovaAggregate:
    name: str
    uuid: str = ""  # if the client wrote it
    metadata: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[str] | None = None  # None: missing in the file


def read(text: bytes) -> list[NovaAggregate]:
    """Read aggregates from a list, a single one (`aggregate show`), or an answer of the Nova API."""
    try:
        value = msgspec.json.decode(text)
    except NOT_JSON as problem:
        raise NoAggregates(f"not JSON: {problem}; {HOW}") from None
    if isinstance(value, dict):
        value = value.get("aggregates", [value])
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise NoAggregates(f"not a list of aggregates; {HOW}")
    found = [_one(row, number) for number, row in enumerate(value, 1)]
    names = [aggregate.name for aggregate in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise NoAggregates(f"{twice[0]!r} comes twice")
    return found


def _one(row: Mapping[str, Any], number: int) -> NovaAggregate:
    said = {str(key).lower().replace(" ", "_"): value for key, value in row.items()}
    name = said.get("name")
    if not isinstance(name, str) or not name:
        raise NoAggregates(f"number {number} has no name; {HOW}")
    metadata = _metadata(said.get("properties", said.get("metadata")), name)
    if zone := said.get("availability_zone"):
        metadata[ZONE] = str(zone)
    return NovaAggregate(name, str(said.get("uuid") or ""), metadata, _hosts(said.get("hosts"), name))


def _metadata(given: Any, name: str) -> dict[str, str]:
    if isinstance(given, str):
        return dict(_PAIR.findall(given))
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise NoAggregates(f"{name!r}: its properties are no pairs; {HOW}")
    return {str(key): str(value) for key, value in given.items()}


def _hosts(given: Any, name: str) -> list[str] | None:
    if given is None:
        return None
    if isinstance(given, str):
        given = [one.strip() for one in given.split(",")]
    if not isinstance(given, list):
        raise NoAggregates(f"{name!r}: its hosts are no list; {HOW}")
    return [str(one) for one in given if one]
