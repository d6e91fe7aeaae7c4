"""Operations on what operators register by name: resource classes, traits, server groups and cells."""

from msgspec import structs

from bus.cells import (
    CellEdit,
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
from bus.groups import (
    DropGroup,
    FindGroups,
    GroupEditAnswered,
    GroupEdited,
    GroupEditRequested,
    GroupResult,
    GroupsFound,
    MakeGroup,
    ServerGroup,
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
from bus.vocabulary import InUse, Missing, Taken
from placement_worker.core.reports import is_custom
from placement_worker.core.trees import renamed
from placement_worker.reports import ReportOperations
from placement_worker.store import changes, hosts, server_groups, tree_reads
from placement_worker.store.numbered_names import RENAME_CLASS, ROOTS_WITH, drop_name, entries, names_of
from placement_worker.transactions import Parts, PlacementOperations, again, changing, contended


class ClassesAndTraits(PlacementOperations):
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

    async def edit(self, order: NameEditRequested) -> NameEditAnswered:
        return NameEditAnswered(result=await self._edit(order))

    @again(contended)
    async def _edit(self, order: NameEditRequested) -> NameResult:
        match order.edit:
            case MakeName(name=name):
                return await self._make(order.kind, name)
            case RenameName(name=name, to=to):
                return await self._rename(order.kind, name, to)
            case DropName(name=name):
                return await self._drop(order.kind, name)

    async def _make(self, kind: NameKind, name: str) -> NameResult:
        if not is_custom(name):
            return Standard(name=name)
        names = names_of(self.book, kind)
        async with self.database.read_single() as tx:
            there = await entries(tx, kind, [name])
        if there:
            return NameEdited(named=there[0].named)
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            made, new = await names.make(tx, [name], now)
            tx.after_commit(lambda: names.learn((id_, one) for one, id_ in made.items()))
        return NameEdited(named=Named(name=name, updated=now), made=bool(new))

    async def _rename(self, kind: NameKind, name: str, to: str) -> NameResult:
        if kind != "resource class":
            return Standard(name=name)
        if not is_custom(to):
            return Standard(name=to)
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            # Locked first, so that no provider can get inventory of it that we do not see.
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
            read = await tree_reads.read_locked(
                tx, self.book, [root for (root,) in await ROOTS_WITH(tx, id=entry.id)]
            )
            pairs = [(tree, renamed(tree, name, to)) for tree in read.values()]
            await RENAME_CLASS(tx, id=entry.id, called=to, now=now)
            edition = await self.book.new_edition(tx)
            tx.after_commit(lambda: self._record_name(kind, edition, entry.id, to))
            shaped = {then.root: then for _, then in pairs}
            await self._log.write(tx, tree_reads.changes_between(pairs), shaped, edition=edition)
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
        # An edition between was another process's: then all names must be read again.
        if edition == self.book.edition + 1:
            self.book.edition = edition


class ServerGroups(PlacementOperations):
    """Server groups. Their policies are judged by claims."""

    async def find(self, query: FindGroups) -> GroupsFound:
        async with self.database.read() as tx:
            return GroupsFound(groups=tuple(await server_groups.find(tx, query)))

    async def edit(self, order: GroupEditRequested) -> GroupEditAnswered:
        return GroupEditAnswered(result=await self._edit(order))

    @again(contended)
    async def _edit(self, order: GroupEditRequested) -> GroupResult:
        match order.edit:
            case MakeGroup() as make:
                return await self._make(make)
            case DropGroup(group=group, force=force):
                async with self.database.write() as tx:
                    members = await server_groups.drop(tx, group, force=force)
                if members:
                    return InUse(what=group, members=tuple(members))
                return GroupEdited(changed=members is not None)

    async def _make(self, make: MakeGroup) -> GroupResult:
        wanted = (make.group, make.name, make.policy, make.max_per_host, make.project)
        id_, name, policy, max_per_host, project = wanted
        group = ServerGroup(id=id_, name=name, policy=policy, max_per_host=max_per_host, project=project)
        async with self.database.write() as tx:
            if await server_groups.make(tx, group, self.clock.now()):
                return GroupEdited(group=group, changed=True)
        [there] = (await self.find(FindGroups(ids=(make.group,)))).groups or [None]
        if there is None:
            return Taken(what="name", value=make.name)
        if (there.id, there.name, there.policy, there.max_per_host, there.project) == wanted:
            return GroupEdited(group=there)
        return Taken(what="id", value=make.group)


class CellOperations(PlacementOperations):
    def __init__(self, parts: Parts, reports: ReportOperations) -> None:
        super().__init__(parts)
        self._reports = reports

    async def find(self, query: FindCells) -> CellsFound:
        """Return the registered cells, and cells with reported hosts."""
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

    async def edit(self, order: CellEditRequested) -> CellEditAnswered:
        return CellEditAnswered(result=await self._edit(order.edit))

    @again(contended)
    async def _edit(self, edit: CellEdit) -> CellResult:
        match edit:
            case RegisterCell():
                return await self._register(edit)
            case DropCell():
                return await self._drop(edit)

    async def _register(self, edit: RegisterCell) -> CellResult:
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            was, new = await hosts.enter_cell(tx, edit.cell, now)
            cell = structs.replace(
                was,
                enabled=was.enabled if edit.enabled is None else edit.enabled,
                note=was.note if edit.note is None else edit.note,
            )
            if cell == was and not new:
                return CellEdited(cell=cell)
            await hosts.SAVE_CELL(tx, cell=cell.name, enabled=cell.enabled, note=cell.note, now=now)
            return CellEdited(cell=cell, number=await self._log.write_facts(tx, cells=(cell,)))

    async def _drop(self, edit: DropCell) -> CellResult:
        """Disable the cell first, so that nothing is placed there while its hosts are deleted."""
        async with self.database.read() as tx:
            names = {cell.name for cell in await hosts.registered(tx)} | dict(await hosts.HOSTS(tx)).keys()
        if edit.cell not in names:
            return Missing(what="cell", names=(edit.cell,))
        await self._register(RegisterCell(cell=edit.cell, enabled=False))
        roots, instances = await self._left_in(edit.cell)
        if instances and not edit.force:
            return CellInUse(cell=edit.cell, instances=instances)
        await self._reports.end(edit.cell, roots, in_use_too=edit.force)
        roots, instances = await self._left_in(edit.cell)
        if roots:  # claimed, or reported, meanwhile
            instances = 0 if edit.force else instances
            return CellInUse(cell=edit.cell, instances=instances, hosts=len(roots))
        async with changing(self.database, self.book) as tx:
            gone = RegisteredCell(name=edit.cell, gone=True)
            if not await hosts.LOCK_CELL(tx, cell=edit.cell):  # another dropped it meanwhile
                return CellEdited(cell=gone)
            await hosts.DROP_CELL(tx, cell=edit.cell)
            return CellEdited(cell=gone, number=await self._log.write_facts(tx, cells=(gone,)))

    async def _left_in(self, cell: str) -> tuple[list[str], int]:
        async with self.database.read() as tx:
            return await hosts.roots_of_cell(tx, cell), dict(await hosts.INSTANCES(tx)).get(cell, 0)
