"""SQL that reads the labels of hosts by level, for claims that join a server group with a topology."""

from collections import defaultdict
from collections.abc import Collection, Sequence

import msgspec
from msgspec import structs

from bus.domains import NO_LABELS
from bus.resources import Provider
from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from placement_worker.core.labels import effective_labels, stored_labels

_LABELS = sql("""
    SELECT n.root, h.cell, h.zone, h.labels FROM {n: root str} LEFT JOIN hosts h ON h.root = n.root
""")
_METADATA = sql("""
    SELECT p.uuid AS root, a.uuid, a.metadata FROM {n: root str}
    JOIN resource_providers p ON p.uuid = n.root
    JOIN resource_provider_aggregates m ON m.resource_provider_id = p.id
    JOIN aggregates a ON a.id = m.aggregate_id
    WHERE a.metadata LIKE '%topology:%' OR a.metadata LIKE '%availability_zone%'
    ORDER BY a.uuid
""")
_decode = msgspec.json.Decoder(dict[str, str]).decode


async def labels_of(tx: Transaction, roots: Collection[str]) -> dict[str, dict[str, str]]:
    """Return, for each of the given hosts, its labels by level, from operators, agents, aggregates and
    Ironic.
    """
    listed = [(root,) for root in sorted(roots)]
    metadata = defaultdict[str, list[dict[str, str]]](list)
    for root, _, text in await _METADATA(tx, listed):
        metadata[root].append(_decode(text))
    found = {}
    for root, cell, zone, text in await _LABELS(tx, listed):
        labels = stored_labels(text) if text else NO_LABELS
        found[root] = effective_labels(labels, cell or "", zone or "", metadata[root])
    return found


async def with_labels(tx: Transaction, found: Sequence[tuple[int, Provider]]) -> list[tuple[int, Provider]]:
    """Return the same providers, with the labels of their hosts added to root providers."""
    labels = await labels_of(tx, [provider.id for _, provider in found if provider.parent is None])
    return [
        (number, structs.replace(provider, labels=labels.get(provider.id, {}))) for number, provider in found
    ]
