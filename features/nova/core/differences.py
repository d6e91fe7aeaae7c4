"""Compares Nova's cells, hosts and aggregates with berth's records, and returns the edits for berth."""

from collections.abc import Iterable, Iterator, Mapping

from bus.aggregates import Aggregate, AggregateEdit, ChangeAggregate, DropAggregate, MakeAggregate
from bus.cells import RegisterCell, RegisteredCell
from bus.resources import OwnerEditRequested, Provider
from features.nova.core.cloud import MirroredAggregate, NovaCloud

AGENT = "nova"  # the agent of hosts that Nova builds on
MIRRORED = "berth:mirrored_from"  # key of an aggregate's metadata; the value is AGENT


def cell_edits(cloud: NovaCloud, registered: Iterable[RegisteredCell]) -> Iterator[RegisterCell]:
    """Yield an edit for each cell of Nova that is missing in berth, or that is enabled in only one of Nova
    and berth.
    """
    known = {cell.name: cell for cell in registered}
    for cell in cloud.cells.values():
        at_berth = known.get(cell.berth_name)
        if at_berth is None or at_berth.enabled == cell.is_disabled:
            yield RegisterCell(
                cell=cell.berth_name, enabled=not cell.is_disabled, note=f"Nova's cell {cell.name}"
            )


def owner_edits(cloud: NovaCloud, providers: Mapping[str, Provider]) -> Iterator[OwnerEditRequested]:
    """Yield an edit for each provider of a compute node of Nova whose cell, agent or host name in berth is
    not that of Nova.
    """
    for host in cloud.nodes.values():
        provider, cell = providers.get(host.root), cloud.cells[host.cell].berth_name
        if provider is not None and (provider.cell, provider.agent, provider.host) != (
            cell,
            AGENT,
            host.host,
        ):
            yield OwnerEditRequested(root=host.root, cell=cell, agent=AGENT, host=host.host)


def aggregate_edits(
    cloud: NovaCloud, at_berth: Mapping[str, Aggregate], providers: Mapping[str, Provider]
) -> Iterator[AggregateEdit]:
    """Yield the edits that make berth's aggregates equal to Nova's: names, metadata and hosts.

    Aggregates that exist only in berth are deleted if they were copied from Nova, else not changed. Placement
    skips its check of zones (`force`): Nova has already checked that no host with instances changes its zone.
    """
    for aggregate in cloud.aggregates.values():
        known = at_berth.get(aggregate.uuid)
        hosts = _roots(aggregate, cloud, providers)
        if known is None or not known.name:
            yield MakeAggregate(
                aggregate=aggregate.uuid,
                name=aggregate.name or aggregate.uuid,
                metadata={**aggregate.metadata, MIRRORED: AGENT},
                hosts=tuple(sorted(hosts)),
                force=True,
            )
            continue
        present = {
            root for root in cloud.hosts if root in providers and aggregate.uuid in providers[root].aggregates
        }
        metadata = {**aggregate.metadata, MIRRORED: AGENT}
        change = ChangeAggregate(
            aggregate=aggregate.uuid,
            name=aggregate.name if aggregate.name and aggregate.name != known.name else None,
            set={key: value for key, value in metadata.items() if known.metadata.get(key) != value},
            unset=tuple(sorted(known.metadata.keys() - metadata.keys())),
            add=tuple(sorted(hosts - present)),
            remove=tuple(sorted(present - hosts)),
            force=True,
        )
        if change.name or change.set or change.unset or change.add or change.remove:
            yield change
    for uuid, mirrored in at_berth.items():
        if uuid not in cloud.aggregates and mirrored.metadata.get(MIRRORED) == AGENT:
            yield DropAggregate(aggregate=uuid, force=True)


def _roots(aggregate: MirroredAggregate, cloud: NovaCloud, providers: Mapping[str, Provider]) -> set[str]:
    return {node.root for host in aggregate.hosts for node in cloud.of_host(host) if node.root in providers}
