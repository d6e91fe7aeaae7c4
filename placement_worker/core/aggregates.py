"""Decides edits of aggregates: the name, zone and members after an edit, or the reason to refuse it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from bus.aggregates import (
    ZONE,
    Aggregate,
    AggregateEdit,
    AggregateRefusal,
    ChangeAggregate,
    DropAggregate,
    HasHosts,
    MakeAggregate,
    TwoZones,
    ZoneInUse,
)
from bus.reports import SHARES
from bus.vocabulary import Missing, Taken
from placement_worker.core.trees import ProviderState, Tree, WorkingTrees

NAMED = 5  # maximum number of hosts that a sentence names

Described = Mapping[str, Aggregate]


@dataclass(frozen=True, slots=True)
class Intent:
    """The intended result of an edit of an aggregate: the aggregate before and after the edit, and the hosts
    to add and remove. Availability zones are checked later, by `zone_trouble`.
    """

    was: Aggregate
    now: Aggregate
    made: bool = False
    add: frozenset[str] = frozenset()  # uuids of roots
    remove: frozenset[str] = frozenset()  # uuids of providers, not only roots if a deletion is forced
    force: bool = False

    @property
    def rezoned(self) -> bool:
        """Return whether the edit changes the availability zone."""
        return self.was.metadata.get(ZONE) != self.now.metadata.get(ZONE)

    @property
    def is_changed(self) -> bool:
        return self.was != self.now


@dataclass(frozen=True, slots=True)
class AggregateScene:
    """The stored data by which an edit of an aggregate is decided: all aggregates, the members of the edited
    aggregate, and the hosts that the edit names.
    """

    described: Described
    known: bool  # True: the aggregate exists or existed
    members: Mapping[str, str]  # uuids of the member providers → their names
    hosts: Mapping[str, Collection[str]]  # host as named in the edit → its roots


def as_change(edit: AggregateEdit) -> ChangeAggregate:
    """Return the name, metadata and hosts that an edit of an aggregate sets, as a `ChangeAggregate`; if the
    edit deletes the aggregate, only its id.
    """
    match edit:
        case MakeAggregate(aggregate=id_, name=name, metadata=metadata, hosts=hosts, force=force):
            return ChangeAggregate(aggregate=id_, name=name, set=metadata, add=hosts, force=force)
        case DropAggregate(aggregate=id_):
            return ChangeAggregate(aggregate=id_)
        case ChangeAggregate():
            return edit


def intent(edit: AggregateEdit, scene: AggregateScene) -> Intent | AggregateRefusal:
    """Return an aggregate before and after an edit, with the hosts to add and remove; or a refusal. A
    repeated edit changes nothing.
    """
    was = scene.described.get(edit.aggregate) or Aggregate(id=edit.aggregate)
    exists = edit.aggregate in scene.described or bool(scene.members)
    deleted = Aggregate(id=was.id, name=was.name, gone=True)
    missing = Missing(what="aggregate", names=(edit.aggregate,))
    match edit:
        case MakeAggregate(name=was.name):  # a repeated edit: do not undo later changes
            return Intent(was, was)
        case MakeAggregate() if was.name:
            return Taken(what="id", value=was.name)
        case MakeAggregate():
            return _changed(as_change(edit), was, scene, made=True)
        case ChangeAggregate():
            return _changed(edit, was, scene) if exists else missing
        case DropAggregate() if not exists:  # perhaps a repeated edit
            return Intent(deleted, deleted) if scene.known else missing
        case DropAggregate() if scene.members and not edit.force:
            return HasHosts(
                aggregate=was.name or was.id,
                hosts=tuple(sorted(scene.members.values())[:NAMED]),
                count=len(scene.members),
            )
        case DropAggregate():
            return Intent(was, deleted, remove=frozenset(scene.members), force=edit.force)


def _changed(
    edit: ChangeAggregate, was: Aggregate, scene: AggregateScene, *, made: bool = False
) -> Intent | AggregateRefusal:
    name = was.name if edit.name is None else edit.name
    if any(aggregate.name == name != "" and aggregate.id != was.id for aggregate in scene.described.values()):
        return Taken(what="name", value=name)
    if unknown := tuple(
        name for name in dict.fromkeys((*edit.add, *edit.remove)) if not scene.hosts.get(name)
    ):
        return Missing(what="host", names=unknown)
    metadata = {key: value for key, value in was.metadata.items() if key not in edit.unset} | edit.set
    remove = {root for named_host in edit.remove for root in scene.hosts[named_host]}
    return Intent(
        was,
        Aggregate(id=was.id, name=name, metadata=metadata),
        made,
        add=frozenset(root for named_host in edit.add for root in scene.hosts[named_host]) - remove,
        remove=frozenset(remove.intersection(scene.members)),
        force=edit.force,
    )


def move_in_and_out(wanted: Intent, working: WorkingTrees) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add hosts to an aggregate and remove hosts from it, as in `wanted`, in the provider trees in memory
    (`working`). Return the uuids of the added and of the removed providers.
    """
    id_ = wanted.now.id
    added = []
    for uuid in sorted(wanted.add):
        state = working.there(uuid)
        # Record the membership as the operator's, so that reports do not remove it.
        put = replace(state.reported, aggregates=state.reported.aggregates - {id_})
        if id_ not in state.aggregates:
            added.append(uuid)
            working.put(_with(state, working, {*state.aggregates, id_}))
        elif put != state.reported:
            working.put(replace(state, reported=put))
    for uuid in sorted(wanted.remove):
        state = working.there(uuid)
        working.put(_with(state, working, {*state.aggregates} - {id_}))
    return tuple(added), tuple(sorted(wanted.remove))


