"""Observes services, workers and queues without changing them; `judgement.py` judges the result."""

import asyncio
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace
from sqlalchemy import text

from berth import composition
from berth.broker_users import management_urls
from berth.doctor.management import read_cluster
from berth.doctor.seen import BerthSeen, BrokerSeen, DatabaseSeen, IronicSeen, PackageSeen
from berth.kit.feature_parts import authentication
from berth.kit.findings import Finding
from berth.problems.judgement import QueueFact
from berth.problems.reading import ProblemList
from berth.settings import Settings
from berth.worker_roles import Role
from bus.broker_urls import place
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, BrokerRefused, MigrationsBroken, Unavailable, Unroutable
from bus.masking import printable
from bus.problems import KnownProblem
from bus.protocol import QueueSpec
from bus.sql.database import Database
from bus.sql.migrations import Version, current, folder_of, names_in

_AWAY = (Unavailable, Unroutable, BrokerRefused, AnswerRefused, MigrationsBroken)
BROKER_SECONDS = 12.0  # time limit to inspect a broker, without closing the connection
IRONIC_SECONDS = 20.0  # time limit to list all nodes
SHOWN = 5  # nodes listed by name
_VERSION = text("SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())")


async def inspect(settings: Settings, *, management: str = "") -> BerthSeen:
    """Read the state of services, databases and workers in parallel, for judgement by pure functions."""
    clock = Clock()
    async with asyncio.TaskGroup() as group:
        stores = {
            role: group.create_task(_database(settings, role, packages, clock))
            for role, packages in composition.stores(settings).items()
        }
        api = management or settings.bus.management_url
        brokers = group.create_task(_brokers(settings, clock, api))
        judged = group.create_task(_authentication(settings, clock))
        ironic = group.create_task(_ironic(settings))
    seen, counted, missing = brokers.result()
    databases = {role: task.result() for role, task in stores.items()}
    absent = _absent_cells(databases, missing, settings)
    central = seen[0] if seen else None
    problems, away = None, ""
    if central is None or not (central.problem or central.stuck):
        elsewhere = [
            queue for url, queues in counted.items() for queue in queues if url != settings.bus.amqp_url
        ]
        problems, away = await _problems(settings, clock, elsewhere)
    free: float | None = None
    with suppress(OSError):
        disk = shutil.disk_usage(settings.database.state_dir)
        free = disk.free / disk.total
    return BerthSeen(
        python=sys.version_info[:3],
        disk=free,
        state_dir=settings.database.state_dir,
        brokers=tuple(seen),
        problems=problems,
        queues=frozenset(queue.name for queues in counted.values() for queue in queues),
        missing=tuple(str(role) for role in missing if role.cell not in absent),
        absent_cells=absent,
        databases=tuple(database for role, database in databases.items() if role.cell not in absent),
        authentication=judged.result(),
        ironic=ironic.result(),
        bus="" if any(broker.problem for broker in seen) else away,  # reported as the broker's problem
    )


def _absent_cells(
    databases: Mapping[Role, DatabaseSeen], missing: Collection[Role], settings: Settings
) -> tuple[str, ...]:
    """Return the cells of the settings of which nothing was ever started: their database has no tables, and
    no queue of their conductor exists. The option --cells of `berth up` may name fewer cells than the
    settings. If no cell was started, all are expected.
    """
    unmade = {
        role.cell
        for role, seen in databases.items()
        if role.cell and not (seen.problem or seen.was_made or seen.foreign)
    }
    if not settings.embedded:
        unmade &= {role.cell for role in missing if role.worker == "conductor"}
    return tuple(sorted(unmade)) if len(unmade) < len(settings.cell_names) else ()


async def _database(settings: Settings, role: Role, packages: Sequence[str], clock: Clock) -> DatabaseSeen:
    known = tuple(PackageSeen(package, tuple(names_in(folder_of(package)))) for package in packages)
    store = composition.store_of(role)
    database = composition.database_of(settings, role)
    version, ahead, versions = "", None, dict[str, Version]()
    try:
        if database.dialect == "postgresql":
            version, ahead = await _postgres(database, clock)
        if await composition.ever_made(settings, role):  # else reading the revision would create a file
            versions = {**await current(database)}
        foreign = () if versions else await composition.foreign_tables(settings, role)
        seen = tuple(
            replace(package, revision=at.revision) if (at := versions.get(package.name)) else package
            for package in known
        )
        unlisted = tuple(sorted(versions.keys() - {*packages}))
        return DatabaseSeen(store, database.name, version, "", seen, unlisted, foreign, ahead)
    except (*_AWAY, OSError) as problem:
        return DatabaseSeen(store, database.name, problem=str(problem), packages=known)
    finally:
        await database.close()


async def _postgres(database: Database, clock: Clock) -> tuple[str, float]:
    """Return PostgreSQL's version, and how many seconds its clock is ahead of this machine's."""
    async with database.read() as tx:
        await tx.execute(text("SELECT 1"))  # connect before the time is measured
        before = clock.now()
        row: Any = (await tx.execute(_VERSION)).one()
        after = clock.now()
    return str(row[0]).split()[0], float(row[1]) - (before + after) / 2


