"""The scheduler's database: waiting requests, their owners, and decisions about unplaceable builds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from bus.decisions import Decision, Removal
from bus.messages import BuildUnplaceable
from bus.moves import MoveRefused
from bus.queries import FindWaiting
from bus.requests import Flavor
from bus.sql.database import Database
from bus.sql.migrations import migrate
from scheduler_worker.core.move_start import MoveStart, move_start
from scheduler_worker.store import decisions, parked, waiting_lists
from scheduler_worker.store.parked import ParkedRequest
from tests.support.ids import uid
from tests.support.move_builders import a_build_that_stands, a_move
from tests.support.scheduler_builders import a_request

DECISION = Decision(considered=3, code="room", removals=(Removal(constraint="room", removed=3, left=0),))


@pytest.fixture
async def store(open_database: Callable[..., Database]) -> Database:
    database = open_database()
    await migrate(database, "scheduler_worker")
    return database


def kept(number: int, *, since: float = 0.0, kind: str = "k", **fields: object) -> ParkedRequest:
    message = a_request(number, wait="30m", **fields)  # type: ignore[arg-type]
    return ParkedRequest(message, kind, since, since + 1800.0, 7, "no room", "1 VCPU free", DECISION)


async def add(store: Database, owner: str, *those: ParkedRequest) -> set[str]:
    async with store.write() as tx:
        return await parked.add(tx, owner, those)


async def of(store: Database, owner: str) -> list[ParkedRequest]:
    async with store.read() as tx:
        return sorted((await parked.of_owner(tx, owner, "", 100))[0], key=lambda one: one.request)


async def listed(store: Database, **asked: object) -> list[tuple[str, int]]:
    async with store.read() as tx:
        found = await waiting_lists.waiting(tx, FindWaiting(**asked))  # type: ignore[arg-type]
    return [(request.request, request.position) for request in found]


async def test_a_request_is_kept_whole_and_once(store: Database) -> None:
    one = kept(1, instances=2, priority=3, project="p")
    assert await add(store, "s1", one, kept(2)) == {uid(1, "a"), uid(2, "a")}
    assert await add(store, "s2", kept(1), kept(3)) == {uid(3, "a")}
    assert await of(store, "s1") == [one, kept(2)]
    async with store.write() as tx:
        await parked.drop(tx, [uid(1, "a"), uid(9, "a")])
    assert await of(store, "s1") == [kept(2)]


async def test_adding_a_stored_request_again_reports_it_as_own(store: Database) -> None:
    one = kept(1, instances=2)
    assert await add(store, "s1", one) == {uid(1, "a")}
    assert await add(store, "s1", kept(1, since=5.0, instances=2), kept(2), kept(2)) == {
        uid(1, "a"),
        uid(2, "a"),
    }
    assert await of(store, "s1") == [one, kept(2)]  # as it was stored first


async def test_the_missing_resources_of_a_waiting_request_can_change(store: Database) -> None:
    await add(store, "s1", kept(1))
    later = msgspec.structs.replace(DECISION, considered=9)
    changed = ParkedRequest(kept(1).message, "l", 0.0, 1800.0, 8, "a rule refuses", "any", later)
    async with store.write() as tx:
        await parked.looked_at(tx, [changed])
    assert await of(store, "s1") == [changed]


async def test_a_waiting_request_is_found_by_its_id_and_each_of_its_builds(store: Database) -> None:
    await add(store, "s1", kept(1, instances=3))
    for id_, known in ((uid(1, "a"), 1), (uid(1002, "b"), 1), (uid(5, "b"), 0)):
        async with store.read() as tx:
            assert len(await parked.find(tx, [id_])) == known
    async with store.write() as tx:
        left = await parked.without(tx, kept(1, instances=3, at_least=3), [uid(1000, "b")])
    assert left.message.instances == (uid(1001, "b"), uid(1002, "b"))
    assert left.message.at_least == 2
    [one] = await of(store, "s1")
    assert one.message == left.message
    async with store.read() as tx:
        assert await parked.find(tx, [uid(1000, "b")]) == []


async def test_waiting_requests_are_listed_in_order_with_their_positions(store: Database) -> None:
    await add(
        store,
        "s1",
        kept(1, since=5.0),
        kept(2, since=4.0, kind="other", project="p", flavor=Flavor(name="large")),
        kept(3, since=3.0),
        kept(4, since=6.0, priority=9),
    )
    first, second, third, fourth = (uid(number, "a") for number in (4, 3, 2, 1))
    every = [(first, 1), (second, 2), (third, 1), (fourth, 3)]
    assert await listed(store) == every
    assert await listed(store, after=1, limit=2) == every[1:3]
    assert await listed(store, project="p") == [(third, 1)]
    assert await listed(store, requests=(fourth, uid(8, "a"))) == [(fourth, 3)]
    async with store.read() as tx:
        assert await waiting_lists.count(tx) == 4
        counted = [(kind.kind, kind.flavor, kind.requests) for kind in await waiting_lists.kinds(tx, "", 9)]
    assert counted == [("k", "small", 3), ("other", "large", 1)]
    async with store.write() as tx:
        await parked.cancel(tx, {first: "cancelled"})
        assert await parked.cancelled(tx, "s1") == [first]
        assert await parked.cancelled(tx, "s2") == []
    assert await listed(store) == [(second, 1), (third, 1), (fourth, 2)]


async def test_requests_of_a_dead_scheduler_are_adopted_page_by_page_and_once(store: Database) -> None:
    await add(store, "s1", *map(kept, range(1, 6)))
    async with store.write() as tx:
        first, more = await parked.adopt(tx, "s2", "s1", 3)
    assert (len(first), more) == (3, True)
    async with store.write() as tx:
        rest, more = await parked.adopt(tx, "s3", "s1", 3)
    assert (len(rest), more) == (2, False)
    assert len(await of(store, "s2")) == 3
    async with store.write() as tx:
        await parked.let_go(tx, "s2")
        assert await parked.owners(tx) == {"", "s3"}


async def test_a_scheduler_that_beats_stays_in_the_roster_until_deleted(store: Database) -> None:
    async with store.write() as tx:
        assert not await parked.beat(tx, "s1", "{}", 0)  # it is entered
        assert await parked.beat(tx, "s1", '{"h": [0, 1.5, "r"]}', 2)
        [one] = await parked.roster(tx)
        assert (one.owner, one.beat, one.rescued) == ("s1", 1, 2)
        await parked.delete_owner(tx, "s1", 0)  # it has moved since
        assert await parked.beat(tx, "s1", "{}", 2)
        await parked.delete_owner(tx, "s1", 2)
        assert not await parked.beat(tx, "s1", "{}", 2)


async def test_a_row_that_cannot_be_read_keeps_no_other_from_its_host(store: Database) -> None:
    from sqlalchemy import text

    await add(store, "s1", kept(1), kept(2))
    async with store.write() as tx:
        await tx.execute(text("UPDATE parked SET message = 'x' WHERE request = :r"), {"r": uid(1, "a")})
    assert await of(store, "s1") == [kept(2)]


async def test_why_there_was_no_host_is_kept_for_a_while_by_build_and_by_request(store: Database) -> None:
    request = a_request(1, instances=2, project="p")
    said = BuildUnplaceable(
        request=request.request, instances=request.instances, reason="no room", decision=DECISION
    )
    for at in (5.0, 6.0):
        async with store.write() as tx:
            await decisions.add(tx, [(request, said)], at)
    for id_ in (request.request, *request.instances):
        async with store.read() as tx:
            found = await decisions.decision_of(tx, id_)
        assert found is not None
        assert (found.request, found.builds, found.reason) == (request, request.instances, "no room")
        assert (found.decision, found.at) == (DECISION, 5.0)
    async with store.write() as tx:
        assert await decisions.prune(tx, 5.0, 10) == 0
        assert await decisions.prune(tx, 5.5, 10) == 1
        assert await decisions.decision_of(tx, request.request) is None


# Moves


def a_start(number: int, build: int, **fields: Any) -> MoveStart:
    stands = a_build_that_stands(1, build=uid(build, "b"))
    start = move_start(a_move(number, build=uid(build, "b"), wait="30m", **fields), stands, "cell1")
    assert start is not None
    return start


def a_kept_move(number: int, build: int, **fields: Any) -> ParkedRequest:
    start = a_start(number, build, **fields)
    return ParkedRequest(start.request(), "m", 1.0, 1801.0, 7, "no room", "any", DECISION, start=start)


async def reserve(store: Database, **moves: str) -> dict[str, str]:
    async with store.write() as tx:
        return await parked.one_of_each(tx, moves)


async def test_a_move_is_kept_with_what_it_begins_from_and_found_by_itself_and_listed_by_its_instance(
    store: Database,
) -> None:
    one, build = a_kept_move(1, 5, priority=3), uid(5, "b")
    await reserve(store, **{build: uid(1, "e")})
    await add(store, "s1", one, kept(2))
    assert await of(store, "s1") == [kept(2), one]
    async with store.read() as tx:
        assert [found.parked for found in await parked.find(tx, [uid(1, "e")])] == [one]
        assert await parked.find(tx, [build]) == []
        listed = await waiting_lists.waiting(tx, FindWaiting())
        assert await waiting_lists.waiting(tx, FindWaiting(requests=(build, uid(1, "e")))) == [listed[0]]
    assert [(request.request, request.builds, request.move) for request in listed] == [
        (uid(1, "e"), (build,), "migrate"),
        (uid(2, "a"), (uid(2000, "b"),), ""),
    ]
    start = msgspec.structs.replace(a_start(1, 5, priority=3), attempt=2, generation=9)
    later = replace(one, start=start, lacks="other", seen=8)
    async with store.write() as tx:
        await parked.looked_at(tx, [later, kept(2)])
    assert await of(store, "s1") == [kept(2), later]


async def test_at_most_one_move_of_an_instance_waits(store: Database) -> None:
    first, second, build = uid(1, "e"), uid(2, "e"), uid(5, "b")
    assert await reserve(store, **{build: first}) == {build: first}
    assert await reserve(store, **{build: second, uid(6, "b"): first}) == {build: first, uid(6, "b"): first}
    assert await reserve(store, **{build: first}) == {build: first}
    async with store.write() as tx:
        await parked.drop(tx, [first])
    assert await reserve(store, **{build: second}) == {build: second}


async def test_why_a_move_was_refused_is_kept_with_what_it_asked_of_hosts_if_it_came_so_far(
    store: Database,
) -> None:
    asked, other = a_move(1), a_move(2)
    said = [
        MoveRefused(
            move=request.move,
            build=request.build,
            kind="migrate",
            reason="no room",
            code=code,
            decision=DECISION,
        )
        for request, code in ((asked, "waited"), (other, "unknown"))
    ]
    request = a_start(1, 5).request()
    for at in (5.0, 6.0):
        async with store.write() as tx:
            await decisions.add_moves(tx, [(asked, request, said[0]), (other, None, said[1])], at)
    async with store.read() as tx:
        found = [await decisions.decision_of(tx, request.move) for request in (asked, other)]
        assert await decisions.decision_of(tx, asked.build) is None
    assert [
        (decision.move, decision.request, decision.decision.code, decision.at)
        for decision in found
        if decision
    ] == [(asked, request, "waited", 5.0), (other, None, "unknown", 5.0)]
