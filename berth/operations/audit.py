"""Audits the databases: no capacity may be over-allocated, allocated twice or held by an unknown consumer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from berth import composition, worker_roles
from berth.features import added
from berth.kit.audit_records import AuditPart, CellAuditPart
from berth.operations.cell_records import (
    BuildsByCell,
    KnownBuild,
    builds_by_cell,
    of_cells,
    places_by_cell,
    released_by_cell,
)
from berth.operations.wrong_allocations import Doubled, Leak, Misheld, Ownerless, ended_holder, leaks, misheld
from berth.settings import Settings, names_a_file
from bus.claims import CLEANUP, MIGRATION, holder_consumer
from bus.clock import Clock
from bus.errors import Unavailable

if TYPE_CHECKING:
    from berth.kit.audit_records import ReleasedBuild
    from berth.operations.stored_builds import HeldByCell, PlaceByCell
    from berth.operations.stored_claims import StoredHolder, TreesOfConsumer
    from bus.sql.database import Database

_UNDER_WAY = 30.0  # seconds: a younger claim may be of a build that its cell has not stored yet
_SETTLED = ("active", "error", "deleted", "verifying", "shelved", "moved")
_PLACED = ("active", "verifying")  # states with allocations on one host; a moving build is between two
_BUILD = "INSTANCE"  # the type of consumers that are builds


@dataclass
class Audit:
    """The result of an audit: counts, violated guarantees (breaches), and notes about unusual states."""

    breaches: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    consumers: int = 0
    builds: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)  # consumers by type
    of_other_owners: int = 0  # instances that no cell has built: imported, or made over HTTP
    classes: dict[str, tuple[int, int]] = field(default_factory=dict)  # custom class → used, total
    leaks: list[Leak] = field(default_factory=list)  # breaches that `berth audit heal` may repair
    misheld: list[Misheld] = field(default_factory=list)  # also repairable
    ownerless: list[Ownerless] = field(default_factory=list)  # also repairable
    doubled: list[Doubled] = field(default_factory=list)  # also repairable

    @property
    def clean(self) -> bool:
        """Return whether no guarantee is breached."""
        return not self.breaches


@dataclass(frozen=True)
class _Read:
    """The contents of the databases. Cells are read before placement and after it, because builds go on."""

    before: BuildsByCell
    places: dict[str, PlaceByCell]
    released: Mapping[str, ReleasedBuild]
    holders: Mapping[str, StoredHolder]
    held: Mapping[str, TreesOfConsumer]
    exactly: Mapping[str, tuple[int, dict[str, dict[str, int]], float]]  # generation, allocations, creation
    retired: Collection[str]
    unread: set[str]  # registered cells without a database in the settings
    after: BuildsByCell
    held_by_cell: Mapping[str, HeldByCell]
    still: Mapping[str, StoredHolder]  # holder consumers, read after the cells


async def audit(
    settings: Settings, *, settled: bool = False, placement_only: bool = False, clock: Clock | None = None
) -> Audit:
    """Compare placement's database with the cells' databases, and return the violations.

    `settled`: the caller expects that no build is in progress. Unfinished builds, and recent claims without a
    build, are violations only if `settled` is set.
    """
    clock = clock or Clock()
    await refuse_missing_databases(settings, placement_only=placement_only)
    found = Audit()
    read = await _read(found, settings, placement_only=placement_only)
    found.consumers = len(read.held)
    found.builds = dict(Counter(known.status for known in read.after.builds.values()))
    found.types = dict(Counter(record.type or "unknown" for record in read.held.values()))
    found.breaches += [
        f"{consumer}: retired, and yet holds resources" for consumer in read.held if consumer in read.retired
    ]
    if placement_only:
        found.notes.append("only placement was checked, not whether every allocation has an owner")
        return found
    _judge_owners(found, read, settings, clock.now() - (0 if settled else _UNDER_WAY))
    if settled:
        found.breaches += _unfinished(read.after)
    found.notes += await _assumed_guests(settings, settings.cell_names)
    return found


async def placement_breaches(placement: Database) -> list[str]:
    """Return a sentence for each violated rule of the data in placement's database."""
    from berth.operations import stored_claims as stored  # databases take long to load

    async with placement.read() as tx:
        found = await stored.breaches(tx)
        for part in added(AuditPart, "audit"):
            found += await part.breaches(tx)
    return found


