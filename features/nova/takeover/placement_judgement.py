"""Compares a Placement's providers, traits, allocations and aggregates with a Nova's, without I/O."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec import structs

from berth.kit import ImportedConsumer, PlacementContents
from control_room.kit import several
from features.nova.core.facts import NodeFacts, NovaFacts
from features.nova.core.translation import OWNER_NOVA, OWNER_SINCE
from features.nova.takeover.facts import Level, TakeoverFacts, TakeoverFinding, named

COMPUTE_NODE = "COMPUTE_NODE"

_COPIED = "The import of this step copies it: --done shows what is left."
_IMPORT = "berth openstack import placement --url FORMER --to BERTH --verify"
_PCI_PROVIDER = re.compile(r"_[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$")


def judged_placement(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    """Yield findings about the Placement that was read: before the import Nova's own, afterwards berth's."""
    about = f"Placement at {facts.place}"
    if facts.placement_problem:
        do = "Check --url and the token: openstack resource provider list"
        means = "Providers and allocations were not compared with Nova."
        yield TakeoverFinding("error", about, f"{facts.placement_problem}.", means, do)
    if facts.placement is None:
        return
    yield from _untyped(facts.placement)
    yield from _renamed(facts, facts.placement)
    found = [*_absent(facts, facts.placement), *_traits(facts, facts.placement)]
    if facts.nova.is_complete:
        found += _orphans(facts, facts.placement)
        found += _unallocated(facts, facts.placement)
        found += _doubled(facts, facts.placement)
        found += _aggregates(facts, facts.placement)
    is_imported = any(node.uuid in facts.placement.providers for node in facts.nova.nodes)
    if facts.step == "placement" and not facts.is_done and is_imported:
        found = [structs.replace(finding, level="note", do=_COPIED) for finding in found]
    yield from found


def has_pci_in_placement(facts: TakeoverFacts) -> bool:
    """Return True if Placement has PCI devices reported by Nova, as child providers `<node>_<address>`."""
    providers = facts.placement.providers.values() if facts.placement is not None else ()
    return any(
        provider.parent is not None and _PCI_PROVIDER.search(provider.name) is not None
        for provider in providers
    )


def orphans(nova: NovaFacts, placement: PlacementContents) -> list[str]:
    """Return the ids of consumers that have allocations on compute nodes, but are unknown to Nova (neither an
    instance nor a migration).
    """
    known = nova.instances.keys() | nova.building | nova.migrations
    roots = {node.uuid for node in nova.nodes} & placement.providers.keys()
    return sorted(
        id_
        for id_, consumer in placement.consumers.items()
        if id_ not in known and _roots(consumer, placement) & roots
    )


def unallocated(nova: NovaFacts, placement: PlacementContents) -> dict[str, str]:
    """Return the instances in Nova without allocations on their compute node, each with a text that describes
    the difference.
    """
    nodes = {(node.host, node.name): node.uuid for node in nova.nodes}
    found = {}
    for id_, instance in nova.instances.items():
        if not instance.has_allocations:
            continue
        consumer = placement.consumers.get(id_)
        if consumer is None:
            found[id_] = f"on {instance.host}, without allocations"
        elif (node := nodes.get((instance.host, instance.node))) is not None and node not in _roots(
            consumer, placement
        ):
            found[id_] = f"on {instance.host}, with allocations elsewhere"
    return found


def doubled(nova: NovaFacts, placement: PlacementContents) -> dict[str, str]:
    """Return the instances with allocations on several compute nodes, each with a text that names the
    instance's host and the other nodes.
    """
    names = {node.uuid: node.name for node in nova.nodes}
    found = {}
    for id_, consumer in placement.consumers.items():
        instance = nova.instances.get(id_)
        if instance is not None and instance.has_allocations:
            held = _roots(consumer, placement) & names.keys()
            others = sorted(names[root] for root in held if names[root] != instance.node)
            if len(held) > 1 and others:
                found[id_] = f"on {instance.host}, also with allocations on {', '.join(others)}"
    return found


def _roots(consumer: ImportedConsumer, placement: PlacementContents) -> set[str]:
    return {
        placement.root_of(provider) for provider in consumer.allocations if provider in placement.providers
    }


def _untyped(placement: PlacementContents) -> Iterator[TakeoverFinding]:
    untyped = sum(consumer.type is None for consumer in placement.consumers.values())
    if untyped:
        says = f"{several(untyped, 'consumer')} without a type."
        means = (
            "Nova writes none. They are imported without a type, and `berth audit check` lists them as"
            " consumers of"
            " another system."
        )
        yield TakeoverFinding("note", "consumers", says, means)


def _missing(facts: TakeoverFacts, placement: PlacementContents) -> dict[NodeFacts, str | None]:
    """Return the compute nodes without a provider, each with the id of another provider of its name, if there
    is one.
    """
    by_name = {provider.name: provider.id for provider in placement.providers.values()}
    return {node: by_name.get(node.name) for node in facts.nova.nodes if node.uuid not in placement.providers}


def _renamed(facts: TakeoverFacts, placement: PlacementContents) -> Iterator[TakeoverFinding]:
    missing = _missing(facts, placement)
    pairs = sorted(f"{node.name} (node {node.uuid}, provider {id_})" for node, id_ in missing.items() if id_)
    if pairs:
        says = (
            f"{several(len(pairs), 'compute node')} whose name belongs to another provider: {named(pairs)}."
        )
        means = "nova-compute cannot make its provider, and the host gets no instances."
        do = "openstack resource provider delete PROVIDER (without allocations), then restart nova-compute"
        yield TakeoverFinding("error", "providers", says, means, do)


def _absent(facts: TakeoverFacts, placement: PlacementContents) -> Iterator[TakeoverFinding]:
    absent = sorted(node.name for node, other in _missing(facts, placement).items() if other is None)
    if absent:
        is_former = facts.step == "import"
        says = f"{several(len(absent), 'compute node')} without a provider: {named(absent)}."
        means = "They get no instances" + (
            " now, either." if is_former else " until nova-compute reports them."
        )
        do = "Read the log of nova-compute there and restart it." if is_former else _IMPORT
        yield TakeoverFinding("warning" if is_former else "error", "providers", says, means, do)


def _traits(facts: TakeoverFacts, placement: PlacementContents) -> Iterator[TakeoverFinding]:
    nodes = {node.uuid: node for node in facts.nova.nodes}

    def lacking(trait: str) -> list[str]:
        present = nodes.keys() & placement.providers.keys()
        return sorted(nodes[id_].name for id_ in present if trait not in placement.providers[id_].traits)

    do = "Restart nova-compute there: it reports its traits within a minute."
    if without := lacking(COMPUTE_NODE):
        says = f"{several(len(without), 'provider')} without the trait {COMPUTE_NODE}: {named(without)}."
        means = "nova-compute has not reported its traits; requests that require one of them skip the host."
        yield TakeoverFinding("warning", "traits", says, means, do)
    versions = [service.version for service in facts.nova.services if service.binary == "nova-compute"]
    if versions and min(versions) >= OWNER_SINCE and (without := lacking(OWNER_NOVA)):
        says = f"{several(len(without), 'provider')} without the trait {OWNER_NOVA}: {named(without)}."
        means = (
            "All compute services are new enough that every request requires it: the hosts get no instances."
        )
        yield TakeoverFinding("error", "traits", says, means, do)


def _orphans(facts: TakeoverFacts, placement: PlacementContents) -> Iterator[TakeoverFinding]:
    found = orphans(facts.nova, placement)
    if found:
        says = (
            f"{several(len(found), 'consumer')} neither an instance nor a migration of Nova: {named(found)}."
        )
        means = "Their allocations occupy capacity that no instance uses" + (
            ", and are imported." if facts.step == "import" else "."
        )
        do = "nova-manage placement audit --verbose, then with --delete"
        yield TakeoverFinding("warning", "allocations", says, means, do)


def _unallocated(facts: TakeoverFacts, placement: PlacementContents) -> Iterator[TakeoverFinding]:
    found = unallocated(facts.nova, placement)
    if found:
        listed = [f"{id_} ({why})" for id_, why in sorted(found.items())]
        says = f"{several(len(found), 'instance')} without allocations on their host: {named(listed)}."
        means = "Their capacity counts as free: the hosts can be overcommitted."
        do = "nova-manage placement heal_allocations --verbose"
        level: Level = "warning"
        if facts.step != "import":
            level, do = "error", f"{_IMPORT}; if the former Placement lacks them, too: {do}"
        yield TakeoverFinding(level, "allocations", says, means, do)


def _doubled(facts: TakeoverFacts, placement: PlacementContents) -> Iterator[TakeoverFinding]:
    found = doubled(facts.nova, placement)
    if found:
        listed = [f"{id_} ({where})" for id_, where in sorted(found.items())]
        says = f"{several(len(found), 'instance')} with allocations on several hosts: {named(listed)}."
        means = "After an evacuation that lasts until the former host is back; otherwise capacity is lost."
        do = "nova-manage placement audit --verbose, then with --delete"
        yield TakeoverFinding("warning", "allocations", says, means, do)


def _aggregates(facts: TakeoverFacts, placement: PlacementContents) -> Iterator[TakeoverFinding]:
    by_host: dict[str, list[str]] = {}
    for node in facts.nova.nodes:
        if node.uuid in placement.providers:
            by_host.setdefault(node.host.lower(), []).append(node.uuid)
    members = {
        id_: {root for host in aggregate.hosts for root in by_host.get(host.lower(), ())}
        for id_, aggregate in facts.nova.aggregates.items()
    }
    nodes = [root for roots in by_host.values() for root in roots]
    differs = partial(_differs, members, nodes, placement)
    unlike = sorted(filter(differs, facts.nova.aggregates))
    if unlike:
        names = [facts.nova.aggregates[id_].name for id_ in unlike]
        says = (
            f"{several(len(unlike), 'aggregate')} with other hosts in Placement than in Nova: {named(names)}."
        )
        means = (
            "Zones and filters of aggregates read Placement. berth's bridge corrects the hosts when it runs."
        )
        do = "nova-manage placement sync_aggregates --verbose"
        level: Level = "note" if facts.step == "scheduler" else "warning"
        yield TakeoverFinding(level, "aggregates", says, means, do)


def _differs(
    members: Mapping[str, set[str]], nodes: Sequence[str], placement: PlacementContents, aggregate: str
) -> bool:
    present = {root for root in nodes if aggregate in placement.providers[root].aggregates}
    return present != members[aggregate]
