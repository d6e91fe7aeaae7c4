"""Reads Nova's databases: cells, compute hosts with their services, and aggregates."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from bus.clock import Clock, moment_text
from bus.errors import Unavailable
from bus.masking import masked_text
from bus.reports import HostState
from features.nova.core.cloud import DISCOVER, MirroredAggregate, NovaCell, NovaCloud, NovaHost
from features.nova.core.request_spec import RequestSpec, decoded

log = logging.getLogger(__name__)

CELL0 = "00000000-0000-0000-0000-000000000000"  # instances that never got a host
FULL_SECONDS = 30.0  # between two reads of all compute nodes; other reads return changed nodes
MOST_KINDS = 1000  # kinds of guests that a host supports
LONGEST_VALUE = 1024  # characters of a capability; a longer value is left out
_DRIVERS = {"mysql": "mysql+aiomysql", "mariadb": "mysql+aiomysql", "postgresql": "postgresql+asyncpg"}

_CELLS = text("SELECT id, uuid, name, database_connection, disabled FROM cell_mappings")
_HOST_MAPPINGS = text("SELECT host, cell_id FROM host_mappings")
_AGGREGATES = text("SELECT id, uuid, name FROM aggregates")
_AGGREGATE_HOSTS = text("SELECT aggregate_id, host FROM aggregate_hosts")
_AGGREGATE_METADATA = text("SELECT aggregate_id, key, value FROM aggregate_metadata")
_AGGREGATE_METADATA_MYSQL = text("SELECT aggregate_id, `key`, value FROM aggregate_metadata")
_SERVICES = text("""
    SELECT host, disabled, disabled_reason, forced_down, last_seen_up, created_at, version
    FROM services WHERE services.binary = 'nova-compute' AND deleted = 0
""")
_NODES = text("""
    SELECT uuid, host, hypervisor_hostname, hypervisor_type, hypervisor_version, cpu_info, host_ip,
    supported_instances, metrics, stats, updated_at, created_at, memory_mb, memory_mb_used,
    ram_allocation_ratio, vcpus, vcpus_used, cpu_allocation_ratio
    FROM compute_nodes WHERE deleted = 0 AND uuid IS NOT NULL AND host IS NOT NULL
    AND (COALESCE(updated_at, created_at) >= :since)
""")
_BUILD_REQUESTS = text("SELECT count(*) FROM build_requests WHERE instance_uuid = :instance")
_CELL_OF = text("""
    SELECT c.uuid FROM instance_mappings m JOIN cell_mappings c ON c.id = m.cell_id
    WHERE m.instance_uuid = :instance
