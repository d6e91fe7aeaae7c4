"""Loading many providers: each tree completely or not at all."""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from features.placement_additions import loading
from features.placement_additions.loading import BulkLoad
from features.placement_additions.messages import LoadProviders, LoadResult, ProviderLoad
from features.placement_additions.tests.support.loads import a_load, load
from placement_worker.extension import find_trees
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    an_order,
    keeps_its_index,
    on_hosts,
    seen_by,
)
from tests.support.random_writers import HOSTS, TRAITS, Writer, check_random_writes


def outcomes(results: list[LoadResult]) -> list[str | tuple[str, int]]:
    return [result.why or (result.did, result.generation) for result in results]


async def test_stored_trees_decide_which_loads_are_one_transaction(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads for one stored tree are one transaction, even if they exceed the limit of a transaction."""
    monkeypatch.setattr(loading, "PROVIDERS_A_TRANSACTION", 2)
    await load(placement, a_load(1), a_load(2, 1), a_load(3, 1), a_load(9))
    await placement.claims.claim_many([an_order(a_claim(1, on_hosts(3)))])
    loads = [a_load(2, 1, traits=("COMPUTE_NODE",)), *(a_load(n) for n in range(10, 15))]
    why = "providers[6].inventories: VCPU is in use and cannot be left out"
    results = outcomes(await load(placement, *loads, a_load(3, 1, inventories={})))
    assert results == [why, *[("made", 1)] * 5, why]


async def test_trees_are_rearranged_in_one_load(url: str, placement: Placement) -> None:
    await load(placement, a_load(1), a_load(2, 1), a_load(3, 2), a_load(4))
    async with a_placement(url) as other:
        # 2 becomes the root of 1, with 1's name; 3 leaves for 4
        await load(other, a_load(2, name="host-1"), a_load(1, 2, name="host-2"), a_load(3, 4))
        await placement.memory.fresh()
        await keeps_its_index(placement)
        assert seen_by(placement) == seen_by(other)
    tops = {row.uuid: (row.parent, row.root) for row in placement.memory.index.rows.values()}
    one, two, three, four = (uid(number, "a") for number in (1, 2, 3, 4))
    assert tops == {two: (None, two), one: (two, two), four: (None, four), three: (four, four)}


async def test_a_provider_deleted_during_a_load_is_read_again(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await load(placement, a_load(1), a_load(2))
    look, calls = find_trees, itertools.count(1)

    async def look_early(*given: Any) -> Any:
        """At the first call, return provider 3 too, as if it was deleted just afterwards."""
        found = await look(*given)
        if next(calls) == 1:
            found.ids.add(uid(3, "a"))
        return found

    monkeypatch.setattr(loading, "find_trees", look_early)
    results = await load(placement, a_load(1, traits=("COMPUTE_NODE",)), a_load(3))
    assert outcomes(results) == [("changed", 2), ("made", 1)]
    assert next(calls) == 3


class LoadingWriter(Writer):
    """A writer that also loads random providers."""

    def operations(self) -> list[Callable[[], Awaitable[str]]]:
        return [*super().operations(), self.load, self.load]

    async def load(self) -> str:
        views = [provider for provider in (await self.look(), await self.look()) if provider is not None]
        loads = {
            view.id: ProviderLoad(
                id=view.id,
                name=f"name-{self.chance.randrange(HOSTS)}" if self.chance.random() < 0.3 else view.name,
                parent=view.parent if self.chance.random() < 0.7 else None,
                inventories=self.stock({name: amount for name, amount in view.used.items() if amount}),
                traits=tuple(self.chance.sample(TRAITS, self.chance.randrange(3))),
                generation=view.generation,
            )
            for view in views
        }
        new = uid(HOSTS + self.chance.randrange(4), "a")
        parent = self.chance.choice([None, *loads])
        loads[new] = ProviderLoad(id=new, name=new, parent=parent, inventories={})
        order = LoadProviders(providers=tuple(loads.values()))
        results = (await self.placement.of(BulkLoad).load(order)).results
        return ", ".join(result.did for result in results)


@pytest.mark.threads
async def test_tables_and_indexes_agree_after_random_loads_and_other_writes(
    url: str, placement: Placement
) -> None:
    await check_random_writes(url, placement, LoadingWriter, ("load: changed", "load: refused"))
