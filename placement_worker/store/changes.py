"""SQL for the change log. The last statement of each commit takes the next change numbers, and locks one
database row for this. So the numbers follow the order of commits without gaps, and a reader that sees a
number finds all earlier changes in the database. Ids of new providers are counted in the same table.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.messages import BuildReshaped
from bus.replication import ChangesFound, ConsumerChange, PlacementChanged, ProviderChange
from bus.sql.database import Database
from bus.sql.statement import BoundStatement, Transaction, sql
from bus.vocabulary import portions
from placement_worker.core.trees import Tree, packed

# Ids of the rows of the table `changes`: counters, and a row that edits of aggregates lock.
LAST_CHANGE, NAMES_EDITION, CLASS_NUMBERS, PROVIDER_NUMBERS, LAST_REPORTED, AGGREGATES_TURN = 1, 2, 3, 4, 5, 6
LAST_ARCHIVED = 7

CHANGES_A_MESSAGE = 500
CHANGES_BYTES = 512 * 1024  # maximum size of the changes in an answer
KEEP = 20_000  # number of commits kept in the log
KEEP_UNPUBLISHED = 500_000  # number of commits kept during an outage of the broker or of the archive

_NEXT = f"""
    UPDATE changes SET number = number + :more WHERE id = {LAST_CHANGE} AND {{after}}
    RETURNING number, (SELECT e.number FROM changes e WHERE e.id = {NAMES_EDITION}) AS edition, rules
"""
# Takes change numbers and writes the log entries in one round trip, for PostgreSQL only: SQLite does not
# permit UPDATE inside another statement.
_NEXT_LOGGED = sql(f"""
    WITH {{others}}next AS ({_NEXT}), logged AS (INSERT INTO change_log
    (number, changes, wakes, at, aggregates, cells, trees, consumers, renamed)
    SELECT next.number - CAST(:more AS bigint) + n.nth, n.changes, CAST(:wakes AS text), :NOW, n.aggregates,
    n.cells, n.trees, n.consumers, n.renamed FROM next, {{n: nth int, changes str, aggregates str, cells str,
    trees str, consumers str, renamed str}})
    SELECT number, edition, rules FROM next
""")
_NEXT_ALONE = sql(_NEXT)
_RULES = sql(f"SELECT rules FROM changes WHERE id = {LAST_CHANGE}")
_NEW_RULES = sql(f"UPDATE changes SET rules = rules + 1 WHERE id = {LAST_CHANGE} RETURNING rules")
_LAST = sql(f"SELECT number FROM changes WHERE id = {LAST_CHANGE}")
_LOG = sql("""
    INSERT INTO change_log (number, changes, wakes, at, aggregates, cells, trees, consumers, renamed)
    SELECT n.number, n.changes, :wakes, :NOW, n.aggregates, n.cells, n.trees, n.consumers, n.renamed
    FROM {n: number int, changes str, aggregates str, cells str, trees str, consumers str, renamed str}
""")
_CHANGES_SINCE = sql(f"""
    SELECT l.number, l.changes, l.aggregates, l.cells, l.wakes, c.number AS last,
    (SELECT min(o.number) FROM change_log o) AS oldest
    FROM changes c LEFT JOIN (SELECT number, changes, aggregates, cells, wakes FROM change_log
    WHERE number > :after ORDER BY number LIMIT :most) l ON 1 = 1
    WHERE c.id = {LAST_CHANGE} ORDER BY l.number
""")
_UNPUBLISHED = sql(f"""
    SELECT l.number, l.changes, l.aggregates, l.cells, l.wakes FROM change_log l WHERE l.number >
    (SELECT c.number FROM changes c WHERE c.id = {LAST_REPORTED} FOR UPDATE OF c) AND l.number > :known
    ORDER BY l.number LIMIT :most
