"""Builds and makes bulk loads of providers."""

from typing import Any

from features.placement_additions.loading import BulkLoad
from features.placement_additions.messages import LoadProviders, LoadResult, ProviderLoad
from placement_worker.testing import Placement
from tests.support.placement_builders import a_provider


def a_load(number: int, parent: int | None = None, **given: Any) -> ProviderLoad:
    provider = a_provider(number, parent)
    known = {name: getattr(provider, name) for name in ("id", "name", "parent", "inventories")}
    return ProviderLoad(**(known | given))


async def load(placement: Placement, *loads: ProviderLoad) -> list[LoadResult]:
    return list((await placement.of(BulkLoad).load(LoadProviders(providers=loads))).results)