""")
_TASK = text("SELECT task_state FROM instances WHERE uuid = :instance AND deleted = 0")
_REQUEST_SPEC = text("SELECT spec FROM request_specs WHERE instance_uuid = :instance")
_EVER = datetime(2000, 1, 1)  # noqa: DTZ001  Nova stores times of UTC without a zone

Row = Mapping[str, Any]


class NovaDatabases:
    """Reads Nova's API database and the database of each of its cells."""

    def __init__(
        self, api_url: str, cell_urls: Mapping[str, str], clock: Clock, *, down_seconds: float = 60.0
    ) -> None:
        self._api = engine_of(api_url)
        self._cell_urls = cell_urls  # by the cell's name; used instead of the URL in Nova's database
        self._clock = clock
        self._down_seconds = down_seconds  # Nova's service_down_time
        self._cells: dict[str, tuple[str, AsyncEngine]] = {}  # uuid → URL and engine
        self._nodes: dict[str, dict[str, Row]] = {}  # cell → root → row
        self._services: dict[str, list[Row]] = {}
        self._since: dict[str, datetime] = {}  # cell → latest change among its nodes
        self._read_fully: dict[str, float] = {}
        self._complaints: dict[str, str] = {}

    async def read(self) -> NovaCloud:
        """Return Nova's cells, hosts and aggregates. An unreachable cell keeps the hosts read last; raise
        Unavailable if the API database is unreachable.
        """
        try:
            async with self._api.connect() as connection:
                cells = [row for row in await fetch_all(connection, _CELLS) if row["uuid"] != CELL0]
                mapped = {row["host"]: row["cell_id"] for row in await fetch_all(connection, _HOST_MAPPINGS)}
                aggregates = await fetch_aggregates(connection)
        except (SQLAlchemyError, OSError) as problem:
            raise Unavailable(f"nova's API database: {reason_of(problem)}") from None
        for row in cells:
            await self._read_cell(row)
        hosts: dict[str, NovaHost] = {}
        unmapped: dict[str, NovaHost] = {}
        for row in cells:
            services = {service["host"]: service for service in self._services.get(row["uuid"], ())}
            for node in self._nodes.get(row["uuid"], {}).values():
                service = services.get(node["host"])
                if service is None:
                    continue
                if node["host"] not in mapped:
                    unmapped[node["uuid"]] = self._host(node, service, row["uuid"], why_not=DISCOVER)
                elif mapped[node["host"]] == row["id"]:
                    hosts[node["uuid"]] = self._host(node, service, row["uuid"])
        known = {
            row["uuid"]: NovaCell(row["uuid"], row["name"] or "", bool(row["disabled"])) for row in cells
        }
        return NovaCloud(known, hosts, aggregates, unmapped)

    async def still_waits(self, instances: Sequence[str]) -> bool:
        """Return whether Nova still needs hosts for all given instances: each has a build request in Nova's
        database, or a `task_state`.
        """
        try:
            async with self._api.connect() as connection:
                for instance in instances:
                    if (await connection.execute(_BUILD_REQUESTS, {"instance": instance})).scalar():
                        continue
                    cell = (await connection.execute(_CELL_OF, {"instance": instance})).scalar()
                    if cell is None or cell not in self._cells or not await self._has_task(cell, instance):
                        return False
        except (SQLAlchemyError, OSError) as problem:
            raise Unavailable(f"nova's database: {reason_of(problem)}") from None
        return True

    async def request_spec(self, instance: str) -> RequestSpec | None:
        """Return the RequestSpec that Nova stores for an instance, or None. Nova does not store the requested
        destination, ignored hosts and hosts of the server group, so they are missing.
        """
        try:
            async with self._api.connect() as connection:
                found = (await connection.execute(_REQUEST_SPEC, {"instance": instance})).scalar()
        except (SQLAlchemyError, OSError) as problem:
            raise Unavailable(f"nova's API database: {reason_of(problem)}") from None
        return None if found is None else decoded(_json(str(found), {}))

    async def close(self) -> None:
        for engine in (self._api, *(engine for _, engine in self._cells.values())):
            await engine.dispose()

    async def _has_task(self, cell: str, instance: str) -> bool:
        async with self._cells[cell][1].connect() as connection:
            return bool((await connection.execute(_TASK, {"instance": instance})).scalar())

    async def _read_cell(self, row: Row) -> None:
        cell, name = row["uuid"], row["name"] or row["uuid"]
        now = self._clock.monotonic()
        try:
            engine = await self._engine_of(cell, self._cell_urls.get(name, row["database_connection"]))
            fully = now - self._read_fully.get(cell, -FULL_SECONDS) >= FULL_SECONDS
            since = _EVER if fully else self._since.get(cell, _EVER) - timedelta(seconds=1)
            async with engine.connect() as connection:
                services = await fetch_all(connection, _SERVICES)
                nodes = await fetch_all(connection, _NODES, since=since)
        except (SQLAlchemyError, OSError, ValueError) as problem:
            why = f"database of nova's cell {name}: {reason_of(problem)}"
            if self._complaints.get(cell) != why:
                log.warning("%s; its hosts stay as they were read last", why)
            self._complaints[cell] = why
            return
        self._complaints.pop(cell, None)
        self._services[cell] = services
        found = {node["uuid"]: node for node in nodes}
        self._nodes[cell] = found if fully else {**self._nodes.get(cell, {}), **found}
        self._since[cell] = max(
            (node["updated_at"] or node["created_at"] for node in self._nodes[cell].values()), default=_EVER
        )
        if fully:
            self._read_fully[cell] = now

    async def _engine_of(self, cell: str, url: str) -> AsyncEngine:
        known = self._cells.get(cell)
        if known is not None and known[0] == url:
            return known[1]
        engine = engine_of(url)
        if known is not None:
            await known[1].dispose()
        self._cells[cell] = url, engine
        return engine

    def _host(self, node: Row, service: Row, cell: str, *, why_not: str = "") -> NovaHost:
        why = why_not or self._why_not(service)
        return NovaHost(
            root=node["uuid"],
            host=node["host"],
            node=node["hypervisor_hostname"] or node["uuid"],
            cell=cell,
            version=int(service["version"] or 0),
            state=host_state(node, enabled=not why, why_disabled=why),
            free_memory_mb=_free(node["memory_mb"], node["ram_allocation_ratio"], node["memory_mb_used"]),
            free_vcpus=_free(node["vcpus"], node["cpu_allocation_ratio"], node["vcpus_used"]),
        )

    def _why_not(self, service: Row) -> str:
        """Return why a nova-compute service (a database row) is unusable; an empty text if it is usable."""
        if service["disabled"]:
            return f"its nova-compute is disabled: {service['disabled_reason'] or 'no reason given'}"
        if service["forced_down"]:
            return "its nova-compute is forced down"
        seen = (service["last_seen_up"] or service["created_at"]).replace(tzinfo=UTC).timestamp()
        if abs(self._clock.now() - seen) > self._down_seconds:
            return f"its nova-compute is down since {moment_text(seen)}"
        return ""


