"""The usual shapes of requests in the database: the schedulers of a region count them together."""

import pytest

from berth.features import packages
from bus.clock import Clock
from bus.errors import Unavailable
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.sql.statement import Transaction
from scheduler_worker.core.demand import HALF_LIFE, DemandCounts, Shape, ShapeGroup
from scheduler_worker.host_records import DemandRecords

NOW = 1_800_000_000.0


@pytest.fixture
async def store(database: Database) -> Database:
    await migrate(database, *packages("scheduler"))
    return database


def flat(cpus: int) -> Shape:
    return Shape(groups=(ShapeGroup(resources=(("VCPU", cpus),), is_split=True),))


def parts(demand: DemandCounts) -> dict[Shape, float]:
    usual = demand.usual()
    return dict(zip(usual.shapes, usual.parts, strict=True))


def scheduler(store: Database, now: float = NOW) -> tuple[DemandCounts, DemandRecords]:
    demand = DemandCounts()
    return demand, DemandRecords(demand, store, Clock(now=lambda: now))


async def test_schedulers_count_together_and_a_new_one_knows_what_they_counted(store: Database) -> None:
    (one, of_one), (other, of_other) = scheduler(store), scheduler(store)
    one.count([(flat(1), 3)], NOW)
    other.count([(flat(1), 1), (flat(2), 4)], NOW)
    for records in (of_one, of_other, of_one, of_other):  # nothing is counted twice
        await records.store()
    new, of_new = scheduler(store)
    await of_new.store()
    assert parts(one) == parts(other) == parts(new) == {flat(1): 0.5, flat(2): 0.5}


async def test_shapes_that_nobody_asked_for_in_a_long_time_are_forgotten(store: Database) -> None:
    demand, records = scheduler(store)
    demand.count([(flat(1), 1)], NOW)
    await records.store()
    _, later = scheduler(store, NOW + 8 * HALF_LIFE)
    await later.store()
    new, of_new = scheduler(store)
    await of_new.store()
    assert parts(new) == {}


async def test_counts_remain_if_the_database_fails(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(tx: Transaction) -> dict[str, float]:
        raise Unavailable("no database")

    demand, records = scheduler(store)
    demand.count([(flat(1), 1)], NOW)
    with monkeypatch.context() as patched, pytest.raises(Unavailable):
        patched.setattr("scheduler_worker.store.demand.find", fails)
        await records.store()
    await records.store()
    new, of_new = scheduler(store)
    await of_new.store()
    assert parts(new) == {flat(1): 1.0}
