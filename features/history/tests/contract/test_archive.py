"""The archive of placement: states at past times and change numbers, on both databases."""

import random
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from sqlalchemy import text

from bus.aggregates import MakeAggregate
from bus.cells import DropCell, RegisterCell
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.names import NameEdited, NameEditRequested, RenameName
from bus.reports import Inventory
from bus.resources import Consumer, FindAllocations
from features.history import archive as archiving
from features.history import archive_store as archive
from features.history.archive import Archive
from features.history.past import PastCloud
from features.history.reading import PastTime, StateHistory
from placement_worker.testing import TRIM, Placement, changes_since
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_release,
    a_report,
    an_order,
    gone,
    mark_published,
    offered_by,
    on_hosts,
)  # fmt: skip
from tests.support.placement_calls import claim, edit_aggregate, edit_cell, report
from tests.support.virtual_time import TurnedClock


def bus_of(placement: Placement) -> Bus:
    class Asking:
        def asker(self, *_: Any, **__: Any) -> Any:
            return placement.of(Archive).find

    return cast(Bus, Asking())


async def state_at(placement: Placement, at: float = 0.0, number: int | None = None) -> PastCloud:
    return await StateHistory(bus_of(placement), PastTime("then", at, number)).state()


async def consumers_now(placement: Placement) -> dict[str, tuple[Any, ...]]:
    providers = tuple(placement.memory.index.rows)
    found = await placement.lookups.allocations(FindAllocations(providers=providers))
    return {each.id: _facts(each) for each in found.consumers}


def _facts(consumer: Consumer) -> tuple[Any, ...]:
    return consumer.generation, consumer.project, consumer.type, consumer.allocations


def consumers_of(cloud: PastCloud) -> dict[str, tuple[Any, ...]]:
    return {
        each.consumer: (each.generation, each.project, each.type, each.allocations)
        for each in cloud.consumers.values()
    }


class RandomChanges:
    """Changes a placement at random."""

    def __init__(self, placement: Placement, seed: int) -> None:
        self.placement = placement
        self.random = random.Random(seed)
        self.sequence = 0
        self.held: dict[int, int] = {}  # consumer → generation
        self.consumers = 0
        self.name = "CUSTOM_A"

    async def act(self) -> None:
        acts = (self.claims, self.claims, self.releases, self.reports, self.reports, self.facts)
        await self.random.choice(acts)()

    async def reports(self) -> None:
        self.sequence += 1
        host = self.random.randint(1, 6)
        if self.random.random() < 0.5:
            await report(self.placement, gone(host, self.sequence))
            return
        inventories = {"VCPU": Inventory(total=self.random.randint(8, 64)), self.name: Inventory(total=50)}
        traits = self.random.sample(("CUSTOM_X", "CUSTOM_Y"), self.random.randint(0, 2))
        made = a_report(host, sequence=self.sequence, inventories=inventories, traits=tuple(traits))
        await report(self.placement, made)

    async def claims(self) -> None:
        self.consumers += 1
        host, project = self.random.randint(1, 4), self.random.choice(("p1", "p2"))
        resources = {"VCPU": self.random.randint(1, 3), self.name: 1}
        [answer] = await claim(
            self.placement, an_order(a_claim(self.consumers, on_hosts(host, **resources), project=project))
        )
        if generation := getattr(answer, "generation", 0):
            self.held[self.consumers] = generation

    async def releases(self) -> None:
        if self.held:
            consumer, generation = self.held.popitem()
            keep = consumer + 10_000 if self.random.random() < 0.3 else None
            await self.placement.claims.release_many([a_release(consumer, generation, keep=keep)])

    async def facts(self) -> None:
        match self.random.randint(0, 2):
            case 0:
                made = MakeAggregate(aggregate=uid(self.consumers, "e"), name=f"a{self.consumers}")
                await edit_aggregate(self.placement, made)
            case 1:
                cell = RegisterCell(cell="c9", enabled=self.random.random() < 0.5)
                await edit_cell(self.placement, cell if self.random.random() < 0.7 else DropCell(cell="c9"))
            case _:
                renamed = RenameName(name=self.name, to=f"CUSTOM_{self.consumers}")
                edit = NameEditRequested(kind="resource class", edit=renamed)
                if isinstance((await self.placement.classes_and_traits.edit(edit)).result, NameEdited):
                    self.name = renamed.to


