"""Finds builds with allocations in placement that differ from their cells' records, and holder consumers
without a move or clean-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bus.claims import holder_consumer
from bus.guests import ReportedGuest
from bus.vocabulary import Allocations

if TYPE_CHECKING:
    from berth.kit.audit_records import ReleasedBuild
    from berth.operations.cell_records import KnownBuild
    from berth.operations.stored_builds import HeldByCell, PlaceByCell
    from berth.operations.stored_claims import StoredHolder, TreesOfConsumer

Wrong = Literal["missing", "elsewhere", "amounts", "outdated"]


@dataclass(frozen=True)
class Misheld:
    """An active build with allocations in placement that differ from its cell's record."""

    wrong: Wrong
    place: PlaceByCell
    generation: int | None  # generation of the consumer in placement; None: no allocations
    held: Allocations
    sentence: str
    started: bool = False  # it has a move that its cell may not have recorded yet

    def __str__(self) -> str:
        return self.sentence


def misheld(
    places: Mapping[str, PlaceByCell],  # of builds that did not change while placement was read
    trees: Mapping[str, TreesOfConsumer],
    allocations: Mapping[str, tuple[int, Allocations, float]],
    moving: Collection[str],  # builds with a move that cells may not have recorded: only hosts are compared
) -> Iterator[Misheld]:
    """Yield the active builds in `places` with allocations in placement (`trees` and `allocations`, by
    consumer) that are missing, or differ from the cell's record in host, amounts or generation.
    """
    for build, place in places.items():
        at = f"{build}: active on {place.host.root}"
        if build not in trees and build not in allocations:
            sentence = f"{at} in cell {place.cell}, and holds nothing"
            yield Misheld("missing", place, None, {}, sentence, build in moving)
            continue
        if build not in trees or build not in allocations:
            continue  # the build has just started or ended
        generation, held, _ = allocations[build]
        if not trees[build].may_be_on(place.host.root):
            sentence = f"{at}, but holds resources of {', '.join(trees[build].trees)}"
            yield Misheld("elsewhere", place, generation, held, sentence, build in moving)
        elif build in moving:
            continue
        elif (held_sums := _sums(held)) != (wanted := _sums(place.host.choice.allocations)):
            sentence = f"{at} with {_listed(wanted)}, but holds {_listed(held_sums)}"
            yield Misheld("amounts", place, generation, held, sentence)
        elif generation != place.generation:
            sentence = f"{at}: its cell knows generation {place.generation} of it, placement {generation}"
            yield Misheld("outdated", place, generation, held, sentence)


def doubt(
    misheld: Misheld,
    on_host: Sequence[ReportedGuest] | None,  # reported by the agent of the build's host; None: no answer
    elsewhere: Mapping[str, Sequence[ReportedGuest] | None],  # reported by the agents of other hosts
) -> str:
    """Return why a build's allocations must not be replaced by the allocations in its cell's record, or "".

    Unless only the generation differs, the agent of the recorded host must report the guest as in the record,
    and no other host's agent may report a guest of the build. If placement has no allocations, the agents'
    answers may be missing.
    """
    place = misheld.place
    host, agent = place.host.host, place.host.agent
    if misheld.started:
        return "a move of it has started that its cell does not know"
    if misheld.wrong == "outdated":
        return ""  # host and amounts are beyond doubt
    if on_host is None:
        return "" if misheld.wrong == "missing" else f"agent {agent} of {host} does not list its guests"
    same_attempt = [each for each in on_host if (each.attempt, each.root) == (place.attempt, place.host.root)]
    if not same_attempt:
        return f"agent {agent} has no guest of its attempt {place.attempt} on {host}"
    if len(same_attempt) < len(on_host):
        return f"agent {agent} has more than one guest of it"
    if (has := _sums(same_attempt[0].allocations)) != _sums(place.host.choice.allocations):
        return f"agent {agent} has it with {_listed(has)}"
    for name, guests in elsewhere.items():
        if guests is None:
            return f"no agent lists the guests on {name}, where it is held"
        if any(guest.root != place.host.root for guest in guests):
            return f"there is a guest of it on {name}, too"
    return ""


_HAS_IT = ("active", "verifying", "shelved")  # states of a build that do not change without a request