async def _read(found: Audit, settings: Settings, *, placement_only: bool) -> _Read:
    """Read the databases; add to `found` the violations and counts that placement's database alone shows."""
    from berth.operations import stored_claims as stored  # databases take long to load

    cells = () if placement_only else settings.cell_names
    placement = composition.database_of(settings, worker_roles.Role("placement"))
    try:
        # The cells are read first: a build seen there must have allocations in placement afterwards.
        before = await builds_by_cell(settings, cells)
        places = await places_by_cell(settings, cells)
        released = await released_by_cell(settings, cells)
        found.breaches += await placement_breaches(placement)
        found.notes += await stored.in_two_zones(placement)
        found.classes = await stored.custom_classes(placement)
        holders = await stored.stored_holders(placement)
        return _Read(
            before,
            places,
            released,
            holders,
            held=await stored.trees_of_consumers(placement),
            exactly={} if placement_only else await stored.allocations(placement),
            retired=await stored.retired(placement),
            unread=await stored.registered_cells(placement) - {*settings.cell_names},
            after=await builds_by_cell(settings, cells),
            held_by_cell=await _held_by_cells(settings, cells, {each.build for each in holders.values()}),
            still=await stored.stored_holders(placement),
        )
    finally:
        await placement.close()


def _judge_owners(found: Audit, read: _Read, settings: Settings, old: float) -> None:
    """Compare the allocations in placement with the cells' records, both in `read`, and add contradictions to
    `found`. A consumer created after the time `old` needs no record in a cell yet.
    """
    before, after, held = read.before, read.after, read.held
    why = "registered but not checked: its database is not in the settings"
    found.notes += [f"cell {cell}: {why}" for cell in sorted(read.unread)]
    found.doubled = [Doubled(id_, known, held.get(id_)) for id_, known in after.doubled.items()]
    found.breaches += map(str, found.doubled)
    found.notes += after.ended_elsewhere
    places = {id_: place for id_, place in read.places.items() if _unchanged(place, before, after)}
    moving = _moving(places, (*read.holders.values(), *read.still.values()))
    found.misheld = list(misheld(places, held, read.exactly, moving))
    found.breaches += map(str, found.misheld)
    found.breaches += _unheld(before, after, held, places.keys() | after.doubled.keys())
    unchanged = [holder for name, holder in read.holders.items() if read.still.get(name) == holder]
    found.leaks = list(leaks(unchanged, read.held_by_cell, all_read=not read.unread, old=old))
    found.breaches += map(str, found.leaks)
    ownerless = {consumer: record for consumer, record in held.items() if consumer not in after.builds}
    _judge_ownerless(found, ownerless, settings, read.unread, old)
    for id_, known in _ended(before, after, held):
        holder = ended_holder(id_, held[id_], known.cell, known.status, read.released.get(id_))
        found.breaches.append(str(holder))
        found.ownerless.append(holder)


async def has_no_cell(settings: Settings) -> bool:
    """Return True if no cell has a database, so that only placement's database can be audited."""
    if names_a_file(settings.database.url):
        return True
    for cell in settings.cell_names:
        if await composition.ever_made(settings, worker_roles.Role("conductor", cell)):
            return False
    return True


async def refuse_missing_databases(settings: Settings, *, placement_only: bool = False) -> None:
    """Raise Unavailable if a database to audit does not exist: its audit would find no violations."""
    where = settings.database.state_dir if settings.embedded else "the database"
    if not await composition.ever_made(settings, worker_roles.Role("placement")):
        raise Unavailable(f"there is no state of berth in {where}: nothing to audit")
    if placement_only:
        return
    if names_a_file(settings.database.url):
        raise Unavailable(f"{where} has only placement's database: use --placement-only")
    for cell in settings.cell_names:
        if not await composition.ever_made(settings, worker_roles.Role("conductor", cell)):
            raise Unavailable(
                f"{where} has no data of a cell {cell}: name the existing cells (--cells, BERTH_CELLS),"
                " or --placement-only"
            )


async def _assumed_guests(settings: Settings, cells: Sequence[str]) -> list[str]:
    """Return a sentence for each guest of a removed agent that the cell assumes to be destroyed, without a
    confirmation.
    """
    from cell_conductor import assumed_guests

    return [
        f"{guest.build}: its guest on {guest.host} (attempt {guest.attempt}) is assumed to be destroyed,"
        f" because its agent {guest.agent} was removed from cell {cell}"
        async for cell, guests in of_cells(settings, cells, assumed_guests)
        for guest in guests
    ]


def _unchanged(place: PlaceByCell, before: BuildsByCell, after: BuildsByCell) -> bool:
    """Return whether exactly one cell has a build, with the same record `before` and `after` placement was
    read.
    """
    known = before.builds.get(place.build)
    if known is None or place.build in after.doubled:
        return False
    return known == after.builds.get(place.build) and known.version == place.version


