"""The sequences in which a search can visit hosts: all rows of the index from a random start, or by score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt
from msgspec import structs

from bus.queries import FindCandidates, OrderBy
from placement_worker.core.index import Snapshot
from placement_worker.core.row import Bools, Ints, Row

IN_A_ROW = 64  # hosts examined before a search may pause
STEPS = 2**31  # scores are rounded to so many steps; hosts in one step count as equal
ODD = 0x9E3779B1


@dataclass(slots=True)
class BestFirst:
    """Visits hosts in the order of their scores, computed from free amounts or capacities, the best first.

    Each host has a distinct number, the best host the lowest. The number's upper half is computed from the
    score, its lower half from the host's row in the index, shuffled by the seed.

    An answer with a page of hosts contains the number at which the next page begins, and the scale of the
    scores (lowest and highest amount of each resource class). The query for the next page must repeat both.
    If a host's score changes between two pages, the host may appear twice or never; every other host appears
    once.
    """

    snapshot: Snapshot
    order: tuple[OrderBy, ...]  # the query's criteria, with the scale (lowest, highest) that was used
    positions: Ints
    numbers: npt.NDArray[np.int64]  # the number of the host at each of the positions

    def anchors(self) -> Iterator[Row | None]:
        """Yield the hosts in the order of their scores, the best first, and `None` at points where the search
        may pause."""
        for nth, position in enumerate(self.positions[np.argsort(self.numbers)].tolist()):
            if nth % IN_A_ROW == IN_A_ROW - 1:
                yield None
            row = self.snapshot.row_at(position)
            if row is not None:
                yield row

    def place(self, row: Row) -> int:
        """Return the number of a host; a query with this number in `after` continues with this host."""
        return int(self.numbers[np.searchsorted(self.positions, row.position)])


def in_order(snapshot: Snapshot, query: FindCandidates, left: Bools) -> BestFirst:
    """Return an object that visits hosts in the order of their scores, the best first; `left` marks the hosts
    that fit the query. Each host has a number in this order; hosts below the number `after` of the query are
    skipped.
    """
    positions = np.flatnonzero(left)
    order, scores = scored(snapshot, query.order, positions)
    numbers, most = _shuffled(positions, query.seed), sum(abs(by.multiplier) for by in order)
    if most:
        steps = ((most - scores) * (STEPS / (2 * most))).astype(np.int64)
        numbers += np.clip(steps, 0, STEPS - 1) * STEPS
    if query.after:
        behind = numbers >= query.after
        numbers, positions = numbers[behind], positions[behind]
    return BestFirst(snapshot, order, positions, numbers)


def scored(
    snapshot: Snapshot, order: Sequence[OrderBy], positions: Ints
) -> tuple[tuple[OrderBy, ...], npt.NDArray[np.float64]]:
    """Return the scale of the scores (lowest and highest amount of each resource class), and the score of
    each host at the rows `positions` of the index.
    """
    scores = np.zeros(positions.size)
    used = []
    for by in order:
        amounts = (
            snapshot.free_of_trees(by.resource_class)
            if by.of == "free"
            else snapshot.index.capacity_of_trees(by.resource_class)
        ).take(positions)
        lowest, highest = by.lowest, by.highest
        if positions.size:
            lowest = float(amounts.min()) if lowest is None else lowest
            highest = float(amounts.max()) if highest is None else highest
        used.append(structs.replace(by, lowest=lowest, highest=highest))
        if lowest is not None and highest is not None and highest > lowest:
            parts = (np.clip(amounts, lowest, highest) - lowest) / (highest - lowest)
            scores += by.multiplier * parts
    return tuple(used), scores


def _shuffled(positions: Ints, seed: str) -> npt.NDArray[np.int64]:
    """Return for each host its rank in an order shuffled by the seed; without a seed, its index position."""
    if not seed:
        return positions.astype(np.int64)
    salt = crc32(seed.encode())
    mixed = (positions.astype(np.uint64) + np.uint64(salt)) * np.uint64((salt * ODD | 1) % STEPS)
    return (mixed % np.uint64(STEPS)).astype(np.int64)


FIRST_BLOCK, LARGEST_BLOCK = 256, 16_384  # rows of the index that are examined together


@dataclass(slots=True)
class Round:
    """Visits each row of the index once: from a start row to the last, then from the first to the start."""

    snapshot: Snapshot
    left: Bools
    start: int
    after: int
    size: int

    def anchors(self) -> Iterator[Row | None]:
        """Yield the hosts that satisfy the query, in the order of their rows in the index, and `None` at
        points where the search may pause.
        """
        at, preserved = self.snapshot.index.at, self.snapshot.kept_at
        for positions in _walk(self.left, self.start, self.after, self.size):
            for low in range(0, len(positions), IN_A_ROW):
                for position in positions[low : low + IN_A_ROW]:
                    row = self.snapshot.row_at(position) if preserved else at[position]
                    if row is not None:
                        yield row
                yield None

    def place(self, row: Row) -> int:
        return (row.position - self.start) % self.size


def first_row(seed: str, high: int, size: int) -> int:
    """Return the row of the index where a search with this seed starts. Adding a few hosts to the index does
    not change the start. `high` rows of `size` are in use.
    """
    grain = size // 16
    span = high - high % grain if high > grain else high
    return (crc32(seed.encode()) * span) >> 32 if seed else 0


def _walk(fitting: Bools, start: int, after: int, size: int) -> Iterator[list[int]]:
    """Yield the rows of fitting hosts in blocks: from the start row to the last row of the index, then from
    its first row to the start row. The first `after` rows of this sequence are skipped.
    """
    block = FIRST_BLOCK
    for low, end in ((start + after, size), (max(start + after - size, 0), start)):
        end = min(end, len(fitting))
        while low < end:
            yield (np.flatnonzero(fitting[low : min(low + block, end)]) + low).tolist()
            low, block = low + block, min(block * 4, LARGEST_BLOCK)