""")
TELL = sql(f"UPDATE changes SET number = :number WHERE id = {LAST_REPORTED} AND number < :number")
# Deletes old changes; keeps more of them while they are unpublished or not archived.
TRIM = sql(f"""
    DELETE FROM change_log WHERE number <= (SELECT number FROM changes WHERE id = {LAST_CHANGE}) - :keep
    AND (number <= (SELECT min(number) FROM changes WHERE id IN ({LAST_REPORTED}, {LAST_ARCHIVED}))
    OR number <= (SELECT number FROM changes WHERE id = {LAST_CHANGE}) - :unpublished)
""")

_encode = msgspec.json.Encoder().encode
_changes = msgspec.json.Decoder(tuple[ProviderChange, ...])
_aggregates = msgspec.json.Decoder(tuple[Aggregate, ...])
_cells = msgspec.json.Decoder(tuple[RegisteredCell, ...])
_wakes = msgspec.json.Decoder(tuple[str, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """The changes of a commit that the log records; only the archive reads its trees, consumers and names."""

    changes: Sequence[ProviderChange] = ()
    aggregates: Sequence[Aggregate] = ()  # with a changed name or metadata
    cells: Sequence[RegisteredCell] = ()  # registered, changed or deleted
    shaped: Mapping[str, Tree] = field(default_factory=dict)  # created, reshaped and deleted trees
    consumers: Sequence[ConsumerChange] = ()
    renamed: tuple[str, str] | None = None  # a resource class: its former and its new name
    wakes: Sequence[str] = ()  # keys of refused claims that may succeed now

    def of_part(self, nth: int, part: Sequence[ProviderChange]) -> tuple[str | None, ...]:
        """Return the columns `aggregates`, `cells`, `trees`, `consumers` and `renamed` of the log entry for
        part `nth` of a commit, each None if empty. Only the entry of part 1 has columns other than `trees`.
        """
        trees = None
        if self.shaped and (roots := {change.root for change in part if change.reshaped}):
            trees = _text(packed(self.shaped[root] for root in self.shaped if root in roots))
        if nth > 1:
            return None, None, trees, None, None
        aggregates, cells = _text(self.aggregates), _text(self.cells)
        return aggregates, cells, trees, _text(self.consumers), _text(self.renamed)


async def announce(
    tx: Transaction, record: CommitRecord, now: float, writes: Sequence[BoundStatement] = ()
) -> tuple[list[PlacementChanged], int, int]:
    """Execute the statements `writes` and log the changes of a commit. Return the messages to publish, the
    version of the stored names of resource classes and traits, and the version of the data of rules.
    """
    parts = list(portions(record.changes, CHANGES_A_MESSAGE)) or [()]
    rows = [(nth, _encode(part).decode(), *record.of_part(nth, part)) for nth, part in enumerate(parts, 1)]
    wakes = tuple(record.wakes)
    keys = _text(wakes)
    if tx.dialect == "postgresql":
        [(last, edition, rules)] = await _NEXT_LOGGED.together(
            writes, tx, rows, more=len(parts), wakes=keys, now=now
        )
    else:
        [(last, edition, rules)] = await _NEXT_ALONE.together(writes, tx, more=len(parts))
        numbered = [(last - len(parts) + nth, *columns) for nth, *columns in rows]
        await _LOG(tx, numbered, wakes=keys, now=now)
    announced = [
        PlacementChanged(
            number=last - len(parts) + nth,
            changes=part,
            aggregates=tuple(record.aggregates) if nth == 1 else (),
            cells=tuple(record.cells) if nth == 1 else (),
            wakes=wakes,
            history=tx.history,
        )
        for nth, part in enumerate(parts, 1)
    ]
    return announced, edition, rules


def _text(value: Any) -> str | None:
    return _encode(value).decode() if value else None


async def rules_edition(tx: Transaction) -> int:
    """Return the version of the data that rules of features keep in memory, such as limits."""
    [(edition,)] = await _RULES(tx)
    return int(edition)


async def new_rules_edition(tx: Transaction) -> int:
    """Increase and return the version of the data that rules keep in memory, because this transaction changes
    such data; no other transaction commits before this one ends.
    """
    [(edition,)] = await _NEW_RULES(tx)
    return int(edition)


async def last_number(tx: Transaction) -> int:
    """Return the number of the last committed change."""
    [(number,)] = await _LAST(tx)
    return int(number)


async def since(tx: Transaction, number: int, most: int) -> ChangesFound:
    """Return a page of the change log after a number, with the log's oldest and newest change number."""
    rows = await _CHANGES_SINCE(tx, after=number, most=most)
    messages: list[Any] = []
    bytes_left = CHANGES_BYTES
    for number, *texts, _, _ in rows:
        size = sum(len(text or "") for text in texts)
        if number is None or (messages and size > bytes_left):
            break
        messages.append((number, *texts))
        bytes_left -= size
    return ChangesFound(
        changes=tuple(_messages(messages, tx.history)),
        oldest=rows[0]["oldest"] or 0,
        last=rows[0]["last"],
        history=tx.history,
    )


