"""Edits that are tried without locks while others are in the middle of something, or the database goes."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import text

from bus.errors import Unavailable
from bus.resources import (
    AddInventory,
    DropName,
    Edit,
    Edited,
    EditResult,
    MakeName,
    MakeProvider,
    Missing,
    NameEdit,
    NameEdited,
    NameKind,
    RenameName,
    SetAggregates,
    SetInventories,
    SetTraits,
    Stale,
    Taken,
)
from bus.sql.database import Conflict
from bus.sql.statement import Statement
from bus.vocabulary import Claimed, Inventory, ProviderReport
from deploy.servers import Postgres
from placement_worker import Placement, breaches
from placement_worker.store import changes, trees
from tests.builders import a_placement, a_provider, a_report, keeps_its_index, on_hosts, seen_by, uid
from tests.two_worlds import (
    DEADLINE,
    E1,
    E2,
    GONE,
    OURS,
    RENAMES,
    STOCK,
    UNDER_A,
    WAITING,
    A,
    B,
    D,
    Deed,
    Gate,
    LockedAndCalm,
    Tries,
    begun,
    books,
    claim,
    claims,
    count,
    edit,
    edits,
    gives_back,
    made,
    named,
    names,
    others_can_commit,
    stocked,
    under_way,
    until,
    waits,
    with_aggregates,
    with_class,
    with_traits,
)

pytestmark = pytest.mark.services

# Others who are in the middle of it


async def locks_and_leaves(other: Placement, gate: Gate) -> None:
    async with other.database.write() as tx:
        await trees.lock(tx, [A, D])
        await gate.stop()


OPEN_LOCKS: dict[str, tuple[Deed, Edit]] = {
    "a claim on it": (claims(1), stocked(A)),
    "a claim on its child": (claims(2), with_traits(A)),
    "a claim on its parent": (claims(1), made(parent=B)),
    "a release of what is held of it": (gives_back, with_aggregates(A)),
    "traits of it": (edits(SetTraits(provider=D, traits=("COMPUTE_NODE",))), stocked(D)),
    "a move of it": (UNDER_A, with_traits(D)),
    "a move of a provider into its tree": (UNDER_A, with_traits(A)),
    "the loss of it": (GONE, with_traits(D)),
}


def stop_before_its_number(monkeypatch: pytest.MonkeyPatch, other: Placement, gate: Gate) -> None:
    announce = gate.before(other._announce)
    for one in (other, other.providers, other.classes_and_traits):
        monkeypatch.setattr(one, "_announce", announce)


@pytest.mark.parametrize("deed, one", OPEN_LOCKS.values(), ids=OPEN_LOCKS.keys())
async def test_who_has_locked_the_provider_comes_first_and_keeps_nobody_else_waiting(
    both: LockedAndCalm,
    tries: Tries,
    once: None,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    deed: Deed,
    one: Edit,
) -> None:
    await deed(both.locked.other)
    expected = await edit(both.locked.mine, one)
    calm = both.calm
    before = await books(calm.mine)
    stop_before_its_number(monkeypatch, calm.other, gate)
    async with under_way(gate, deed(calm.other)) as theirs, begun(edit(calm.mine, one)) as mine:
        await until(tries.over)  # before anybody goes on
        await waits(calm.mine, mine)
        await others_can_commit(calm.mine)
        assert await books(calm.mine) == before
        gate.open.set()
        await theirs
        assert await mine == expected
    assert tries.numbers == [None]
    assert gate.times == 1  # nobody had to begin again
    await both.agree()


async def test_who_locked_the_provider_and_left_it_as_it_was_has_only_delayed_the_edit(
    both: LockedAndCalm, tries: Tries, once: None, gate: Gate
) -> None:
    expected = await edit(both.locked.mine, stocked(A, 3))
    calm = both.calm
    async with (
        under_way(gate, locks_and_leaves(calm.other, gate)),
        begun(edit(calm.mine, stocked(A, 3))) as mine,
    ):
        await waits(calm.mine, mine)
        assert tries.numbers == [None]
        gate.open.set()
        assert await mine == expected
    await both.agree()


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
async def test_a_number_that_is_being_taken_is_waited_for(
    both: LockedAndCalm,
    tries: Tries,
    once: None,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    if committed:
        await claims(7)(both.locked.other)
    expected = await edit(both.locked.mine, stocked(D, 0))
    calm = both.calm
    monkeypatch.setattr(calm.other, "_announce", gate.after(calm.other._announce))
    async with (
        under_way(gate, claims(7)(calm.other)) as theirs,
        begun(edit(calm.mine, stocked(D, 0))) as mine,
    ):
        await waits(calm.mine, mine)
        assert tries.numbers == []
        if committed:
            gate.open.set()
        else:
            theirs.cancel()
        assert await mine == expected
    assert isinstance(expected, Edited)
    assert tries.numbers == [None if committed else expected.number]
    await both.agree()


@dataclass(frozen=True)
class Naming:
    """A name that another process changes, and who wants to use it meanwhile."""

    kind: NameKind
    deed: NameEdit
    edit: Edit


IDLE_GOES = DropName(name="CUSTOM_IDLE")
IDLE: Sequence[Edit] = (
    AddInventory(provider=D, resource_class="CUSTOM_IDLE", inventory=OURS),
    SetTraits(provider=D, traits=("CUSTOM_IDLE",)),
)
NAMINGS = {
    "a class renamed": Naming("resource class", RenameName(name="CUSTOM_IDLE", to="CUSTOM_B"), IDLE[0]),
    "a class dropped": Naming("resource class", IDLE_GOES, IDLE[0]),
    "a trait dropped": Naming("trait", IDLE_GOES, IDLE[1]),
}


async def meeting(
    both: LockedAndCalm, tries: Tries, gate: Gate, case: Naming, *, committed: bool = True
) -> tuple[EditResult, EditResult]:
    """What the edit answers that finds the names being changed; and what it must."""
    if committed:
        assert isinstance(await named(both.locked.other, case.kind, case.deed), NameEdited)
    expected = await edit(both.locked.mine, case.edit)
    calm = both.calm
    async with (
        under_way(gate, named(calm.other, case.kind, case.deed)) as theirs,
        begun(edit(calm.mine, case.edit)) as mine,
    ):
        await until(tries.over)  # before anybody goes on
        await waits(calm.mine, mine)
        if case.kind == "resource class":  # a trait those that lock may wait for with the number, too
            await others_can_commit(calm.mine)
        if committed:
            gate.open.set()
            await theirs
        else:
            theirs.cancel()
        answer = await mine
    assert gate.times == 1  # nobody had to begin again
    return answer, expected


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("case", NAMINGS.values(), ids=NAMINGS.keys())
async def test_names_that_are_being_changed_are_waited_for(
    both: LockedAndCalm,
    tries: Tries,
    once: None,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    case: Naming,
    committed: bool,
) -> None:
    """They are of another edition already, and have no number yet."""
    book = both.calm.other.book
    monkeypatch.setattr(book, "new_edition", gate.after(book.new_edition))
    answer, expected = await meeting(both, tries, gate, case, committed=committed)
    assert answer == expected
    assert isinstance(expected, Missing if committed else Edited)
    assert tries.numbers == [None] or not committed
    await both.agree()


@pytest.mark.parametrize("case", NAMINGS.values(), ids=NAMINGS.keys())
async def test_names_that_are_about_to_be_changed_are_waited_for_too(
    both: LockedAndCalm, tries: Tries, once: None, gate: Gate, monkeypatch: pytest.MonkeyPatch, case: Naming
) -> None:
    """They are locked, and not of another edition yet: nobody who waits may have locked the edition."""
    book = both.calm.other.book
    monkeypatch.setattr(book, "new_edition", gate.before(book.new_edition))
    answer, expected = await meeting(both, tries, gate, case)
    assert answer == expected
    assert isinstance(expected, Missing)
    await both.agree()


async def test_who_changes_other_names_keeps_no_edit_waiting(
    both: LockedAndCalm, tries: Tries, once: None, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await edit(both.locked.mine, with_traits(D))
    rename = RenameName(name="CUSTOM_IDLE", to="CUSTOM_B")
    assert isinstance(await named(both.locked.other, "resource class", rename), NameEdited)
    calm = both.calm
    monkeypatch.setattr(calm.other.book, "new_edition", gate.after(calm.other.book.new_edition))
    async with under_way(gate, named(calm.other, "resource class", rename)) as theirs:
        assert await edit(calm.mine, with_traits(D)) == expected
        gate.open.set()
        assert isinstance(await theirs, NameEdited)
    await both.agree()


async def test_a_class_of_the_provider_that_is_being_renamed_is_called_by_its_new_name(
    both: LockedAndCalm, tries: Tries, once: None, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for world in (both.locked, both.calm):
        await edits(with_class())(world.other)
    book = both.calm.other.book
    monkeypatch.setattr(book, "new_edition", gate.before(book.new_edition))
    answer, expected = await meeting(both, tries, gate, Naming("resource class", RENAMES, with_traits(D)))
    assert answer == expected
    assert isinstance(answer, Edited) and answer.provider is not None
    assert answer.provider.inventories.keys() == {"CUSTOM_B"}
    assert tries.numbers == [None]
    await both.agree()


LIKE_IT: dict[str, ProviderReport] = {
    "of its name": a_provider(6, name="five"),
    "of its id": a_provider(5, name="six"),
}


@pytest.mark.parametrize("theirs", LIKE_IT.values(), ids=LIKE_IT.keys())
async def test_a_provider_like_it_that_is_being_made_keeps_nobody_else_waiting(
    both: LockedAndCalm,
    tries: Tries,
    once: None,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    theirs: ProviderReport,
) -> None:
    """By a report, which writes it some statements before it takes its number."""
    number = int(theirs.id[-1])

    async def reports(other: Placement) -> None:
        report = a_report(number, name=theirs.name)
        assert await other.providers.report_many([report]) == [None]

    await reports(both.locked.other)
    expected = await edit(both.locked.mine, made())
    assert isinstance(expected, Taken)
    calm = both.calm
    stop_before_its_number(monkeypatch, calm.other, gate)
    async with under_way(gate, reports(calm.other)) as reporting, begun(edit(calm.mine, made())) as mine:
        await waits(calm.mine, mine)
        await others_can_commit(calm.mine)
        gate.open.set()
        await reporting
        assert await mine == expected
    assert gate.times == 1  # nobody had to begin again
    await both.agree()


MEANWHILE = {
    "a claim": (claims(4), stocked(D, 1)),
    "a claim on a stranger": (claims(7), stocked(D, 1)),
    "the loss of it": (GONE, with_traits(D)),
    "a child more": (edits(made(parent=D)), stocked(D, 1)),
    "a provider of its name": (edits(made(uid(6, "a"))), made()),
    "its parent moved": (UNDER_A, made(parent=D)),
    "a class renamed that nobody has": (names("resource class", RENAMES), with_class()),
    "a class renamed there and back": (
        names("resource class", RENAMES, RenameName(name="CUSTOM_B", to="CUSTOM_A")),
        with_class(),
    ),
    "a class dropped": (names("resource class", DropName(name="CUSTOM_A")), with_class()),
    "a class dropped and made again": (
        names("resource class", DropName(name="CUSTOM_A"), MakeName(name="CUSTOM_A")),
        with_class(),
    ),
    "a trait dropped": (names("trait", IDLE_GOES), SetTraits(provider=D, traits=("CUSTOM_IDLE",))),
}


@pytest.mark.parametrize("deed, one", MEANWHILE.values(), ids=MEANWHILE.keys())
async def test_what_is_committed_after_that_statement_began_is_not_overlooked(
    both: LockedAndCalm,
    tries: Tries,
    once: None,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    deed: Deed,
    one: Edit,
) -> None:
    """It sees the database as it was, but for what it locks: here it is stopped before it locks anything."""
    for world in (both.locked, both.calm):
        await edits(SetInventories(provider=D, inventories=STOCK))(world.other)
    await deed(both.locked.other)
    expected = await edit(both.locked.mine, one)
    begins = "WITH ours AS (SELECT p.id FROM resource_providers p WHERE"
    stops = (
        "WITH stop AS MATERIALIZED (SELECT 1 FROM pg_advisory_xact_lock(7)),"
        f" {begins.removeprefix('WITH ')} (SELECT count(*) FROM stop) = 1 AND"
    )
    statement = changes._NEXT_UNDISTURBED._sql
    assert statement.startswith(begins)
    monkeypatch.setattr(changes, "_NEXT_UNDISTURBED", Statement(statement.replace(begins, stops)))
    calm = both.calm

    async def stop(other: Placement) -> None:
        async with other.database.write() as tx:
            await tx.execute(text("SELECT pg_advisory_xact_lock(7)"))
            await gate.stop()

    async with under_way(gate, stop(calm.other)), begun(edit(calm.mine, one)) as mine:
        await waits(calm.mine, mine)
        await deed(calm.other)
        gate.open.set()
        assert await mine == expected
    assert len(tries.numbers) == 1
    await both.agree()


async def test_who_lost_a_race_in_that_statement_locks_at_once(
    both: LockedAndCalm, tries: Tries, once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom PostgreSQL ended because of a deadlock would meet the same others again."""
    expected = await edit(both.locked.mine, stocked(D, 0))
    tries.forget()

    async def loses() -> None:
        raise Conflict("deadlock detected")

    tries.between = loses
    assert await edit(both.calm.mine, stocked(D, 0)) == expected
    assert (tries.numbers, tries.locks) == ([None], 1)
    await both.agree()


