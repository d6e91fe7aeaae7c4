"""Resource classes and traits by name: listed, made, renamed, dropped."""

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
from placement_worker.core.report_checks import is_custom
from placement_worker.core.trees import renamed
from placement_worker.store import tree_reads
from placement_worker.store.numbered_names import RENAME_CLASS, ROOTS_WITH, drop_name, entries, names_of
from placement_worker.transactions import Parts, PlacementOperations, again, changing, contended


class ClassesAndTraits(PlacementOperations):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._edit = again(parts.clock, self._edit_once, contended)

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

    async def _edit_once(self, order: NameEditRequested) -> NameResult:
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
