"""All SQL about clients: which projects each acts for, and which project a request or build is of."""

from collections.abc import Collection

from bus.clients import RegisteredClient
from bus.sql.statement import Statement
from bus.sql.transaction import Transaction
from bus.vocabulary import Id

_ALL = Statement("SELECT client, project FROM client_projects ORDER BY client, project")
_NAMED = Statement(
    """
    SELECT c.client, c.project FROM {n} JOIN client_projects c ON c.client = n.client
    ORDER BY c.client, c.project
    """,
    client=str,
)
_DROP = Statement("DELETE FROM client_projects WHERE client IN (SELECT n.client FROM {n})", client=str)
_ADD = Statement(
    """
    INSERT INTO client_projects (client, project) SELECT n.client, n.project FROM {n} WHERE true
    ON CONFLICT (client, project) DO NOTHING
    """,
    client=str,
    project=str,
)
_PARKED = Statement(
    """
    SELECT n.id, parked.project FROM {n} JOIN parked_builds b ON b.build = n.id OR b.request = n.id
    JOIN parked ON parked.request = b.request
    """,
    id=str,
)
_DECIDED = Statement(
    """
    SELECT n.id, d.project FROM {n} JOIN decided_builds b ON b.build = n.id
    JOIN decisions d ON d.id = b.decision WHERE d.project <> ''
    """,
    id=str,
)
_DECIDED_REQUESTS = Statement(
    "SELECT n.id, d.project FROM {n} JOIN decisions d ON d.request = n.id WHERE d.project <> ''", id=str
)


async def registered(tx: Transaction, names: Collection[str] = ()) -> list[RegisteredClient]:
    """Return all registered clients, or the named ones, in the order of their names."""
    rows = await _NAMED(tx, [(name,) for name in sorted(set(names))]) if names else await _ALL(tx)
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["client"], []).append(row["project"])
    return [RegisteredClient(name=name, projects=tuple(projects)) for name, projects in found.items()]


async def bind(tx: Transaction, client: str, projects: Collection[str]) -> None:
    """Bind a client to exactly these projects; without projects it is unregistered."""
    await _DROP(tx, [(client,)])
    if projects:
        await _ADD(tx, [(client, project) for project in sorted(set(projects))])


async def projects_of(tx: Transaction, ids: Collection[Id]) -> dict[Id, str]:
    """Return the project of each build or request that waits or has ended without a host."""
    rows = [(id_,) for id_ in ids]
    found: dict[Id, str] = {}
    for statement in (_DECIDED_REQUESTS, _DECIDED, _PARKED):
        found |= {row["id"]: row["project"] for row in await statement(tx, rows)}
    return found
