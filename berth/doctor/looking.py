"""Observes services, workers and queues without changing them; `judgement.py` judges the result."""

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace
from sqlalchemy import text

from berth import composition, worker_roles
from berth.broker_users import management_urls
from berth.doctor.management import ANSWER_SECONDS, read_cluster
from berth.doctor.seen import (
    BerthSeen,
    BrokerSeen,
    DatabaseSeen,
    IronicSeen,
    LettersSeen,
    PackageSeen,
    QueueSeen,
    WorkerSeen,
)
from berth.kit.feature_parts import authentication
from berth.kit.findings import Finding
from berth.settings import Settings
from bus import topics
from bus.broker_urls import place
from bus.cells import FindCells
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, BrokerRefused, MigrationsBroken, Unavailable, Unroutable
from bus.masking import printable
from bus.protocol import QueueSpec
from bus.queries import FindBuilds, FindWaiting
from bus.sql.database import Database
from bus.sql.migrations import Version, current, folder_of, names_in

_AWAY = (Unavailable, Unroutable, BrokerRefused, AnswerRefused, MigrationsBroken)
BROKER_SECONDS = 12.0  # time limit to inspect a broker, without closing the connection
PAUSE_SECONDS = 1.0  # between two observations of queues
IRONIC_SECONDS = 20.0  # time limit to list all nodes
SHOWN = 5  # nodes listed by name
LETTERS = 1000  # dead letters counted at most
_NOBODY = "00000000-0000-0000-0000-000000000000"
_VERSION = text("SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())")


async def inspect(settings: Settings, *, management: str = "") -> BerthSeen:
    """Read the state of services, databases and workers in parallel, for judgement by pure functions."""
    clock = Clock()
    settings = await _with_made_cells(settings)
    async with asyncio.TaskGroup() as group:
        databases = [
            group.create_task(_database(settings, role, packages, clock))
            for role, packages in composition.stores(settings).items()
        ]
        api = management or settings.bus.management_url
        brokers = group.create_task(_brokers(settings, clock, api))
        judged = group.create_task(_authentication(settings, clock))
        ironic = group.create_task(_ironic(settings))
    seen, queues, missing = brokers.result()
    # Workers without consumers are not queried, because a query would wait for them.
    unread = [queue for queue in queues if queue.name.startswith("ask:") and not queue.readers]
    absent = {*missing, *(queue.worker for queue in unread)}
    central = seen[0] if seen else None
    workers, letters, away = list[WorkerSeen](), LettersSeen(), ""
    if central is None or not central.problem:
        accepting = central is None or not central.stuck
        workers, letters, away = await _on_the_bus(settings, clock, absent, accepting=accepting)
    free: float | None = None
    with suppress(OSError):
        disk = shutil.disk_usage(settings.database.state_dir)
        free = disk.free / disk.total
    return BerthSeen(
        python=sys.version_info[:3],
        disk=free,
        state_dir=settings.database.state_dir,
        brokers=tuple(seen),
        queues=tuple(queues),
        missing=tuple(missing),
        databases=tuple(task.result() for task in databases),
        workers=tuple(workers),
        letters=letters,
        authentication=judged.result(),
        ironic=ironic.result(),
        bus="" if any(broker.problem for broker in seen) else away,  # reported as the broker's problem
    )


async def _with_made_cells(settings: Settings) -> Settings:
    """Return the settings with the cells that `berth up` has made, if the bus is in one process: the option
    --cells of `berth up` may name fewer cells than the settings. If it has made no cell, all are expected.
    """
    if not settings.embedded:
        return settings
    roles = [role for role in composition.stores(settings) if role.cell]
    made = {role.cell for role in roles if await _is_made(settings, role)}
    cells = tuple(name for name in settings.cell_names if name in made)
    return settings.having(cells=cells) if cells else settings


async def _is_made(settings: Settings, role: worker_roles.Role) -> bool:
    try:
        return await composition.ever_made(settings, role)
    except (*_AWAY, OSError):
        return True  # its finding says why it cannot be read


