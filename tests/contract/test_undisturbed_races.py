"""Edits without locks during concurrent transactions and database failures."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import text

from bus import names, not_done, resources
from bus.claims import Claimed
from bus.errors import Unavailable
from bus.reports import Inventory, ProviderReport
from bus.sql.failures import Conflict
from bus.sql.statement import Statement
from deploy.servers import Postgres
from placement_worker import Placement, breaches
from placement_worker.store import changes, tree_reads
from tests.support import deeds, locked_and_calm, midway
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_placement,
    a_provider,
    a_report,
    keeps_its_index,
    on_hosts,
    seen_by,
)
from tests.support.placement_calls import edit, edit_name
from tests.support.waiting import DEADLINE, until

pytestmark = pytest.mark.services


async def locks_and_leaves(other: Placement, gate: midway.Gate) -> None:
    async with other.database.write() as tx:
        await tree_reads.lock(tx, [deeds.HOST, deeds.LONE])
        await gate.stop()


OPEN_LOCKS: dict[str, tuple[deeds.Deed, resources.Edit]] = {
    "a claim on it": (deeds.claims(1), deeds.stocked(deeds.HOST)),
    "a claim on its child": (deeds.claims(2), deeds.with_traits(deeds.HOST)),
    "a claim on its parent": (deeds.claims(1), deeds.made(parent=deeds.CHILD)),
    "a release of what is held of it": (deeds.gives_back, deeds.with_aggregates(deeds.HOST)),
    "traits of it": (
        deeds.edits(resources.SetTraits(provider=deeds.LONE, traits=("COMPUTE_NODE",))),
        deeds.stocked(deeds.LONE),
    ),
    "a move of it": (deeds.LONE_UNDER_HOST, deeds.with_traits(deeds.LONE)),
    "a move of a provider into its tree": (deeds.LONE_UNDER_HOST, deeds.with_traits(deeds.HOST)),
    "the loss of it": (deeds.LONE_DROPPED, deeds.with_traits(deeds.LONE)),
}


def stop_before_its_number(monkeypatch: pytest.MonkeyPatch, other: Placement, gate: midway.Gate) -> None:
    monkeypatch.setattr(other.log, "write", gate.before(other.log.write))


@pytest.mark.parametrize("deed, one", OPEN_LOCKS.values(), ids=OPEN_LOCKS.keys())
async def test_who_has_locked_the_provider_comes_first_and_keeps_nobody_else_waiting(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
    deed: deeds.Deed,
    one: resources.Edit,
) -> None:
    await deed(both.locked.other)
    expected = await edit(both.locked.mine, one)
    calm = both.calm
    before = await locked_and_calm.stored(calm.mine)
    stop_before_its_number(monkeypatch, calm.other, gate)
    async with (
        midway.under_way(gate, deed(calm.other)) as theirs,
        midway.begun(edit(calm.mine, one)) as mine,
    ):
        await until(tries.over)
        await midway.waits(calm.mine, mine)
        await midway.others_can_commit(calm.mine)
        assert await locked_and_calm.stored(calm.mine) == before
        gate.open.set()
        await theirs
        assert await mine == expected
    assert tries.numbers == [None]
    assert gate.times == 1
    await both.agree()


async def test_who_locked_the_provider_and_left_it_as_it_was_has_only_delayed_the_edit(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, once: None, gate: midway.Gate
) -> None:
    expected = await edit(both.locked.mine, deeds.stocked(deeds.HOST, 3))
    calm = both.calm
    async with (
        midway.under_way(gate, locks_and_leaves(calm.other, gate)),
        midway.begun(edit(calm.mine, deeds.stocked(deeds.HOST, 3))) as mine,
    ):
        await midway.waits(calm.mine, mine)
        assert tries.numbers == [None]
        gate.open.set()
        assert await mine == expected
    await both.agree()


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
async def test_a_number_that_is_being_taken_is_waited_for(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    if committed:
        await deeds.claims(7)(both.locked.other)
    expected = await edit(both.locked.mine, deeds.stocked(deeds.LONE, 0))
    calm = both.calm
    monkeypatch.setattr(calm.other.log, "write", gate.after(calm.other.log.write))
    async with (
        midway.under_way(gate, deeds.claims(7)(calm.other)) as theirs,
        midway.begun(edit(calm.mine, deeds.stocked(deeds.LONE, 0))) as mine,
    ):
        await midway.waits(calm.mine, mine)
        assert tries.numbers == []
        if committed:
            gate.open.set()
        else:
            theirs.cancel()
        assert await mine == expected
    assert isinstance(expected, resources.Edited)
    assert tries.numbers == [None if committed else expected.number]
    await both.agree()


@dataclass(frozen=True)
class Naming:
    kind: names.NameKind
    deed: names.NameEdit
    edit: resources.Edit


IDLE_GOES = names.DropName(name="CUSTOM_IDLE")
IDLE: Sequence[resources.Edit] = (
    resources.AddInventory(provider=deeds.LONE, resource_class="CUSTOM_IDLE", inventory=deeds.THREE),
    resources.SetTraits(provider=deeds.LONE, traits=("CUSTOM_IDLE",)),
)
NAMINGS = {
    "a class renamed": Naming("resource class", names.RenameName(name="CUSTOM_IDLE", to="CUSTOM_B"), IDLE[0]),
    "a class dropped": Naming("resource class", IDLE_GOES, IDLE[0]),
    "a trait dropped": Naming("trait", IDLE_GOES, IDLE[1]),
}


async def meeting(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    gate: midway.Gate,
    case: Naming,
    *,
    committed: bool = True,
) -> tuple[resources.EditResult, resources.EditResult]:
    if committed:
        assert isinstance(await edit_name(both.locked.other, case.kind, case.deed), names.NameEdited)
    expected = await edit(both.locked.mine, case.edit)
    calm = both.calm
    async with (
        midway.under_way(gate, edit_name(calm.other, case.kind, case.deed)) as theirs,
        midway.begun(edit(calm.mine, case.edit)) as mine,
    ):
        await until(tries.over)
        await midway.waits(calm.mine, mine)
        if case.kind == "resource class":
            await midway.others_can_commit(calm.mine)
        if committed:
            gate.open.set()
            await theirs
        else:
            theirs.cancel()
        answer = await mine
    assert gate.times == 1
    return answer, expected


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("case", NAMINGS.values(), ids=NAMINGS.keys())
async def test_names_that_are_being_changed_are_waited_for(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
    case: Naming,
    committed: bool,
) -> None:
    book = both.calm.other.book
    monkeypatch.setattr(book, "new_edition", gate.after(book.new_edition))
    answer, expected = await meeting(both, tries, gate, case, committed=committed)
    assert answer == expected
    assert isinstance(expected, not_done.Missing if committed else resources.Edited)
    assert tries.numbers == [None] or not committed
    await both.agree()


@pytest.mark.parametrize("case", NAMINGS.values(), ids=NAMINGS.keys())
async def test_names_that_are_about_to_be_changed_are_waited_for_too(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
    case: Naming,
) -> None:
    book = both.calm.other.book
    monkeypatch.setattr(book, "new_edition", gate.before(book.new_edition))
    answer, expected = await meeting(both, tries, gate, case)
    assert answer == expected
    assert isinstance(expected, not_done.Missing)
    await both.agree()


async def test_who_changes_other_names_keeps_no_edit_waiting(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = await edit(both.locked.mine, deeds.with_traits(deeds.LONE))
    rename = names.RenameName(name="CUSTOM_IDLE", to="CUSTOM_B")
    assert isinstance(await edit_name(both.locked.other, "resource class", rename), names.NameEdited)
    calm = both.calm
    monkeypatch.setattr(calm.other.book, "new_edition", gate.after(calm.other.book.new_edition))
    async with midway.under_way(gate, edit_name(calm.other, "resource class", rename)) as theirs:
        assert await edit(calm.mine, deeds.with_traits(deeds.LONE)) == expected
        gate.open.set()
        assert isinstance(await theirs, names.NameEdited)
    await both.agree()


async def test_a_class_of_the_provider_that_is_being_renamed_is_called_by_its_new_name(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for world in (both.locked, both.calm):
        await deeds.edits(deeds.with_class())(world.other)
    book = both.calm.other.book
    monkeypatch.setattr(book, "new_edition", gate.before(book.new_edition))
    answer, expected = await meeting(
        both, tries, gate, Naming("resource class", deeds.RENAME_A_TO_B, deeds.with_traits(deeds.LONE))
    )
    assert answer == expected
    assert isinstance(answer, resources.Edited) and answer.provider is not None
    assert answer.provider.inventories.keys() == {"CUSTOM_B"}
    assert tries.numbers == [None]
    await both.agree()


LIKE_IT: dict[str, ProviderReport] = {
    "of its name": a_provider(6, name="five"),
    "of its id": a_provider(5, name="six"),
}


@pytest.mark.parametrize("theirs", LIKE_IT.values(), ids=LIKE_IT.keys())
async def test_a_provider_like_it_that_is_being_made_keeps_nobody_else_waiting(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
    theirs: ProviderReport,
) -> None:
    """By a report, which writes it some statements before it takes its number."""
    number = int(theirs.id[-1])

    async def reports(other: Placement) -> None:
        report = a_report(number, name=theirs.name)
        assert await other.reports.report_many([report]) == [None]

    await reports(both.locked.other)
    expected = await edit(both.locked.mine, deeds.made())
    assert isinstance(expected, not_done.Taken)
    calm = both.calm
    stop_before_its_number(monkeypatch, calm.other, gate)
    async with (
        midway.under_way(gate, reports(calm.other)) as reporting,
        midway.begun(edit(calm.mine, deeds.made())) as mine,
    ):
        await midway.waits(calm.mine, mine)
        await midway.others_can_commit(calm.mine)
        gate.open.set()
        await reporting
        assert await mine == expected
    assert gate.times == 1
    await both.agree()


MEANWHILE = {
    "a claim": (deeds.claims(4), deeds.stocked(deeds.LONE, 1)),
    "a claim on a stranger": (deeds.claims(7), deeds.stocked(deeds.LONE, 1)),
    "the loss of it": (deeds.LONE_DROPPED, deeds.with_traits(deeds.LONE)),
    "a child more": (deeds.edits(deeds.made(parent=deeds.LONE)), deeds.stocked(deeds.LONE, 1)),
    "a provider of its name": (deeds.edits(deeds.made(uid(6, "a"))), deeds.made()),
    "its parent moved": (deeds.LONE_UNDER_HOST, deeds.made(parent=deeds.LONE)),
    "a class renamed that nobody has": (
        deeds.names("resource class", deeds.RENAME_A_TO_B),
        deeds.with_class(),
    ),
    "a class renamed there and back": (
        deeds.names("resource class", deeds.RENAME_A_TO_B, names.RenameName(name="CUSTOM_B", to="CUSTOM_A")),
        deeds.with_class(),
    ),
    "a class dropped": (
        deeds.names("resource class", names.DropName(name="CUSTOM_A")),
        deeds.with_class(),
    ),
    "a class dropped and made again": (
        deeds.names("resource class", names.DropName(name="CUSTOM_A"), names.MakeName(name="CUSTOM_A")),
        deeds.with_class(),
    ),
    "a trait dropped": (
        deeds.names("trait", IDLE_GOES),
        resources.SetTraits(provider=deeds.LONE, traits=("CUSTOM_IDLE",)),
    ),
}


@pytest.mark.parametrize("deed, one", MEANWHILE.values(), ids=MEANWHILE.keys())
async def test_what_is_committed_after_that_statement_began_is_not_overlooked(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
    deed: deeds.Deed,
    one: resources.Edit,
) -> None:
    for world in (both.locked, both.calm):
        await deeds.edits(resources.SetInventories(provider=deeds.LONE, inventories=deeds.STOCK))(world.other)
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

    async with midway.under_way(gate, stop(calm.other)), midway.begun(edit(calm.mine, one)) as mine:
        await midway.waits(calm.mine, mine)
        await deed(calm.other)
        gate.open.set()
        assert await mine == expected
    assert len(tries.numbers) == 1
    await both.agree()


async def test_who_lost_a_race_in_that_statement_locks_at_once(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    once: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = await edit(both.locked.mine, deeds.stocked(deeds.LONE, 0))
    tries.forget()

    async def loses() -> None:
        raise Conflict("deadlock detected")

    tries.between = loses
    assert await edit(both.calm.mine, deeds.stocked(deeds.LONE, 0)) == expected
    assert (tries.numbers, tries.locks) == ([None], 1)
    await both.agree()


# When it ends in the middle


async def test_a_database_that_goes_away_in_the_middle_leaves_nothing_half_done(
    postgres: Postgres,
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calm = both.calm
    before = await locked_and_calm.stored(calm.mine)
    monkeypatch.setattr(calm.other.log, "write", gate.after(calm.other.log.write))
    async with (
        midway.under_way(gate, deeds.claims(7)(calm.other)) as theirs,
        midway.begun(edit(calm.mine, deeds.stocked(deeds.LONE, 0))) as mine,
    ):
        await midway.waits(calm.mine, mine)
        await asyncio.to_thread(postgres.kill)
        with pytest.raises(Unavailable):
            await mine
        gate.open.set()
        with pytest.raises(Unavailable):
            await theirs
    assert (tries.numbers, tries.locks) == ([None], 0)
    await asyncio.to_thread(postgres.start)
    assert await locked_and_calm.stored(calm.mine) == before
    await calm.level()
    expected = await edit(both.locked.mine, deeds.stocked(deeds.LONE, 0))
    assert await edit(calm.mine, deeds.stocked(deeds.LONE, 0)) == expected
    assert tries.numbers[1:] == [calm.mine.memory.index.seen]
    await both.agree()


async def test_an_edit_whose_answer_was_lost_is_done_and_becomes_known(
    both: locked_and_calm.LockedAndCalm, tries: locked_and_calm.Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce = changes.announce_undisturbed

    async def lost(*given: Any) -> None:
        await announce(*given)
        raise Unavailable("no answer in time")

    await edit(both.locked.mine, deeds.stocked(deeds.LONE, 0))
    calm = both.calm
    with monkeypatch.context() as patch:
        patch.setattr(changes, "announce_undisturbed", lost)
        with pytest.raises(Unavailable):
            await edit(calm.mine, deeds.stocked(deeds.LONE, 0))
    assert await edit(calm.mine, deeds.stocked(deeds.LONE, 0)) == resources.Stale(
        provider=deeds.LONE, actual=1, given=0
    )
    await both.agree()


async def test_an_edit_that_is_given_up_in_the_middle_leaves_nothing_half_done(
    both: locked_and_calm.LockedAndCalm,
    tries: locked_and_calm.Tries,
    gate: midway.Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await deeds.claims(7)(both.locked.other)
    calm = both.calm

    async def nobody_waits() -> bool:
        return not await midway.count(calm.mine.database, midway.WAITING)

    monkeypatch.setattr(calm.other.log, "write", gate.after(calm.other.log.write))
    async with (
        midway.under_way(gate, deeds.claims(7)(calm.other)) as theirs,
        midway.begun(edit(calm.mine, deeds.stocked(deeds.LONE, 0))) as mine,
    ):
        await midway.waits(calm.mine, mine)
        mine.cancel()
        with pytest.raises(asyncio.CancelledError):
            await mine
        await until(nobody_waits)
        gate.open.set()
        await theirs
    await both.agree()
    expected = await edit(both.locked.mine, deeds.stocked(deeds.LONE, 0))
    assert await edit(calm.mine, deeds.stocked(deeds.LONE, 0)) == expected
    assert tries.numbers == [None, calm.mine.memory.index.seen]
    await both.agree()


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
    edited: list[tuple[resources.Edit, resources.Edited]] = field(default_factory=list)
    claimed: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)

    def order(self) -> resources.Edit:
        chance = self.chance
        host = uid(chance.choice(HOSTS), "a")
        generation = None
        if chance.random() < 0.3:
            generation = self.placement.memory.index.rows[host].generation
        stock = {"VCPU": Inventory(total=AMPLE + chance.randrange(9))}
        trait = chance.choice(("COMPUTE_NODE", "CUSTOM_A", "CUSTOM_IDLE"))
        number = chance.randrange(NAMES)
        parent = chance.choice((None, host))
        orders: list[resources.Edit] = [
            resources.SetInventories(provider=host, inventories=stock, generation=generation),
            resources.SetInventories(provider=host, inventories=stock),
            resources.SetTraits(provider=host, traits=(trait,), generation=generation),
            resources.SetAggregates(
                provider=host, aggregates=(deeds.AGGREGATE, deeds.OTHER_AGGREGATE), generation=generation
            ),
            resources.MakeProvider(
                provider=uid(1000 * self.number + number, "a"), name=f"new-{number}", parent=parent
            ),
        ]
        return chance.choice(orders)

    async def edit(self) -> None:
        for _ in range(EDITS):
            one = self.order()
            self.placement.providers._calm_at = 0.0
            answer = await edit(self.placement, one)
            self.answers[type(answer).__name__] += 1
            if isinstance(answer, resources.Edited):
                self.edited.append((one, answer))

    async def claim(self) -> None:
        for turn in range(CLAIMS):
            host = self.chance.choice(HOSTS)
            result = await deeds.hold(self.placement, 1000 * self.number + turn, on_hosts(host))
            self.answers[type(result).__name__] += 1
            self.claimed[uid(host, "a")] += isinstance(result, Claimed)


def moves(edit: resources.Edit) -> bool:
    """Whether this edit, when it changed something, gave the provider another generation."""
    return not isinstance(edit, resources.MakeProvider) and (
        not isinstance(edit, resources.SetAggregates) or edit.generation is not None
    )


@pytest.mark.parametrize("seed", range(5))
async def test_of_many_edits_at_once_none_is_lost(
    database_url: str, tries: locked_and_calm.Tries, seed: int
) -> None:
    async with (
        asyncio.timeout(DEADLINE),
        a_placement(database_url) as one,
        a_placement(database_url) as two,
        a_placement(database_url) as three,
    ):
        for name in ("CUSTOM_A", "CUSTOM_IDLE"):
            await edit_name(one, "trait", names.MakeName(name=name))
        stock = {"VCPU": Inventory(total=AMPLE)}
        for host in HOSTS:
            await edit(one, deeds.made(uid(host, "a"), f"{host}", uid(1, "a") if host == 2 else None))
            await edit(one, resources.SetInventories(provider=uid(host, "a"), inventories=stock))
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
            ((answer, edit) for racer in racers for edit, answer in racer.edited if answer.number),
            key=lambda each: each[0].number,
        )
        numbers = [answer.number for answer, _ in done]
        assert len(set(numbers)) == len(numbers)
        stored = await locked_and_calm.stored(one)
        generations = Counter[str](dict.fromkeys((uid(host, "a") for host in HOSTS), 1))
        for answer, order in done:
            assert answer.provider is not None
            generations[answer.provider.id] += moves(order)
        for racer in racers:
            generations += racer.claimed
        for uuid, _, _, _, generation, *_ in stored["providers"]:
            assert generation == generations[uuid], uuid
        last = {edit.provider: edit for _, edit in done if isinstance(edit, resources.SetInventories)}
        totals = {uuid: total for uuid, _, total, *_ in stored["inventories"]}
        assert {uuid: totals[uuid] for uuid in last} == {
            uuid: inventories.inventories["VCPU"].total for uuid, inventories in last.items()
        }
        news = [edit.name for _, edit in done if isinstance(edit, resources.MakeProvider)]
        assert len(set(news)) == len(news) > 0
        assert {name for _, name, *_ in stored["providers"]} == {*map(str, HOSTS), *news}

        for racer in racers:
            await racer.placement.memory.fresh()
            await keeps_its_index(racer.placement)
        assert seen_by(one) == seen_by(two) == seen_by(three)
        assert await breaches(one.database) == []