# Brokers


async def _brokers(
    settings: Settings, clock: Clock, management: str
) -> tuple[list[BrokerSeen], dict[str, list[QueueFact]], list[Role]]:
    """Return the state of each broker, its existing queues by its URL, and the roles without any queue."""
    if settings.embedded:
        return [], {}, []
    by_url: dict[str, list[tuple[Role, QueueSpec]]] = {settings.bus.amqp_url: []}
    for role, specs in composition.queues(settings).items():
        url = settings.cell(role.cell).broker if role.cell else settings.bus.amqp_url
        by_url.setdefault(url, []).extend((role, spec) for spec in specs)
    examined = [_broker(settings, clock, url, by_url[url], management) for url in by_url]
    seen, queues, missing = [], dict[str, list[QueueFact]](), list[Role]()
    for url, (broker, found, absent) in zip(by_url, await asyncio.gather(*examined), strict=True):
        seen.append(broker)
        queues[url] = found
        missing += absent
    return seen, queues, missing


async def _broker(
    settings: Settings, clock: Clock, url: str, expected: list[tuple[Role, QueueSpec]], management: str
) -> tuple[BrokerSeen, list[QueueFact], list[Role]]:
    """Return a broker's state, the existing queues in `expected` (role and queue), and the roles in
    `expected` without any existing queue. `management`: the URL of the central broker's management API ("":
    the default URLs).
    """
    from berth.broker_inspection import inspect as inspect_broker

    central = url == settings.bus.amqp_url
    inspecting = inspect_broker(url, settings.bus.exchange, [spec for _, spec in expected], publishes=central)
    inspected, reported = await asyncio.gather(
        asyncio.wait_for(inspecting, BROKER_SECONDS),
        read_cluster(
            ([management] if management else management_urls(url)) if central else [],
            settings.bus.amqp_url,
            clock,
            settings.bus.exchange,
        ),
        return_exceptions=True,
    )
    if isinstance(reported, BaseException):
        raise reported
    if isinstance(inspected, (*_AWAY, OSError)):  # TimeoutError is an OSError, without a text
        late = f"it accepts connections, but did not answer within {BROKER_SECONDS:g} s"
        return BrokerSeen(place(url), problem=str(inspected) or late, management=reported), [], []
    if isinstance(inspected, BaseException):
        raise inspected
    seen = BrokerSeen(
        place(url), inspected.version, fresh=inspected.fresh, stuck=inspected.stuck, alarm=inspected.alarm,
        refused=tuple(inspected.refused), management=reported,
    )  # fmt: skip
    if inspected.fresh:
        return seen, [], []
    queues = []
    for role, spec in expected:
        if spec.name in inspected.waiting:
            messages, readers = inspected.waiting[spec.name]
            queues.append(QueueFact(spec.name, str(role), messages, readers, later=messages))
    present = {queue.worker for queue in queues}
    return seen, queues, [role for role in dict(expected) if str(role) not in present]


# The list of problems


async def _problems(
    settings: Settings, clock: Clock, elsewhere: Sequence[QueueFact]
) -> tuple[tuple[KnownProblem, ...] | None, str]:
    """Return the list of problems, and why the bus cannot be reached ("" if it can). `elsewhere`: queues at
    the separate brokers of cells.
    """
    try:
        async with Bus(composition.transport(settings, "doctor"), clock) as bus:
            return tuple(await ProblemList(bus, settings, composition.queues).read(elsewhere)), ""
    except (*_AWAY, OSError) as problem:
        return None, str(problem)
    except BaseExceptionGroup as several:
        known, strange = several.split((*_AWAY, OSError))
        if strange is not None or known is None:
            raise
        return None, str(known.exceptions[0])


async def _authentication(settings: Settings, clock: Clock) -> Finding | None:
    method = authentication(settings.placement.auth)
    return None if method is None else await method.finding(settings, clock)


async def _ironic(settings: Settings) -> IronicSeen | None:
    if not settings.ironic.is_read:
        return None
    from berth.ironic import access  # an HTTP client, which loads slowly
    from ironic_sync.api import IronicApi, IronicRefused, IronicUnavailable

    count, without = 0, list[str]()
    try:
        async with asyncio.timeout(IRONIC_SECONDS), IronicApi(access(settings)) as api:
            async for page in api.nodes(fields=("uuid", "name", "resource_class")):
                count += len(page)
                without += [node["name"] or node["uuid"] for node in page if node["resource_class"] is None]
    except (IronicRefused, IronicUnavailable) as problem:
        return IronicSeen(str(problem))
    except TimeoutError:
        return IronicSeen(f"not all of its nodes were listed within {IRONIC_SECONDS:g} s")
    return IronicSeen(nodes=count, without_class=len(without), some=tuple(map(printable, without[:SHOWN])))
