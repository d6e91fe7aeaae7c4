"""Makes the tables of Nova that berth reads, without a Nova, and rows for them: for tests and benchmarks."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

CELL0 = "00000000-0000-0000-0000-000000000000"

_API_TABLES = """
    CREATE TABLE cell_mappings (id serial PRIMARY KEY, uuid varchar(36) NOT NULL, name varchar(255),
        transport_url text, database_connection text, disabled boolean);
    CREATE TABLE host_mappings (id serial PRIMARY KEY, cell_id integer NOT NULL, host varchar(255) NOT NULL);
    CREATE TABLE instance_mappings (id serial PRIMARY KEY, instance_uuid varchar(36), cell_id integer);
    CREATE TABLE build_requests (id serial PRIMARY KEY, instance_uuid varchar(36));
    CREATE TABLE aggregates (id serial PRIMARY KEY, uuid varchar(36), name varchar(255));
    CREATE TABLE aggregate_hosts (id serial PRIMARY KEY, host varchar(255), aggregate_id integer NOT NULL);
    CREATE TABLE aggregate_metadata (id serial PRIMARY KEY, aggregate_id integer NOT NULL,
        "key" varchar(255) NOT NULL, value varchar(255) NOT NULL);
    CREATE TABLE request_specs (id serial PRIMARY KEY, instance_uuid varchar(36) NOT NULL, spec text);
    CREATE TABLE flavors (id serial PRIMARY KEY, name varchar(255) NOT NULL);
    CREATE TABLE flavor_extra_specs (id serial PRIMARY KEY, flavor_id integer NOT NULL,
        "key" varchar(255) NOT NULL, value varchar(255));
"""
_CELL_TABLES = """
    CREATE TABLE services (id serial PRIMARY KEY, host varchar(255), "binary" varchar(255), version integer,
        disabled boolean, disabled_reason varchar(255), forced_down boolean, last_seen_up timestamp,
        created_at timestamp, deleted integer DEFAULT 0);
    CREATE TABLE compute_nodes (id serial PRIMARY KEY, uuid varchar(36), host varchar(255),
        hypervisor_hostname varchar(255), hypervisor_type text, hypervisor_version integer, cpu_info text,
        host_ip varchar(39), supported_instances text, metrics text, stats text, updated_at timestamp,
        created_at timestamp, memory_mb integer, memory_mb_used integer, ram_allocation_ratio float,
        vcpus integer, vcpus_used integer, cpu_allocation_ratio float, deleted integer DEFAULT 0);
    CREATE TABLE instances (id serial PRIMARY KEY, uuid varchar(36) NOT NULL UNIQUE, host varchar(255),
        node varchar(255), vm_state varchar(255), task_state varchar(255), instance_type_id integer,
        deleted integer DEFAULT 0);
    CREATE TABLE instance_system_metadata (id serial PRIMARY KEY, instance_uuid varchar(36) NOT NULL,
        "key" varchar(255) NOT NULL, value varchar(255), deleted integer DEFAULT 0);
    CREATE TABLE migrations (id serial PRIMARY KEY, uuid varchar(36), status varchar(255),
        deleted integer DEFAULT 0);
"""


class NovaTables:
    """One database with Nova's tables."""

    def __init__(self, url: str, connection: AsyncConnection) -> None:
        self.url = url  # as Nova writes it
        self._connection = connection

    async def run(self, *statements: str) -> None:
        for statement in statements:
            await self._connection.exec_driver_sql(statement)

    async def add(self, table: str, **values: Any) -> int:
        """Add a row and return its id."""
        columns = ", ".join(f'"{column}"' for column in values)
        marks = ", ".join(f":{column}" for column in values)
        statement = text(f"INSERT INTO {table} ({columns}) VALUES ({marks}) RETURNING id")
        return int((await self._connection.execute(statement, values)).scalar_one())


@asynccontextmanager
async def nova_tables(url: str, *, is_api: bool = False) -> AsyncIterator[NovaTables]:
    """Make the tables of the API database, or of a cell's, in an empty database in PostgreSQL or MariaDB."""
    address, statements = make_url(url), _API_TABLES if is_api else _CELL_TABLES
    is_mariadb = address.get_backend_name() == "mysql"
    address = address.set(drivername="mysql+pymysql" if is_mariadb else "postgresql+psycopg2")
    driver = "mysql+aiomysql" if is_mariadb else "postgresql+asyncpg"
    engine = create_async_engine(address.set(drivername=driver), isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            if is_mariadb:
                await connection.exec_driver_sql("SET SESSION sql_mode = 'ANSI_QUOTES'")
                statements = statements.replace(" timestamp", " datetime")
            tables = NovaTables(address.render_as_string(hide_password=False), connection)
            await tables.run(*filter(str.strip, statements.split(";")))
            yield tables
    finally:
        await engine.dispose()


async def add_cell(api: NovaTables, cell: NovaTables, uuid: str, name: str = "cell1") -> int:
    name = "cell0" if uuid == CELL0 else name
    return await api.add("cell_mappings", uuid=uuid, name=name, database_connection=cell.url, disabled=False)


async def add_host(
    api: NovaTables, cell: NovaTables, host: str, root: str, *, cell_id: int | None, version: int = 74
) -> None:
    """Add a compute service and its node, whose uuid is `root`; map the host if the cell's id is given."""
    now = datetime.now(UTC).replace(tzinfo=None)
    await add_service(cell, "nova-compute", host, version=version)
    await cell.add(
        "compute_nodes", uuid=root, host=host, hypervisor_hostname=host, hypervisor_type="QEMU",
        hypervisor_version=1, stats=json.dumps({"num_instances": "1"}), created_at=now, updated_at=now,
    )  # fmt: skip
    if cell_id is not None:
        await api.add("host_mappings", host=host, cell_id=cell_id)


async def add_service(cell: NovaTables, binary: str, host: str, *, version: int = 74) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)
    state = {"disabled": False, "forced_down": False, "last_seen_up": now, "created_at": now}
    await cell.add("services", host=host, binary=binary, version=version, **state)
