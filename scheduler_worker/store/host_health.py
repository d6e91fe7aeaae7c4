"""All SQL about the health of hosts. Takes and returns values, never rows."""

from collections.abc import Collection, Iterable

import msgspec

from bus.host_health import HostHealth
from bus.sql.statement import Statement
from bus.sql.transaction import Transaction
from bus.vocabulary import Id

HostId = tuple[str, Id]  # cell and root

_PUT = Statement(
    """
    INSERT INTO host_health (cell, root, health) SELECT n.cell, n.root, n.health FROM {n} WHERE true
    ON CONFLICT (cell, root) DO UPDATE SET health = excluded.health RETURNING root
    """,
    cell=str,
    root=str,
    health=str,
)
_DROP = Statement(
    "DELETE FROM host_health WHERE (cell, root) IN (SELECT n.cell, n.root FROM {n}) RETURNING root",
    cell=str,
    root=str,
)
_PAGE = Statement(
    """
    SELECT cell, root, health FROM host_health WHERE (cell, root) > (:cell, :root)
    ORDER BY cell, root LIMIT :most
    """
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HostHealth).decode


async def put(tx: Transaction, hosts: Iterable[HostHealth]) -> None:
    # In the order of their keys, so that two schedulers that store the same hosts never wait for each other.
    rows = sorted((host.cell, host.root, _encode(host).decode()) for host in hosts)
    await _PUT(tx, rows)


async def drop(tx: Transaction, hosts: Collection[HostId]) -> None:
    await _DROP(tx, sorted(hosts))


async def page(tx: Transaction, after: HostId, limit: int) -> list[HostHealth]:
    rows = await _PAGE(tx, cell=after[0], root=after[1], most=limit)
    return [_decode(row["health"]) for row in rows]