async def unpublished(tx: Transaction, most: int, known: int = 0) -> list[PlacementChanged]:
    """Return up to `most` unpublished changes with numbers above `known`. On PostgreSQL, a concurrent caller
    waits until the transaction of the first caller ends.
    """
    return _messages(await _UNPUBLISHED(tx, most=most, known=known), tx.history)


def _messages(rows: Sequence[Any], history: str) -> list[PlacementChanged]:
    return [
        PlacementChanged(
            number=number,
            changes=_changes.decode(changes),
            aggregates=_aggregates.decode(aggregates) if aggregates else (),
            cells=_cells.decode(cells) if cells else (),
            wakes=_wakes.decode(wakes) if wakes else (),
            history=history,
        )
        for number, changes, aggregates, cells, wakes in rows
    ]


BLOCK = 200

_TAKE = sql(f"""
    INSERT INTO changes (id, number)
    SELECT {PROVIDER_NUMBERS}, COALESCE(max(p.id), 0) + CAST(:more AS bigint) FROM resource_providers p
    WHERE true ON CONFLICT (id) DO UPDATE SET number = changes.number + CAST(:more AS bigint)
    RETURNING number
""")


class ProviderNumbers:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._unused: list[int] = []

    def forget(self) -> None:
        """Discard the unused provider ids of this process: after a fail-over, the database may give them to
        another process.
        """
        self._unused = []

    @asynccontextmanager
    async def taken(self, most: int) -> AsyncIterator[Iterator[int]]:
        """Reserve `most` database ids for new providers. Ids that the `with` block leaves unused are kept for
        the next caller.
        """
        numbers = iter(await self._take(most))
        unused = self._unused
        try:
            yield numbers
        finally:
            unused += numbers

    async def _take(self, most: int) -> list[int]:
        if len(self._unused) < most:
            more = max(BLOCK, most)
            async with self._database.write() as tx:
                [(last,)] = await _TAKE(tx, more=more)
            self._unused += range(last - more + 1, last + 1)
        taken = self._unused[:most]
        del self._unused[:most]
        return taken


_KEEP_RESHAPED = sql("INSERT INTO reshaped_builds (number, builds) VALUES (:number, :builds)")
_UNPUBLISHED_RESHAPED = sql("SELECT number, builds FROM reshaped_builds ORDER BY number LIMIT :most")
FORGET_RESHAPED = sql("DELETE FROM reshaped_builds WHERE number IN (SELECT n.number FROM {n: number int})")

_builds = msgspec.json.Decoder(tuple[BuildReshaped, ...]).decode


async def store_reshaped(tx: Transaction, number: int, messages: Sequence[BuildReshaped]) -> None:
    """Store what a change must report about reshaped builds, until the relay has published it."""
    await _KEEP_RESHAPED(tx, number=number, builds=_encode(messages).decode())


async def unpublished_reshaped(tx: Transaction, most: int) -> tuple[list[int], list[BuildReshaped]]:
    """Return, oldest first, at most `most` change numbers with unpublished BuildReshaped messages, and these
    messages.
    """
    rows = await _UNPUBLISHED_RESHAPED(tx, most=most)
    messages = [replace(reshaped, number=number) for number, builds in rows for reshaped in _builds(builds)]
    return [number for number, _ in rows], messages
