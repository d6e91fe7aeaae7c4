"""Concurrent writers in two processes leave consistent tables, and both indexes agree."""

import pytest

from placement_worker import Placement
from tests.support.random_writers import Writer, check_random_writes


@pytest.mark.threads
async def test_tables_and_indexes_agree_after_random_writes_of_two_processes(
    url: str, placement: Placement
) -> None:
    await check_random_writes(url, placement, Writer)
