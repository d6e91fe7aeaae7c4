"""Recognizes reports that change at most the amounts in the inventories of a known root provider without
children, such as the `reserved` of an Ironic node: one statement stores them (store/inventory_updates.py).
"""

from dataclasses import dataclass

from bus.messages import InventoryReported
from placement_worker.core.index import Index
from placement_worker.core.reports import bars_report
from placement_worker.core.row import Row
from placement_worker.core.trees import ProviderState, Tree


@dataclass(frozen=True, slots=True)
class InventoryUpdate:
    """A report that changes at most amounts: the provider's generation and shape in the index, and its tree
    after the report. The report is stored only if the database has this shape and, if amounts change, this
    generation.
    """

    generation: int
    shape: int
    after: Tree

    @property
    def provider(self) -> ProviderState:
        return self.after.providers[0]

    @property
    def changes(self) -> bool:
        return self.provider.shape != self.shape


def inventory_update_of(index: Index, report: InventoryReported, now: float) -> InventoryUpdate | None:
    """Return the report as an InventoryUpdate, or None if it changes or may change more than amounts."""
    row = index.rows.get(report.root)
    if (
        row is None
        or index.trees.get(report.root) != (report.root,)
        or not _changes_at_most_amounts(row, report)
    ):
        return None
    if bars_report(report.cell, row.cell, known=True, sequence=report.sequence, now=now):
        return None
    [provider] = report.providers
    changes = provider.inventories != row.inventories
    state = ProviderState(
        id=0,  # not in the index
        uuid=row.uuid,
        name=provider.name,
        parent=None,
        generation=row.generation + changes,
        shape=row.shape + changes,
        inventories=dict(provider.inventories),
        used={name: row.used.get(name, 0) for name in provider.inventories},
        traits=row.traits,
        aggregates=row.aggregates,
    )
    owner = row.host, row.cell, row.agent, row.zone
    after = Tree(report.root, *owner, report.sequence, False, (state,), row.labels)
    return InventoryUpdate(row.generation, row.shape, after)


def _changes_at_most_amounts(row: Row, report: InventoryReported) -> bool:
    if report.gone or report.reshape is not None or len(report.providers) != 1:
        return False
    [provider] = report.providers
    labels = row.labels.reported, row.labels.of_fields
    return (
        (report.host, report.cell, report.agent, report.zone) == (row.host, row.cell, row.agent, row.zone)
        and provider.inventories.keys() == row.inventories.keys()
        and tuple(sorted({*provider.traits})) == row.traits
        and tuple(sorted({*provider.aggregates})) == row.aggregates
        and (report.labels, report.field_labels) == labels
    )
