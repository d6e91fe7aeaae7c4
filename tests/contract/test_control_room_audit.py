"""The control room records forms and sign-ins in the audit trail; its page shows records by role."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from berth.features import packages
from berth.settings import Settings
from bus import topics
from bus.audit_trail import ActRecord, ActsRecorded, FindActs, Operator
from bus.clock import Clock
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.worker import Worker, answers, on_many
from placement_worker import Placement
from scheduler_worker.audit_trail import AuditTrail
from tests.support.ids import uid
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room
from tests.support.waiting import until

TOKENS = "\n".join(
    f'[[tokens]]\ntoken = "{role}"\nuser = "{role}-user"\nproject = "p"\nroles = ["{role}"]'
    for role in ("reader", "operator", "admin", "member")
)


@asynccontextmanager
async def a_recorded_room(settings: Settings) -> AsyncIterator[tuple[VisitedRoom, AuditTrail, Placement]]:
    database = Database("sqlite+aiosqlite://", inline=True)
    await migrate(database, *packages("scheduler"))
    trail = AuditTrail(database, Clock(), 1e9, 1e9)
    scheduler = Worker(
        "scheduler",
        consumes=[on_many(topics.ACTS_RECORDED, trail.record_many)],
        answers=[answers(topics.FIND_ACTS, trail.find)],
    )
    async with (
        a_placement("sqlite+aiosqlite://") as placement,
        a_visited_room(
            silent_placement(placement), scheduler, answered=("acts", "providers"), settings=settings
        ) as room,
    ):
        assert await report(placement, a_report(1)) == [""]
        yield room, trail, placement
    await database.close()


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[VisitedRoom, AuditTrail, Placement]]:
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS)
    settings = Settings().having(cells=("c1",), placement_auth="tokens", placement_tokens=str(file))
    async with a_recorded_room(settings) as made:
        yield made


async def recorded(trail: AuditTrail, count: int, **question: Any) -> list[ActRecord]:
    """Wait until `count` matching records have an outcome; return all matching records, the latest first."""
    found: list[ActRecord] = []

    async def are_there() -> bool:
        nonlocal found
        found = [*(await trail.find(FindActs(**question))).records]
        return len([record for record in found if record.outcome != "started"]) == count

    await until(are_there)
    return found


HOST = uid(1, "a")


async def disable_host(room: VisitedRoom) -> int:
    return (await room.send(f"/hosts/{HOST}", headers={}, act="disable", cause="disk")).status_code


Opened = tuple[VisitedRoom, AuditTrail, Placement]


async def test_sign_ins_are_recorded_without_the_token(opened: Opened) -> None:
    room, trail, _ = opened
    await room.sign_in("a wrong token")
    await room.sign_in("reader")
    done, denied = await recorded(trail, 2, act="sign in")
    assert (done.operator.name, done.outcome) == ("reader-user", "done")
    assert (denied.operator.name, denied.outcome) == ("", "denied")
    assert "a wrong token" not in str(denied)


async def test_the_page_lists_filters_and_exports_records(opened: Opened) -> None:
    room, trail, _ = opened
    await room.sign_in("admin")
    await disable_host(room)
    await recorded(trail, 1, act="mark host")
    page = await room.page("/audit")
    assert f"POST /hosts/{HOST}" in page
    assert "<code>berth audit undo " in page
    assert "No act matches" in await room.page("/audit?target=host-2")
    export = (await room.browser.get("/audit.json?act=mark+host")).text.splitlines()
    assert [json.loads(line)["target"] for line in export] == [HOST]


@pytest.mark.parametrize("before", ["", "x", "1.5 ; DROP TABLE acts", "-1 x", "9e999 x"])
async def test_the_page_ignores_a_malformed_position(opened: Opened, before: str) -> None:
    room, _, _ = opened
    await room.sign_in("reader")
    assert "sign in" in await room.page(f"/audit?before={before}") or before


async def test_the_page_escapes_records(opened: Opened) -> None:
    room, trail, _ = opened
    await room.sign_in("reader")
    operator = Operator(name="<script>x</script>")
    record = ActRecord(id=uid(1), at=1.0, operator=operator, interface="bus", act="<b>")
    await trail.record_many([ActsRecorded(records=(record,))])
    page = await room.page("/audit")
    assert "<script>x" not in page
    assert "&lt;script&gt;x" in page
