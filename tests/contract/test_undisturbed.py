"""On PostgreSQL an edit is first tried without locks: whatever comes between, it ends as those that lock.

While others are in the middle of something: test_undisturbed_races.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import text

from bus.messages import EditRequested, PlacementChanged
from bus.resources import (
    AddInventory,
    ChangeProvider,
    DropInventory,
    DropName,
    DropProvider,
    Edit,
    Edited,
    EditResult,
    HasChildren,
    InUse,
    MakeName,
    MakeProvider,
    Missing,
    RenameName,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
    Stale,
    Taken,
    Tangled,
)
from bus.vocabulary import Contended, Refused
from placement_worker import Placement
from tests.builders import a_report, keeps_its_index, last_told, on_hosts, uid
from tests.two_worlds import (
    AGAIN,
    DROPS,
    E1,
    E2,
    GONE,
    MAKES,
    MORE,
    OURS,
    RENAMES,
    STOCK,
    UNDER_A,
    A,
    B,
    D,
    Deed,
    E,
    G,
    LockedAndCalm,
    R,
    Tries,
    books,
    claim,
    claims,
    edit,
    edits,
    gives_back,
    made,
    names,
    stocked,
    until,
    with_aggregates,
    with_class,
    with_traits,
)

pytestmark = pytest.mark.services


@asynccontextmanager
async def listening(placement: Placement, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[int]]:
    """The numbers its relay tells: all that it knows of. One that is not woken tells nothing."""
    monkeypatch.setattr("placement_worker.relay.POLL_SECONDS", 1000.0)
    told: list[int] = []

    async def all_told() -> bool:
        return await last_told(placement) == placement.memory.index.seen

    async def publish(*messages: PlacementChanged) -> None:
        told.extend(message.number for message in messages)

    relay = asyncio.ensure_future(placement.relay.run(publish))
    try:
        await until(all_told)
        yield told
        await until(all_told)
        assert not relay.done()
    finally:
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)


# Edits that go unlocked, those that need more, and those that need nothing

UNLOCKED: dict[str, Edit] = {
    "make a root": MakeProvider(provider=E, name="five"),
    "make a root that was reported once": MakeProvider(provider=G, name="five"),
    "make a child": MakeProvider(provider=E, name="five", parent=B),
    "make a child in a reported tree": MakeProvider(provider=E, name="five", parent=R),
    "first inventories": SetInventories(provider=D, inventories=STOCK, generation=0),
    "changed inventories": SetInventories(provider=A, inventories=MORE, generation=3),
    "more inventories": SetInventories(provider=A, inventories={**MORE, "DISK_GB": OURS, "CUSTOM_A": OURS}),
    "the same inventories": SetInventories(provider=A, inventories=STOCK),
    "no inventories again": SetInventories(provider=D, inventories={}),
    "one inventory more": AddInventory(provider=B, resource_class="CUSTOM_A", inventory=OURS),
    "the first inventory": AddInventory(provider=D, resource_class="CUSTOM_A", inventory=OURS),
    "one inventory changed": SetInventory(provider=B, resource_class="VCPU", inventory=OURS, generation=2),
    "first traits": SetTraits(provider=B, traits=("HW_CPU_X86_AVX2", "CUSTOM_A"), generation=2),
    "more traits": SetTraits(provider=A, traits=("CUSTOM_A", "COMPUTE_NODE", "HW_CPU_X86_AVX2")),
    "traits in a reported tree": SetTraits(provider=R, traits=("COMPUTE_NODE", "CUSTOM_A")),
    "first aggregates": SetAggregates(provider=D, aggregates=(E2, E1)),
    "an aggregate nobody knew": SetAggregates(provider=D, aggregates=(uid(9, "e"),), generation=0),
    "more aggregates": SetAggregates(provider=A, aggregates=(E2, E1), generation=3),
    "the same aggregates, but one more generation": SetAggregates(provider=A, aggregates=(E1,), generation=3),
}
LOCKED: dict[str, Edit] = {
    "a provider dropped": DropProvider(provider=D),
    "a root moved under another": ChangeProvider(provider=D, name="four", parent=B),
    "a tree moved under another": ChangeProvider(provider=A, name="one", parent=D),
    "a child made a root": ChangeProvider(provider=B, name="two", parent=None),
    "a provider renamed": ChangeProvider(provider=A, name="new"),
    "an inventory dropped": DropInventory(provider=A, resource_class="MEMORY_MB"),
    "other inventories": SetInventories(
        provider=A, inventories={"VCPU": OURS, "DISK_GB": OURS}, generation=3
    ),
    "a trait gone": SetTraits(provider=A, traits=(), generation=3),
    "another trait": SetTraits(provider=A, traits=("CUSTOM_A",)),
    "an aggregate gone": SetAggregates(provider=A, aggregates=()),
    "another aggregate": SetAggregates(provider=A, aggregates=(E2,), generation=3),
}
NOTHING: list[tuple[Edit, type[EditResult]]] = [
    (SetTraits(provider=A, traits=("COMPUTE_NODE",), generation=3), Edited),
    (SetAggregates(provider=A, aggregates=(E1,)), Edited),
    (ChangeProvider(provider=A, name="one"), Edited),
    (MakeProvider(provider=A, name="new"), Taken),
    (MakeProvider(provider=E, name="two"), Taken),
    (MakeProvider(provider=E, name="new", parent=uid(99, "a")), Missing),
    (MakeProvider(provider=E, name="new", parent=E), Tangled),
    (ChangeProvider(provider=A, name="two"), Taken),
    (ChangeProvider(provider=A, name="one", parent=B), Tangled),
    (SetInventories(provider=E, inventories=STOCK), Missing),
    (SetInventories(provider=A, inventories={"CUSTOM_NO": OURS}), Missing),
    (SetInventories(provider=A, inventories=STOCK, generation=2), Stale),
    (SetInventories(provider=A, inventories={}), InUse),
    (AddInventory(provider=A, resource_class="VCPU", inventory=OURS), Taken),
    (SetInventory(provider=A, resource_class="DISK_GB", inventory=OURS), Missing),
    (SetTraits(provider=A, traits=("CUSTOM_NO",)), Missing),
    (SetTraits(provider=A, traits=(), generation=2), Stale),
    (SetAggregates(provider=A, aggregates=(), generation=4), Stale),
    (DropProvider(provider=A), HasChildren),
    (DropProvider(provider=B), InUse),
]


@pytest.mark.parametrize("one", UNLOCKED.values(), ids=UNLOCKED.keys())
async def test_what_goes_unlocked_leaves_what_goes_locked(
    both: LockedAndCalm, tries: Tries, monkeypatch: pytest.MonkeyPatch, one: Edit
) -> None:
    expected = await edit(both.locked.mine, one)
    tries.forget()
    last = both.calm.mine.memory.index.seen
    async with listening(both.calm.mine, monkeypatch) as told:
        answer = await edit(both.calm.mine, one)
        assert (tries.numbers, tries.locks) == ([last + 1], 0)
        assert isinstance(answer, Edited) and answer == expected and answer.number == last + 1
        assert both.calm.mine.memory.index.seen == last + 1
        await keeps_its_index(both.calm.mine)
    assert told == list(range(1, last + 2))
    await both.agree()


@pytest.mark.parametrize("one", LOCKED.values(), ids=LOCKED.keys())
async def test_what_takes_more_than_one_statement_goes_locked(
    both: LockedAndCalm, tries: Tries, one: Edit
) -> None:
    expected = await edit(both.locked.mine, one)
    tries.forget()
    assert await edit(both.calm.mine, one) == expected
    assert isinstance(expected, Edited)
    assert (tries.numbers, tries.locks) == ([], 1)
    await both.agree()


async def test_what_changes_nothing_locks_nothing(both: LockedAndCalm, tries: Tries) -> None:
    before = await books(both.calm.mine)
    for one, kind in NOTHING:
        expected = await edit(both.locked.mine, one)
        tries.forget()
        answer = await edit(both.calm.mine, one)
        assert type(answer) is kind and answer == expected, one
        assert (tries.numbers, tries.locks) == ([], 0), one
    assert await books(both.calm.mine) == before
    await both.agree()


async def test_edits_that_come_together_lock(both: LockedAndCalm, tries: Tries) -> None:
    orders = [EditRequested(edit=UNLOCKED[one]) for one in ("make a root", "more traits")]
    expected = await both.locked.mine.providers.edit_many(orders)
    tries.forget()
    assert await both.calm.mine.providers.edit_many(orders) == expected
    assert (tries.numbers, tries.locks) == ([], 1)
    await both.agree()


async def test_one_after_the_other_they_go_unlocked(both: LockedAndCalm, tries: Tries) -> None:
    """Each knows what the one before it did."""
    orders: list[Edit] = [
        MakeProvider(provider=E, name="five"),
        MakeProvider(provider=uid(6, "a"), name="six", parent=E),
        SetInventories(provider=E, inventories=STOCK, generation=0),
        SetInventories(provider=E, inventories=MORE, generation=1),
        SetTraits(provider=E, traits=("CUSTOM_A",), generation=2),
        SetAggregates(provider=E, aggregates=(E1,), generation=3),
        AddInventory(provider=E, resource_class="CUSTOM_A", inventory=OURS),
    ]
    expected = [await edit(both.locked.mine, one) for one in orders]
    last = both.calm.mine.memory.index.seen
    assert [await edit(both.calm.mine, one) for one in orders] == expected
    assert tries.numbers == list(range(last + 1, last + 1 + len(orders)))
    await both.agree()


async def test_after_one_was_disturbed_they_lock_for_a_while(
    both: LockedAndCalm, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = both.calm
    now = 1000.0
    monkeypatch.setattr("placement_worker.providers.monotonic", lambda: now)
    stock = SetInventories(provider=D, inventories=STOCK)
    tries.between = lambda: claim(calm.other, 9, on_hosts(7))
    for later, expected in ((0.0, [None]), (0.09, []), (0.02, ["some"]), (0.0, ["some"])):
        now += later
        tries.forget()
        assert isinstance(await edit(calm.mine, stock), Edited)
        assert [number and "some" for number in tries.numbers] == expected
    await calm.level()


# Others who come between the reading and the writing


async def uses_and_renames(other: Placement) -> None:
    await edits(AddInventory(provider=D, resource_class="CUSTOM_A", inventory=OURS))(other)
    await names("resource class", RenameName(name="CUSTOM_A", to="CUSTOM_B"))(other)


async def reports(other: Placement) -> None:
    assert await other.providers.report_many([a_report(7, sequence=2)]) == [None]


async def takes_the_name_without_a_number(other: Placement) -> None:
    """Not one of us: whoever writes to the database by hand."""
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
    """What another process does, the edit that it happens to, and what that answers then."""

    deed: Deed
    edit: Edit
    answer: type[EditResult]


DISTURBED = {
    "a claim on it": Between(claims(1), stocked(A), Edited),
    "a claim on it, and inventories of a generation": Between(claims(1), stocked(A, 3), Stale),
    "a claim on it, and traits": Between(claims(1), with_traits(A), Edited),
    "a claim on it, and traits of a generation": Between(claims(1), with_traits(A, 3), Stale),
    "a claim on it, and aggregates": Between(claims(1), with_aggregates(A), Edited),
    "a claim on it, and aggregates of a generation": Between(claims(1), with_aggregates(A, 3), Stale),
    "a claim on its child": Between(claims(2), with_traits(A), Edited),
    "a claim on its parent": Between(claims(1), made(parent=A), Edited),
    "a release of a claim on it": Between(gives_back, stocked(A), Edited),
    "a release, and traits": Between(gives_back, with_traits(A, 3), Edited),
    "other inventories": Between(edits(SetInventories(provider=D, inventories=STOCK)), stocked(D), Edited),
    "other inventories, of a generation": Between(
        edits(SetInventories(provider=D, inventories=STOCK)), stocked(D, 0), Stale
    ),
    "an inventory of that class": Between(edits(with_class()), with_class(), Taken),
    "the same traits": Between(edits(with_traits(D)), with_traits(D), Edited),
    "the same aggregates": Between(edits(with_aggregates(D)), with_aggregates(D), Edited),
    "a new report of its tree": Between(reports, with_traits(R), Edited),
    "a provider of its name": Between(edits(made(uid(6, "a"))), made(), Taken),
    "a child of its name": Between(edits(made(uid(6, "a"), parent=B)), made(parent=A), Taken),
    "a provider of its id": Between(edits(made(name="six")), made(), Taken),
    "a name given to another": Between(edits(ChangeProvider(provider=D, name="five")), made(), Taken),
    "its parent dropped": Between(GONE, made(parent=D), Missing),
    "its parent dropped and made again": Between(AGAIN, made(parent=D), Edited),
    "its parent moved": Between(UNDER_A, made(parent=D), Edited),
    "its parent moved away": Between(
        edits(ChangeProvider(provider=B, name="two", parent=D)), made(parent=B), Edited
    ),
    "dropped, and inventories": Between(GONE, stocked(D), Missing),
    "dropped, and traits": Between(GONE, with_traits(D), Missing),
    "dropped, and aggregates": Between(GONE, with_aggregates(D), Missing),
    "dropped and made again": Between(AGAIN, stocked(D, 0), Edited),
    "moved": Between(UNDER_A, with_traits(D), Edited),
    "a child more": Between(edits(made(parent=D)), stocked(D), Edited),
    "renamed": Between(edits(ChangeProvider(provider=D, name="new")), stocked(D), Edited),
    "the class renamed that nobody has": Between(names("resource class", RENAMES), with_class(), Missing),
    "the class renamed there and back": Between(
        names("resource class", RENAMES, RenameName(name="CUSTOM_B", to="CUSTOM_A")), with_class(), Edited
    ),
    "another takes over the name of the class": Between(
        names("resource class", RENAMES, RenameName(name="CUSTOM_IDLE", to="CUSTOM_A")), with_class(), Edited
    ),
    "the class dropped": Between(names("resource class", DROPS), with_class(), Missing),
    "the class dropped and made again": Between(names("resource class", DROPS, MAKES), with_class(), Edited),
    "a class of it renamed": Between(uses_and_renames, with_traits(D), Edited),
    "another class dropped": Between(
        names("resource class", DropName(name="CUSTOM_IDLE")), with_class(), Edited
    ),
    "the trait dropped": Between(
        names("trait", DropName(name="CUSTOM_IDLE")),
        SetTraits(provider=D, traits=("CUSTOM_IDLE",)),
        Missing,
    ),
    "the trait dropped and made again": Between(
        names("trait", DropName(name="CUSTOM_IDLE"), MakeName(name="CUSTOM_IDLE")),
        SetTraits(provider=D, traits=("CUSTOM_IDLE",)),
        Edited,
    ),
    "a claim on a stranger": Between(claims(7), stocked(D, 0), Edited),
    "a claim on a stranger, and a root": Between(claims(7), made(), Edited),
    "traits of a stranger": Between(edits(with_traits(B)), with_aggregates(D), Edited),
}


async def is_refused(other: Placement) -> None:
    assert isinstance(await claim(other, 9, on_hosts(1, VCPU=99)), Refused)


async def repeats_itself(other: Placement) -> None:
    assert await edit(other, SetTraits(provider=A, traits=("COMPUTE_NODE",))) != Contended()


async def makes_an_aggregate(other: Placement) -> None:
    await other.book.aggregates.ensure(other.database, [uid(9, "e")], 0.0)


AT_PEACE = {
    "a claim that is refused": Between(is_refused, stocked(A), Edited),
    "an edit that changes nothing": Between(repeats_itself, with_traits(A), Edited),
    "a class made": Between(names("resource class", MakeName(name="CUSTOM_NEW")), with_class(), Edited),
    "an aggregate made": Between(makes_an_aggregate, with_aggregates(D), Edited),
}


@pytest.mark.parametrize("case", DISTURBED.values(), ids=DISTURBED.keys())
async def test_whatever_comes_between_nothing_is_half_done(
    both: LockedAndCalm, tries: Tries, once: None, case: Between
) -> None:
    await as_under_locks(both, case, tries, "between")
    assert tries.numbers == [None]


BETWEEN_READS = {
    "its parent moved": Between(UNDER_A, made(parent=D), Edited),
    "its parent dropped": Between(GONE, made(parent=D), Missing),
    "its parent dropped and made again": Between(AGAIN, made(parent=D), Edited),
    "a claim on its parent": Between(claims(1), made(parent=A), Edited),
}
BEFORE_READS = {
    "a provider of its name": Between(edits(made(uid(6, "a"))), made(parent=A), Taken),
    "a provider of its id": Between(edits(made(name="six")), made(parent=A), Taken),
    "a class renamed that nobody has": Between(names("resource class", RENAMES), made(parent=A), Edited),
    "a claim on a stranger, and a root": Between(claims(7), made(), Edited),
}


@pytest.mark.parametrize("case", BETWEEN_READS.values(), ids=BETWEEN_READS.keys())
async def test_what_comes_between_its_two_reads_disturbs(
    both: LockedAndCalm, tries: Tries, once: None, case: Between
) -> None:
    await as_under_locks(both, case, tries, "between_reads")
    assert tries.numbers == [None]


@pytest.mark.parametrize("case", BEFORE_READS.values(), ids=BEFORE_READS.keys())
async def test_what_its_second_read_sees_in_time_does_not_disturb(
    both: LockedAndCalm, tries: Tries, once: None, case: Between
) -> None:
    await as_under_locks(both, case, tries, "between_reads")
    assert tries.numbers == ([both.calm.mine.memory.index.seen] if case.answer is Edited else [])


async def as_under_locks(both: LockedAndCalm, case: Between, tries: Tries, when: str) -> None:
    """What comes `between` judging and writing, or `between_reads` of the tree and of the ids and names."""
    await case.deed(both.locked.other)
    expected = await edit(both.locked.mine, case.edit)
    setattr(tries, when, lambda: case.deed(both.calm.other))
    answer = await edit(both.calm.mine, case.edit)
    assert (answer, type(answer)) == (expected, case.answer)
    await both.agree()


async def test_a_name_that_somebody_took_without_a_number_is_taken(
    both: LockedAndCalm, tries: Tries, once: None
) -> None:
    await takes_the_name_without_a_number(both.locked.other)
    expected = await edit(both.locked.mine, made())
    tries.between = lambda: takes_the_name_without_a_number(both.calm.other)
    assert await edit(both.calm.mine, made()) == expected == Taken(what="name", value="five")
    assert tries.numbers == [None]
    assert await books(both.calm.mine) == await books(both.locked.mine)


@pytest.mark.parametrize("case", AT_PEACE.values(), ids=AT_PEACE.keys())
async def test_what_is_no_matter_does_not_disturb(
    both: LockedAndCalm, tries: Tries, once: None, case: Between
) -> None:
    await as_under_locks(both, case, tries, "between")
    assert tries.numbers == [both.calm.mine.memory.index.seen]