@pytest.fixture
async def placement(url: str, turned: TurnedClock) -> AsyncIterator[Placement]:
    async with a_placement(url, turned.clock) as placement:
        yield placement


async def test_the_state_at_every_number_and_time_is_the_state_of_that_moment(
    placement: Placement, turned: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "SNAPSHOT_BYTES", 0)
    monkeypatch.setattr(archiving, "ANSWER_BYTES", 700)
    monkeypatch.setattr(archive, "COMMITS_A_BODY", 5)
    await placement.of(Archive).store()
    chance, truth = RandomChanges(placement, 8), {}
    for step in range(60):
        turned.now += 10.0
        await chance.act()
        index = placement.memory.index
        facts = dict(index.aggregate_facts), dict(index.cell_facts)
        seen = offered_by(index), await consumers_now(placement), facts
        truth[placement.memory.index.seen] = turned.now, seen
        if step % 7 == 0:
            await placement.of(Archive).store()
    async with placement.database.read() as tx:
        assert (await archive.snapshot_before(tx, None, turned.now) or (0,))[0] > 5
    for nth, (number, (at, (rows, consumers, facts))) in enumerate(truth.items()):
        states = [await state_at(placement, number=number)]
        states += [await state_at(placement, at)] if nth % 4 == 0 else []
        for cloud in states:
            assert cloud.number == number
            assert offered_by(cloud.index()) == rows
            assert consumers_of(cloud) == consumers
            assert (cloud.aggregates, cloud.cells) == facts


async def run(placement: Placement, statement: str) -> None:
    async with placement.database.write() as tx:
        await tx.execute(text(statement))


async def claimed(placement: Placement, consumer: int) -> int:
    await claim(placement, an_order(a_claim(consumer, on_hosts(1, VCPU=1))))
    return placement.memory.index.seen


@pytest.mark.parametrize(
    "loss", ["DELETE FROM change_log", "UPDATE change_log SET at = NULL"], ids=["trimmed", "previous version"]
)
async def test_missing_changes_are_a_gap_that_a_snapshot_ends(
    placement: Placement, turned: TurnedClock, loss: str
) -> None:
    await placement.of(Archive).store()
    await report(placement, a_report(1))
    before = await claimed(placement, 1)
    await placement.of(Archive).store()
    await claimed(placement, 2)
    await run(placement, loss)
    between = await claimed(placement, 3)
    turned.now += 400.0
    after = await claimed(placement, 4)
    await placement.of(Archive).store()
    assert len((await state_at(placement, number=before)).consumers) == 1
    with pytest.raises(OperationRefused, match="are not stored"):
        await state_at(placement, number=between)
    last = await claimed(placement, 5)
    for number, consumers in ((after, 4), (last, 5)):
        assert len((await state_at(placement, number=number)).consumers) == consumers


async def test_old_states_are_deleted_and_the_log_is_trimmed_after_its_archive(
    placement: Placement, turned: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "SNAPSHOT_BYTES", 0)
    await placement.of(Archive).store()
    await report(placement, a_report(1, inventories={"VCPU": Inventory(total=64)}))
    first = await claimed(placement, 1)
    await mark_published(placement, archived=False)
    async with placement.database.write() as tx:
        await TRIM(tx, keep=0, unpublished=1000)
        assert len((await changes_since(tx, 0, 10)).changes) == first
    numbers = []
    for consumer in range(2, 12):
        turned.now += 100.0
        numbers.append(await claimed(placement, consumer))
        await placement.of(Archive).store()
    await mark_published(placement, archived=False)
    async with placement.database.write() as tx:
        await TRIM(tx, keep=0, unpublished=1000)
        assert not (await changes_since(tx, 0, 10)).changes
    await placement.of(Archive).prune(450.0)
    assert len((await state_at(placement, at=turned.now - 400.0)).consumers) == 7
    assert len((await state_at(placement, at=turned.now)).consumers) == 11
    with pytest.raises(OperationRefused, match="the history begins later"):
        await state_at(placement, number=numbers[0])
