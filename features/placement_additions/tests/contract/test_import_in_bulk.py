"""An import writes providers in bulk into a berth with this feature."""

from functools import partial

from berth.importing.writers import ProviderWriter, write_in_bulk
from berth.kit import PlacementClient
from tests.support.http_placement import an_api
from tests.support.imports import check_repeated_imports

MEMORY = "sqlite+aiosqlite://"


def in_bulk(target: PlacementClient) -> ProviderWriter:
    return partial(write_in_bulk, target)


async def test_everything_is_imported_in_bulk_and_a_repeated_import_changes_nothing() -> None:
    async with an_api(MEMORY) as source, an_api(MEMORY) as target:
        await check_repeated_imports(source, target, in_bulk)
