"""An import writes providers in bulk into a berth with this feature."""

from tests.support.http_placement import an_api
from tests.support.imports import check_repeated_imports, in_bulk

MEMORY = "sqlite+aiosqlite://"


async def test_everything_is_imported_in_bulk_and_a_repeated_import_changes_nothing() -> None:
    async with an_api(MEMORY) as source, an_api(MEMORY) as target:
        await check_repeated_imports(source, target, in_bulk)
