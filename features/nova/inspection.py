"""Reads everything of Nova's databases that `berth openstack check` judges; nothing is written."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import Any

from sqlalchemy import TextClause, bindparam, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from bus.clock import Clock
from bus.vocabulary import portions
from features.nova.core.facts import (
    DatabaseFacts,
    FlavorFacts,
    InstanceFacts,
    NodeFacts,
    NovaFacts,
    ServiceFacts,
)
from features.nova.core.unjudged_properties import IMAGE_PROPERTIES
from features.nova.databases import CELL0, engine_of, fetch_aggregates, fetch_all, reason_of

PAGE = 5000  # rows of one read
API = "the API"
CONNECT_SECONDS = 10.0

_CELLS = text("SELECT id, uuid, name, database_connection FROM cell_mappings ORDER BY id")
_HOSTS = text("SELECT id, host, cell_id FROM host_mappings WHERE id > :after ORDER BY id LIMIT :page")
_BUILDING = text("SELECT id, instance_uuid FROM build_requests WHERE id > :after ORDER BY id LIMIT :page")
_FLAVORS = text("SELECT id, name FROM flavors WHERE id > :after ORDER BY id LIMIT :page")
_EXTRA_SPECS = """
    SELECT id, flavor_id, {key}, value FROM flavor_extra_specs WHERE id > :after ORDER BY id LIMIT :page
"""
# nova-compute reports to its cell's database, nova-scheduler to the database of its configuration.
_SERVICES = text("""
    SELECT id, services.binary AS name, host, version, disabled, forced_down, last_seen_up, created_at
    FROM services WHERE deleted = 0 AND services.binary IN ('nova-compute', 'nova-scheduler')
    AND id > :after ORDER BY id LIMIT :page
""")
_NODES = text("""
    SELECT id, uuid, host, hypervisor_hostname FROM compute_nodes
    WHERE deleted = 0 AND uuid IS NOT NULL AND host IS NOT NULL AND id > :after ORDER BY id LIMIT :page
""")
_INSTANCE = "SELECT id, uuid, host, node, vm_state, task_state, instance_type_id FROM instances"
_INSTANCES = text(f"{_INSTANCE} WHERE deleted = 0 AND id > :after ORDER BY id LIMIT :page")
_SOME_INSTANCES = text(f"{_INSTANCE} WHERE deleted = 0 AND uuid IN :uuids").bindparams(
    bindparam("uuids", expanding=True)
)
_MIGRATIONS = text("""
    SELECT id, uuid FROM migrations WHERE deleted = 0 AND uuid IS NOT NULL AND status NOT IN
    ('confirmed', 'reverted', 'failed', 'completed', 'cancelled', 'done')
    AND id > :after ORDER BY id LIMIT :page
""")
# Nova stores the properties of an instance's image with the instance.
_IMAGE = "image_"
_IMAGE_PROPERTIES = f"""
    SELECT id, instance_uuid, {{key}}, value FROM instance_system_metadata
    WHERE deleted = 0 AND ({" OR ".join(f"{{key}} LIKE :name{at}" for at in range(len(IMAGE_PROPERTIES)))})
    AND id > :after ORDER BY id LIMIT :page
