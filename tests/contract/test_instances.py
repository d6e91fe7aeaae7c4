"""Builds of a cell by project, host, status and name; `berth instance list` queries every cell."""

import asyncio
import io
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rich.console import Console
from sqlalchemy import text

from berth import composition
from berth.commands.builds import delete
from berth.commands.instances import InstanceOptions, instances_command
from berth.features import packages
from berth.kit import builds, listing
from berth.kit.dry_run import ActCli
from berth.kit.listing import ListCli, Listing
from berth.settings import BadSetting, Settings
from bus import topics
from bus.decisions import FindRefused, RefusedBuild, RefusedFound
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelRequested, BuildDeleted, BuildDeleteRequested, BuildPlaced
from bus.queries import DecisionFound, FindDecision, FindInstances
from bus.requests import Flavor
from bus.resources import AllocationsFound, Consumer, FindAllocations, FindProviders, Provider, ProvidersFound
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Allocations
from bus.worker import Worker, answers, on
from cell_conductor import cell_conductor
from cell_conductor.builds import Builds
from tests.support.buses import serving
from tests.support.command_line import plainly
from tests.support.conductor_builders import (
    CELL,
    FEATURES,
    SPEC,
    Books,
    a_build_order,
    a_delete,
    a_destroy_order,
    a_placed,
    an_agent_report,
)
from tests.support.ids import uid
from tests.support.instance_cloud import BUILD, a_cloud
from tests.support.scheduler_builders import a_request
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld


def named(build: int, project: str = "p", name: str = "") -> BuildPlaced:
    return replace(a_placed(build), spec=replace(SPEC, project=project, name=name))


async def six_builds(database: Database) -> Builds:
    """Return a cell's builds 1 to 6: building, active, error, deleted, deleting, and on its second host."""
    books = Books()
    builds = Builds(database, books.claim_many, books.release_many, **FEATURES)
    placed = [named(n, "even" if n % 2 == 0 else "odd", "web" if n < 4 else "") for n in range(1, 7)]
    for message in placed:
        books.hold(message)
    await builds.start_many(placed)
    _, two, three, four, _, six = (a_build_order(message) for message in placed)
    await builds.report_many(
        [
            an_agent_report(two, "built"),
            an_agent_report(three, "failed", retry=False, cause="bad image"),
            an_agent_report(four, "built"),
            an_agent_report(six, "failed", cause="no disk"),
        ]
    )
    await builds.receive_many([a_delete(placed[3]), a_delete(placed[4]), a_delete(a_placed(9))])
    await builds.report_many([an_agent_report(a_destroy_order(placed[3]), "destroyed")])
    return builds


@pytest.fixture
async def listed(database: Database) -> Builds:
    await migrate(database, *packages("conductor"))
    return await six_builds(database)


async def test_an_unreadable_build_does_not_hide_other_builds(listed: Builds, database: Database) -> None:
    async with database.write() as tx:
        await tx.execute(text("UPDATE placed_builds SET placed = 'x' WHERE build = :id"), {"id": uid(2, "b")})
    page = await listed.find_instances(FindInstances(cell=CELL, limit=3))
    assert ([instance.build for instance in page.instances], page.last) == (
        [uid(1, "b"), uid(3, "b")],
        uid(3, "b"),
    )
    assert page.more


