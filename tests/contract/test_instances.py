"""Builds of a cell by project, host, status and name; `berth instances` queries every cell."""

import asyncio
import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from sqlalchemy import text

from berth import wiring
from berth.commands import instances, terminal
from berth.commands.instances import show_instances
from berth.commands.terminal import Cli
from berth.settings import Cell, Settings
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildPlaced
from bus.queries import FindInstances
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import CELL_CLAIM, CELL_RELEASE
from cell_conductor import cell_conductor
from cell_conductor.audit import Listing
from cell_conductor.builds import Builds
from tests.support.buses import queues_of
from tests.support.command_line import plainly
from tests.support.conductor_builders import (
    CELL,
    SPEC,
    Books,
    a_build_order,
    a_delete,
    a_destroy_order,
    a_placed,
    an_agent_report,
)
from tests.support.ids import uid


def named(build: int, project: str = "p", name: str = "") -> BuildPlaced:
    return replace(a_placed(build), spec=replace(SPEC, project=project, name=name))


async def six_builds(database: Database) -> None:
    """1 to 6: building, active, in error, deleted, deleting, and one on its second host."""
    books = Books()
    builds = Builds(database, books.claim_many, books.release_many)
    placed = [named(n, "even" if n % 2 == 0 else "odd", "web" if n < 4 else "") for n in range(1, 7)]
    for message in placed:
        books.hold(message)
    await builds.start_many(placed)
    _, two, three, four, five, six = (a_build_order(message) for message in placed)
    await builds.report_many(
        [
            an_agent_report(two, "built"),
            an_agent_report(three, "failed", retry=False, cause="bad image"),
            an_agent_report(four, "built"),
            an_agent_report(six, "failed", cause="no disk"),
        ]
    )
    await builds.delete_many([a_delete(placed[3]), a_delete(placed[4]), a_delete(a_placed(9))])
    await builds.report_many([an_agent_report(a_destroy_order(placed[3]), "destroyed")])
    del five


@pytest.fixture
async def listed(database: Database) -> Listing:
    await migrate(database, "cell_conductor")
    await six_builds(database)
    return Listing(database)


ASKED = [
    pytest.param({}, [1, 2, 3, 5, 6], id="all but the deleted"),
    pytest.param({"project": "odd"}, [1, 3, 5], id="of a project"),
    pytest.param({"host": "host0"}, [1, 2, 3, 5], id="on a host"),
    pytest.param({"host": "host1"}, [6], id="where it is now"),
    pytest.param({"host": uid(1, "c")}, [6], id="by its root"),
    pytest.param({"name": "web"}, [1, 2, 3], id="by name"),
    pytest.param({"name": "web", "project": "odd"}, [1, 3], id="by name and project"),
    pytest.param({"statuses": ("active",)}, [2], id="active"),
    pytest.param({"statuses": ("error", "deleted")}, [3, 4], id="over"),
    pytest.param({"statuses": ("deleting",), "project": "even"}, [], id="none"),
    pytest.param({"name": "we"}, [], id="a part of a name is no name"),
]


@pytest.mark.parametrize(("asked", "expected"), ASKED)
async def test_builds_are_found_by_what_is_asked(
    listed: Listing, asked: dict[str, Any], expected: list[int]
) -> None:
    found = await listed.find(FindInstances(cell=CELL, count=True, **asked))
    assert [instance.build for instance in found.instances] == [uid(n, "b") for n in expected]
    assert (found.more, found.count) == (False, len(expected))


async def test_a_page_ends_where_the_next_begins_and_only_the_first_counts(listed: Listing) -> None:
    seen, after, pages = [], "", 0
    while True:
        page = await listed.find(FindInstances(cell=CELL, limit=2, after=after))
        seen += [instance.build for instance in page.instances]
        pages, after = pages + 1, page.last
        assert page.count == 0
        if not page.more:
            break
    assert (seen, pages) == ([uid(n, "b") for n in (1, 2, 3, 5, 6)], 3)


async def test_what_is_shown_of_a_build(listed: Listing) -> None:
    failed, six = (await listed.find(FindInstances(cell=CELL, statuses=("error",)))).instances, None
    assert (failed[0].reason, failed[0].flavor, failed[0].name) == (
        "aborted: host0 failed: bad image",
        "small",
        "web",
    )
    [six] = (await listed.find(FindInstances(cell=CELL, host="host1"))).instances
    assert (six.status, six.attempt, six.root, six.project) == ("building", 2, uid(1, "c"), "even")


async def test_a_build_that_cannot_be_read_keeps_no_other_from_being_listed(
    listed: Listing, database: Database
) -> None:
    async with database.write() as tx:
        await tx.execute(text("UPDATE builds SET placed = 'x' WHERE id = :id"), {"id": uid(2, "b")})
    page = await listed.find(FindInstances(cell=CELL, limit=3))
    assert ([instance.build for instance in page.instances], page.last) == (
        [uid(1, "b"), uid(3, "b")],
        uid(3, "b"),
    )
    assert page.more


async def test_those_that_are_being_built_are_counted_without_reading_all(listed: Listing) -> None:
    """By the database's own plan, even where a table is so small that it would rather read it all."""
    await listed.find(FindInstances(cell=CELL, statuses=("building", "swapping"), limit=1, count=True))
    (count,) = (made for sql, made in listed._statements.items() if "count(*)" in sql)
    database = listed._database
    made = count.made(database.dialect, False)
    async with database.read() as tx:
        if database.dialect == "postgresql":
            await tx.execute(text("SET LOCAL enable_seqscan = off"))
        explain = "EXPLAIN" if database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
        rows = await tx.fetch(f"{explain} {made.alone}", [])
    plan = "\n".join(str(tuple(row)) for row in rows)
    assert "builds_unsettled" in plan
    assert "Seq Scan on builds" not in plan and "SCAN builds" not in plan


@pytest.mark.parametrize("away", [False, True], ids=["all there", "one away"])
async def test_every_cell_is_asked_and_one_that_is_away_is_named(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    broker, told, stopping = LocalBroker(), io.StringIO(), asyncio.Event()
    monkeypatch.setattr(wiring, "transport", lambda settings, name: LocalTransport(broker))
    monkeypatch.setattr(instances, "SECONDS", 0.5)
    monkeypatch.setattr(instances, "_PAGE", 2)
    monkeypatch.setattr(terminal, "write_json", lambda one: told.write(f"{one.build} "))
    store = Database("sqlite+aiosqlite://", inline=True)
    await migrate(store, "cell_conductor")
    await six_builds(store)
    code, problem = None, None
    try:
        async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as group:
            asks = bus.asker_of_many(CELL_CLAIM), bus.asker_of_many(CELL_RELEASE)
            conductor = cell_conductor(CELL, store, *asks)
            group.create_task(bus.serve(conductor, stopping))
            await bus.transport.declare(*queues_of(conductor, bus.replica))
            settings = Settings(cells=tuple(map(Cell, [CELL, "gone"] if away else [CELL])))
            question = FindInstances(cell="any", project="")
            try:
                code = await plainly(
                    show_instances(Cli(settings, True, Console(file=told)), (), question, "build", None)
                )
            except OperationRefused as refused:
                problem = refused
            stopping.set()
    finally:
        await store.close()
    assert told.getvalue().split() == [uid(n, "b") for n in (1, 2, 3, 5, 6)]
    assert (code, str(problem)) == (
        (None, "not shown, for it did not answer: cell gone") if away else (0, "None")
    )
