"""Judges edits of aggregates as placement does, without making them, for `--dry-run`."""

from collections.abc import Sequence
from dataclasses import dataclass

from berth.kit.aggregates import find_aggregates, hosts_inside
from berth.kit.hosts import hosts_named
from bus import topics
from bus.aggregates import (
    ZONE,
    Aggregate,
    AggregateEditRequested,
    ChangeAggregate,
    DropAggregate,
    refusal_reason,
)
from bus.delivery.recording import RecordingBus
from bus.errors import OperationRefused
from bus.reports import SHARES
from bus.resources import FindProviders, Provider
from placement_worker.core.aggregates import AggregateScene, Intent, ZonedHost, intent, zone_trouble


@dataclass(frozen=True)
class SupposedAggregate:
    """An aggregate after an edit that was not made, and the names of the hosts put in and taken out."""

    aggregate: Aggregate
    changed: bool
    added: Sequence[str]
    removed: Sequence[str]


async def suppose_edit(bus: RecordingBus, edit: ChangeAggregate | DropAggregate) -> SupposedAggregate:
    """Return what an edit would make of an aggregate; raise OperationRefused if it would be refused."""
    await bus.rehearse(AggregateEditRequested(edit=edit))
    described = {aggregate.id: aggregate for aggregate, _ in await find_aggregates(bus)}
    members = {host.id: host for host in await hosts_inside(bus, edit.aggregate)}
    given = (*edit.add, *edit.remove) if isinstance(edit, ChangeAggregate) else ()
    named = {name: await hosts_named(bus, name) for name in dict.fromkeys(given)}
    scene = AggregateScene(
        described=described,
        known=True,
        members={id_: _name(host) for id_, host in members.items()},
        hosts={name: [host.id for host in hosts] for name, hosts in named.items()},
    )
    wanted = intent(edit, scene)
    if not isinstance(wanted, Intent):
        raise OperationRefused(refusal_reason(wanted))
    hosts = members | {host.id: host for found in named.values() for host in found}
    await _check_zones(bus, wanted, scene, [*hosts])
    added, removed = wanted.add - members.keys(), wanted.remove & members.keys()
    return SupposedAggregate(
        wanted.now,
        bool(wanted.is_changed or added or removed),
        sorted(_name(hosts[id_]) for id_ in added),
        sorted(_name(hosts[id_]) for id_ in removed),
    )


async def _check_zones(
    bus: RecordingBus, wanted: Intent, scene: AggregateScene, roots: Sequence[str]
) -> None:
    """Raise OperationRefused if the edit would change the availability zones of hosts in a forbidden way."""
    if ZONE not in wanted.was.metadata and ZONE not in wanted.now.metadata:
        return
    concerned = [root for root in roots if wanted.rezoned or root in wanted.add | wanted.remove]
    questions = [
        FindProviders(in_tree=root, parts=("inventories", "traits", "aggregates", "owner"))
        for root in concerned
    ]
    trees = [answer.providers for answer in await bus.asker_of_many(topics.PROVIDERS)(questions)]
    pairs = [(_zoned(tree), _zoned(tree, wanted)) for tree in trees if tree]
    if trouble := zone_trouble(wanted, scene.described, pairs):
        raise OperationRefused(refusal_reason(trouble))


def _zoned(tree: Sequence[Provider], wanted: Intent | None = None) -> ZonedHost:
    """Return a host as it is or, with `wanted`, after the edit."""
    root = next(provider for provider in tree if provider.parent is None)
    aggregates = {*root.aggregates}
    if wanted is not None and root.id in wanted.add:
        aggregates.add(wanted.now.id)
    if wanted is not None and root.id in wanted.remove:
        aggregates.discard(wanted.now.id)
    in_use = any(amount for provider in tree for amount in provider.used.values())
    return ZonedHost(_name(root), root.zone, aggregates, SHARES in root.traits, in_use)


def _name(host: Provider) -> str:
    return host.host or host.name
