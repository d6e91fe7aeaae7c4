"""SQL for the archive: snapshots of placement's state, and all changes since the first snapshot, also changes
that the change log no longer has.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from bus.replication import ConsumerChange
from bus.sql.statement import Transaction, sql
from features.history.messages import SnapshotPart
from placement_worker.extension import (
    LAST_ARCHIVED,
    Book,
    Tree,
    describe_aggregates,
    last_number,
    load_trees,
    packed,
    registered_cells,
    roots_after,
)

COMMITS_A_BODY = 200
BODIES_AT_ONCE = 50
BODY_BYTES = 512 * 1024  # maximum size of a body's JSON, unless a single commit is larger
TREES_A_PART = 2000
TREES_A_TURN = 100  # trees to process before other tasks run
CONSUMERS_A_PART = 20_000
CONSUMERS_A_TURN = 1000

_POSITION = sql(f"SELECT number FROM changes WHERE id = {LAST_ARCHIVED}")
_BEGIN = sql(f"""
    INSERT INTO changes (id, number) VALUES ({LAST_ARCHIVED}, :number)
    ON CONFLICT (id) DO UPDATE SET number = :number WHERE changes.number < :number
""")
_MOVE = sql(f"""
    UPDATE changes SET number = :number WHERE id = {LAST_ARCHIVED} AND number = :before RETURNING number
""")
_LOG = sql("""
    SELECT number, at, changes, trees, aggregates, cells, consumers, renamed FROM change_log
    WHERE number > :after ORDER BY number LIMIT :most
""")
_ADD_CHANGES = sql("""
    INSERT INTO archived_changes (first, last, began, ended, body)
    VALUES (:first, :last, :began, :ended, :body) ON CONFLICT (first) DO NOTHING
""")
_ADD_PART = sql("""
    INSERT INTO archived_snapshots (number, part, at, body) VALUES (:number, :part, :at, :body)
    ON CONFLICT (number, part) DO NOTHING
""")
_LATEST = sql("""
    SELECT number, at,
    (SELECT sum(length(p.body)) FROM archived_snapshots p WHERE p.number = s.number) AS size
    FROM archived_snapshots s WHERE part = 0 ORDER BY number DESC LIMIT 1
""")
# A body has at most COMMITS_A_BODY commits, so the primary key also finds bodies by their last commit.
_AFTER = f"first > CAST(:after AS bigint) - {COMMITS_A_BODY} AND last > CAST(:after AS bigint)"
_SINCE = sql(f"""
    SELECT sum(length(body)) AS size, sum(last - CASE WHEN first > CAST(:after AS bigint)
    THEN first - 1 ELSE CAST(:after AS bigint) END) AS commits FROM archived_changes WHERE {_AFTER}
""")
_SNAPSHOT = sql("""
    SELECT number, at FROM archived_snapshots WHERE part = 0
    AND ((:by_time = 1 AND at <= :at) OR (:by_time = 0 AND number <= :number)) ORDER BY number DESC LIMIT 1
""")
_OLDEST = sql("SELECT number, at FROM archived_snapshots WHERE part = 0 ORDER BY number LIMIT 1")
_PART = sql("SELECT at, body FROM archived_snapshots WHERE number = :number AND part = :part")
_CHANGES = sql(f"""
    SELECT last, body FROM archived_changes
    WHERE {_AFTER} AND began <= :until AND first <= :number ORDER BY first LIMIT {BODIES_AT_ONCE}
""")
# The last snapshot before the time `before`, from which later states are computed.
_BASE = "(SELECT max(number) FROM archived_snapshots WHERE part = 0 AND at <= :before)"
_PRUNE = (
    sql(f"DELETE FROM archived_snapshots WHERE number < {_BASE}"),
    sql(f"DELETE FROM archived_changes WHERE last <= {_BASE}"),
)
_CONSUMERS = sql("""
    SELECT c.id, c.uuid, c.generation, o.external_id AS project, t.name AS type, p.uuid AS provider,
    a.resource_class_id AS class, a.used
    FROM (SELECT * FROM consumers WHERE id > :after ORDER BY id LIMIT :most) c
    LEFT JOIN allocations a ON a.consumer_id = c.id
    LEFT JOIN resource_providers p ON p.id = a.resource_provider_id
    LEFT JOIN projects o ON o.id = c.project_id LEFT JOIN consumer_types t ON t.id = c.consumer_type_id
    ORDER BY c.id
