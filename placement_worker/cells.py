"""The registry of cells: which there are, which are disabled, and the end of one."""

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
from bus.clock import Clock
from bus.sql.database import Database
from bus.sql.failures import retrying
from bus.vocabulary import Contended, Missing
from placement_worker.change_log import ChangeLog
from placement_worker.reports import ReportOperations
from placement_worker.store import cells as stored
from placement_worker.store import changes
from placement_worker.store.numbered_names import Book
from placement_worker.transactions import changing


class CellOperations:
    def __init__(
        self, database: Database, clock: Clock, book: Book, log: ChangeLog, reports: ReportOperations
    ) -> None:
        self.database = database
        self.clock = clock
        self.book = book
        self._log = log
        self._reports = reports
        self._edit = retrying(clock, otherwise=_contended)(self._edit_once)

    async def find(self, query: FindCells) -> CellsFound:
        """Return the registered cells, and cells with reported hosts."""
        async with self.database.read() as tx:
            seen = await changes.last_number(tx)
            found = {cell.name: cell for cell in await stored.registered(tx)}
            if not query.counted:
                return CellsFound(seen=seen, cells=tuple(found.values()))
            hosts, instances = await stored.hosts(tx), await stored.instances(tx)
        for name in (hosts.keys() | instances.keys()) - found.keys():
            found[name] = RegisteredCell(name=name, gone=name not in hosts)
        return CellsFound(
            seen=seen,
            cells=tuple(found[name] for name in sorted(found)),
            hosts=hosts,
            instances=instances,
        )

    async def edit(self, order: CellEditRequested) -> CellEditAnswered:
        return CellEditAnswered(result=await self._edit(order.edit))

    async def _edit_once(self, edit: CellEdit) -> CellResult:
        match edit:
            case RegisterCell():
                return await self._register(edit)
            case DropCell():
                return await self._drop(edit)

    async def _register(self, edit: RegisterCell) -> CellResult:
        now = self.clock.now()
        async with changing(self.database, self.book) as tx:
            was, new = await stored.enter(tx, edit.cell, now)
            cell = structs.replace(
                was,
                enabled=was.enabled if edit.enabled is None else edit.enabled,
                note=was.note if edit.note is None else edit.note,
            )
            if cell == was and not new:
                return CellEdited(cell=cell)
            await stored.say(tx, cell, now)
            return CellEdited(cell=cell, number=await self._log.write_cells(tx, [cell]))

    async def _drop(self, edit: DropCell) -> CellResult:
        """Disable the cell first, so that nothing is placed there while its hosts are deleted."""
        async with self.database.read() as tx:
            names = {cell.name for cell in await stored.registered(tx)} | (await stored.hosts(tx)).keys()
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
            if not await stored.known(tx, edit.cell):  # another dropped it meanwhile
                return CellEdited(cell=gone)
            await stored.drop(tx, edit.cell)
            return CellEdited(cell=gone, number=await self._log.write_cells(tx, [gone]))

    async def _left_in(self, cell: str) -> tuple[list[str], int]:
        async with self.database.read() as tx:
            return await stored.roots(tx, cell), (await stored.instances(tx)).get(cell, 0)


def _contended(edit: CellEdit) -> CellResult:
    return Contended()
