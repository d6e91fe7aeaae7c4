"""Moves a database of a running berth to another PostgreSQL server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from berth import composition
from berth.settings import Settings
from bus.errors import OperationRefused
from bus.sql.database import Database
from bus.sql.migrations import migrate
from features.database_copy.live_copy import LiveCopy, live_copy


def schemas_in(settings: Settings, url: str) -> dict[str, tuple[str, ...]]:
    """Return the PostgreSQL schemas of the workers with a database at this URL, each with the packages
    whose tables are there.
    """
    stores = {composition.store_of(role): of_it for role, of_it in composition.stores(settings).items()}
    return {store: of_it for store, of_it in stores.items() if settings.database_for(store) == url}


@asynccontextmanager
async def copying(
    settings: Settings, new: str, *, cell: str, old_admin: str, new_admin: str
) -> AsyncIterator[LiveCopy]:
    """Connect to the database of the settings, or of a cell, and to the new database at the URL `new`; yield
    the object that copies from the first to the second.

    The administrators' URLs `old_admin` and `new_admin` default to the workers' URLs.
    """
    old = settings.cell(cell).database
    if not old.startswith("postgresql"):
        raise OperationRefused("database_url: only a PostgreSQL database can be copied")
    async with live_copy(old_admin or old, new_admin or new, list(schemas_in(settings, old))) as copy:
        yield copy


async def make_tables(settings: Settings, new: str, *, cell: str) -> None:
    """Create the workers' empty tables in the new database at the URL `new`."""
    for schema, packages in schemas_in(settings, settings.cell(cell).database).items():
        database = Database(new, namespace=schema)
        try:
            await migrate(database, *packages)
        finally:
            await database.close()
