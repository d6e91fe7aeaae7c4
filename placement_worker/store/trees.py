"""Provider trees in SQL: reading them whole, and writing what is different. All set-based.

Whoever writes locks hosts by root, then providers by id, then the change number.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bus.database import Transaction
from bus.messages import InventoryReported
from bus.vocabulary import Inventory, ProviderChange
from placement_worker.core.trees import ProviderState, Tree
from placement_worker.store.names import Book
from placement_worker.store.statement import Statement, numbers

_NOW = "CAST(:now AS double precision)"
_OF_ROOTS = "FROM {n} JOIN resource_providers r ON r.uuid = n.root"

_ENTER = Statement(
    "INSERT INTO hosts (root, cell, agent, host, zone, sequence, gone, created_at, updated_at)"
    f" SELECT n.root, '', '', '', '', -1, false, {_NOW}, {_NOW} FROM {{n}} WHERE true ORDER BY n.root"
    " ON CONFLICT DO NOTHING",
    root=str,
)
_LOCK_HOSTS = Statement(
    "SELECT h.root FROM {n} JOIN hosts h ON h.root = n.root ORDER BY h.root FOR NO KEY UPDATE OF h", root=str
)
_LEAVE = Statement(
    "DELETE FROM hosts WHERE sequence = -1 AND root IN (SELECT n.root FROM {n})",
    root=str,
)
_SET_HOSTS = Statement(
    "UPDATE hosts SET cell = n.cell, agent = n.agent, host = n.host, zone = n.zone, sequence = n.sequence,"
    f" gone = n.gone, updated_at = {_NOW} FROM {{n}} WHERE hosts.root = n.root",
    root=str,
    cell=str,
    agent=str,
    host=str,
    zone=str,
    sequence=int,
    gone=bool,
)
_PRUNE_HOSTS = Statement(
    "DELETE FROM hosts WHERE gone AND updated_at < :before"
    " AND NOT EXISTS (SELECT 1 FROM resource_providers p WHERE p.uuid = hosts.root)"
)
_LEFTOVERS = Statement("SELECT h.root FROM hosts h JOIN resource_providers p ON p.uuid = h.root WHERE h.gone")

_ROOTS = Statement(
    "SELECT id, uuid FROM resource_providers WHERE parent_provider_id IS NULL AND id > :after"
    " ORDER BY id LIMIT :most"
)
_LOCK_PROVIDERS = Statement(
    f"SELECT p.id {_OF_ROOTS} JOIN resource_providers p ON p.root_provider_id = r.id"
    " ORDER BY p.id FOR NO KEY UPDATE OF p",
    root=str,
)
_HOSTS = Statement(
    "SELECT h.root, h.host, h.cell, h.agent, h.zone, h.sequence, h.gone"
    " FROM {n} JOIN hosts h ON h.root = n.root",
    root=str,
)
_PROVIDERS = Statement(
    "SELECT r.uuid, p.id, p.uuid, p.name, q.uuid, p.generation, p.shape"
    f" {_OF_ROOTS} JOIN resource_providers p ON p.root_provider_id = r.id"
    " LEFT JOIN resource_providers q ON q.id = p.parent_provider_id ORDER BY p.id",
    root=str,
)
_INVENTORIES = Statement(
    "SELECT i.resource_provider_id, i.resource_class_id, i.total, i.reserved, i.min_unit, i.max_unit,"
    " i.step_size, i.allocation_ratio, i.used"
    " FROM {n} JOIN inventories i ON i.resource_provider_id = n.id ORDER BY i.resource_class_id",
    id=int,
)


def _list_of(column: str, table: str) -> Statement:
    return Statement(
        f"SELECT t.resource_provider_id, string_agg(CAST(t.{column} AS text), ',')"
        f" FROM {{n}} JOIN {table} t ON t.resource_provider_id = n.id GROUP BY t.resource_provider_id",
        id=int,
    )


_TRAITS = _list_of("trait_id", "resource_provider_traits")
_AGGREGATES = _list_of("aggregate_id", "resource_provider_aggregates")

_FOREIGN = Statement(
    "SELECT p.uuid, r.uuid FROM {n} JOIN resource_providers p ON p.uuid = n.uuid"
    " JOIN resource_providers r ON r.id = p.root_provider_id",
    uuid=str,
)
_NAMED = Statement(
    "SELECT p.name, p.uuid FROM {n} JOIN resource_providers p ON p.name = n.called",
    called=str,
)


async def enter(tx: Transaction, roots: Collection[str], now: float) -> None:
    """Lock what is known of these roots' owners; of one nobody knew, keep the place."""
    listed = [(root,) for root in roots]
    await _ENTER(tx, listed, now=now)
    await _LOCK_HOSTS(tx, listed)


async def leave(tx: Transaction, roots: Collection[str]) -> None:
    """Give back places that were kept for nothing."""
    await _LEAVE(tx, [(root,) for root in roots])


async def lock(tx: Transaction, roots: Collection[str]) -> None:
    await _LOCK_PROVIDERS(tx, [(root,) for root in roots])


async def roots_after(tx: Transaction, after: int, most: int) -> list[tuple[int, str]]:
    return [(id_, uuid) for id_, uuid in await _ROOTS(tx, after=after, most=most)]


async def leftovers(tx: Transaction) -> list[str]:
    """Roots that are gone but were still in use."""
    return [root for (root,) in await _LEFTOVERS(tx)]


async def prune_hosts(tx: Transaction, before: float) -> None:
    await _PRUNE_HOSTS(tx, before=before)


