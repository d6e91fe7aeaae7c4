"""Archives the change log and snapshots of placement's state, so that past states can be read again."""

import asyncio
from base64 import b64encode
from dataclasses import dataclass, field

from bus.sql.statement import Transaction
from bus.vocabulary import MAX_ORDINAL
from features.history import archive_store as archive
from features.history.messages import LINE, FindHistory, HistoryFound, HistoryPiece
from placement_worker.extension import PlacementOperations, again, last_number

ARCHIVE_SECONDS = 10.0
ANSWER_BYTES = 384 * 1024  # maximum size of the pieces in an answer; base64 makes them a third larger
SNAPSHOT_BYTES = 1024 * 1024  # store a snapshot after changes of this size and of the last snapshot's size
SKEW_SECONDS = 5.0  # maximum difference between the clocks of berth's machines
NEVER = 1e12
GAP_SECONDS = 300.0  # shortest time between two snapshots that are stored because of missing changes


@dataclass(eq=False)
class Archive(PlacementOperations):
    """Stores the history of placement, and answers queries for it. Several processes may archive the same
    change log.
    """

    _storing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @again()
    async def store(self) -> None:
        """Archive all changes in the change log. Store a snapshot if the archive has none, if the changes
        archived since the last snapshot are large, or if the archive lacks changes.

        The archive lacks changes that were trimmed from the log, or that the previous version of berth logged
        without the details that the archive needs.
        """
        async with self._storing:
            position, is_stuck = await self._store_changes()
            async with self.database.read() as tx:
                latest = await archive.latest(tx)
            if position is None or latest is None:
                await self._store_snapshot(begins=position is None)
                return
            has_gap = is_stuck or latest.commits < position - latest.number
            is_due = has_gap and self.clock.now() - latest.at >= GAP_SECONDS
            if is_due or latest.bytes > max(SNAPSHOT_BYTES, latest.snapshot_bytes):
                await self._store_snapshot(begins=is_stuck)

    async def _store_changes(self) -> tuple[int | None, bool]:
        """Archive the change log. Return the number of the last archived change (None: the archive has not
        started), and whether the archive lacks changes directly after it.
        """
        while True:
            async with self.database.read() as tx:
                position = await archive.position(tx)
                if position is None:
                    return None, False
                body, missing = await archive.unarchived(tx, position)
            if body is None:
                return position, missing
            async with self.database.write() as tx:
                await archive.add(tx, body, position)

    async def _store_snapshot(self, *, begins: bool) -> None:
        now = self.clock.now()
        async with self.database.read() as tx:
            number, parts = await archive.read_snapshot(tx, self.book)
        async with self.database.write() as tx:
            await archive.add_snapshot(tx, number, now, parts, begins=begins)

    async def prune(self, keep: float) -> None:
        """Delete the history that is older than `keep` seconds."""
        async with self.database.write() as tx:
            await archive.prune(tx, self.clock.now() - keep)

    async def find(self, query: FindHistory) -> HistoryFound:
        """Return the next pieces of the history that a query selects (parts of a snapshot, then changes), or
        the reason why the query is refused.
        """
        if query.snapshot is None:
            if max(query.at, query.until) > self.clock.now() + SKEW_SECONDS:
                return HistoryFound(refused="the time lies in the future")
            await self.store()
        async with self.database.read() as tx:
            if query.number is not None and query.number > (last := await last_number(tx)):
                return HistoryFound(refused=f"the last change of placement is {last}")
            bound = MAX_ORDINAL if query.snapshot is None else query.snapshot
            number = bound if query.number is None else min(query.number, bound)
            by_number = query.snapshot is not None or query.number is not None
            base = await archive.snapshot_before(tx, number if by_number else None, query.at)
            if base is None or query.snapshot not in (None, base[0]):
                first = await archive.oldest(tx)
                since = f"change {first[0]}" if first else "nothing"
                return HistoryFound(
                    refused=f"the history begins later, at {since}", snapshot_at=first[1] if first else 0.0
                )
            return await self._pieces(tx, query, base)

    async def _pieces(self, tx: Transaction, query: FindHistory, base: tuple[int, float]) -> HistoryFound:
        number = query.number if query.number is not None and not query.until else MAX_ORDINAL
        until = max(query.at, query.until) if number == MAX_ORDINAL else NEVER
        found = _Pieces(query.parts, max(query.after, base[0]), query.skip, ANSWER_BYTES)
        while not found.full and (body := await archive.part_of(tx, base[0], found.parts)) is not None:
            if found.add(body, is_snapshot=True):
                found.parts += 1
        while not found.full and (bodies := await archive.changes_after(tx, found.after, until, number)):
            for last, body in bodies:
                if found.full or not found.add(body):
                    break
                found.after = last
        return HistoryFound(
            pieces=tuple(found.pieces), more=found.full, snapshot=base[0], snapshot_at=base[1],
            parts=found.parts, after=found.after, skip=found.skip,
        )  # fmt: skip


@dataclass
class _Pieces:
    """Collects the pieces of the history for one answer of limited size, with the position where the next
    answer continues.
    """

    parts: int
    after: int
    skip: int
    left: int  # bytes for which the answer has space
    pieces: list[HistoryPiece] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return self.left <= 0

    def add(self, body: bytes, *, is_snapshot: bool = False) -> bool:
        """Add as many bytes of a compressed body as the answer has space for; return whether that is all."""
        part = body[self.skip : self.skip + self.left]
        is_cut = self.skip + len(part) < len(body)
        self.pieces.append(HistoryPiece(body=_lines(part), is_snapshot=is_snapshot, is_cut=is_cut))
        self.left -= len(part)
        self.skip = self.skip + len(part) if is_cut else 0
        return not is_cut


def _lines(body: bytes) -> tuple[str, ...]:
    text = b64encode(body).decode()
    return tuple(text[at : at + LINE] for at in range(0, len(text), LINE))
