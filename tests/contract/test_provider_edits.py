"""Edits of providers: equal on both databases, and applied to the index of every process."""

import asyncio
import itertools
from typing import Any

import pytest

from bus.reports import Inventory
from bus.resources import (
    Edit,
    Edited,
    EditRequested,
    FindAllocations,
    MakeProvider,
    Provider,
    Reshape,
    SetInventories,
    SetTraits,
)
from bus.sql.failures import Conflict
from bus.vocabulary import Contended, Missing
from placement_worker import Placement
from placement_worker.store import stored_trees
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_report,
    an_order,
    keeps_its_index,
    on_hosts,
    seen_by,
)
from tests.support.placement_calls import claim, edit, find_providers, report

A, B, C, D = (uid(number, "a") for number in (1, 2, 3, 4))
STOCK = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=1024, allocation_ratio=1 / 3)}


async def edited(placement: Placement, one: Edit) -> Provider | None:
    result = await edit(placement, one)
    assert isinstance(result, Edited), result
    return result.provider


async def make(placement: Placement, *pairs: tuple[str, str | None], stock: Any = STOCK) -> None:
    """Make providers, given with their parents, and set their inventories."""
    for uuid, parent in pairs:
        await edited(placement, MakeProvider(provider=uuid, name=uuid[-1], parent=parent))
        if stock:
            await edited(placement, SetInventories(provider=uuid, inventories=stock))


async def read(placement: Placement, uuid: str) -> Provider | None:
    found = await find_providers(placement, ids=(uuid,))
    return found[0] if found else None


async def test_traits_of_a_host_in_another_cell_than_the_edit_names_stay(placement: Placement) -> None:
    await report(placement, a_report(1), a_report(2, cell="c2"))
    for root, result in ((A, Edited), (B, Missing)):
        assert isinstance(
            await edit(placement, SetTraits(provider=root, traits=("HW_CPU_X86_VMX",), cell="c1")), result
        )
    assert [(await read(placement, root)).traits for root in (A, B)] == [("HW_CPU_X86_VMX",), ()]  # type: ignore[union-attr]


# Trees


@pytest.mark.services
async def test_a_tree_that_grows_while_it_is_being_locked_is_locked_whole(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_placement(database_url) as placement:
        await make(placement, (A, None))
        lock, calls = stored_trees.lock, itertools.count(1)

        async def lock_early(tx: Any, wanted: Any) -> set[int]:
            locked = await lock(tx, wanted)
            return locked - {max(locked)} if next(calls) == 1 else locked

        await make(placement, (B, A))
        monkeypatch.setattr(stored_trees, "lock", lock_early)
        await edited(placement, SetTraits(provider=A, traits=("COMPUTE_NODE",)))
        assert next(calls) == 3
        await keeps_its_index(placement)


# Reshapes


HALF = {"VCPU": Inventory(total=4)}
REST = {"MEMORY_MB": STOCK["MEMORY_MB"]}
BOTH = on_hosts(2, VCPU=4) | on_hosts(1, MEMORY_MB=10)


async def test_a_reshape_moves_inventory_and_allocations(url: str, placement: Placement) -> None:
    await make(placement, (A, None))
    await make(placement, (B, A), (C, A), stock=None)
    first = an_order(a_claim(1, on_hosts(1, VCPU=4, MEMORY_MB=10)))
    await claim(placement, first, an_order(a_claim(2, on_hosts(1, VCPU=3))))
    order = Reshape(
        inventories=(
            SetInventories(provider=A, inventories=REST, generation=3),
            SetInventories(provider=B, inventories=HALF, generation=0),
            SetInventories(provider=C, inventories=HALF, generation=0),
        ),
        claims=(a_claim(1, BOTH, generation=1), a_claim(2, on_hosts(3, VCPU=3), generation=1)),
    )
    async with a_placement(url) as other:
        result = await edit(placement, order)
        assert isinstance(result, Edited) and result.number == placement.memory.index.seen
        await other.memory.fresh()
        assert seen_by(other) == seen_by(placement)
    views = [await read(placement, one) for one in (A, B, C)]
    assert [view and (view.inventories, view.used, view.generation) for view in views] == [
        (REST, {"MEMORY_MB": 10}, 6),
        (HALF, {"VCPU": 4}, 3),
        (HALF, {"VCPU": 3}, 3),
    ]
    found = await placement.lookups.allocations(FindAllocations(consumers=(uid(1), uid(2))))
    assert [(consumer.allocations, consumer.generation) for consumer in found.consumers] == [
        (BOTH, 2),
        (on_hosts(3, VCPU=3), 2),
    ]
    assert found.generations == {A: 6, B: 3, C: 3}


# Concurrent edits


async def test_the_second_writer_of_a_name_is_refused(url: str, placement: Placement) -> None:
    """Two processes concurrently make providers with the same names."""
    async with a_placement(url) as other:
        for turn in range(5):
            names = [f"n-{turn}-{number}" for number in range(4)]
            both = [
                [
                    EditRequested(edit=MakeProvider(provider=uid(100 * turn + 10 * who + at, "a"), name=name))
                    for at, name in enumerate(names if who else reversed(names))
                ]
                for who in (0, 1)
            ]
            answers = await asyncio.gather(
                placement.providers.edit_many(both[0]), other.providers.edit_many(both[1])
            )
            kinds = [type(one.result) for answer in answers for one in answer]
            assert sorted(kind.__name__ for kind in kinds) == ["Edited"] * 4 + ["Taken"] * 4
        await placement.memory.fresh()
        await other.memory.fresh()
        assert seen_by(placement) == seen_by(other)


async def test_an_edit_that_always_loses_the_race_is_refused_as_contended(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = itertools.count()

    async def busy(*_: Any) -> None:
        next(tries)
        raise Conflict("busy")

    monkeypatch.setattr(stored_trees, "read_locked", busy)
    assert await edit(placement, SetTraits(provider=A, traits=())) == Contended()
    assert next(tries) == 8
