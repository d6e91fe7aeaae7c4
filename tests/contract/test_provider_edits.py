"""Edits of providers: equal on both databases, and applied to the index of every process."""

import asyncio
import itertools
from typing import Any

import pytest

from bus.claims import Claimed, Moved, Refused
from bus.reports import Inventory
from bus.resources import (
    AddInventory,
    ChangeProvider,
    DropInventory,
    DropProvider,
    Edit,
    Edited,
    EditRequested,
    FindAllocations,
    FindProviders,
    MakeProvider,
    Provider,
    Reshape,
    SetAggregates,
    SetInventories,
    SetInventory,
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
    a_provider,
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


def roots(placement: Placement) -> dict[str, tuple[str, ...]]:
    """Return the providers of each root in the index."""
    found: dict[str, list[str]] = {}
    for row in placement.memory.index.rows.values():
        found.setdefault(row.root, []).append(row.uuid)
    return {root: tuple(sorted(members)) for root, members in found.items()}


# Creation, changes and deletion


async def test_a_provider_is_created_changed_and_deleted(placement: Placement) -> None:
    made = await edit(placement, MakeProvider(provider=A, name="one"))
    assert made == Edited(
        provider=Provider(id=A, name="one", parent=None, root=A, generation=0, updated=1_000_000.0), number=1
    )
    edits: list[tuple[Edit, int]] = [
        (SetInventories(provider=A, inventories=STOCK, generation=0), 1),
        (SetInventory(provider=A, resource_class="VCPU", inventory=Inventory(total=4), generation=1), 2),
        (AddInventory(provider=A, resource_class="DISK_GB", inventory=Inventory(total=9)), 3),
        (DropInventory(provider=A, resource_class="MEMORY_MB"), 4),
        (SetTraits(provider=A, traits=("HW_CPU_X86_AVX2", "COMPUTE_NODE"), generation=4), 5),
        (SetTraits(provider=A, traits=("COMPUTE_NODE", "HW_CPU_X86_AVX2"), generation=5), 5),
        (SetAggregates(provider=A, aggregates=(uid(2, "e"), uid(1, "e")), generation=5), 6),
        (ChangeProvider(provider=A, name="renamed"), 6),
    ]
    for one, generation in edits:
        view = await edited(placement, one)
        assert view is not None
        assert view.generation == generation
        assert view == await read(placement, A)
    view = await read(placement, A)
    assert view == Provider(
        id=A,
        name="renamed",
        parent=None,
        root=A,
        generation=6,
        inventories={"VCPU": Inventory(total=4), "DISK_GB": Inventory(total=9)},
        used={"VCPU": 0, "DISK_GB": 0},
        traits=("COMPUTE_NODE", "HW_CPU_X86_AVX2"),
        aggregates=view.aggregates if view else (),
        updated=1_000_000.0,
    )
    assert view is not None and set(view.aggregates) == {uid(1, "e"), uid(2, "e")}
    assert await edited(placement, DropProvider(provider=A)) is None
    assert await read(placement, A) is None
    assert placement.memory.index.rows == {}


async def test_an_edit_that_changes_nothing_has_no_number(placement: Placement) -> None:
    await make(placement, (A, None))
    seen = placement.memory.index.seen
    same: list[Edit] = [
        SetTraits(provider=A, traits=()),
        SetAggregates(provider=A, aggregates=()),
        ChangeProvider(provider=A, name="1"),
    ]
    for one in same:
        result = await edit(placement, one)
        assert isinstance(result, Edited)
        assert (result.number, result.provider) == (0, await read(placement, A))
    assert placement.memory.index.seen == seen


async def test_traits_of_a_host_in_another_cell_than_the_edit_names_stay(placement: Placement) -> None:
    await report(placement, a_report(1), a_report(2, cell="c2"))
    for root, result in ((A, Edited), (B, Missing)):
        assert isinstance(
            await edit(placement, SetTraits(provider=root, traits=("HW_CPU_X86_VMX",), cell="c1")), result
        )
    assert [(await read(placement, root)).traits for root in (A, B)] == [("HW_CPU_X86_VMX",), ()]  # type: ignore[union-attr]


async def test_claims_chosen_before_an_edit_are_refused_except_after_a_rename(placement: Placement) -> None:
    await make(placement, (A, None))

    async def take(consumer: int, shapes: dict[str, int]) -> object:
        order = an_order(a_claim(consumer, on_hosts(1)))
        choice = type(order.claims[0].choices[0])(on_hosts(1), shapes)
        return (await claim(placement, an_order(a_claim(consumer, choice))))[0]

    shapes = dict(placement.memory.index.rows[A].shapes)
    await edited(placement, ChangeProvider(provider=A, name="other"))
    assert isinstance(await take(1, shapes), Claimed)
    await edited(placement, SetTraits(provider=A, traits=("COMPUTE_NODE",)))
    assert await take(2, shapes) == Refused(refusals=(Moved(provider=A),))


# Trees


@pytest.mark.parametrize("parent", [C, None])
async def test_a_moved_subtree_keeps_its_allocations_in_all_processes(
    url: str, placement: Placement, parent: str | None
) -> None:
    await make(placement, (A, None), (B, A), (D, B), (C, None))
    await claim(placement, an_order(a_claim(1, on_hosts(4, VCPU=5))))
    async with a_placement(url) as other:
        await edited(placement, ChangeProvider(provider=B, name="2", parent=parent))
        await other.memory.fresh()
        expected = {A: (A,), C: (B, C, D)} if parent else {A: (A,), B: (B, D), C: (C,)}
        assert roots(placement) == roots(other) == expected
        assert seen_by(placement) == seen_by(other)
        assert placement.memory.index.rows[D].free["VCPU"] == 3
        in_tree = await other.lookups.providers(FindProviders(in_tree=D, parts=()))
        assert {provider.id for provider in in_tree.providers} == set(expected[parent or B])


async def test_owners_and_clients_change_the_same_tree(placement: Placement) -> None:
    await report(placement, a_report(1, a_provider(2, 1)))
    await make(placement, (C, B))
    await edited(placement, SetTraits(provider=A, traits=("COMPUTE_NODE",)))
    assert await report(placement, a_report(1, a_provider(2, 1), sequence=2)) == [""]
    assert roots(placement) == {A: (A, B, C)}  # a provider that a client created stays
    assert placement.memory.index.rows[A].traits == ("COMPUTE_NODE",)
    for provider in (C, B, A):
        await edited(placement, DropProvider(provider=provider))
    assert await report(placement, a_report(1, sequence=2)) == [""]  # late
    assert placement.memory.index.rows == {}
    assert await report(placement, a_report(1, sequence=3)) == [""]
    assert roots(placement) == {A: (A,)}


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
