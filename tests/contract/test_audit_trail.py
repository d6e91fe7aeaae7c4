"""The audit trail: what a connection of an operator records, and what schedulers store and find."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest
from msgspec import structs

from berth.features import packages
from bus import topics
from bus.audit_trail import PROCESS_RESTART, ActRecord, ActsFound, ActsRecorded, FindActs, Operator
from bus.delivery.recording import Caller, RecordingBus, caller
from bus.errors import OperationRefused
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildDeleteRequested, ProcessRestarted
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker
from scheduler_worker.audit_trail import AuditTrail
from tests.support.acting_region import CLOSE, ActingRegion
from tests.support.buses import serving
from tests.support.ids import uid
from tests.support.virtual_time import TurnedClock
from tests.support.waiting import until

DAY = 86400.0
ANN = Operator(name="ann", role="admin", known_by="token file", project="ops")


def a_record(number: int, *, program: bool = False, **fields: Any) -> ActRecord:
    operator = structs.replace(ANN, is_program=program)
    record = ActRecord(id=uid(number), at=float(number), operator=operator, interface="command", act="quota")
    return (
        structs.replace(record, outcome="done", **fields)
        if "outcome" not in fields
        else structs.replace(record, **fields)
    )


@pytest.fixture
async def trail(open_database: Callable[..., Database], turned: TurnedClock) -> AuditTrail:
    database = open_database()
    await migrate(database, *packages("scheduler"))
    return AuditTrail(database, turned.clock, 90 * DAY, 7 * DAY)


async def stored(trail: AuditTrail, **question: Any) -> list[ActRecord]:
    return [*(await trail.find(FindActs(**question))).records]


async def test_an_outcome_replaces_the_begun_record_whatever_the_order_of_delivery(trail: AuditTrail) -> None:
    started, done = a_record(1, outcome="started"), a_record(1, after='{"a":1}')
    for records in ((started,), (done,), (started,), (done, started)):
        await trail.record_many([ActsRecorded(records=records)])
    assert await stored(trail) == [done]


async def test_a_restart_of_a_process_is_recorded_once(trail: AuditTrail) -> None:
    restart = ProcessRestarted(process="conductor.c1", machine="m1", cell="c1", at=5.0)
    central = ProcessRestarted(process="scheduler", at=6.0)
    for messages in ((restart, central), (restart,)):
        await trail.record_restarts(messages)
    found = await stored(trail, act=PROCESS_RESTART, since=4.0)
    assert [(record.target, record.cell, record.at) for record in found] == [
        ("scheduler", "", 6.0), ("conductor.c1", "c1", 5.0),
    ]  # fmt: skip


async def test_a_repeated_delivery_is_recorded_only_if_its_first_left_no_record(trail: AuditTrail) -> None:
    first, again = a_record(1, target="x", request="r"), a_record(2, target="x", request="r", repeated=True)
    other = a_record(3, target="x", request="s", repeated=True)
    for _ in range(2):
        await trail.record_many([ActsRecorded(records=(again,))])
    assert await stored(trail) == [again]
    await trail.record_many([ActsRecorded(records=(first, structs.replace(again, id=uid(4)), other))])
    assert await stored(trail) == [other, again, first]


async def test_a_denial_is_not_replaced_when_the_same_act_is_permitted_later() -> None:
    region, broker = RecordedRegion(), LocalBroker()
    async with serving(lambda: LocalTransport(broker), region.worker()) as bus:
        for role in ("operator", "admin"):
            who = Caller(operator=structs.replace(ANN, role=role), interface="command", request="r")
            token = caller.set(who)
            with suppress(OperationRefused):
                await bus.asker(topics.EDIT_CELL)(CLOSE)
            caller.reset(token)
        await until(lambda: [each.outcome for each in region.records] == ["denied", "started", "done"])
    denied, started, done = region.records
    assert denied.id != started.id == done.id


@pytest.mark.parametrize(("role", "says"), [("operator", "cell takes the role admin"), ("admin", "")])
async def test_a_rehearsed_act_is_judged_and_neither_sent_nor_recorded(role: Any, says: str) -> None:
    region, broker = RecordedRegion(), LocalBroker()
    async with serving(lambda: LocalTransport(broker), region.worker()) as bus:
        bus.rehearses = True
        caller.set(Caller(operator=structs.replace(ANN, role=role), interface="command", request="r"))
        with pytest.raises(OperationRefused, match=says) if says else nullcontext():
            await bus.rehearse(CLOSE)
        with pytest.raises(OperationRefused, match="credential takes") if says else nullcontext():
            bus.rehearse_act("credential", "token of ann")
        with pytest.raises(RuntimeError, match="CellEditRequested in a dry run"):
            await bus.asker(topics.EDIT_CELL)(CLOSE)
        with pytest.raises(RuntimeError, match="in a dry run"):
            await bus.publish(BuildDeleteRequested(build=uid(1), cell="c1"))
        with pytest.raises(RuntimeError, match="credential in a dry run"):
            async with bus.act("credential", "token of ann"):
                pass
        assert (region.is_enabled, region.deleted, region.records) == (True, [], [])


async def every_page(trail: AuditTrail, question: FindActs) -> AsyncIterator[ActsFound]:
    while True:
        page = await trail.find(question)
        yield page
        if not page.last:
            return
        question = structs.replace(question, before=page.last)


async def test_pages_have_every_record_once_and_fit_into_a_message(trail: AuditTrail) -> None:
    large: dict[str, Any] = {
        "asked": "x" * 4000,
        "before": "y" * 4000,
        "after": "z" * 4000,
        "detail": "d" * 4000,
    }
    records = [a_record(number, **large) for number in range(1, 121)]
    same_time = [structs.replace(record, at=7.0) for record in records]
    for record in same_time:
        await trail.record_many([ActsRecorded(records=(record,))])
    pages = [page async for page in every_page(trail, FindActs(limit=50))]
    assert all(sum(len(record.asked) * 4 for record in page.records) < 500_000 for page in pages)
    assert sorted(record.id for page in pages for record in page.records) == sorted(r.id for r in records)


async def test_acts_of_programs_are_deleted_sooner(trail: AuditTrail, turned: TurnedClock) -> None:
    turned.now = 100 * DAY
    by_day = {"old": 9 * DAY, "a month": 70 * DAY, "new": 95 * DAY}
    for program in (False, True):
        records = [
            structs.replace(a_record(number + 5 * program, program=program), at=at, target=name)
            for number, (name, at) in enumerate(by_day.items())
        ]
        await trail.record_many([ActsRecorded(records=tuple(records))])
    await trail.prune()
    left = [(record.target, record.operator.is_program) for record in await stored(trail)]
    assert sorted(left) == [("a month", False), ("new", False), ("new", True)]


# Records of an operator's connection


class RecordedRegion(ActingRegion):
    async def outcomes(self, *expected: str) -> ActRecord:
        await until(lambda: [record.outcome for record in self.records] == [*expected])
        assert len({record.id for record in self.records}) == 1
        return self.records[-1]


@asynccontextmanager
async def acting(region: RecordedRegion, operator: Operator = ANN) -> AsyncIterator[RecordingBus]:
    broker = LocalBroker()
    who = Caller(
        operator=operator, interface="command", through="berth cell disable", origin="h", request="r"
    )
    async with serving(lambda: LocalTransport(broker), region.worker()) as bus:
        token = caller.set(who)
        try:
            yield bus
        finally:
            caller.reset(token)


async def test_a_published_order_is_recorded_with_the_state_before() -> None:
    region = RecordedRegion()
    async with acting(region) as bus:
        await bus.publish(BuildDeleteRequested(build=uid(1), cell="c1", reply_to="x"))
        record = await region.outcomes("started", "done")
    assert (record.act, record.target, record.cell, record.project) == ("delete", uid(1), "c1", "p1")
    assert uid(9) in record.before
    assert "reply_to" not in record.asked


async def test_a_refused_edit_is_recorded_with_the_reason() -> None:
    region = RecordedRegion()
    region.refuses = True
    async with acting(region) as bus:
        await bus.asker(topics.EDIT_CELL)(CLOSE)
        assert "CellInUse" in (await region.outcomes("started", "refused")).detail


async def test_a_denied_act_is_recorded_and_not_carried_out() -> None:
    region = RecordedRegion()
    async with acting(region, Operator(name="ann", role="operator")) as bus:
        with pytest.raises(OperationRefused, match="cell takes the role admin"):
            await bus.asker(topics.EDIT_CELL)(CLOSE)
        record = await region.outcomes("denied")
    assert "cell takes the role admin" in record.detail
    assert region.is_enabled


async def test_an_act_is_done_although_no_scheduler_takes_its_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    region, broker = RecordedRegion(), LocalBroker()
    worker = without_records(region)
    async with serving(lambda: LocalTransport(broker), worker) as bus:
        token = caller.set(Caller(operator=ANN, interface="command"))
        await bus.asker(topics.EDIT_CELL)(CLOSE)
        caller.reset(token)
    assert not region.is_enabled
    assert "not in the audit trail" in caplog.text


def without_records(region: RecordedRegion) -> Worker:
    return Worker("placement", answers=region.worker().answers)