# When it ends in the middle


async def test_a_database_that_goes_away_in_the_middle_leaves_nothing_half_done(
    postgres: Postgres,
    both: LockedAndCalm,
    tries: Tries,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calm = both.calm
    before = await books(calm.mine)
    monkeypatch.setattr(calm.other, "_announce", gate.after(calm.other._announce))
    async with (
        under_way(gate, claims(7)(calm.other)) as theirs,
        begun(edit(calm.mine, stocked(D, 0))) as mine,
    ):
        await waits(calm.mine, mine)
        await asyncio.to_thread(postgres.kill)
        with pytest.raises(Unavailable):
            await mine
        gate.open.set()
        with pytest.raises(Unavailable):
            await theirs
    assert (tries.numbers, tries.locks) == ([None], 0)
    await asyncio.to_thread(postgres.start)
    assert await books(calm.mine) == before
    await calm.level()
    expected = await edit(both.locked.mine, stocked(D, 0))
    assert await edit(calm.mine, stocked(D, 0)) == expected
    assert tries.numbers[1:] == [calm.mine.memory.index.seen]
    await both.agree()


async def test_an_edit_whose_answer_was_lost_is_done_and_becomes_known(
    both: LockedAndCalm, tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce = changes.announce_undisturbed

    async def lost(*given: Any) -> None:
        await announce(*given)
        raise Unavailable("no answer in time")

    await edit(both.locked.mine, stocked(D, 0))
    calm = both.calm
    with monkeypatch.context() as patch:
        patch.setattr(changes, "announce_undisturbed", lost)
        with pytest.raises(Unavailable):
            await edit(calm.mine, stocked(D, 0))
    assert await edit(calm.mine, stocked(D, 0)) == Stale(provider=D, actual=1, given=0)
    await both.agree()


async def test_an_edit_that_is_given_up_in_the_middle_leaves_nothing_half_done(
    both: LockedAndCalm, tries: Tries, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claims(7)(both.locked.other)
    calm = both.calm

    async def nobody_waits() -> bool:
        return not await count(calm.mine.database, WAITING)

    monkeypatch.setattr(calm.other, "_announce", gate.after(calm.other._announce))
    async with (
        under_way(gate, claims(7)(calm.other)) as theirs,
        begun(edit(calm.mine, stocked(D, 0))) as mine,
    ):
        await waits(calm.mine, mine)
        mine.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mine
        await until(nobody_waits)
        gate.open.set()
        await theirs
    await both.agree()
    expected = await edit(both.locked.mine, stocked(D, 0))
    assert await edit(calm.mine, stocked(D, 0)) == expected
    assert tries.numbers == [None, calm.mine.memory.index.seen]
    await both.agree()


# Many at once

EDITS, CLAIMS = 40, 20
HOSTS = (1, 2, 3, 4)
NAMES = 12
AMPLE = 1000  # all claims together never use it up


@dataclass
class Racer:
    """One process that edits, always without locks at first, and claims meanwhile."""

    placement: Placement
    number: int
    chance: random.Random
    edited: list[tuple[Edit, Edited]] = field(default_factory=list)
    claimed: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)

    def order(self) -> Edit:
        chance = self.chance
        host = uid(chance.choice(HOSTS), "a")
        generation = None
        if chance.random() < 0.3:
            generation = self.placement.memory.index.rows[host].generation
        stock = {"VCPU": Inventory(total=AMPLE + chance.randrange(9))}
        trait = chance.choice(("COMPUTE_NODE", "CUSTOM_A", "CUSTOM_IDLE"))
        number = chance.randrange(NAMES)
        parent = chance.choice((None, host))
        orders: list[Edit] = [
            SetInventories(provider=host, inventories=stock, generation=generation),
            SetInventories(provider=host, inventories=stock),
            SetTraits(provider=host, traits=(trait,), generation=generation),
            SetAggregates(provider=host, aggregates=(E1, E2), generation=generation),
            MakeProvider(provider=uid(1000 * self.number + number, "a"), name=f"new-{number}", parent=parent),
        ]
        return chance.choice(orders)

    async def edit(self) -> None:
        for _ in range(EDITS):
            one = self.order()
            self.placement.providers._calm_at = 0.0
            answer = await edit(self.placement, one)
            self.answers[type(answer).__name__] += 1
            if isinstance(answer, Edited):
                self.edited.append((one, answer))

    async def claim(self) -> None:
        for turn in range(CLAIMS):
            host = self.chance.choice(HOSTS)
            result = await claim(self.placement, 1000 * self.number + turn, on_hosts(host))
            self.answers[type(result).__name__] += 1
            self.claimed[uid(host, "a")] += isinstance(result, Claimed)


def moves(one: Edit) -> bool:
    """Whether this edit, when it changed something, gave the provider another generation."""
    return not isinstance(one, MakeProvider) and (
        not isinstance(one, SetAggregates) or one.generation is not None
    )


@pytest.mark.parametrize("seed", range(5))
async def test_of_many_edits_at_once_none_is_lost(database_url: str, tries: Tries, seed: int) -> None:
    async with (
        asyncio.timeout(DEADLINE),
        a_placement(database_url) as one,
        a_placement(database_url) as two,
        a_placement(database_url) as three,
    ):
        for name in ("CUSTOM_A", "CUSTOM_IDLE"):
            await named(one, "trait", MakeName(name=name))
        stock = {"VCPU": Inventory(total=AMPLE)}
        for host in HOSTS:
            await edit(one, made(uid(host, "a"), f"{host}", uid(1, "a") if host == 2 else None))
            await edit(one, SetInventories(provider=uid(host, "a"), inventories=stock))
        tries.forget()
        racers = [
            Racer(placement, number, random.Random(10 * seed + number))
            for number, placement in enumerate((one, two, three), 1)
        ]
        for racer in racers:
            await racer.placement.memory.fresh()
        await asyncio.gather(*(work for racer in racers for work in (racer.edit(), racer.claim())))

        answers = sum((racer.answers for racer in racers), Counter[str]())
        assert answers.keys() <= {"Edited", "Claimed", "Stale", "Taken", "Contended"}, answers
        assert answers["Edited"] > EDITS and answers["Claimed"] > CLAIMS, answers
        assert None in tries.numbers and any(tries.numbers), tries.numbers

        done = sorted(
            ((answer, one) for racer in racers for one, answer in racer.edited if answer.number),
            key=lambda each: each[0].number,
        )
        numbers = [answer.number for answer, _ in done]
        assert len(set(numbers)) == len(numbers)
        stored = await books(one)
        generations = Counter[str](dict.fromkeys((uid(host, "a") for host in HOSTS), 1))
        for answer, order in done:
            assert answer.provider is not None
            generations[answer.provider.id] += moves(order)
        for racer in racers:
            generations += racer.claimed
        for uuid, _, _, _, generation, *_ in stored["providers"]:
            assert generation == generations[uuid], uuid
        last = {one.provider: one for _, one in done if isinstance(one, SetInventories)}
        totals = {uuid: total for uuid, _, total, *_ in stored["inventories"]}
        assert {uuid: totals[uuid] for uuid in last} == {
            uuid: one.inventories["VCPU"].total for uuid, one in last.items()
        }
        news = [one.name for _, one in done if isinstance(one, MakeProvider)]
        assert len(set(news)) == len(news) > 0
        assert {name for _, name, *_ in stored["providers"]} == {*map(str, HOSTS), *news}

        for racer in racers:
            await racer.placement.memory.fresh()
            await keeps_its_index(racer.placement)
        assert seen_by(one) == seen_by(two) == seen_by(three)
        assert await breaches(one.database) == []
