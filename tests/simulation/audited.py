"""`berth audit` for a cloud with in-memory databases."""

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from berth import wiring, worker_roles
from berth.operations.audit import audit
from berth.settings import Cell, Settings
from bus.clock import Clock
from bus.sql.database import Database


class _Lent:
    """A database that stays open when its reader is done."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def close(self) -> None:
        pass


async def audited(databases: Mapping[str, Database], cells: Sequence[str], clock: Clock) -> list[str]:
    def database(_: Settings, role: worker_roles.Role) -> _Lent:
        return _Lent(databases[f"cell_{role.cell}" if role.cell else role.worker])

    async def ever_made(*_: object) -> bool:
        return True

    settings = Settings(cells=tuple(Cell(name) for name in cells))
    with patch.object(wiring, "database", database), patch.object(wiring, "ever_made", ever_made):
        return (await audit(settings, settled=True, clock=clock)).breaches
