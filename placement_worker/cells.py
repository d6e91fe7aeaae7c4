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
from bus.vocabulary import Missing
from placement_worker.reports import ReportOperations
from placement_worker.store import cells as stored
from placement_worker.store import changes
from placement_worker.transactions import Parts, PlacementOperations, again, changing, contended


class CellOperations(PlacementOperations):
    def __init__(self, parts: Parts, reports: ReportOperations) -> None:
        super().__init__(parts)
        self._reports = reports
        self._edit = again(parts.clock, self._edit_once, contended)

    async def find(self, query: FindCells) -> CellsFound:
        """Return the registered cells, and cells with reported hosts."""
        async with self.database.read() as tx:
            seen = await changes.last_number(tx)
            found = {cell.name: cell for cell in await stored.registered(tx)}
            if not query.counted:
                return CellsFound(seen=seen, cells=tuple(found.values()))
            hosts, instances = dict(await stored.HOSTS(tx)), dict(await stored.INSTANCES(tx))
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
            await stored.SAVE(tx, cell=cell.name, enabled=cell.enabled, note=cell.note, now=now)
            return CellEdited(cell=cell, number=await self._log.write_cells(tx, [cell]))

    async def _drop(self, edit: DropCell) -> CellResult:
        """Disable the cell first, so that nothing is placed there while its hosts are deleted."""
        async with self.database.read() as tx:
            names = {cell.name for cell in await stored.registered(tx)} | dict(await stored.HOSTS(tx)).keys()
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
            if not await stored.LOCK(tx, cell=edit.cell):  # another dropped it meanwhile
                return CellEdited(cell=gone)
            await stored.DROP(tx, cell=edit.cell)
            return CellEdited(cell=gone, number=await self._log.write_cells(tx, [gone]))

    async def _left_in(self, cell: str) -> tuple[list[str], int]:
        async with self.database.read() as tx:
            return await stored.roots(tx, cell), dict(await stored.INSTANCES(tx)).get(cell, 0)
