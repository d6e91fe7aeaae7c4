"""On PostgreSQL an edit first runs without locks; its result equals that of an edit with locks.

Concurrent transactions are in test_undisturbed_races.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import text

from bus import names, not_done, resources
from bus.claims import Refused
from bus.not_done import Contended
from bus.replication import PlacementChanged
from bus.resources import EditRequested
from placement_worker import Placement
from tests.support import deeds, locked_and_calm
from tests.support.ids import uid
from tests.support.placement_builders import a_report, keeps_its_index, last_told, on_hosts
from tests.support.placement_calls import edit
from tests.support.waiting import until

pytestmark = pytest.mark.services


@asynccontextmanager
async def listening(placement: Placement, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    monkeypatch.setattr("placement_worker.relay.POLL_SECONDS", 1000.0)
    told: list[int] = []

    async def all_told() -> bool:
        return await last_told(placement) == placement.memory.index.seen

    async def publish(*messages: PlacementChanged) -> None:
        told.extend(message.number for message in messages)

    relay = asyncio.ensure_future(placement.log.relay.run(publish))
    try:
        await until(all_told)
        yield told
        await until(all_told)
        assert not relay.done()
    finally:
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)


UNLOCKED: dict[str, resources.Edit] = {
    "make a root": resources.MakeProvider(provider=deeds.NEW, name="five"),
    "make a root that was reported once": resources.MakeProvider(provider=deeds.WITHDRAWN, name="five"),
    "make a child": resources.MakeProvider(provider=deeds.NEW, name="five", parent=deeds.CHILD),
    "make a child in a reported tree": resources.MakeProvider(
        provider=deeds.NEW, name="five", parent=deeds.REPORTED
    ),
    "first inventories": resources.SetInventories(provider=deeds.LONE, inventories=deeds.STOCK, generation=0),
    "changed inventories": resources.SetInventories(
        provider=deeds.HOST, inventories=deeds.MORE_STOCK, generation=3
    ),
    "more inventories": resources.SetInventories(
        provider=deeds.HOST, inventories={**deeds.MORE_STOCK, "DISK_GB": deeds.THREE, "CUSTOM_A": deeds.THREE}
    ),
    "the same inventories": resources.SetInventories(provider=deeds.HOST, inventories=deeds.STOCK),
    "no inventories again": resources.SetInventories(provider=deeds.LONE, inventories={}),
    "one inventory more": resources.AddInventory(
        provider=deeds.CHILD, resource_class="CUSTOM_A", inventory=deeds.THREE
    ),
    "the first inventory": resources.AddInventory(
        provider=deeds.LONE, resource_class="CUSTOM_A", inventory=deeds.THREE
    ),
    "one inventory changed": resources.SetInventory(
        provider=deeds.CHILD, resource_class="VCPU", inventory=deeds.THREE, generation=2
    ),
    "first traits": resources.SetTraits(
        provider=deeds.CHILD, traits=("HW_CPU_X86_AVX2", "CUSTOM_A"), generation=2
    ),
    "more traits": resources.SetTraits(
        provider=deeds.HOST, traits=("CUSTOM_A", "COMPUTE_NODE", "HW_CPU_X86_AVX2")
    ),
    "traits in a reported tree": resources.SetTraits(
        provider=deeds.REPORTED, traits=("COMPUTE_NODE", "CUSTOM_A")
    ),
    "first aggregates": resources.SetAggregates(
        provider=deeds.LONE, aggregates=(deeds.OTHER_AGGREGATE, deeds.AGGREGATE)
    ),
    "an aggregate nobody knew": resources.SetAggregates(
        provider=deeds.LONE, aggregates=(uid(9, "e"),), generation=0
    ),
    "more aggregates": resources.SetAggregates(
        provider=deeds.HOST, aggregates=(deeds.OTHER_AGGREGATE, deeds.AGGREGATE), generation=3
    ),
    "the same aggregates, but one more generation": resources.SetAggregates(
        provider=deeds.HOST, aggregates=(deeds.AGGREGATE,), generation=3
    ),
}
LOCKED: dict[str, resources.Edit] = {
    "a provider dropped": resources.DropProvider(provider=deeds.LONE),
    "a root moved under another": resources.ChangeProvider(
        provider=deeds.LONE, name="four", parent=deeds.CHILD
    ),
    "a tree moved under another": resources.ChangeProvider(
        provider=deeds.HOST, name="one", parent=deeds.LONE
    ),
    "a child made a root": resources.ChangeProvider(provider=deeds.CHILD, name="two", parent=None),
    "a provider renamed": resources.ChangeProvider(provider=deeds.HOST, name="new"),
    "an inventory dropped": resources.DropInventory(provider=deeds.HOST, resource_class="MEMORY_MB"),
    "other inventories": resources.SetInventories(
        provider=deeds.HOST, inventories={"VCPU": deeds.THREE, "DISK_GB": deeds.THREE}, generation=3
    ),
    "a trait gone": resources.SetTraits(provider=deeds.HOST, traits=(), generation=3),
    "another trait": resources.SetTraits(provider=deeds.HOST, traits=("CUSTOM_A",)),
    "an aggregate gone": resources.SetAggregates(provider=deeds.HOST, aggregates=()),
    "another aggregate": resources.SetAggregates(
        provider=deeds.HOST, aggregates=(deeds.OTHER_AGGREGATE,), generation=3
    ),
}
NOTHING: list[tuple[resources.Edit, type[resources.EditResult]]] = [
    (resources.SetTraits(provider=deeds.HOST, traits=("COMPUTE_NODE",), generation=3), resources.Edited),
    (resources.SetAggregates(provider=deeds.HOST, aggregates=(deeds.AGGREGATE,)), resources.Edited),
    (resources.ChangeProvider(provider=deeds.HOST, name="one"), resources.Edited),
    (resources.MakeProvider(provider=deeds.HOST, name="new"), not_done.Taken),
    (resources.MakeProvider(provider=deeds.NEW, name="two"), not_done.Taken),
    (resources.MakeProvider(provider=deeds.NEW, name="new", parent=uid(99, "a")), not_done.Missing),
    (resources.MakeProvider(provider=deeds.NEW, name="new", parent=deeds.NEW), resources.Tangled),
    (resources.ChangeProvider(provider=deeds.HOST, name="two"), not_done.Taken),
    (resources.ChangeProvider(provider=deeds.HOST, name="one", parent=deeds.CHILD), resources.Tangled),
    (resources.SetInventories(provider=deeds.NEW, inventories=deeds.STOCK), not_done.Missing),
    (
        resources.SetInventories(provider=deeds.HOST, inventories={"CUSTOM_NO": deeds.THREE}),
        not_done.Missing,
    ),
    (resources.SetInventories(provider=deeds.HOST, inventories=deeds.STOCK, generation=2), resources.Stale),
    (resources.SetInventories(provider=deeds.HOST, inventories={}), not_done.InUse),
    (
        resources.AddInventory(provider=deeds.HOST, resource_class="VCPU", inventory=deeds.THREE),
        not_done.Taken,
    ),
    (
        resources.SetInventory(provider=deeds.HOST, resource_class="DISK_GB", inventory=deeds.THREE),
        not_done.Missing,
    ),
    (resources.SetTraits(provider=deeds.HOST, traits=("CUSTOM_NO",)), not_done.Missing),
    (resources.SetTraits(provider=deeds.HOST, traits=(), generation=2), resources.Stale),
    (resources.SetAggregates(provider=deeds.HOST, aggregates=(), generation=4), resources.Stale),
    (resources.DropProvider(provider=deeds.HOST), resources.HasChildren),
    (resources.DropProvider(provider=deeds.CHILD), not_done.InUse),
]


@pytest.mark.parametrize("one", UNLOCKED.values(), ids=UNLOCKED.keys())
async def test_what_goes_unlocked_leaves_what_goes_locked(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    monkeypatch: pytest.MonkeyPatch,
    one: resources.Edit,
) -> None:
    expected = await edit(both.locked.mine, one)
    tries.forget()
    last = both.calm.mine.memory.index.seen
    async with listening(both.calm.mine, monkeypatch) as told:
        answer = await edit(both.calm.mine, one)
        assert (tries.numbers, tries.locks) == ([last + 1], 0)
        assert isinstance(answer, resources.Edited) and answer == expected and answer.number == last + 1
        assert both.calm.mine.memory.index.seen == last + 1
        await keeps_its_index(both.calm.mine)
    assert told == list(range(1, last + 2))
    await both.agree()


@pytest.mark.parametrize("one", LOCKED.values(), ids=LOCKED.keys())
async def test_what_takes_more_than_one_statement_goes_locked(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, one: resources.Edit
) -> None:
    expected = await edit(both.locked.mine, one)
    tries.forget()
    assert await edit(both.calm.mine, one) == expected
    assert isinstance(expected, resources.Edited)
    assert (tries.numbers, tries.locks) == ([], 1)
    await both.agree()


async def test_what_changes_nothing_locks_nothing(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries
) -> None:
    before = await locked_and_calm.stored(both.calm.mine)
    for one, kind in NOTHING:
        expected = await edit(both.locked.mine, one)
        tries.forget()
        answer = await edit(both.calm.mine, one)
        assert type(answer) is kind and answer == expected, one
        assert (tries.numbers, tries.locks) == ([], 0), one
    assert await locked_and_calm.stored(both.calm.mine) == before
    await both.agree()


async def test_edits_that_come_together_lock(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries
) -> None:
    orders = [EditRequested(edit=UNLOCKED[one]) for one in ("make a root", "more traits")]
    expected = await both.locked.mine.providers.edit_many(orders)
    tries.forget()
    assert await both.calm.mine.providers.edit_many(orders) == expected
    assert (tries.numbers, tries.locks) == ([], 1)
    await both.agree()


async def test_one_after_the_other_they_go_unlocked(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries
) -> None:
    """Each knows what the one before it did."""
    orders: list[resources.Edit] = [
        resources.MakeProvider(provider=deeds.NEW, name="five"),
        resources.MakeProvider(provider=uid(6, "a"), name="six", parent=deeds.NEW),
        resources.SetInventories(provider=deeds.NEW, inventories=deeds.STOCK, generation=0),
        resources.SetInventories(provider=deeds.NEW, inventories=deeds.MORE_STOCK, generation=1),
        resources.SetTraits(provider=deeds.NEW, traits=("CUSTOM_A",), generation=2),
        resources.SetAggregates(provider=deeds.NEW, aggregates=(deeds.AGGREGATE,), generation=3),
        resources.AddInventory(provider=deeds.NEW, resource_class="CUSTOM_A", inventory=deeds.THREE),
    ]
    expected = [await edit(both.locked.mine, order) for order in orders]
    last = both.calm.mine.memory.index.seen
    assert [await edit(both.calm.mine, order) for order in orders] == expected
    assert tries.numbers == list(range(last + 1, last + 1 + len(orders)))
    await both.agree()


async def test_after_one_was_disturbed_they_lock_for_a_while(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = both.calm
    now = 1000.0
    monkeypatch.setattr("placement_worker.providers.monotonic", lambda: now)
    stock = resources.SetInventories(provider=deeds.LONE, inventories=deeds.STOCK)
    tries.between = lambda: deeds.hold(calm.other, 9, on_hosts(7))
    for later, expected in ((0.0, [None]), (0.09, []), (0.02, ["some"]), (0.0, ["some"])):
        now += later
        tries.forget()
        assert isinstance(await edit(calm.mine, stock), resources.Edited)
        assert [number and "some" for number in tries.numbers] == expected
    await calm.level()


async def uses_and_renames(other: Placement) -> None:
    await deeds.edits(
        resources.AddInventory(provider=deeds.LONE, resource_class="CUSTOM_A", inventory=deeds.THREE)
    )(other)
    await deeds.names("resource class", names.RenameName(name="CUSTOM_A", to="CUSTOM_B"))(other)


async def reports(other: Placement) -> None:
    assert await other.reports.report_many([a_report(7, sequence=2)]) == [None]


async def takes_the_name_without_a_number(other: Placement) -> None:
    async with other.database.write() as tx:
        await tx.execute(
            text(
                "INSERT INTO resource_providers (id, uuid, name, generation, shape, root_provider_id,"
                " created_at, updated_at) VALUES (99999, :uuid, 'five', 0, 0, 99999, 0, 0)"
            ),
            {"uuid": uid(6, "a")},
        )


@dataclass(frozen=True)
class Between:
    deed: deeds.Deed
    edit: resources.Edit
    answer: type[resources.EditResult]


DISTURBED = {
    "a claim on it": Between(deeds.claims(1), deeds.stocked(deeds.HOST), resources.Edited),
    "a claim on it, and inventories of a generation": Between(
        deeds.claims(1), deeds.stocked(deeds.HOST, 3), resources.Stale
    ),
    "a claim on it, and traits": Between(deeds.claims(1), deeds.with_traits(deeds.HOST), resources.Edited),
    "a claim on it, and traits of a generation": Between(
        deeds.claims(1), deeds.with_traits(deeds.HOST, 3), resources.Stale
    ),
    "a claim on it, and aggregates": Between(
        deeds.claims(1), deeds.with_aggregates(deeds.HOST), resources.Edited
    ),
    "a claim on it, and aggregates of a generation": Between(
        deeds.claims(1), deeds.with_aggregates(deeds.HOST, 3), resources.Stale
    ),
    "a claim on its child": Between(deeds.claims(2), deeds.with_traits(deeds.HOST), resources.Edited),
    "a claim on its parent": Between(deeds.claims(1), deeds.made(parent=deeds.HOST), resources.Edited),
    "a release of a claim on it": Between(deeds.gives_back, deeds.stocked(deeds.HOST), resources.Edited),
    "a release, and traits": Between(deeds.gives_back, deeds.with_traits(deeds.HOST, 3), resources.Edited),
    "other inventories": Between(
        deeds.edits(resources.SetInventories(provider=deeds.LONE, inventories=deeds.STOCK)),
        deeds.stocked(deeds.LONE),
        resources.Edited,
    ),
    "other inventories, of a generation": Between(
        deeds.edits(resources.SetInventories(provider=deeds.LONE, inventories=deeds.STOCK)),
        deeds.stocked(deeds.LONE, 0),
        resources.Stale,
    ),
    "an inventory of that class": Between(
        deeds.edits(deeds.with_class()), deeds.with_class(), not_done.Taken
    ),
    "the same traits": Between(
        deeds.edits(deeds.with_traits(deeds.LONE)), deeds.with_traits(deeds.LONE), resources.Edited
    ),
    "the same aggregates": Between(
        deeds.edits(deeds.with_aggregates(deeds.LONE)), deeds.with_aggregates(deeds.LONE), resources.Edited
    ),
    "a new report of its tree": Between(reports, deeds.with_traits(deeds.REPORTED), resources.Edited),
    "a provider of its name": Between(deeds.edits(deeds.made(uid(6, "a"))), deeds.made(), not_done.Taken),
    "a child of its name": Between(
        deeds.edits(deeds.made(uid(6, "a"), parent=deeds.CHILD)),
        deeds.made(parent=deeds.HOST),
        not_done.Taken,
    ),
    "a provider of its id": Between(deeds.edits(deeds.made(name="six")), deeds.made(), not_done.Taken),
    "a name given to another": Between(
        deeds.edits(resources.ChangeProvider(provider=deeds.LONE, name="five")), deeds.made(), not_done.Taken
    ),
    "its parent dropped": Between(deeds.LONE_DROPPED, deeds.made(parent=deeds.LONE), not_done.Missing),
    "its parent dropped and made again": Between(
        deeds.LONE_MADE_AGAIN, deeds.made(parent=deeds.LONE), resources.Edited
    ),
    "its parent moved": Between(deeds.LONE_UNDER_HOST, deeds.made(parent=deeds.LONE), resources.Edited),
    "its parent moved away": Between(
        deeds.edits(resources.ChangeProvider(provider=deeds.CHILD, name="two", parent=deeds.LONE)),
        deeds.made(parent=deeds.CHILD),
        resources.Edited,
    ),
    "dropped, and inventories": Between(deeds.LONE_DROPPED, deeds.stocked(deeds.LONE), not_done.Missing),
    "dropped, and traits": Between(deeds.LONE_DROPPED, deeds.with_traits(deeds.LONE), not_done.Missing),
    "dropped, and aggregates": Between(
        deeds.LONE_DROPPED, deeds.with_aggregates(deeds.LONE), not_done.Missing
    ),
    "dropped and made again": Between(deeds.LONE_MADE_AGAIN, deeds.stocked(deeds.LONE, 0), resources.Edited),
    "moved": Between(deeds.LONE_UNDER_HOST, deeds.with_traits(deeds.LONE), resources.Edited),
    "a child more": Between(
        deeds.edits(deeds.made(parent=deeds.LONE)), deeds.stocked(deeds.LONE), resources.Edited
    ),
    "renamed": Between(
        deeds.edits(resources.ChangeProvider(provider=deeds.LONE, name="new")),
        deeds.stocked(deeds.LONE),
        resources.Edited,
    ),
    "the class renamed that nobody has": Between(
        deeds.names("resource class", deeds.RENAME_A_TO_B), deeds.with_class(), not_done.Missing
    ),
    "the class renamed there and back": Between(
        deeds.names("resource class", deeds.RENAME_A_TO_B, names.RenameName(name="CUSTOM_B", to="CUSTOM_A")),
        deeds.with_class(),
        resources.Edited,
    ),
    "another takes over the name of the class": Between(
        deeds.names(
            "resource class", deeds.RENAME_A_TO_B, names.RenameName(name="CUSTOM_IDLE", to="CUSTOM_A")
        ),
        deeds.with_class(),
        resources.Edited,
    ),
    "the class dropped": Between(
        deeds.names("resource class", deeds.DROP_A), deeds.with_class(), not_done.Missing
    ),
    "the class dropped and made again": Between(
        deeds.names("resource class", deeds.DROP_A, deeds.MAKE_A), deeds.with_class(), resources.Edited
    ),
    "a class of it renamed": Between(uses_and_renames, deeds.with_traits(deeds.LONE), resources.Edited),
    "another class dropped": Between(
        deeds.names("resource class", names.DropName(name="CUSTOM_IDLE")),
        deeds.with_class(),
        resources.Edited,
    ),
    "the trait dropped": Between(
        deeds.names("trait", names.DropName(name="CUSTOM_IDLE")),
        resources.SetTraits(provider=deeds.LONE, traits=("CUSTOM_IDLE",)),
        not_done.Missing,
    ),
    "the trait dropped and made again": Between(
        deeds.names("trait", names.DropName(name="CUSTOM_IDLE"), names.MakeName(name="CUSTOM_IDLE")),
        resources.SetTraits(provider=deeds.LONE, traits=("CUSTOM_IDLE",)),
        resources.Edited,
    ),
    "a claim on a stranger": Between(deeds.claims(7), deeds.stocked(deeds.LONE, 0), resources.Edited),
    "a claim on a stranger, and a root": Between(deeds.claims(7), deeds.made(), resources.Edited),
    "traits of a stranger": Between(
        deeds.edits(deeds.with_traits(deeds.CHILD)), deeds.with_aggregates(deeds.LONE), resources.Edited
    ),
}


async def is_refused(other: Placement) -> None:
    assert isinstance(await deeds.hold(other, 9, on_hosts(1, VCPU=99)), Refused)


async def repeats_itself(other: Placement) -> None:
    assert (
        await edit(other, resources.SetTraits(provider=deeds.HOST, traits=("COMPUTE_NODE",))) != Contended()
    )


async def makes_an_aggregate(other: Placement) -> None:
    await other.book.aggregates.ensure(other.database, [uid(9, "e")], 0.0)


AT_PEACE = {
    "a claim that is refused": Between(is_refused, deeds.stocked(deeds.HOST), resources.Edited),
    "an edit that changes nothing": Between(repeats_itself, deeds.with_traits(deeds.HOST), resources.Edited),
    "a class made": Between(
        deeds.names("resource class", names.MakeName(name="CUSTOM_NEW")),
        deeds.with_class(),
        resources.Edited,
    ),
    "an aggregate made": Between(makes_an_aggregate, deeds.with_aggregates(deeds.LONE), resources.Edited),
}


@pytest.mark.parametrize("case", DISTURBED.values(), ids=DISTURBED.keys())
async def test_whatever_comes_between_nothing_is_half_done(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, once: None, case: Between
) -> None:
    await as_under_locks(both, case, tries, "between")
    assert tries.numbers == [None]


BETWEEN_READS = {
    "its parent moved": Between(deeds.LONE_UNDER_HOST, deeds.made(parent=deeds.LONE), resources.Edited),
    "its parent dropped": Between(deeds.LONE_DROPPED, deeds.made(parent=deeds.LONE), not_done.Missing),
    "its parent dropped and made again": Between(
        deeds.LONE_MADE_AGAIN, deeds.made(parent=deeds.LONE), resources.Edited
    ),
    "a claim on its parent": Between(deeds.claims(1), deeds.made(parent=deeds.HOST), resources.Edited),
}
BEFORE_READS = {
    "a provider of its name": Between(
        deeds.edits(deeds.made(uid(6, "a"))), deeds.made(parent=deeds.HOST), not_done.Taken
    ),
    "a provider of its id": Between(
        deeds.edits(deeds.made(name="six")), deeds.made(parent=deeds.HOST), not_done.Taken
    ),
    "a class renamed that nobody has": Between(
        deeds.names("resource class", deeds.RENAME_A_TO_B), deeds.made(parent=deeds.HOST), resources.Edited
    ),
    "a claim on a stranger, and a root": Between(deeds.claims(7), deeds.made(), resources.Edited),
}


@pytest.mark.parametrize("case", BETWEEN_READS.values(), ids=BETWEEN_READS.keys())
async def test_what_comes_between_its_two_reads_disturbs(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, once: None, case: Between
) -> None:
    await as_under_locks(both, case, tries, "between_reads")
    assert tries.numbers == [None]


@pytest.mark.parametrize("case", BEFORE_READS.values(), ids=BEFORE_READS.keys())
async def test_what_its_second_read_sees_in_time_does_not_disturb(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, once: None, case: Between
) -> None:
    await as_under_locks(both, case, tries, "between_reads")
    assert tries.numbers == ([both.calm.mine.memory.index.seen] if case.answer is resources.Edited else [])


async def as_under_locks(
    both: locked_and_calm.LockedAndCalm, case: Between, tries: locked_and_calm.Tries, when: str
) -> None:
    await case.deed(both.locked.other)
    expected = await edit(both.locked.mine, case.edit)
    setattr(tries, when, lambda: case.deed(both.calm.other))
    answer = await edit(both.calm.mine, case.edit)
    assert (answer, type(answer)) == (expected, case.answer)
    await both.agree()


async def test_a_name_that_somebody_took_without_a_number_is_taken(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, once: None
) -> None:
    await takes_the_name_without_a_number(both.locked.other)
    expected = await edit(both.locked.mine, deeds.made())
    tries.between = lambda: takes_the_name_without_a_number(both.calm.other)
    assert await edit(both.calm.mine, deeds.made()) == expected == not_done.Taken(what="name", value="five")
    assert tries.numbers == [None]
    assert await locked_and_calm.stored(both.calm.mine) == await locked_and_calm.stored(both.locked.mine)


@pytest.mark.parametrize("case", AT_PEACE.values(), ids=AT_PEACE.keys())
async def test_what_is_no_matter_does_not_disturb(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, once: None, case: Between
) -> None:
    await as_under_locks(both, case, tries, "between")
    assert tries.numbers == [both.calm.mine.memory.index.seen]