""")

_encode = msgspec.json.Encoder().encode


class ArchivedBody(NamedTuple):
    """Consecutive commits of the change log, compressed, with the numbers and times of the first and last."""

    first: int
    last: int
    began: float
    ended: float
    body: bytes


async def position(tx: Transaction) -> int | None:
    """Return the number of the last archived change, or None if the archive has not started."""
    rows = await _POSITION(tx)
    return int(rows[0]["number"]) if rows else None


async def unarchived(tx: Transaction, after: int) -> tuple[ArchivedBody | None, bool]:
    """Return the next commits after a number that the archive can store, or None if there are none. Also
    return whether commits before them cannot be archived: the log no longer has them, or the previous version
    of berth logged them without the details that the archive needs.
    """
    rows: list[Any] = []
    size, expected, gap = 0, after + 1, False
    for row in await _LOG(tx, after=after, most=COMMITS_A_BODY):
        incomplete = row["at"] is None
        if row["number"] != expected or incomplete:
            if rows:
                break
            gap = True
        expected = row["number"] + 1
        if incomplete:
            continue
        size += sum(len(row[name] or "") for name in ("changes", "trees", "consumers"))
        if rows and size > BODY_BYTES:
            break
        rows.append(row)
    if not rows:
        return None, gap
    body = zlib.compress(_encode([_logged(row) for row in rows]), 1)
    return ArchivedBody(rows[0]["number"], rows[-1]["number"], rows[0]["at"], rows[-1]["at"], body), gap


def _logged(row: Any) -> list[Any]:
    columns = (
        row["changes"],
        row["trees"],
        row["aggregates"],
        row["cells"],
        row["consumers"],
        row["renamed"],
    )
    nothing = ("[]", "null", "[]", "[]", "[]", "null")
    texts = [Raw(column or empty) for column, empty in zip(columns, nothing, strict=True)]
    return [row["number"], row["at"], *texts]


async def add(tx: Transaction, body: ArchivedBody, before: int) -> bool:
    """Store commits (`body`) that follow change number `before`; return False if another process has stored
    them.
    """
    if not await _MOVE(tx, number=body.last, before=before):
        return False
    await _ADD_CHANGES(tx, **body._asdict())
    return True


async def read_snapshot(tx: Transaction, book: Book) -> tuple[int, list[bytes]]:
    """Return placement's last change number, and its state as compressed parts. `tx` must be a reading
    transaction, which sees one state.
    """
    number, parts = await last_number(tx), list[bytes]()
    described = tuple((await describe_aggregates(tx)).values())
    parts.append(_part(aggregates=described, cells=tuple(await registered_cells(tx))))
    after, trees = 0, list[Tree]()
    while page := await roots_after(tx, after, TREES_A_TURN):
        trees += (await load_trees(tx, book, [root for _, root in page])).values()
        after = page[-1][0]
        if len(trees) >= TREES_A_PART:
            parts.append(_part(trees=packed(trees)))
            trees = []
    if trees:
        parts.append(_part(trees=packed(trees)))
    consumers, after = list[ConsumerChange](), 0
    while rows := await _CONSUMERS(tx, after=after, most=CONSUMERS_A_TURN):
        consumers += await _consumers_of(tx, book, rows)
        after = rows[-1]["id"]
        if len(consumers) >= CONSUMERS_A_PART:
            parts.append(_part(consumers=tuple(consumers)))
            consumers = []
    if consumers:
        parts.append(_part(consumers=tuple(consumers)))
    return number, parts


async def _consumers_of(tx: Transaction, book: Book, rows: Sequence[Any]) -> list[ConsumerChange]:
    held = [row for row in rows if row["provider"] is not None]
    names = await book.class_names(tx, {row["class"] for row in held})
    found: dict[str, ConsumerChange] = {}
    for row in held:
        consumer = found.get(row["uuid"])
        if consumer is None:
            owner = row["project"] or "", row["type"] or ""
            consumer = ConsumerChange(row["uuid"], row["generation"], {}, *owner)
            found[row["uuid"]] = consumer
        consumer.allocations.setdefault(row["provider"], {})[names[row["class"]]] = row["used"]
    return list(found.values())


def _part(**contents: Any) -> bytes:
    return zlib.compress(_encode(SnapshotPart(**contents)), 1)


async def add_snapshot(
    tx: Transaction, number: int, at: float, parts: Sequence[bytes], *, begins: bool
) -> None:
    """Store a snapshot. With `begins`, archived changes continue after this snapshot, and changes immediately
    before it are missing.
    """
    if begins:
        await _BEGIN(tx, number=number)
    for part, body in enumerate(parts):
        await _ADD_PART(tx, number=number, part=part, at=at, body=body)


class ArchivedSince(NamedTuple):
    """The number, time and size of the latest snapshot, and the size and number of the commits archived after
    it.
    """

    number: int
    at: float
    snapshot_bytes: int
    bytes: int
    commits: int


async def latest(tx: Transaction) -> ArchivedSince | None:
    """Return the latest snapshot, with the number of commits archived since; None without a snapshot."""
    rows = await _LATEST(tx)
    if not rows:
        return None
    number, at, size = rows[0]
    [(since, commits)] = await _SINCE(tx, after=number)
    return ArchivedSince(number, at, int(size), int(since or 0), int(commits or 0))


async def snapshot_before(tx: Transaction, number: int | None, at: float) -> tuple[int, float] | None:
    """Return the number and time of the latest snapshot up to the change `number` or, without a number, up to
    the time `at`; None if there is no such snapshot.
    """
    rows = await _SNAPSHOT(tx, by_time=int(number is None), at=at, number=number or 0)
    return (int(rows[0]["number"]), float(rows[0]["at"])) if rows else None


async def oldest(tx: Transaction) -> tuple[int, float] | None:
    """Return number and time of the oldest snapshot; None if the archive is empty."""
    rows = await _OLDEST(tx)
    return (int(rows[0]["number"]), float(rows[0]["at"])) if rows else None


async def part_of(tx: Transaction, number: int, part: int) -> bytes | None:
    """Return one encoded part of a snapshot; None if it has no such part."""
    rows = await _PART(tx, number=number, part=part)
    return bytes(rows[0]["body"]) if rows else None


async def changes_after(tx: Transaction, after: int, until: float, number: int) -> list[tuple[int, bytes]]:
    """Return the next archived bodies after a change number, each with the number of its last commit; no body
    that begins after the time `until` or the change `number`.
    """
    rows = await _CHANGES(tx, after=after, until=until, number=number)
    return [(int(row["last"]), bytes(row["body"])) for row in rows]


async def prune(tx: Transaction, before: float) -> None:
    """Delete the snapshots and changes that are not needed to compute the states since a time; the newest
    snapshot always remains.
    """
    for statement in _PRUNE:
        await statement(tx, before=before)
