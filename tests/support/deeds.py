"""Edits of a small placement, as values that another process may execute meanwhile.

HOST has a child CHILD; LONE has nothing; REPORTED is reported by an agent, WITHDRAWN no longer.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from bus.claims import Claimed, Released
from bus.names import DropName, MakeName, NameEdit, NameEdited, NameKind, RenameName
from bus.reports import Inventory
from bus.resources import (
    AddInventory,
    ChangeProvider,
    DropProvider,
    Edit,
    Edited,
    MakeProvider,
    SetAggregates,
    SetInventories,
    SetTraits,
)
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, an_order, on_hosts
from tests.support.placement_calls import claim, edit, edit_name

Deed = Callable[[Placement], Coroutine[Any, Any, object]]
HOST, CHILD, LONE, NEW, REPORTED, WITHDRAWN = (uid(number, "a") for number in (1, 2, 4, 5, 7, 9))
AGGREGATE, OTHER_AGGREGATE = uid(1, "e"), uid(2, "e")
STOCK = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=1024, allocation_ratio=1 / 3)}
MORE_STOCK = {"VCPU": Inventory(total=16, reserved=1), "MEMORY_MB": Inventory(total=2048, step_size=2)}
THREE = Inventory(total=3)


async def hold(placement: Placement, consumer: int, held: Any, generation: int | None = None) -> object:
    order = an_order(a_claim(consumer, held, generation=generation))
    return (await claim(placement, order))[0]


def claims(provider: int) -> Deed:
    async def disturb(other: Placement) -> None:
        assert isinstance(await hold(other, 9, on_hosts(provider)), Claimed)

    return disturb


async def gives_back(other: Placement) -> None:
    [answer] = await other.claims.release_many([a_release(1, 1)])
    assert isinstance(answer.result, Released)


def edits(*orders: Edit) -> Deed:
    async def disturb(other: Placement) -> None:
        for order in orders:
            assert isinstance(await edit(other, order), Edited)

    return disturb


def names(kind: NameKind, *orders: NameEdit) -> Deed:
    async def disturb(other: Placement) -> None:
        for order in orders:
            assert isinstance(await edit_name(other, kind, order), NameEdited)

    return disturb


def made(provider: str = NEW, name: str = "five", parent: str | None = None) -> MakeProvider:
    return MakeProvider(provider=provider, name=name, parent=parent)


def stocked(provider: str, generation: int | None = None) -> SetInventories:
    return SetInventories(provider=provider, inventories=MORE_STOCK, generation=generation)


def with_class(name: str = "CUSTOM_A") -> AddInventory:
    return AddInventory(provider=LONE, resource_class=name, inventory=THREE)


def with_traits(provider: str, generation: int | None = None) -> SetTraits:
    return SetTraits(provider=provider, traits=("COMPUTE_NODE", "CUSTOM_A"), generation=generation)


def with_aggregates(provider: str, generation: int | None = None) -> SetAggregates:
    return SetAggregates(provider=provider, aggregates=(AGGREGATE, OTHER_AGGREGATE), generation=generation)


LONE_DROPPED = edits(DropProvider(provider=LONE))
LONE_MADE_AGAIN = edits(DropProvider(provider=LONE), made(LONE, "four"))
LONE_UNDER_HOST = edits(ChangeProvider(provider=LONE, name="four", parent=HOST))
RENAME_A_TO_B = RenameName(name="CUSTOM_A", to="CUSTOM_B")
DROP_A = DropName(name="CUSTOM_A")
MAKE_A = MakeName(name="CUSTOM_A")
