"""Resource classes and traits are listed, made, renamed and dropped, with effect in all processes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import pytest

from bus.claims import Claimed
from bus.names import (
    DropName,
    FindNames,
    MakeName,
    NameEdit,
    NameEdited,
    NameEditRequested,
    NameKind,
    NameResult,
    RenameName,
)
from bus.reports import Inventory
from bus.resources import Edited, EditResult, SetInventories, SetTraits
from bus.sql.statement import Transaction
from bus.vocabulary import Missing
from placement_worker import Placement
from placement_worker.store import claims
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import edit, report


async def edit_name(placement: Placement, kind: NameKind, edit: NameEdit) -> NameResult:
    return (await placement.classes_and_traits.edit(NameEditRequested(kind=kind, edit=edit))).result


A = uid(1, "a")
KINDS: list[NameKind] = ["resource class", "trait"]


async def listed(placement: Placement, kind: NameKind, **query: Any) -> list[str]:
    return [
        name.name for name in (await placement.classes_and_traits.find(FindNames(kind=kind, **query))).names
    ]


async def has_host(placement: Placement, **given: Any) -> None:
    assert await report(placement, a_report(1, **given)) == [""]


async def set_inventories(placement: Placement, *names: str) -> EditResult:
    stock = {name: Inventory(total=4) for name in names}
    return await edit(placement, SetInventories(provider=A, inventories=stock))


async def set_traits(placement: Placement, *names: str) -> EditResult:
    return await edit(placement, SetTraits(provider=A, traits=names))


# Lists


async def test_names_are_listed_by_name_by_prefix_and_by_use(placement: Placement) -> None:
    await has_host(placement, traits=("COMPUTE_NODE", "CUSTOM_B"))
    for name in ("CUSTOM_C", "CUSTOM_A"):
        await edit_name(placement, "trait", MakeName(name=name))
    assert await listed(placement, "trait", prefix="CUSTOM_") == ["CUSTOM_B", "CUSTOM_C", "CUSTOM_A"]
    assert await listed(placement, "trait", associated=True) == ["COMPUTE_NODE", "CUSTOM_B"]
    assert await listed(placement, "trait", associated=False, prefix="CUSTOM_") == ["CUSTOM_C", "CUSTOM_A"]
    named = ("CUSTOM_A", "CUSTOM_NO", "COMPUTE_NODE", "CUSTOM_A")
    assert await listed(placement, "trait", names=named) == ["COMPUTE_NODE", "CUSTOM_A"]
    assert await listed(placement, "trait", names=named, associated=True) == ["COMPUTE_NODE"]
    assert await listed(placement, "trait", names=()) == []


# Creation


@pytest.mark.parametrize("kind", KINDS)
async def test_one_of_several_concurrent_creations_of_a_name_succeeds(
    url: str, placement: Placement, kind: NameKind
) -> None:
    async with a_placement(url) as other:
        made = await asyncio.gather(
            *(edit_name(one, kind, MakeName(name="CUSTOM_A")) for one in (placement, other) * 4)
        )
        assert sorted(isinstance(one, NameEdited) and one.made for one in made) == [False] * 7 + [True]
        assert (await listed(other, kind, prefix="CUSTOM_")) == ["CUSTOM_A"]


# Deletion


async def test_the_id_of_a_deleted_class_is_not_used_again(placement: Placement) -> None:
    numbers = []
    for name in ("CUSTOM_A", "CUSTOM_B", "CUSTOM_A"):
        await edit_name(placement, "resource class", MakeName(name=name))
        numbers.append(placement.book.classes.ids[name])
        await edit_name(placement, "resource class", DropName(name=name))
    assert len(set(numbers)) == 3


async def test_a_deleted_name_is_unknown_in_every_process(url: str, placement: Placement) -> None:
    await has_host(placement)
    async with a_placement(url) as other:
        kinds: list[tuple[NameKind, Callable[..., Awaitable[EditResult]]]] = [
            ("resource class", set_inventories),
            ("trait", set_traits),
        ]
        for kind, use in kinds:
            await edit_name(placement, kind, MakeName(name="CUSTOM_A"))
            assert isinstance(await use(other, "CUSTOM_A"), Edited)
            assert isinstance(await use(placement), Edited)
            await edit_name(placement, kind, DropName(name="CUSTOM_A"))
            for one in (placement, other):
                assert await use(one, "CUSTOM_A") == Missing(what=kind, names=("CUSTOM_A",))
            await edit_name(other, kind, MakeName(name="CUSTOM_A"))
            for one in (placement, other):
                assert isinstance(await use(one, "CUSTOM_A"), Edited)
        await placement.memory.fresh()


# Renaming


@pytest.mark.services
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
async def test_a_class_renamed_while_a_claim_reads_is_read_again(
    url: str, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    await has_host(placement, inventories={"VCPU": Inventory(total=4), "CUSTOM_OLD": Inventory(total=4)})
    first = an_order(a_claim(1, on_hosts(1, VCPU=1, CUSTOM_OLD=1)))
    [claimed] = (await placement.claims.claim_many([first]))[0].results
    assert isinstance(claimed, Claimed)
    lock_providers = claims._LOCK_PROVIDERS
    turns = 0

    async with a_placement(url) as other:

        async def renamed_meanwhile(tx: Transaction, wanted: Iterable[Sequence[str]]) -> Sequence[Any]:
            nonlocal turns
            turns += 1
            if turns == 1:
                await edit_name(other, "resource class", RenameName(name="CUSTOM_OLD", to="CUSTOM_NEW"))
                async with placement.database.read() as reading:
                    await placement.book.classes.read_all(reading)
            return await lock_providers(tx, wanted)

        monkeypatch.setattr(claims, "_LOCK_PROVIDERS", renamed_meanwhile)
        again = an_order(a_claim(1, on_hosts(1, VCPU=2), generation=claimed.generation))
        [more] = (await placement.claims.claim_many([again]))[0].results
    assert isinstance(more, Claimed) and turns > 1
    await placement.memory.fresh()
    assert placement.memory.index.rows[A].used == {"VCPU": 2, "CUSTOM_NEW": 0}
