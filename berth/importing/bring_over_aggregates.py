"""Imports Nova's host aggregates from the output of `openstack aggregate list --long -f json`."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from berth.kit.aggregates import find_aggregates, hosts_inside
from bus import topics
from bus.aggregates import (
    ZONE,
    Aggregate,
    AggregateEdit,
    AggregateEdited,
    AggregateEditRequested,
    AggregateResult,
    ChangeAggregate,
    MakeAggregate,
    refusal_reason,
)
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import NOT_JSON
from bus.vocabulary import Missing, portions

_PAIR = re.compile(r"([^=,\s]+)='((?:[^'\\]|\\.)*)'")  # properties as older clients write them in JSON

HOW = "write it with `openstack aggregate list --long -f json`"


class NoAggregates(ValueError):
    """Error: a file does not contain Nova's host aggregates in a known format; the text has the reason."""


@dataclass(frozen=True)
class NovaAggregate:
    """An aggregate of Nova, as its file describes it."""

    name: str
    uuid: str = ""  # empty if missing in the file
    metadata: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[str] | None = None  # None: missing in the file


def read(text: bytes) -> list[NovaAggregate]:
    """Parse host aggregates from the JSON output of `openstack aggregate list` or `openstack aggregate show`,
    or from a response of Nova's API.
    """
    try:
        value = msgspec.json.decode(text)
    except NOT_JSON as problem:
        raise NoAggregates(f"not JSON: {problem}; {HOW}") from None
    if isinstance(value, dict):
        value = value.get("aggregates", [value])
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise NoAggregates(f"not a list of aggregates; {HOW}")
    found = [_aggregate(row, number) for number, row in enumerate(value, 1)]
    names = [aggregate.name for aggregate in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise NoAggregates(f"{twice[0]!r} comes twice")
    return found


def _aggregate(row: Mapping[str, Any], number: int) -> NovaAggregate:
    fields = {str(key).lower().replace(" ", "_"): value for key, value in row.items()}
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise NoAggregates(f"number {number} has no name; {HOW}")
    metadata = _metadata(fields.get("properties", fields.get("metadata")), name)
    if zone := fields.get("availability_zone"):
        metadata[ZONE] = str(zone)
    return NovaAggregate(name, str(fields.get("uuid") or ""), metadata, _hosts(fields.get("hosts"), name))


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
        given = [host.strip() for host in given.split(",")]
    if not isinstance(given, list):
        raise NoAggregates(f"{name!r}: its hosts are no list; {HOW}")
    return [str(host) for host in given if host]


HOSTS_AT_ONCE = 500  # hosts added in one edit


@dataclass(frozen=True)
class Brought:
    """The result of importing one aggregate of Nova: changes made, notes for the operator, and failures."""

    name: str
    uuid: str
    did: str
    notes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # why parts of it were not imported


class BringOver:
    """Creates and changes berth's aggregates so that they equal those of Nova."""

    def __init__(self, bus: Bus, force: bool) -> None:
        self._bus = bus
        self._force = force
        self._there: dict[str, Aggregate] = {}  # berth's aggregates by id

    async def run(self, wanted: Sequence[NovaAggregate], dry_run: bool) -> AsyncIterator[Brought]:
        """Bring over one aggregate after the other, and yield the result of each; `dry_run`
        changes nothing.
        """
        self._there = {aggregate.id: aggregate for aggregate, _ in await find_aggregates(self._bus)}
        nameless = {id_: await self._hosts(id_) for id_, there in self._there.items() if not there.name}
        for aggregate in wanted:
            match = self._match(aggregate, nameless)
            if dry_run:
                did = "would be made" if match is None else f"is {match}"
                yield Brought(aggregate.name, match or "", did)
                continue
            nameless.pop(match or "", None)
            yield await self._bring(aggregate, match)

    def _match(self, aggregate: NovaAggregate, nameless: Mapping[str, set[str]]) -> str | None:
        """Return the id of the aggregate in berth that matches an aggregate of Nova, or None.

        Nova's uuid decides, if given; else the name; else the hosts, if exactly one aggregate in `nameless`
        (hosts of unnamed aggregates by id) has the same hosts.
        """
        if aggregate.uuid:
            return aggregate.uuid if aggregate.uuid in self._there else None
        if named := [id_ for id_, ours in self._there.items() if ours.name == aggregate.name]:
            return named[0]
        alike = [id_ for id_, hosts in nameless.items() if aggregate.hosts and hosts == set(aggregate.hosts)]
        return alike[0] if len(alike) == 1 else None

    async def _hosts(self, id_: str) -> set[str]:
        return {each.host or each.name for each in await hosts_inside(self._bus, id_)}

    async def _bring(self, aggregate: NovaAggregate, match: str | None) -> Brought:
        id_, name = match or aggregate.uuid or Clock().uuid(), aggregate.name
        metadata, force = {**aggregate.metadata}, self._force
        ours = self._there.get(id_)
        edit: AggregateEdit = MakeAggregate(aggregate=id_, name=name, metadata=metadata, force=force)
        if ours is not None and ours.name:
            unset = tuple(key for key in ours.metadata if key not in metadata)
            edit = ChangeAggregate(aggregate=id_, name=name, set=metadata, unset=unset, force=force)
        edited = await self._edit(edit)
        if not isinstance(edited, AggregateEdited):
            return Brought(name, id_, "could not be", failed=(f"{name}: {refusal_reason(edited)}",))
        trouble: list[str] = []
        added = 0
        for part in portions(aggregate.hosts or (), HOSTS_AT_ONCE):
            added += await self._put_in(id_, part, trouble)
        did = "made" if edited.made else "changed" if edited.number or added else "is so already"
        put_in = f", {added:,} host{'' if added == 1 else 's'} put in" if added else ""
        notes = edited.warnings
        if aggregate.hosts is None:
            notes = (*notes, "the file does not list its hosts")
        return Brought(name, id_, f"{did}{put_in}", notes, tuple(trouble))

    async def _put_in(self, id_: str, hosts: Sequence[str], trouble: list[str]) -> int:
        """Add hosts to an aggregate, and return how many were added; append refusals to `trouble`."""
        result = await self._edit(ChangeAggregate(aggregate=id_, add=tuple(hosts), force=self._force))
        if isinstance(result, Missing) and result.what == "host":
            trouble.append(refusal_reason(result))
            hosts = [host for host in hosts if host not in result.names]
            result = await self._edit(ChangeAggregate(aggregate=id_, add=tuple(hosts), force=self._force))
        if isinstance(result, AggregateEdited):
            return len(result.added)
        if len(hosts) == 1:
            trouble.append(refusal_reason(result))
            return 0
        return sum([await self._put_in(id_, [host], trouble) for host in hosts])

    async def _edit(self, edit: AggregateEdit) -> AggregateResult:
        return (await self._bus.asker(topics.EDIT_AGGREGATE)(AggregateEditRequested(edit=edit))).result