def _moving(places: Mapping[str, PlaceByCell], holders: Iterable[StoredHolder]) -> set[str]:
    """Return the builds with a holder consumer for their present attempt: the cell may not yet have recorded
    the move that created this consumer.
    """
    return {
        holder.build
        for holder in holders
        if (place := places.get(holder.build)) is not None
        and holder.consumer == holder_consumer(holder.build, place.attempt)
    }


async def _held_by_cells(
    settings: Settings, cells: Sequence[str], builds: Collection[str]
) -> dict[str, HeldByCell]:
    """Return the cells' records of the given builds, by build, to decide if their holder consumers are
    needed.
    """
    from berth.operations.stored_builds import held_by_cell

    found: dict[str, HeldByCell] = {}
    marks = [part.marks for part in added(CellAuditPart, "cell_audit")]
    read = partial(held_by_cell, builds=builds, marks_of_features=marks)
    async for _, held in of_cells(settings, cells if builds else (), read):
        for id_, known in held.items():
            found[id_] = known.merged_with(found[id_]) if id_ in found else known
    return found


def _unheld(
    before: BuildsByCell, after: BuildsByCell, held: Mapping[str, TreesOfConsumer], judged: Collection[str]
) -> Iterator[str]:
    """Yield a sentence for each build that was active before and after the audit and has no allocations in
    the provider tree of its host, except the builds in `judged`, which other checks have reported.
    """
    for id_, known in before.builds.items():
        if known.status not in _PLACED or id_ in judged or after.builds.get(id_) != known:
            continue
        if id_ not in held:
            yield f"{id_}: {known.status} on {known.root} in cell {known.cell}, and holds nothing"
        elif not held[id_].may_be_on(known.root):
            where = ", ".join(held[id_].trees)
            yield f"{id_}: {known.status} on {known.root}, but holds resources of {where}"


def _judge_ownerless(
    found: Audit, held: Mapping[str, TreesOfConsumer], settings: Settings, unread: set[str], old: float
) -> None:
    """Add a violation to `found` for each consumer in `held` that was created before the time `old`. If berth
    is not responsible for the consumer, or its cell is `unread` (could not be checked), add a note instead.
    `held`: the consumers without a build.
    """
    leaking = {leak.consumer for leak in found.leaks}
    for consumer, record in held.items():
        if consumer in leaking:
            continue
        found.of_other_owners += record.type == _BUILD
        if (why := _not_ours(record, settings, unread)) is not None:
            found.notes.append(f"{consumer}: {why}")
        elif record.since <= old:
            sentence = f"{consumer}: holds resources, but no cell knows it"
            found.breaches.append(sentence)
            found.ownerless.append(Ownerless(consumer, record.generation, sentence))


def _not_ours(held: TreesOfConsumer, settings: Settings, unread: set[str]) -> str | None:
    """Return why a consumer that is no build of a cell may have allocations, such as another owner or an
    `unread` cell; None if the allocations are a violation.
    """
    if held.type == CLEANUP:
        return "holds resources of a guest that may still exist"
    if held.type == MIGRATION and held.keeps_for:  # without this field it is a client's, such as Nova's
        return f"holds the host that {held.keeps_for} has moved from"
    if held.type != _BUILD:
        return f"not ours: its type is {held.type or 'unknown'}"
    if held.client:
        return "not ours: a client of the API claimed for it"
    reported = [tree for tree in held.trees.values() if tree is not None]
    if not reported:
        return "not ours: on providers that no agent reports"
    if elsewhere := unread.intersection(tree.cell for tree in reported):
        return f"not checked: it is in cell {', '.join(sorted(elsewhere))}"
    if all(held.since < tree.since for tree in reported):
        return "not ours: it was there before an agent reported its host"
    if all(tree.agent in settings.ironic.nodes.agents.values() for tree in reported):
        return f"not ours: on hosts of {reported[0].agent}, which is no agent of berth's"
    return None


def _ended(
    before: BuildsByCell, after: BuildsByCell, held: Collection[str]
) -> Iterator[tuple[str, KnownBuild]]:
    """Yield the id and the record of each build that had ended or was shelved before placement was read, and
    still has allocations. `held`: the ids of all consumers with allocations.
    """
    for id_, known in before.builds.items():
        if id_ in held and known.status in ("error", "deleted", "shelved") and after.builds.get(id_) == known:
            yield id_, known


def _unfinished(after: BuildsByCell) -> Iterator[str]:
    for id_, known in after.builds.items():
        if known.status not in _SETTLED:
            yield f"{id_}: still {known.status} in cell {known.cell}"