async def load(tx: Transaction, book: Book, roots: Collection[str]) -> dict[str, Tree]:
    """These trees as they are; one that is not there has no providers."""
    listed = [(root,) for root in roots]
    hosts = {
        root: Tree(root, host, cell, agent, zone, sequence, bool(gone))
        for root, host, cell, agent, zone, sequence, gone in await _HOSTS(tx, listed)
    }
    providers = await _PROVIDERS(tx, listed)
    ids = [(row[1],) for row in providers]
    inventories, used = await _read_inventories(tx, book, ids)
    traits = {id_: numbers(listed) for id_, listed in await _TRAITS(tx, ids)} if ids else {}
    aggregates = {id_: numbers(listed) for id_, listed in await _AGGREGATES(tx, ids)} if ids else {}
    await _know_all(tx, book, traits, aggregates)
    states: dict[str, list[ProviderState]] = {root: [] for root in roots}
    for root, id_, uuid, name, parent, generation, shape in providers:
        state = ProviderState(
            id_,
            uuid,
            name,
            parent,
            generation,
            shape,
            inventories.get(id_, {}),
            used.get(id_, {}),
            tuple(sorted(book.traits.names[one] for one in traits.get(id_, ()))),
            tuple(sorted(book.aggregates.names[one] for one in aggregates.get(id_, ()))),
        )
        if parent is None:
            states[root].insert(0, state)
        else:
            states[root].append(state)
    return {root: _with(hosts.get(root) or Tree(root), tuple(states[root])) for root in roots}


def _with(tree: Tree, providers: tuple[ProviderState, ...]) -> Tree:
    return Tree(tree.root, tree.host, tree.cell, tree.agent, tree.zone, tree.sequence, tree.gone, providers)


async def _read_inventories(
    tx: Transaction, book: Book, ids: Sequence[tuple[int]]
) -> tuple[dict[int, dict[str, Inventory]], dict[int, dict[str, int]]]:
    inventories: dict[int, dict[str, Inventory]] = {}
    used: dict[int, dict[str, int]] = {}
    rows = await _INVENTORIES(tx, ids) if ids else ()
    names = await book.class_names(tx, {row[1] for row in rows})
    for id_, class_id, total, reserved, least, most, step, ratio, amount in rows:
        name = names[class_id]
        inventories.setdefault(id_, {})[name] = Inventory(
            total=total,
            reserved=reserved,
            min_unit=least,
            max_unit=most,
            step_size=step,
            allocation_ratio=ratio,
        )
        used.setdefault(id_, {})[name] = amount
    return inventories, used


async def _know_all(
    tx: Transaction, book: Book, traits: Mapping[int, tuple[int, ...]], aggregates: Mapping[int, Any]
) -> None:
    """Read the names again when another process has made one."""
    for names, lists in ((book.traits, traits), (book.aggregates, aggregates)):
        if any(one not in names.names for listed in set(lists.values()) for one in listed):
            await names.read_all(tx)


async def clashes(tx: Transaction, pairs: Sequence[tuple[Tree, InventoryReported, Tree]]) -> dict[str, str]:
    """Root → why its report cannot be: somebody else has a provider's id or name."""
    new_ids: set[str] = set()
    new_names: set[str] = set()
    for before, _, after in pairs:
        old = {provider.uuid: provider.name for provider in before.providers}
        new_ids.update(provider.uuid for provider in after.providers if provider.uuid not in old)
        new_names.update(one.name for one in after.providers if old.get(one.uuid) != one.name)
    homes = dict(await _FOREIGN(tx, [(uuid,) for uuid in new_ids])) if new_ids else {}
    owners = dict(await _NAMED(tx, [(name,) for name in new_names])) if new_names else {}
    found = {}
    for before, report, after in pairs:
        if report.gone:
            continue
        here = {provider.uuid for provider in before.providers}
        bears = {provider.name: provider.uuid for provider in after.providers}  # what stays in use comes last
        for position, one in enumerate(report.providers):
            owner = bears[one.name]
            if owner == one.id and owners.get(one.name, one.id) not in here:
                owner = owners.get(one.name, one.id)
            if (home := homes.get(one.id, after.root)) != after.root:
                found[after.root] = f"providers[{position}].id: {one.id} belongs to the tree of {home}"
            elif owner != one.id:
                found[after.root] = (
                    f"providers[{position}].name: {one.name!r} is the name of provider {owner}"
                )
        if after.root not in found:  # from here on these are taken
            homes.update(dict.fromkeys(new_ids & set(bears.values()), after.root))
            owners.update((name, bears[name]) for name in new_names & bears.keys())
    return found


async def save_hosts(tx: Transaction, trees: Sequence[Tree], now: float) -> None:
    rows = [
        (tree.root, tree.cell, tree.agent, tree.host, tree.zone, tree.sequence, tree.gone) for tree in trees
    ]
    await _SET_HOSTS(tx, rows, now=now)


def changes_between(before: Tree, after: Tree) -> list[ProviderChange]:
    """What to announce when a tree became another."""
    old = {provider.uuid: provider for provider in before.providers}
    changes = []
    for provider in after.providers:
        if old.pop(provider.uuid, None) != provider:
            changes.append(
                ProviderChange(provider.uuid, after.root, provider.generation, provider.used, reshaped=True)
            )
    for provider in old.values():
        changes.append(
            ProviderChange(provider.uuid, after.root, provider.generation, {}, reshaped=True, gone=True)
        )
    return changes
