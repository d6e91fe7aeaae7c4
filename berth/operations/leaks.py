"""Holder consumers without a move or clean-up (leaks), whose allocations would never be released."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bus.claims import holder_consumer

if TYPE_CHECKING:
    from cell_conductor import HeldByCell
    from placement_worker import StoredHolder

_BEYOND = 8  # attempts that placement may know of before a cell does


@dataclass(frozen=True)
class Leak:
    """A leak. `proven`: its cell has reported that nothing remains, so its allocations may be released."""

    consumer: str
    generation: int
    build: str
    attempt: int
    proven: bool
    why: str

    def __str__(self) -> str:
        of = f"attempt {self.attempt} of " if self.attempt else ""
        return f"{self.consumer}: keeps the room of {of}{self.build}, {self.why}"


def leaks(
    kept: Iterable["StoredHolder"], cells: Mapping[str, "HeldByCell"], *, all_read: bool, old: float
) -> Iterator[Leak]:
    """Yield the leaks. `cells`: records of builds, read after the consumers. `all_read`: no cell is missing.
    `old`: the cell may not know a younger consumer yet.
    """
    for one in kept:
        if one.since > old:
            continue
        known = cells.get(one.build)
        if known is None:
            if all_read:
                yield _leak(one, 0, False, "which no cell knows")
            continue
        if known.in_a_move or known.unreadable:
            continue
        attempt = _attempt_of(one.consumer, one.build, known.attempt)
        if attempt in known.left:
            continue
        if not attempt:
            yield _leak(one, 0, False, "and none of its attempts is kept by that name")
        elif attempt < known.attempt or known.status in ("deleted", "error", "shelved"):
            proven = all_read or not known.came  # a cell that was not read may keep it
            yield _leak(one, attempt, proven, f"which is {known.status}, and of that attempt nothing is left")
        else:
            unheard = "a move of it began that its cell has not heard of"
            yield _leak(one, attempt, False, f"which is {known.status} there: {unheard}")


def _leak(holder_consumer: "StoredHolder", attempt: int, proven: bool, why: str) -> Leak:
    return Leak(
        holder_consumer.consumer, holder_consumer.generation, holder_consumer.build, attempt, proven, why
    )


def _attempt_of(consumer: str, build: str, highest: int) -> int:
    """Return the attempt of the consumer's id, or 0."""
    for attempt in range(1, highest + _BEYOND):
        if holder_consumer(build, attempt) == consumer:
            return attempt
    return 0
