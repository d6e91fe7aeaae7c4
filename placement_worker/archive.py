"""Archives the change log and snapshots of placement's state, so that past states can be read again."""

import asyncio
from base64 import b64encode
from dataclasses import dataclass, field

from bus.history import LINE, FindHistory, HistoryFound, HistoryPiece
from bus.sql.transaction import Transaction
from bus.vocabulary import MAX_ORDINAL
from placement_worker.store import archive
from placement_worker.store.changes import last_number
from placement_worker.transactions import PlacementOperations, again

ARCHIVE_SECONDS = 10.0
ANSWER_BYTES = 384 * 1024  # of pieces; JSON needs a third more
SNAPSHOT_BYTES = 1024 * 1024  # of changes, and at least the size of the last snapshot, before the next one
SKEW_SECONDS = 5.0  # between the clocks of berth's machines
NEVER = 1e12


@dataclass(eq=False)
class Archive(PlacementOperations):
    """Stores the history of placement, and returns it. Several processes may archive the same change log."""

    _storing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @again()
    async def store(self) -> None:
        """Archive all changes that are in the change log. If changes are missing there, or after many
        changes, also store a snapshot."""
        async with self._storing:
            gap = False
            while True:
                async with self.database.read() as tx:
                    before = await archive.position(tx)
                    if before is None:
                        break
                    body, missing = await archive.unarchived(tx, before)
                gap |= missing
                if body is None:
                    break
                async with self.database.write() as tx:
                    await archive.add(tx, body, before)
            async with self.database.read() as tx:
                sizes = await archive.sizes(tx)
            if gap or before is None or sizes is None or sizes[1] > max(SNAPSHOT_BYTES, sizes[0]):
                await self._store_snapshot(begins=before is None or (gap and body is None))

    async def _store_snapshot(self, *, begins: bool) -> None:
        now = self.clock.now()
        async with self.database.read() as tx:
            number, parts = await archive.read_snapshot(tx, self.book)
        async with self.database.write() as tx:
            await archive.add_snapshot(tx, number, now, parts, begins=begins)

    async def prune(self, keep: float) -> None:
        """Delete the history that is older than a number of seconds."""
        async with self.database.write() as tx:
            await archive.prune(tx, self.clock.now() - keep)

    async def find(self, query: FindHistory) -> HistoryFound:
        """Return the next pieces of the history that a query selects."""
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
        parts, after, skip = query.parts, max(query.after, base[0]), query.skip
        pieces, left = list[HistoryPiece](), ANSWER_BYTES
        while left > 0:
            body, last = await archive.part_of(tx, base[0], parts), 0
            if is_snapshot := body is not None:
                parts += 1
            elif found := await archive.changes_after(tx, after, until, number):
                last, body = found
            else:
                break
            part = body[skip : skip + left]
            is_cut = skip + len(part) < len(body)
            pieces.append(HistoryPiece(body=_lines(part), is_snapshot=is_snapshot, is_cut=is_cut))
            left -= len(part)
            if is_cut:
                parts, skip = parts - is_snapshot, skip + len(part)
            else:
                after, skip = last or after, 0
        return HistoryFound(
            pieces=tuple(pieces), more=left <= 0, snapshot=base[0], snapshot_at=base[1], parts=parts,
            after=after, skip=skip,
        )  # fmt: skip


def _lines(body: bytes) -> tuple[str, ...]:
    text = b64encode(body).decode()
    return tuple(text[at : at + LINE] for at in range(0, len(text), LINE))