"""
_CLOCK = {
    "postgresql": text("SELECT extract(epoch FROM clock_timestamp())"),
    "mysql": text("SELECT unix_timestamp(now(6))"),
}
_WRITES = {
    "postgresql": text("""
        SELECT count(*) FROM pg_tables WHERE schemaname = ANY (current_schemas(false))
        AND has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename),
        'INSERT, UPDATE, DELETE')
    """),
    "mysql": text("""
        SELECT count(*) FROM (
        SELECT privilege_type FROM information_schema.user_privileges
        UNION ALL SELECT privilege_type FROM information_schema.schema_privileges
        WHERE database() LIKE table_schema
        UNION ALL SELECT privilege_type FROM information_schema.table_privileges
        WHERE table_schema = database()) AS granted
        WHERE privilege_type IN ('INSERT', 'UPDATE', 'DELETE')
    """),
}


class NovaInspection:
    """Reads Nova's databases once; its result records an unreadable database instead of raising an error."""

    def __init__(
        self, api_url: str, cell_urls: Mapping[str, str], clock: Clock, *, down_seconds: float = 60.0
    ) -> None:
        self._api_url = api_url
        self._cell_urls = cell_urls  # by the cell's name
        self._clock = clock
        self._down_seconds = down_seconds
        self._cells: dict[str, str] = {}  # URLs of the databases that could be read, by the cell's name

    async def read(self) -> NovaFacts:
        """Read what the checks need of Nova's databases; a database that fails has its problem
        in the facts.
        """
        found = NovaFacts()
        cells: list[Mapping[str, Any]] = []
        mapped: dict[str, int] = {}

        async def read_api(connection: AsyncConnection) -> None:
            cells.extend(await fetch_all(connection, _CELLS))
            mapped.update({row["host"]: row["cell_id"] async for row in _pages(connection, _HOSTS)})
            found.building = {row["instance_uuid"] async for row in _pages(connection, _BUILDING)}
            found.flavors = await _flavors(connection)
            found.aggregates = await fetch_aggregates(connection)

        found.databases.append(await self._database(API, self._api_url, read_api))
        names = {row["id"]: _name(row) for row in cells}
        mapped_to = {host: names.get(cell) for host, cell in mapped.items()}
        for row in cells:
            name = names[row["id"]]
            url = self._cell_urls.get(name, row["database_connection"])
            read_cell = partial(self._read_cell, name, mapped_to, found)
            database = await self._database(name, url, read_cell)
            is_needed = name != "cell0"
            found.databases.append(replace(database, is_needed=is_needed))
            if is_needed or not database.problem:
                self._cells[name] = url
        return found

    async def read_again(self, uuids: Sequence[str]) -> dict[str, InstanceFacts]:
        """Read the given instances from the cells' databases again; return, by id, the instances that still
        exist.
        """
        found = dict[str, InstanceFacts]()

        async def read_instances(connection: AsyncConnection) -> None:
            for some in portions(uuids, 500):
                found.update(_instances(await fetch_all(connection, _SOME_INSTANCES, uuids=list(some))))

        for name, url in self._cells.items():
            await self._database(name, url, read_instances)
        return found

    async def _read_cell(
        self, cell: str, mapped: Mapping[str, str | None], found: NovaFacts, connection: AsyncConnection
    ) -> None:
        async for row in _pages(connection, _SERVICES):
            found.services.append(self._service(row))
        async for row in _pages(connection, _NODES):
            found.nodes.append(
                NodeFacts(
                    uuid=row["uuid"],
                    host=row["host"],
                    name=row["hypervisor_hostname"] or row["uuid"],
                    cell=cell,
                    mapped_to=mapped.get(row["host"]),
                )
            )
        async for row in _pages(connection, _INSTANCES):
            found.instances |= _instances([row])
        await _read_image_properties(connection, found.image_properties)
        found.migrations |= {row["uuid"] async for row in _pages(connection, _MIGRATIONS)}

    def _service(self, row: Mapping[str, Any]) -> ServiceFacts:
        seen = (row["last_seen_up"] or row["created_at"]).replace(tzinfo=UTC).timestamp()
        is_recent = abs(self._clock.now() - seen) <= self._down_seconds
        return ServiceFacts(
            binary=row["name"],
            host=row["host"],
            version=int(row["version"] or 0),
            is_up=is_recent and not row["forced_down"],
            is_disabled=bool(row["disabled"]),
        )

    async def _database(
        self, name: str, url: str, read: Callable[[AsyncConnection], Awaitable[None]]
    ) -> DatabaseFacts:
        """Connect to a Nova database, and call `read` with the connection. Return whether the database is
        writable and by how many seconds its clock is ahead of this machine's, or why reading failed.
        """
        try:
            engine = engine_of(url)
        except (ValueError, ImportError) as why:
            return DatabaseFacts(name=name, problem=str(why), is_template="{" in url)
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as limit, engine.connect() as connection:
                dialect = connection.dialect.name
                ahead = await self._ahead(connection, _CLOCK[dialect])
                can_write = bool((await connection.execute(_WRITES[dialect])).scalar())
                limit.reschedule(None)
                await read(connection)
            return DatabaseFacts(name=name, can_write=can_write, ahead=ahead)
        except TimeoutError:
            return DatabaseFacts(name=name, problem=f"no connection within {CONNECT_SECONDS:g} s")
        except (SQLAlchemyError, OSError) as why:
            return DatabaseFacts(name=name, problem=reason_of(why))
        finally:
            await engine.dispose()

    async def _ahead(self, connection: AsyncConnection, statement: TextClause) -> float:
        """Return by how many seconds the database's clock is ahead of this machine's."""
        await connection.execute(statement)  # the first execution prepares it
        before = self._clock.now()
        there = float((await connection.execute(statement)).scalar() or 0)
        return there - (before + self._clock.now()) / 2


def _name(row: Mapping[str, Any]) -> str:
    return "cell0" if row["uuid"] == CELL0 else str(row["name"] or row["uuid"])


async def _pages(connection: AsyncConnection, statement: TextClause) -> AsyncIterator[Mapping[str, Any]]:
    """Yield all rows of an SQL query in the order of their ids, page by page. The query has the parameters
    :after (an id) and :page (row limit).
    """
    after = 0
    while True:
        rows = await fetch_all(connection, statement, after=after, page=PAGE)
        for row in rows:
            yield row
        if len(rows) < PAGE:
            return
        after = rows[-1]["id"]


async def _read_image_properties(connection: AsyncConnection, found: dict[str, dict[str, str]]) -> None:
    statement = text(_IMAGE_PROPERTIES.format(key=_key(connection)))
    names = {f"name{at}": _IMAGE + name.replace("*", "%") for at, name in enumerate(IMAGE_PROPERTIES)}
    async for row in _pages(connection, statement.bindparams(**names)):
        properties = found.setdefault(row["instance_uuid"], {})
        properties[row["key"].removeprefix(_IMAGE)] = row["value"] or ""


def _key(connection: AsyncConnection) -> str:
    """Return the name of a column `key`, which is a reserved word of MySQL."""
    return "`key`" if connection.dialect.name == "mysql" else "key"


async def _flavors(connection: AsyncConnection) -> dict[int, FlavorFacts]:
    specs: dict[int, dict[str, str]] = {}
    async for row in _pages(connection, text(_EXTRA_SPECS.format(key=_key(connection)))):
        specs.setdefault(row["flavor_id"], {})[row["key"]] = row["value"] or ""
    return {
        row["id"]: FlavorFacts(name=row["name"], extra_specs=specs.get(row["id"], {}))
        async for row in _pages(connection, _FLAVORS)
    }


def _instances(rows: Iterable[Mapping[str, Any]]) -> dict[str, InstanceFacts]:
    return {
        row["uuid"]: InstanceFacts(
            host=row["host"] or "",
            node=row["node"] or "",
            state=row["vm_state"] or "",
            task=row["task_state"] or "",
            flavor=row["instance_type_id"] or 0,
        )
        for row in rows
    }
