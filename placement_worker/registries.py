"""Operations on what operators register: resource classes, traits, cells and aggregates."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from msgspec import structs
from msgspec.structs import replace

from bus import aggregates
from bus.cells import (
    CellEditAnswered,
    CellEdited,
    CellEditRequested,
    CellInUse,
    CellResult,
    CellsFound,
    DropCell,
    FindCells,
    RegisterCell,
    RegisteredCell,
)
from bus.names import (
    DropName,
    FindNames,
    MakeName,
    Named,
    NameEditAnswered,
    NameEdited,
    NameEditRequested,
    NameKind,
    NameResult,
    NamesFound,
    RenameName,
    Standard,
)
from bus.sql.failures import Conflict
from bus.sql.statement import Transaction
from bus.vocabulary import Contended, InUse, LimitReached, Missing, Taken
from placement_worker.core.aggregates import (
    AggregateScene,
    Intent,
    as_change,
    coming_back,
    doubts,
    intent,
    move_in_and_out,
    zone_trouble,
    zoned,
)
from placement_worker.core.index import Index
from placement_worker.core.reports import is_custom
from placement_worker.core.trees import WorkingTrees, renamed
from placement_worker.reports import ReportOperations
from placement_worker.store import aggregates as stored
from placement_worker.store import changes, hosts, stored_trees
from placement_worker.store.numbered_names import RENAME_CLASS, ROOTS_WITH, drop_name, entries, names_of
from placement_worker.transactions import PlacementOperations, again, changing, contended


class ClassesAndTraits(PlacementOperations):
    """Finds and edits resource classes and traits."""

    async def find(self, query: FindNames) -> NamesFound:
        if query.names is not None and not query.names:
            return NamesFound(names=())
        async with self.database.read_single() as tx:
            found = await entries(tx, query.kind, query.names, used=query.associated is not None)
        names = names_of(self.book, query.kind)
        await names.agree(self.database, [(entry.id, entry.name) for entry in found])
        return NamesFound(
            names=tuple(
                entry.named
                for entry in found
                if entry.name.startswith(query.prefix)
                and (query.associated is None or entry.used == query.associated)
            )
        )

    @again(lambda *_: NameEditAnswered(result=Contended()))
    async def edit(self, order: NameEditRequested) -> NameEditAnswered:
        match order.edit:
            case MakeName(name=name):
                result = await self._make(order.kind, name)
            case RenameName(name=name, to=to):
                result = await self._rename(order.kind, name, to)
            case DropName(name=name):
                result = await self._drop(order.kind, name)
        return NameEditAnswered(result=result)

    async def _make(self, kind: NameKind, name: str) -> NameResult:
        if not is_custom(name):
            return Standard(name=name)
        names = names_of(self.book, kind)
        async with self.database.read_single() as tx:
            existing = await entries(tx, kind, [name])
        if existing:
            return NameEdited(named=existing[0].named)
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            made, new = await names.make(tx, [name], now)
            tx.after_commit(lambda: names.learn((id_, new_name) for new_name, id_ in made.items()))
        return NameEdited(named=Named(name=name, updated=now), made=bool(new))

    async def _rename(self, kind: NameKind, name: str, to: str) -> NameResult:
        if kind != "resource class":
            return Standard(name=name)
        if not is_custom(to):
            return Standard(name=to)
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            # Lock the name first, so that no provider can get inventory of the class meanwhile.
            found = {entry.name: entry for entry in await entries(tx, kind, [name, to], locking=True)}
            entry = found.get(name)
            if entry is None:
                return Missing(what="resource class", names=(name,))
            if not is_custom(name):
                return Standard(name=name)
            if to == name:
                return NameEdited(named=entry.named)
            if to in found:
                return Taken(what="resource class", value=to)
            read = await stored_trees.read_locked(
                tx, self.book, [root for (root,) in await ROOTS_WITH(tx, id=entry.id)]
            )
            pairs = [(tree, renamed(tree, name, to)) for tree in read.values()]
            await RENAME_CLASS(tx, id=entry.id, called=to, now=now)
            edition = await self.book.new_edition(tx)
            tx.after_commit(lambda: self._record_name(kind, edition, entry.id, to))
            altered, shaped = stored_trees.changes_between(pairs), {then.root: then for _, then in pairs}
            record = changes.CommitRecord(changes=altered, shaped=shaped, renamed=(name, to))
            await self.log.write(tx, record, edition=edition)
        return NameEdited(named=Named(name=to, updated=now))

    async def _drop(self, kind: NameKind, name: str) -> NameResult:
        async with changing(self.database, self.book) as tx:
            found = await entries(tx, kind, [name], used=True, locking=True)
            if not found:
                return Missing(what=kind, names=(name,))
            [entry] = found
            if not is_custom(name):
                return Standard(name=name)
            if entry.used:
                return InUse(what=name)
            await drop_name(tx, kind, entry)
            edition = await self.book.new_edition(tx)
            tx.after_commit(lambda: self._record_name(kind, edition, entry.id, ""))
        return NameEdited()

    def _record_name(self, kind: NameKind, edition: int, id_: int, name: str) -> None:
        names = names_of(self.book, kind)
        names.forget([id_])
        if name:
            names.learn([(id_, name)])
        # If another process has changed names in between, the version stays old, so all names are read again.
        if edition == self.book.edition + 1:
            self.book.edition = edition


@dataclass(eq=False)
class CellOperations(PlacementOperations):
    """Registers and deletes cells."""

    reports: ReportOperations

    async def find(self, query: FindCells) -> CellsFound:
        """Return all registered cells. With `counted`, also return unregistered cells that have hosts or
        instances, and the numbers of hosts and instances of each cell.
        """
        async with self.database.read() as tx:
            seen = await changes.last_number(tx)
            found = {cell.name: cell for cell in await hosts.registered(tx)}
            if not query.counted:
                return CellsFound(seen=seen, cells=tuple(found.values()))
            counts, instances = dict(await hosts.HOSTS(tx)), dict(await hosts.INSTANCES(tx))
        for name in (counts.keys() | instances.keys()) - found.keys():
            found[name] = RegisteredCell(name=name, gone=name not in counts)
        cells = tuple(found[name] for name in sorted(found))
        return CellsFound(seen=seen, cells=cells, hosts=counts, instances=instances)

    @again(lambda *_: CellEditAnswered(result=Contended()))
    async def edit(self, order: CellEditRequested) -> CellEditAnswered:
        edit = order.edit
        result = await (self._register(edit) if isinstance(edit, RegisterCell) else self._drop(edit))
        return CellEditAnswered(result=result)

    async def _register(self, edit: RegisterCell) -> CellResult:
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            new = bool(await hosts.ENTER_CELL(tx, cell=edit.cell, now=now))
            locked = await hosts.LOCK_CELL(tx, cell=edit.cell)
            if not locked:
                raise Conflict(f"cell {edit.cell} was deleted at the same moment")
            was = hosts.cell_of(locked[0])
            cell = structs.replace(
                was,
                enabled=was.enabled if edit.enabled is None else edit.enabled,
                note=was.note if edit.note is None else edit.note,
            )
            if cell == was and not new:
                return CellEdited(cell=cell)
            await hosts.SAVE_CELL(tx, cell=cell.name, enabled=cell.enabled, note=cell.note, now=now)
            number = await self.log.write(tx, changes.CommitRecord(cells=(cell,)))
            return CellEdited(cell=cell, number=number)

    async def _drop(self, edit: DropCell) -> CellResult:
        """Delete a cell with its hosts; first disable it, so that nothing is placed on them meanwhile. Refuse
        if it has instances, unless forced.
        """
        async with self.database.read() as tx:
            names = {cell.name for cell in await hosts.registered(tx)} | dict(await hosts.HOSTS(tx)).keys()
        if edit.cell not in names:
            return Missing(what="cell", names=(edit.cell,))
        await self._register(RegisterCell(cell=edit.cell, enabled=False))
        roots, instances = await self._left_in(edit.cell)
        if instances and not edit.force:
            return CellInUse(cell=edit.cell, instances=instances)
        await self.reports.end(edit.cell, roots, in_use_too=edit.force)
        roots, instances = await self._left_in(edit.cell)
        if roots:  # hosts that were claimed or reported in the meantime
            instances = 0 if edit.force else instances
            return CellInUse(cell=edit.cell, instances=instances, hosts=len(roots))
        async with changing(self.database, self.book) as tx:
            deleted = RegisteredCell(name=edit.cell, gone=True)
            if not await hosts.LOCK_CELL(tx, cell=edit.cell):  # another process has deleted it meanwhile
                return CellEdited(cell=deleted)
            await hosts.DROP_CELL(tx, cell=edit.cell)
            number = await self.log.write(tx, changes.CommitRecord(cells=(deleted,)))
            return CellEdited(cell=deleted, number=number)

    async def _left_in(self, cell: str) -> tuple[list[str], int]:
        async with self.database.read() as tx:
            roots = [root for (root,) in await hosts.ROOTS_OF_CELL(tx, cell=cell)]
            return roots, dict(await hosts.INSTANCES(tx)).get(cell, 0)


PAGE_BYTES = 500_000  # approximate size of an answer; a message is limited to 1 MiB
FIXED_BYTES = 100  # bytes of an aggregate without its name and metadata


@dataclass(eq=False)
class AggregateOperations(PlacementOperations):
    """Edits aggregates, their metadata and their hosts."""

    most: int  # maximum number of aggregates

    async def find(self, query: aggregates.FindAggregates) -> aggregates.AggregatesFound:
        """Return a page of the aggregates that a query selects, from the index."""
        roots: Collection[str] = ()
        if query.host:
            async with self.database.read_single() as tx:
                roots = (await stored.named_hosts(tx, [query.host])).get(query.host, ())
        await self.log.memory.fresh()
        index = self.log.memory.index
        found: list[aggregates.Aggregate] = []
        hosts: dict[str, int] = {}
        size, more = 0, False
        for aggregate in _selected(index, query, roots):
            if len(found) == query.limit or size >= PAGE_BYTES:
                more = True
                break
            found.append(aggregate)
            if count := index.hosts_in(aggregate.id):
                hosts[aggregate.id] = count
            size += FIXED_BYTES + len(aggregate.name)
            size += sum(len(key) + len(value) + 6 for key, value in aggregate.metadata.items())
        return aggregates.AggregatesFound(seen=index.seen, aggregates=tuple(found), hosts=hosts, more=more)

    async def edit(self, order: aggregates.AggregateEditRequested) -> aggregates.AggregateEditAnswered:
        return aggregates.AggregateEditAnswered(result=await self._edit(order.edit))

    @again(contended)
    async def _edit(self, edit: aggregates.AggregateEdit) -> aggregates.AggregateResult:
        now, change = self.clock.now(), as_change(edit)
        if isinstance(edit, aggregates.MakeAggregate):
            async with self.database.read() as tx:
                total, is_stored = await stored.count(tx, edit.aggregate)
            if total >= self.most and not is_stored:
                return LimitReached(setting="max_aggregates", limit=self.most, what="aggregates")
            await self.book.aggregates.ensure(self.database, [edit.aggregate], now)
        else:
            await self.book.aggregates.look_up(self.database, [edit.aggregate])
        async with changing(self.database, self.book) as tx:
            await stored.TURN(tx)
            scene = AggregateScene(
                described=await stored.described(tx),
                known=bool(await stored.KNOWN(tx, uuid=edit.aggregate)),
                members=dict(await stored.MEMBERS(tx, uuid=edit.aggregate)),
                hosts=await stored.named_hosts(tx, (*change.add, *change.remove)),
            )
            wanted = intent(edit, scene)
            if not isinstance(wanted, Intent):
                return wanted
            done = await self._save(tx, wanted, scene, now)
        if isinstance(done, aggregates.AggregateEdited):
            return replace(done, warnings=(*doubts(change.set), *done.warnings))
        return done

    async def _save(
        self, tx: Transaction, wanted: Intent, scene: AggregateScene, now: float
    ) -> aggregates.AggregateResult:
        moving = await stored_trees.read_locked(tx, self.book, wanted.add | wanted.remove)
        working = WorkingTrees(moving)
        if not all(map(working.find, wanted.add | wanted.remove)):
            raise Conflict("a host was deleted while it was being read")
        added, removed = move_in_and_out(wanted, working)
        pairs = working.changed()
        concerned = pairs
        if wanted.rezoned:  # check the zones of all hosts of the aggregate, also of those that the edit keeps
            staying = await stored_trees.read(
                tx, self.book, scene.members.keys() - wanted.remove - wanted.add
            )
            after = {tree.root: (tree, tree) for tree in (*moving.values(), *staying.values())}
            concerned = [*(after | {then.root: (was, then) for was, then in pairs}).values()]
        hosts = [(zoned(was), zoned(then)) for was, then in concerned]
        if trouble := zone_trouble(wanted, scene.described, hosts):
            return trouble
        number = 0
        if wanted.is_changed:
            await stored.write(tx, wanted.now, now)
        if pairs:
            number = await self.log.write_trees(tx, pairs, now)
        if wanted.is_changed:
            number = await self.log.write(tx, changes.CommitRecord(aggregates=(wanted.now,)))
        return aggregates.AggregateEdited(
            aggregate=wanted.now,
            made=wanted.made,
            added=added,
            removed=removed,
            number=number,
            warnings=tuple(coming_back(wanted, moving)),
        )


def _selected(
    index: Index, query: aggregates.FindAggregates, roots: Collection[str]
) -> Iterator[aggregates.Aggregate]:
    """Yield the aggregates of the index that meet the conditions of a query, sorted by id. `roots` are the
    roots with the host name in the query.
    """
    facts = index.aggregate_facts
    ids = {id_ for id_, aggregate in facts.items() if aggregate.name or aggregate.metadata}
    ids |= {id_ for id_, members in index.aggregates.items() if members.count}
    if query.ids:
        ids.intersection_update(query.ids)
    if query.host:
        ids &= {id_ for root in roots if root in index.rows for id_ in index.rows[root].aggregates}
    for id_ in sorted(ids):
        aggregate = facts.get(id_) or aggregates.Aggregate(id=id_)
        if (
            id_ > query.after
            and (not query.name or aggregate.name == query.name)
            and (not query.key or query.key in aggregate.metadata)
        ):
            yield aggregate