async def _database(
    settings: Settings, role: worker_roles.Role, packages: Sequence[str], clock: Clock
) -> DatabaseSeen:
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
) -> tuple[list[BrokerSeen], list[QueueSeen], list[str]]:
    if settings.embedded:
        return [], [], []
    by_url: dict[str, list[tuple[str, QueueSpec]]] = {settings.bus.amqp_url: []}
    for role, specs in composition.queues(settings).items():
        url = settings.cell(role.cell).broker if role.cell else settings.bus.amqp_url
        by_url.setdefault(url, []).extend((str(role), spec) for spec in specs)
    examined = [_broker(settings, clock, url, by_url[url], management) for url in by_url]
    seen, queues, missing = [], list[QueueSeen](), list[str]()
    for broker, found, absent in await asyncio.gather(*examined):
        seen.append(broker)
        queues += found
        missing += absent
    return seen, queues, missing


async def _broker(
    settings: Settings, clock: Clock, url: str, expected: list[tuple[str, QueueSpec]], management: str
) -> tuple[BrokerSeen, list[QueueSeen], list[str]]:
    """Return a broker's state, the states of the existing queues in `expected` (worker and queue), and the
    workers in `expected` without any existing queue. `management`: the URL of the central broker's management
    API ("": the default URLs).
    """
    from berth.broker_inspection import inspect as inspect_broker

    central = url == settings.bus.amqp_url
    inspecting = inspect_broker(
        url, settings.bus.exchange, [spec for _, spec in expected], pause=PAUSE_SECONDS, publishes=central
    )
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
    found, later = inspected
    seen = BrokerSeen(
        place(url), found.version, fresh=found.fresh, stuck=found.stuck, alarm=found.alarm,
        refused=tuple(found.refused), management=reported,
    )  # fmt: skip
    if found.fresh:
        return seen, [], []
    queues = []
    for worker, spec in expected:
        if spec.name in found.waiting:
            messages, readers = found.waiting[spec.name]
            queues.append(QueueSeen(spec.name, worker, messages, later.get(spec.name, 0), readers))
    present = {queue.worker for queue in queues}
    return seen, queues, [worker for worker in dict(expected) if worker not in present]


# Workers


async def _on_the_bus(
    settings: Settings, clock: Clock, absent: Collection[str], *, accepting: bool
) -> tuple[list[WorkerSeen], LettersSeen, str]:
    """Return the response times of workers, the dead letters, and why the bus cannot be reached ("" if it
    can). Workers in `absent`, without a queue or a consumer, are not queried; no worker is queried if the
    broker is not `accepting` messages.
    """
    try:
        async with Bus(composition.transport(settings, "doctor"), clock) as bus:
            letters = await _dead(bus)
            return (await _workers(bus, settings, absent) if accepting else []), letters, ""
    except (*_AWAY, OSError) as problem:
        return [], LettersSeen(), str(problem)
    except BaseExceptionGroup as several:
        known, strange = several.split((*_AWAY, OSError))
        if strange is not None or known is None:
            raise
        return [], LettersSeen(), str(known.exceptions[0])


async def _workers(bus: Bus, settings: Settings, absent: Collection[str]) -> list[WorkerSeen]:
    cells, waiting = bus.asker(topics.CELLS, ANSWER_SECONDS), bus.asker(topics.WAITING, ANSWER_SECONDS)
    builds = bus.asker(topics.FIND_BUILDS, ANSWER_SECONDS)
    questions: dict[str, Callable[[], Awaitable[Any]]] = {
        "placement": lambda: cells(FindCells(counted=False)),
        "scheduler": lambda: waiting(FindWaiting(limit=1)),
    }
    for cell in settings.cell_names:
        question = FindBuilds(cell=cell, builds=(_NOBODY,))
        questions[f"conductor.{cell}"] = lambda question=question: builds(question)  # type: ignore[misc]
    asked = [_asked(name, ask, bus.clock) for name, ask in questions.items() if name not in absent]
    return [*(WorkerSeen(name) for name in questions if name in absent), *await asyncio.gather(*asked)]


async def _asked(name: str, ask: Callable[[], Awaitable[Any]], clock: Clock) -> WorkerSeen:
    began = clock.monotonic()
    try:
        await ask()
    except _AWAY:
        return WorkerSeen(name)
    return WorkerSeen(name, clock.monotonic() - began)


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


async def _dead(bus: Bus) -> LettersSeen:
    letters = await bus.transport.dead_letters(LETTERS)
    if not letters:
        return LettersSeen()
    queues = tuple(name for name, _ in Counter(letter.queue for letter in letters).most_common(3))
    oldest = max(0.0, bus.clock.now() - min(letter.died for letter in letters))
    return LettersSeen(len(letters), len(letters) == LETTERS, oldest, queues)
