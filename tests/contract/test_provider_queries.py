"""Queries for providers by capacity, traits, aggregates and tree: found in the index, and read by id."""

from collections.abc import Sequence
from random import Random
from typing import Any

from bus.reports import EXCLUDES_SIBLINGS, Inventory
from bus.requests import ResourceGroup
from bus.resources import Provider
from placement_worker import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_provider, a_report, an_order
from tests.support.placement_calls import claim, find_providers, make_providers, report, take
from tests.support.provider_trees import AGGREGATES, CLASSES, TRAITS, a_world, some

QUERIES = 40
STOCK = Inventory(total=4, max_unit=3)


def meets(provider: Provider, group: ResourceGroup, tree: set[str]) -> bool:
    """Return whether a provider satisfies a group; `tree` has the ids of the providers in its tree."""
    traits, aggregates = {*provider.traits}, {*provider.aggregates}
    return (
        all(_gives(provider, name, amount) for name, amount in group.resources.items())
        and traits.issuperset(group.required)
        and all(traits & {*names} for names in group.required_any)
        and traits.isdisjoint(group.forbidden)
        and all(aggregates & {*ids} for ids in group.member_of)
        and aggregates.isdisjoint(group.not_member_of)
        and (group.in_tree is None or group.in_tree in tree)
    )


def _gives(provider: Provider, name: str, amount: int) -> bool:
    stock = provider.inventories.get(name)
    if stock is None:
        return False
    capacity = (stock.total - stock.reserved) * stock.allocation_ratio
    fits = stock.min_unit <= amount <= stock.max_unit and amount % stock.step_size == 0
    return fits and provider.used.get(name, 0) + amount <= capacity


def a_group(chance: Random, providers: Sequence[str]) -> ResourceGroup:
    aggregates = (*AGGREGATES, uid(9, "e"))  # the last one does not exist
    sets = some(chance, TRAITS, 0.5), some(chance, aggregates, 0.5)
    return ResourceGroup(
        resources={name: chance.choice((1, 1, 2, 3)) for name in some(chance, CLASSES, 0.25)},
        required=some(chance, TRAITS, 0.1),
        required_any=sets[:1] if chance.random() < 0.3 else (),
        forbidden=some(chance, (*TRAITS, "CUSTOM_ABSENT"), 0.1),
        member_of=sets[1:] if chance.random() < 0.3 else (),
        not_member_of=some(chance, aggregates, 0.05),
        in_tree=chance.choice((*providers, uid(99, "a"))) if chance.random() < 0.2 else None,
    )


async def test_a_query_finds_the_providers_that_satisfy_every_requirement(placement: Placement) -> None:
    chance = Random(1)
    world = [provider for tree in a_world(chance, more=4) for provider in tree.providers]
    numbers = {provider.uuid: number for number, provider in enumerate(world)}
    await make_providers(placement, *(
        a_provider(
            number, None if provider.parent is None else numbers[provider.parent],
            inventories=provider.inventories, traits=provider.traits, aggregates=provider.aggregates,
        )
        for number, provider in enumerate(world)
    ))  # fmt: skip
    for number, provider in enumerate(world):
        for name in provider.inventories:
            await take(placement, a_claim(number, {provider.uuid: {name: chance.choice((1, 2, 3))}}))
    every = await find_providers(placement)
    assert any(provider.used.get(name) for provider in every for name in CLASSES)
    trees = {provider.root: {each.id for each in every if each.root == provider.root} for provider in every}
    fruitful = 0
    for _ in range(QUERIES):
        group = a_group(chance, [*numbers])
        expected = {provider.id for provider in every if meets(provider, group, trees[provider.root])}
        assert {provider.id for provider in await find_providers(placement, like=group)} == expected, group
        ids = chance.sample([*numbers], 5)
        behind = sorted(id_ for id_ in expected if id_ > ids[0])
        conditions: tuple[tuple[dict[str, Any], set[str]], ...] = (
            ({"ids": tuple(ids)}, {*ids}),
            ({"name": every[0].name}, {every[0].id}),
            ({"in_tree": every[-1].id}, trees[every[-1].root]),
            ({"after": ids[0], "limit": 2}, {*behind[:2]}),
        )
        for condition, among in conditions:
            providers = await find_providers(placement, like=group, **condition)
            assert {provider.id for provider in providers} == expected & among, (group, condition)
        fruitful += bool(expected)
    assert fruitful > QUERIES // 4


async def test_a_tree_limits_providers_that_are_named(placement: Placement) -> None:
    await report(placement, a_report(1, a_provider(2, 1)), a_report(3))
    for condition in ({"ids": (uid(2, "a"), uid(3, "a"))}, {"name": "host-2"}):
        for tree, found in ((1, [uid(2, "a")]), (3, [uid(3, "a")] if "ids" in condition else []), (4, [])):
            providers = await find_providers(placement, in_tree=uid(tree, "a"), **condition)
            assert [provider.id for provider in providers] == found


async def test_a_sibling_that_must_not_be_claimed_now_counts_as_free(placement: Placement) -> None:
    """A card that is of one of two types at a time: operators also find the type that is not in use."""
    types = [
        a_provider(number, 1, inventories={"VGPU": STOCK}, traits=(EXCLUDES_SIBLINGS,)) for number in (2, 3)
    ]
    await report(placement, a_report(1, *types))
    await claim(placement, an_order(a_claim(1, {uid(2, "a"): {"VGPU": 2}})))
    assert placement.memory.index.rows[uid(3, "a")].excluded
    for amount, found in ((2, [2, 3]), (3, [3]), (4, [])):
        providers = await find_providers(placement, like=ResourceGroup(resources={"VGPU": amount}))
        assert [provider.id for provider in providers] == [uid(number, "a") for number in found]


async def test_a_query_includes_what_another_process_has_committed(url: str, placement: Placement) -> None:
    await report(placement, a_report(1))
    async with a_placement(url) as other:
        await report(placement, a_report(2, traits=("HW_CPU_X86_VMX",)), a_report(1, sequence=2, traits=()))
        found = await find_providers(other, like=ResourceGroup(required=("HW_CPU_X86_VMX",)))
        assert [provider.id for provider in found] == [uid(2, "a")]