def _with(state: ProviderState, working: WorkingTrees, aggregates: set[str]) -> ProviderState:
    reported = replace(state.reported, aggregates=state.reported.aggregates & aggregates)
    return working.with_contents(state, aggregates=tuple(sorted(aggregates)), reported=reported)


class ZonedHost(NamedTuple):
    """The data of a host that decide whether its availability zone may change."""

    host: str
    zone: str  # that its agent reports
    aggregates: Collection[str]  # ids
    shares: bool  # a sharing provider, which may serve several zones
    in_use: bool  # a consumer has allocations


def zoned(tree: Tree) -> ZonedHost:
    """Return the data of a host that decide about its availability zone."""
    root = tree.providers[0]
    return ZonedHost(
        tree.host or root.name, tree.zone, root.aggregates, SHARES in root.traits, bool(tree.in_use)
    )


def zone_trouble(
    wanted: Intent, described: Described, pairs: Iterable[tuple[ZonedHost, ZonedHost]]
) -> TwoZones | ZoneInUse | None:
    """Return a refusal if an edit puts a host into two availability zones or, without `force`, changes the
    zone of a host with instances; else None. `pairs` are the hosts before and after.
    """
    after = {**described, wanted.now.id: wanted.now}
    moving: list[tuple[str, str, str]] = []
    for was, then in pairs:
        if then.shares:
            continue
        host = then.host
        before, now = zones(was, described), zones(then, after)
        for zone in now.keys() - before.keys():
            for other, by in now.items():
                if other != zone:
                    return TwoZones(host=host, zone=zone, other=other, by=by)
        if before.keys() != now.keys() and then.in_use:
            moving.append((host, min(before, default=""), min(now, default="")))
    if not moving or wanted.force:
        return None
    moving.sort()
    hosts = tuple(host for host, _, _ in moving[:NAMED])
    return ZoneInUse(hosts=hosts, count=len(moving), zone=moving[0][1], to=moving[0][2])


def zones(host: ZonedHost, described: Described) -> dict[str, str]:
    """Return a host's availability zones, each with a text that names its source: a report of the host's
    agent, or an aggregate.
    """
    found = {host.zone: "what its owner reports"} if host.zone else {}
    for id_ in host.aggregates:
        aggregate = described.get(id_)
        if aggregate is not None and not aggregate.gone and (zone := aggregate.metadata.get(ZONE)):
            found[zone] = f"aggregate {aggregate.name or id_}"
    return found


# Warnings about metadata without effect, which is accepted because operators may use any keys

_NUMBERS = ("_weight_multiplier",)  # suffixes of keys whose values must be numbers
_WHOLE = ("max_io_ops_per_host", "max_instances_per_host")
_WITHOUT_EFFECT = {
    "cpu_allocation_ratio": "VCPU",
    "ram_allocation_ratio": "MEMORY_MB",
    "disk_allocation_ratio": "DISK_GB",
}


def doubts(metadata: Mapping[str, str]) -> list[str]:
    """Return warnings about metadata that filters cannot use, such as a limit that is no number."""
    found = []
    for key, value in metadata.items():
        if key.endswith(_NUMBERS) and not _number(value):
            found.append(f"{key}: {value!r} is no number, and is passed over")
        elif key in _WHOLE and not (value.isascii() and value.isdigit()):
            found.append(f"{key}: {value!r} is no whole number")
        elif key == ZONE and not value:
            found.append(f"{key}: is empty, and makes it no zone")
        elif key == ZONE and "," in value:
            found.append(f"{key}: {value!r} has a comma, and no request can ask for it")
        elif key.startswith("trait:") and value != "required":
            found.append(f"{key}: {value!r} means nothing, only 'required' does")
        elif key.startswith("filter_tenant_id") and not any(project.strip() for project in value.split(",")):
            found.append(f"{key}: names no project")
        elif key in _WITHOUT_EFFECT:
            found.append(f"{key}: has no effect; {_WITHOUT_EFFECT[key]}'s ratio is in the hosts' inventory")
    return found


def _number(value: str) -> bool:
    try:
        return abs(float(value)) < float("inf")
    except ValueError:
        return False


def coming_back(wanted: Intent, trees: Mapping[str, Tree]) -> list[str]:
    """Return a warning for each host that an edit removes from an aggregate, but that the next report of the
    host's agent adds to it again.
    """
    return [
        f"{tree.host or provider.name}: its owner reports it in this aggregate, and will put it back"
        for tree in trees.values()
        for provider in tree.providers
        if provider.uuid in wanted.remove and wanted.now.id in provider.reported.aggregates
    ]