@pytest.mark.parametrize("away", [False, True], ids=["all there", "one away"])
async def test_all_cells_are_queried_and_unreachable_cells_are_named(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    broker, output = LocalBroker(), io.StringIO()
    monkeypatch.setattr(composition, "transport", lambda settings, name: LocalTransport(broker))
    monkeypatch.setattr(builds, "INSTANCE_SECONDS", 0.5)
    monkeypatch.setattr(builds, "PAGE", 2)
    monkeypatch.setattr(listing, "write_json", lambda one: output.write(f"{one.build} "))
    store = Database("sqlite+aiosqlite://", inline=True)
    await migrate(store, *packages("conductor"))
    await six_builds(store)
    books = Books()
    conductor = cell_conductor(CELL, store, books.claim_many, books.release_many, **FEATURES)
    settings = Settings().having(cells=(CELL, "gone") if away else (CELL,))
    cli = ListCli(settings, True, Console(file=output), listing=Listing("json", sort="build"))
    shown = instances_command(cli, InstanceOptions(every=True))
    async with serving(lambda: LocalTransport(broker), conductor):
        if away:
            with pytest.raises(OperationRefused, match="not shown, for it did not answer: cell gone"):
                await plainly(shown)
        else:
            await plainly(shown)
    await store.close()
    assert output.getvalue().split() == [uid(n, "b") for n in (1, 2, 3, 5, 6)]


@pytest.mark.parametrize(("reply_to", "expected"), [("client", [2, 3]), ("another", [])])
async def test_ends_are_published_again_to_the_client_that_missed_them(
    monkeypatch: pytest.MonkeyPatch, reply_to: str, expected: list[int]
) -> None:
    broker = LocalBroker()
    monkeypatch.setattr(composition, "transport", lambda settings, name: LocalTransport(broker))
    store, books = Database("sqlite+aiosqlite://", inline=True), Books()
    await migrate(store, *packages("conductor"))
    conductor = Builds(store, books.claim_many, books.release_many, **FEATURES)
    placed = [replace(a_placed(n), reply_to="client") for n in (1, 2, 3)]
    for message in placed:
        books.hold(message)
    await conductor.start_many(placed)
    _, two, three = map(a_build_order, placed)
    await conductor.report_many(
        [an_agent_report(two, "built"), an_agent_report(three, "failed", retry=False, cause="bad image")]
    )
    cli = ListCli(Settings().having(cells=(CELL,)), False, Console(file=io.StringIO()))
    worker = cell_conductor(CELL, store, books.claim_many, books.release_many, **FEATURES)
    request, asked = a_request(9, reply_to="client"), list[FindRefused]()

    async def refused(question: FindRefused) -> RefusedFound:
        asked.append(question)
        build = RefusedBuild(
            build=request.instances[0], request=request.request, project="p", flavor="vm", since=1.0
        )
        return RefusedFound(builds=(build,)) if reply_to == "client" else RefusedFound()

    async def decided(question: FindDecision) -> DecisionFound:
        return DecisionFound(known=True, request=request)

    scheduler = Worker(
        "scheduler", answers=[answers(topics.REFUSED, refused), answers(topics.DECISION, decided)]
    )
    async with serving(lambda: LocalTransport(broker), worker, scheduler), Bus(LocalTransport(broker)) as bus:
        ends = await bus.listen(topics.BUILD_ENDED.at(reply_to="client"))
        requests = await bus.listen(topics.BUILD_REQUESTED.at())
        await plainly(instances_command(cli, InstanceOptions(ended=True, reply_to=reply_to, publish=True)))
        ended = [(await ends.get()).build for _ in expected]
        assert sorted(ended) == [uid(n, "b") for n in expected]
        if expected:
            assert await requests.get() == request
        assert [question.reply_to for question in asked] == [reply_to]
    await store.close()


VM = Flavor(name="vm", vcpus=1, memory_mb=512, disk_gb=1)


async def anywhere(
    world: WaitingWorld, build: str = BUILD, *, fence: bool = True
) -> tuple[bool, bool, dict[str, str]]:
    """Return the scheduler's answer: whether it waited, whether it was known, and builds → cells."""
    before = len(world.cancelled)
    await world.say(BuildCancelRequested(build=build, anywhere=True, fence=fence))
    await world.until(before + 1, world.cancelled)
    reply = world.cancelled[-1]
    return reply.waited, reply.known, reply.passed_on


async def held(world: WaitingWorld, build: str = BUILD) -> int:
    found = await world.bus.asker(topics.ALLOCATIONS)(FindAllocations(consumers=(build,)))
    return len(found.consumers)


@in_virtual_time
async def test_an_instance_deleted_before_its_request_gets_no_host() -> None:
    async with a_cloud() as (world, _):
        assert await anywhere(world) == (False, False, {})
        assert await anywhere(world) == (False, True, {})  # the first deletion is recorded
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        await world.say(a_request(1, flavor=VM, instances=3))
        await world.until(1, world.unplaceable)
        assert {(await ended.get()).build for _ in range(2)} == {uid(1001, "b"), uid(1002, "b")}
        assert [
            (unplaceable.instances, unplaceable.reason, unplaceable.decision.code)
            for unplaceable in world.unplaceable
        ] == [((BUILD,), "deleted before it had a host", "cancelled")]
        assert not await held(world)


@in_virtual_time
async def test_a_dry_run_of_a_deletion_finds_the_build_and_deletes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, unknown = io.StringIO(), uid(9, "e")
    async with a_cloud() as (world, _):
        monkeypatch.setattr(composition, "transport", lambda settings, name: LocalTransport(world.broker))
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        await world.say(a_request(1, flavor=VM))
        await ended.get()
        cli = ActCli(Settings(), False, Console(file=sent, width=200), dry_run=True)
        assert await plainly(delete(cli, [unknown, BUILD[:8]])) == 1
        [refused, would] = sent.getvalue().splitlines()
        assert refused.startswith(f"{unknown}: no build or waiting request has this id")
        assert would.startswith(f"{BUILD} would be deleted: it is active on ")
        assert would.endswith(" in cell c1") and "holds 1 VCPU, " in would
        assert await held(world)
        with pytest.raises(BadSetting, match="no id begins so"):
            await plainly(delete(cli, ["eeeeeeee"]))


@pytest.mark.parametrize(
    ("asked", "wait", "says"),
    [
        pytest.param("vm", True, f"{BUILD} deleted\n", id="its cell has it"),
        pytest.param("vm", False, f"{BUILD} will be deleted\n", id="its cell will take it down"),
        pytest.param("lost", True, f"{BUILD} deleted by cell c1\n", id="its cell has not heard of it"),
        pytest.param(
            "unknown", False, f"{BUILD}: no build or waiting request has this id. If its", id="unknown"
        ),
        pytest.param(
            "unknown", True, f"{BUILD}: no build or waiting request has this id. If its", id="unknown, --wait"
        ),
    ],
)
@in_virtual_time
async def test_the_command_needs_no_cell(
    monkeypatch: pytest.MonkeyPatch, asked: str, wait: bool, says: str
) -> None:
    sent = io.StringIO()
    async with a_cloud() as (world, start):
        monkeypatch.setattr(composition, "transport", lambda settings, name: LocalTransport(world.broker))
        ended = await world.bus.listen(topics.BUILD_ENDED.at(cell="c1"))
        if asked == "lost":
            await world.kill("conductor")
        if asked != "unknown":
            await world.say(a_request(1, flavor=VM))
        if asked == "lost":
            await world.until(1, world.placed)
            await asyncio.sleep(1.0)
            world.group.create_task(_later(start))
        elif asked != "unknown":
            await ended.get()
        try:
            await plainly(
                delete(
                    ActCli(Settings(), False, Console(file=sent, width=200)), [BUILD], "", wait, timeout=60.0
                )
            )
        except OperationRefused as problem:
            assert says in str(problem)
            return
    assert sent.getvalue() == says


async def _later(start: Callable[[str], None]) -> None:
    await asyncio.sleep(20.0)
    start("conductor")


DELETED_BUILD, HOST, POOL = uid(1), uid(1, "a"), uid(2, "a")


def cell_and_placement(known: bool, held: Allocations) -> Worker:
    async def take_down(asked: BuildDeleteRequested) -> BuildDeleted:
        return BuildDeleted(build=asked.build, cell=asked.cell, reply_to=asked.reply_to, known=known)

    async def allocations(asked: FindAllocations) -> AllocationsFound:
        assert asked.consumers == (DELETED_BUILD,)
        consumer = Consumer(
            id=DELETED_BUILD, generation=1, project="p", user="u", type="INSTANCE", allocations=held
        )
        return AllocationsFound(consumers=(consumer,) if held else (), generations={})

    async def providers(asked: FindProviders) -> ProvidersFound:
        host = Provider(id=HOST, name="h", parent=None, root=HOST, generation=1, cell="c2", host="h1")
        pool = Provider(id=POOL, name="pool", parent=None, root=POOL, generation=1)
        return ProvidersFound(
            providers=tuple(provider for provider in (host, pool) if provider.id in asked.ids)
        )

    return Worker(
        "all",
        consumes=[on(topics.BUILD_DELETE.at(cell="c1"), take_down, emits=[topics.BUILD_DELETED])],
        answers=[answers(topics.ALLOCATIONS, allocations), answers(topics.PROVIDERS, providers)],
    )


@pytest.mark.parametrize(
    ("known", "held", "says"),
    [
        (True, {}, None),
        (False, {}, "is no build of cell c1"),
        (False, {HOST: {"VCPU": 2}}, "is no build of cell c1: it holds 2 VCPU on h1 in cell c2"),
        (
            True,
            {HOST: {"VCPU": 2}, POOL: {"DISK_GB": 1}},
            "is down, and yet it holds 2 VCPU on h1 in cell c2; 1 DISK_GB on pool",
        ),
    ],
)
async def test_a_delete_is_done_when_the_cell_knew_the_build_and_nothing_is_held_for_it(
    monkeypatch: pytest.MonkeyPatch, known: bool, held: Allocations, says: str | None
) -> None:
    broker, output = LocalBroker(), io.StringIO()
    monkeypatch.setattr(composition, "transport", lambda settings, name: LocalTransport(broker))
    cli = ActCli(Settings(), False, Console(file=output))
    async with serving(lambda: LocalTransport(broker), cell_and_placement(known, held)):
        deleting = plainly(delete(cli, [DELETED_BUILD], "c1", True, timeout=10.0))
        if says is None:
            await deleting
            assert output.getvalue() == f"{DELETED_BUILD} deleted\n"
        else:
            with pytest.raises(OperationRefused) as refused:
                await deleting
            assert (str(refused.value), output.getvalue()) == (f"{DELETED_BUILD} {says}", "")
