"""SQL for the registered clients: their projects, and their roles."""

from collections.abc import Collection

import msgspec

from bus.sql.statement import Transaction, sql
from features.clients.messages import RegisteredClient

_ALL = sql("SELECT client, project FROM client_projects ORDER BY client, project")
_NAMED = sql("""
    SELECT c.client, c.project FROM {n: client str} JOIN client_projects c ON c.client = n.client
    ORDER BY c.client, c.project
""")
_ROLES = sql("SELECT client, role, cells FROM client_roles")
_NAMED_ROLES = sql(
    "SELECT r.client, r.role, r.cells FROM {n: client str} JOIN client_roles r ON r.client = n.client"
)
_DROP_ROLE = sql("DELETE FROM client_roles WHERE client IN (SELECT n.client FROM {n: client str})")
_ADD_ROLE = sql("""
    INSERT INTO client_roles (client, role, cells) SELECT n.client, n.role, n.cells
    FROM {n: client str, role str, cells str} WHERE true ON CONFLICT (client) DO NOTHING
""")
_DROP = sql("DELETE FROM client_projects WHERE client IN (SELECT n.client FROM {n: client str})")
_ADD = sql("""
    INSERT INTO client_projects (client, project) SELECT n.client, n.project
    FROM {n: client str, project str} WHERE true ON CONFLICT (client, project) DO NOTHING
""")

_encode = msgspec.json.Encoder().encode
_cells = msgspec.json.Decoder(tuple[str, ...]).decode


async def registered(tx: Transaction, names: Collection[str] = ()) -> list[RegisteredClient]:
    """Return the registered clients with the given names (without names: all clients), sorted by name."""
    values = [(name,) for name in sorted(set(names))]
    rows = await _NAMED(tx, values) if names else await _ALL(tx)
    roles = await _NAMED_ROLES(tx, values) if names else await _ROLES(tx)
    projects: dict[str, list[str]] = {row["client"]: [] for row in roles}
    for row in rows:
        projects.setdefault(row["client"], []).append(row["project"])
    of_client = {row["client"]: (row["role"], _cells(row["cells"])) for row in roles}
    found = []
    for name in sorted(projects):
        role, cells = of_client.get(name, ("", ()))
        found.append(RegisteredClient(name=name, projects=tuple(projects[name]), role=role, cells=cells))
    return found


async def bind(tx: Transaction, client: RegisteredClient) -> None:
    """Set a client's projects, cells and role (its permissions); without projects and role, remove it."""
    await _DROP(tx, [(client.name,)])
    await _DROP_ROLE(tx, [(client.name,)])
    if client.projects:
        await _ADD(tx, [(client.name, project) for project in sorted(set(client.projects))])
    if client.role:
        await _ADD_ROLE(tx, [(client.name, client.role, _encode(client.cells).decode())])