def host_state(node: Row, *, enabled: bool, why_disabled: str) -> HostState:
    """Return the state of a compute node (a row of Nova's table `compute_nodes`) in the form that berth's
    filters and weighers read.
    """
    stats, cpu = _json(node["stats"], {}), _json(node["cpu_info"], {})
    supported = [each for each in _json(node["supported_instances"], []) if len(each) == 3]
    metrics = {
        str(metric["name"]): float(metric["value"])
        for metric in _json(node["metrics"], [])
        if isinstance(metric.get("value"), int | float)
    }
    capabilities = {
        key: value
        for key, value in {**_flat("cpu_info", cpu), **_flat("", stats)}.items()
        if len(value) <= LONGEST_VALUE and len(key) <= 255
    }
    capabilities["hypervisor_hostname"] = node["hypervisor_hostname"] or ""
    return HostState(
        root=node["uuid"],
        host=node["host"],
        enabled=enabled,
        why_disabled=why_disabled,
        building=_count(stats.get("io_workload")),
        instances=_count(stats.get("num_instances")),
        metrics=metrics,
        architecture=str(supported[0][0]) if supported else "",
        hypervisor=str(node["hypervisor_type"] or ""),
        hypervisor_version=_count(node["hypervisor_version"]),
        vm_modes=tuple(dict.fromkeys(str(each[2]) for each in supported)),
        guest_kinds=tuple("/".join(map(str, each)) for each in supported[:MOST_KINDS]),
        ip=str(node["host_ip"] or ""),
        capabilities=capabilities,
    )


def _free(total: int | None, ratio: float | None, used: int | None) -> int:
    return max(0, int((total or 0) * (ratio or 1.0)) - (used or 0))


def _flat(prefix: str, values: Any) -> dict[str, str]:
    """Return nested values as a flat dictionary with paths such as `cpu_info:topology:cores` as its keys."""
    if not isinstance(values, dict):
        return {prefix: ",".join(map(str, values)) if isinstance(values, list) else str(values)}
    found: dict[str, str] = {}
    for key, value in values.items():
        found |= _flat(f"{prefix}:{key}" if prefix else str(key), value)
    return found


def _count(value: Any) -> int:
    with suppress(TypeError, ValueError):
        return max(int(value), 0)
    return 0


def _json(value: str | None, otherwise: Any) -> Any:
    with suppress(msgspec.DecodeError, TypeError):
        found = msgspec.json.decode(value or "")
        return found if isinstance(found, type(otherwise)) else otherwise
    return otherwise


async def fetch_all(connection: Any, statement: Any, **values: Any) -> list[Row]:
    """Return all rows of a statement as dictionaries."""
    return [dict(row) for row in (await connection.execute(statement, values)).mappings()]


async def fetch_aggregates(connection: Any) -> dict[str, MirroredAggregate]:
    """Return the aggregates of Nova's API database with their hosts."""
    is_mysql = connection.dialect.name == "mysql"
    rows = await fetch_all(connection, _AGGREGATES)
    hosts: dict[int, list[str]] = {row["id"]: [] for row in rows}
    metadata: dict[int, dict[str, str]] = {row["id"]: {} for row in rows}
    for row in await fetch_all(connection, _AGGREGATE_HOSTS):
        hosts.setdefault(row["aggregate_id"], []).append(row["host"])
    for row in await fetch_all(connection, _AGGREGATE_METADATA_MYSQL if is_mysql else _AGGREGATE_METADATA):
        metadata.setdefault(row["aggregate_id"], {})[row["key"]] = row["value"]
    return {
        row["uuid"]: MirroredAggregate(
            row["uuid"], row["name"], metadata[row["id"]], tuple(sorted(hosts[row["id"]]))
        )
        for row in rows
    }


def address_of(url: str) -> URL:
    """Return a database URL of Nova's configuration with an asynchronous database driver; raise ValueError if
    that is impossible."""
    try:
        address = make_url(url)
    except ArgumentError:
        raise ValueError(
            "the database URL must look like mysql+pymysql://user:password@host/nova_api"
        ) from None
    if "{" in url:
        raise ValueError("the database URL is a template: name the cell's URL in nova_cell_database_urls")
    driver = _DRIVERS.get(address.get_backend_name())
    if driver is None:
        raise ValueError(
            f"{address.get_backend_name()}: nova's databases are read in MySQL or PostgreSQL only"
        )
    query = {
        key: value for key, value in address.query.items() if key != "charset" or driver.startswith("mysql")
    }
    return address.set(drivername=driver, query=query)


def engine_of(url: str) -> AsyncEngine:
    options: dict[str, Any] = {"pool_size": 2, "max_overflow": 2, "pool_pre_ping": True}
    try:
        return create_async_engine(address_of(url), hide_parameters=True, **options)
    except ModuleNotFoundError as missing:
        raise ValueError(f"{missing.name} is not installed: install berth[nova]") from None


def reason_of(problem: Exception) -> str:
    """Return why a database failed, without passwords."""
    return masked_text(" ".join(str(getattr(problem, "orig", None) or problem).split()))