@dataclass(frozen=True)
class Doubled:
    """A build that several cells have recorded without an end, for example because placement lost commits."""

    build: str
    records: Sequence[KnownBuild]
    held: TreesOfConsumer | None  # its allocations

    def __str__(self) -> str:
        return f"{self.build}: known in cells {' and '.join(record.cell for record in self.records)}"

    def right_record(self) -> KnownBuild | None:
        """Return the record of the only cell that has recorded the host with the build's allocations; None if
        no cell or several cells have recorded it.
        """
        held = self.held
        found = [record for record in self.records if held is not None and held.may_be_on(record.root)]
        return found[0] if len(found) == 1 else None

    def doubt(self, guests: Mapping[tuple[str, str], Iterable[ReportedGuest]]) -> str:
        """Return why the build must not be deleted in the cells without its allocations, or "".

        `guests`: by cell and agent. An agent in the cell with the allocations must report the guest.
        """
        for record in self.records:
            if record.status not in _HAS_IT:
                return f"it is {record.status} in cell {record.cell}: try again"
        right = self.right_record()
        if right is None:
            return "its allocations do not show which cell has it"
        if right.status != "active":
            return f"it is {right.status} in cell {right.cell}, which has its allocations"
        of_cell = [guest for (cell, _), listed in guests.items() if cell == right.cell for guest in listed]
        there = [guest for guest in of_cell if (guest.build, guest.root) == (self.build, right.root)]
        if len(there) != 1 or there[0].state == "arriving":
            return f"no agent of cell {right.cell}, which has its allocations, has its guest"
        return ""


def _sums(held: Allocations) -> Counter[str]:
    """Return the total allocated amount of each resource class over all providers."""
    sums: Counter[str] = Counter()
    for resources in held.values():
        sums.update(resources)
    return sums


def _listed(sums: Counter[str]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(sums.items())) or "nothing"


@dataclass(frozen=True)
class Ownerless:
    """A consumer with allocations of an ended build, or of a build that is in no cell's records."""

    consumer: str
    generation: int
    sentence: str
    ended: str = ""  # how its build has ended; empty: no cell has a record of it
    cell: str = ""  # the cell that has shelved its build: only this cell may unshelve or delete it
    doubt: str = ""  # why its allocations may be needed

    def __str__(self) -> str:
        return self.sentence


_CLOCKS = 60.0  # seconds by which the clocks of placement and of a cell may differ
_UNSHELVING = "a move that unshelves it may have claimed them"


def ended_holder(
    consumer: str, held: TreesOfConsumer, cell: str, status: str, shelving: ReleasedBuild | None
) -> Ownerless:
    """Return the finding that an ended build still has allocations; its `doubt` is set if a shelved build may
    need them.

    The release of a shelved build deletes its consumer, and a claim that unshelves the build makes a new
    consumer. So a consumer that is older than the end of the shelving was not released.
    """
    sentence = f"{consumer}: ended as {status} in cell {cell}, and holds resources"
    if status != "shelved":
        return Ownerless(consumer, held.generation, sentence, status)
    lost = shelving is not None and held.since + _CLOCKS < shelving.ended
    return Ownerless(consumer, held.generation, sentence, status, cell, "" if lost else _UNSHELVING)


_BEYOND = 8  # attempts that placement may have recorded before the cell


@dataclass(frozen=True)
class Leak:
    """A holder consumer without a move or clean-up. `proven`: no cell needs its allocations, so they may be
    released.
    """

    consumer: str
    generation: int
    build: str
    attempt: int
    proven: bool
    why: str

    def __str__(self) -> str:
        of = f"attempt {self.attempt} of " if self.attempt else ""
        return f"{self.consumer}: holds resources of {of}{self.build}, {self.why}"


def leaks(
    holders: Iterable[StoredHolder],
    cells: Mapping[str, HeldByCell],  # records of builds, read after the consumers
    *,
    all_read: bool,  # every cell was read
    old: float,  # consumers created after this time are skipped: the cell may not know them yet
) -> Iterator[Leak]:
    """Yield the holder consumers, created before the time `old`, without a move or clean-up in the cells'
    records. `all_read`: no cell's records are missing.
    """
    for holder in holders:
        if holder.since > old:
            continue
        known = cells.get(holder.build)
        attempt, proven = 0, False
        if known is None:
            if not all_read:
                continue
            why = "which no cell knows"
        elif known.mark.operating or known.unreadable:
            continue
        else:
            attempt = _attempt_of(holder.consumer, holder.build, known.attempt)
            if attempt in known.left:
                continue
            if not attempt:
                why = "and no attempt of it has this holder"
            elif attempt < known.attempt or known.status in ("deleted", "error", "shelved"):
                proven = all_read or not known.mark.came  # a cell that was not read may still need it
                why = f"which is {known.status}, and of that attempt nothing is left"
            else:
                why = f"which is {known.status} there: a move of it began that its cell does not know"
        yield Leak(holder.consumer, holder.generation, holder.build, attempt, proven, why)


def _attempt_of(consumer: str, build: str, highest: int) -> int:
    """Return the build's attempt, at most a few above `highest`, from which a holder consumer's id was
    computed; 0 if no attempt matches.
    """
    for attempt in range(1, highest + _BEYOND):
        if holder_consumer(build, attempt) == consumer:
            return attempt
    return 0
