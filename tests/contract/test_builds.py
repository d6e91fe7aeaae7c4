"""Builds of a conductor in a real database: crashes between steps, duplicates, swaps, single ends."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from berth.operations.stored_builds import census
from bus.errors import AnswerRefused, Poison, Retry
from bus.messages import BuildDeleted, BuildEnded, BuildOrdered, DestroyOrdered
from bus.queries import FindBuilds
from bus.sql.database import Database
from bus.sql.failures import Conflict
from bus.vocabulary import Message
from cell_conductor.builds import Builds
from cell_conductor.store import BuildStore
from tests.support.cell_builds import (
    BUILT,
    FIRST,
    ONE,
    SECOND,
    a_conductor,
    arrived,
    check_that_destruction_is_repeated,
    placed,
    plain,
)
from tests.support.cell_builds import books as books
from tests.support.cell_builds import builds as builds
from tests.support.cell_builds import store as store
from tests.support.cell_builds import time as time
from tests.support.conductor_builders import (
    CELL,
    Books,
    a_build_order,
    a_delete,
    a_destroy_order,
    a_placed,
    a_selection,
    an_agent_report,
)
from tests.support.virtual_time import TurnedClock


async def came_of(builds: Builds, event: Message) -> list[Message]:
    (outcome,) = await arrived(builds, event)
    assert not isinstance(outcome, Retry), outcome
    return outcome


def ends(messages: Sequence[Message]) -> list[BuildEnded]:
    return [message for message in messages if isinstance(message, BuildEnded)]


TABLES = ("builds", "placed_builds")
FAILED = an_agent_report(FIRST, "failed", cause="no disk")
ABORTED = an_agent_report(FIRST, "failed", cause="bad image", retry=False)


async def test_a_hundred_placed_builds_take_two_statements_and_each_gets_an_order(
    builds: Builds, store: Database
) -> None:
    batch = [a_placed(number) for number in range(100)]
    outcomes = await builds.start_many([*batch, batch[0]])
    assert [plain(outcome) for outcome in outcomes[:100]] == [[a_build_order(message)] for message in batch]
    assert plain(outcomes[100]) == [a_build_order(batch[0])]
    assert len(await census(store)) == 100


async def test_a_swap_that_placement_cannot_process_does_not_delay_other_builds(
    builds: Builds, books: Books
) -> None:
    other = a_placed(2)
    await placed(builds, books, ONE, other)
    claim_many = builds.placement.claim_many

    async def picky(questions: Any) -> Any:
        if any(question.claims[0].consumer == ONE.build for question in questions):
            raise AnswerRefused("placement.claim: no such class")
        return await claim_many(questions)

    builds.placement.claim_many = picky
    bad, good = await builds.report_many([FAILED, an_agent_report(a_build_order(other), "failed")])
    (end,) = ends(plain(bad))  # type: ignore[arg-type]
    assert end.reason.startswith("placement refused to judge the claim (placement.claim: no such class)")
    assert plain(good) == [a_destroy_order(other, 1), a_build_order(other, 2)]


async def test_a_restart_repeats_the_messages_of_unfinished_builds(
    builds: Builds, store: Database, books: Books, time: TurnedClock
) -> None:
    two, three, four, five = (a_placed(number) for number in (2, 3, 4, 5))
    await placed(builds, books, ONE, two, three, four, five)
    await arrived(builds, an_agent_report(a_build_order(two), "built"))
    await arrived(builds, an_agent_report(a_build_order(three), "built"), a_delete(three))
    await arrived(builds, an_agent_report(a_build_order(five), "failed", retry=False))
    books.away = True
    await arrived(builds, an_agent_report(a_build_order(four), "failed"))
    books.away = False

    restarted = a_conductor(store, books, time)
    reply = {message.build: message for message in await restarted.resume()}

    assert reply == {
        ONE.build: FIRST,
        three.build: a_destroy_order(three, 1),
        four.build: an_agent_report(a_build_order(four), "overdue"),
    }
    assert await arrived(restarted, reply[four.build]) == [[a_destroy_order(four, 1), a_build_order(four, 2)]]
    assert await restarted.resume() == []
    time.now += 61
    assert {message.build for message in await restarted.resume()} == {ONE.build, three.build, four.build}


async def test_the_order_to_destroy_a_guest_left_behind_is_repeated_after_an_hour(
    builds: Builds, books: Books, time: TurnedClock
) -> None:
    """A deleted queue of the broker may have contained the order or the agent's report."""
    await placed(builds, books, ONE)
    await arrived(builds, BUILT, a_delete(ONE))
    await check_that_destruction_is_repeated(builds, time)


async def test_after_a_failover_the_orders_of_unfinished_builds_are_repeated(
    builds: Builds, store: Database, books: Books, time: TurnedClock
) -> None:
    """The new primary lacks the agent's report, which this conductor has applied."""
    await placed(builds, books, ONE)
    async with store.write() as tx:
        for table in TABLES:
            await tx.fetch(f"CREATE TABLE standby_{table} AS SELECT * FROM {table}", [])
    assert await builds.resume_after_failover() == []
    await arrived(builds, FAILED)  # the second attempt is in memory
    async with store.write() as tx:
        for table in TABLES:
            await tx.fetch(f"DELETE FROM {table}", [])
            await tx.fetch(f"INSERT INTO {table} SELECT * FROM standby_{table}", [])
    store.begin_new_history()
    assert await builds.resume_after_failover() == [FIRST]
    assert await builds.resume_after_failover() == []
    assert ends(await came_of(builds, BUILT))


async def test_guests_left_behind_are_recorded_after_their_build_is_pruned(
    builds: Builds, books: Books, store: Database, time: TurnedClock
) -> None:
    patient = a_conductor(store, books, time, cleanup_timeout=30 * 86400.0)
    await placed(patient, books, ONE)
    await arrived(patient, BUILT, a_delete(ONE))
    time.now += 600
    await arrived(patient, *await patient.time_out())
    time.now += 8 * 86400
    await patient.prune()
    assert await arrived(patient, an_agent_report(FIRST, "destroyed")) != [[]]
    assert books.held == {}
    time.now += 8 * 86400
    await patient.prune()
    assert await census(store) == {}


async def test_two_replicas_that_receive_the_same_failure_agree(
    store: Database, books: Books, time: TurnedClock
) -> None:
    one, other = a_conductor(store, books, time), a_conductor(store, books, time)
    await placed(one, books, ONE)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(arrived(builds, FAILED)) for builds in (one, other) * 4]
    for task in tasks:
        (outcome,) = task.result()
        assert outcome in ([a_destroy_order(ONE, 1), SECOND], [SECOND], [])
    assert any(task.result() == [[a_destroy_order(ONE, 1), SECOND]] for task in tasks)
    assert books.held[ONE.build][0] == 2


CHANGED_BY_ANOTHER: dict[str, tuple[list[Message], Message]] = {
    "it is tried elsewhere by now, and is heard to be built where it was": ([FAILED], BUILT),
    "it has ended by now, and is heard to have failed": ([BUILT], FAILED),
    "it has been deleted by now, and is heard to be built": ([a_delete(ONE)], BUILT),
    "it has been deleted by now, and is placed again": ([a_delete(ONE)], ONE),
    "it has ended by now, and is placed again": ([BUILT], ONE),
    "it has ended by now, and is deleted": ([BUILT], a_delete(ONE)),
}


@pytest.mark.parametrize(("heard_there", "event"), CHANGED_BY_ANOTHER.values(), ids=list(CHANGED_BY_ANOTHER))
async def test_a_build_changed_by_another_replica_is_read_again(
    store: Database, books: Books, time: TurnedClock, heard_there: list[Message], event: Message
) -> None:
    reply, stored = [], []
    for memory in (True, False):
        async with store.write() as tx:
            for table in TABLES:
                await tx.execute(text(f"DELETE FROM {table}"))
        one, other = a_conductor(store, books, time), a_conductor(store, books, time)
        await placed(one, books, ONE)
        await arrived(other, *heard_there)
        if not memory:
            one._applier.cached.clear()
        reply.append(await arrived(one, event))
        stored.append(await census(store))
    assert reply[0] == reply[1]
    assert stored[0] == stored[1]


async def test_a_build_whose_record_was_pruned_can_be_placed_again(
    store: Database, books: Books, time: TurnedClock
) -> None:
    one, other = a_conductor(store, books, time), a_conductor(store, books, time)
    again = replace(ONE, chosen=a_selection(7))
    await placed(one, books, ONE)
    await arrived(other, ABORTED)
    time.now += 8 * 86400
    await other.prune()
    await one.prune()
    await placed(other, books, again)
    (end,) = await came_of(one, an_agent_report(a_build_order(again), "built"))
    assert isinstance(end, BuildEnded)
    assert end.host == "host7"


class SomeAgents:
    def __init__(self, chance: random.Random, deaf: float) -> None:
        self.guests: set[str] = set()  # hosts on which a guest is or may be
        self.lost = 0
        self._chance, self._disconnected = chance, deaf
        self._fates: dict[int, str] = {}
        self._fenced: dict[str, int] = {}

    def handle(self, order: BuildOrdered | DestroyOrdered) -> list[Message]:
        if isinstance(order, DestroyOrdered):
            if self._chance.random() < self._disconnected:
                self.lost += 1
                return []
            self._fenced[order.agent] = max(order.attempt, self._fenced.get(order.agent, 0))
            self.guests.discard(order.root)
            return [an_agent_report(order, "destroyed")]
        if order.attempt <= self._fenced.get(order.agent, 0):
            return [an_agent_report(order, "destroyed")]
        fate = self._fates.setdefault(
            order.attempt, self._chance.choice(["built", "failed", "failed", "silent", "left"])
        )
        if fate != "failed":
            self.guests.add(order.root)
        match fate:
            case "silent":
                return []
            case "left":
                return [replace(an_agent_report(order, "failed"), leftover=True)]
        return [an_agent_report(order, "built" if fate == "built" else "failed")]


@pytest.mark.parametrize("seed", range(40))
async def test_however_events_are_repeated_and_shuffled_a_build_ends_once_with_one_outcome(
    store: Database, books: Books, time: TurnedClock, seed: int
) -> None:
    chance = random.Random(seed)
    conductor = a_conductor(store, books, time)
    books.full = {a_selection(n).root for n in range(3) if chance.random() < 0.3}
    books.hold(ONE)
    waiting: list[Message] = [ONE]
    if chance.random() < 0.4:
        waiting.append(a_delete(ONE))
    agents = SomeAgents(chance, deaf=0.2 if seed % 4 == 3 else 0.0)
    sent: list[BuildEnded] = []
    gone = 0
    for _ in range(600):
        if not waiting:
            time.now += 61
            waiting += [*await conductor.resume(), *await conductor.time_out()]
            if not waiting:
                break
        event = waiting.pop(chance.randrange(len(waiting)))
        if isinstance(event, BuildOrdered | DestroyOrdered):
            waiting += agents.handle(event)
            assert agents.guests <= {root for _, held in books.held.values() for root in held}
            continue
        if chance.random() < 0.3:
            waiting.append(event)  # delivered again later
        books.away = chance.random() < 0.1
        books.answers_lost = int(chance.random() < 0.1)
        (outcome,) = await arrived(conductor, event)
        if isinstance(outcome, Retry):
            waiting.append(event)
            continue
        if chance.random() < 0.2:  # we crash before publishing: it is delivered again
            waiting.append(event)
            conductor = a_conductor(store, books, time)
            continue
        for message in outcome:
            if isinstance(message, BuildEnded):
                sent.append(message)
                if message.status == "error":
                    assert ONE.build not in books.held
            elif isinstance(message, BuildDeleted):
                gone += 1
            else:
                waiting.append(message)

    assert sent, f"seed {seed}: never ended"
    assert all(end == sent[0] for end in sent)
    standing = (await census(store))[ONE.build]
    assert standing.status in ("active", "error", "deleted")
    assert (standing.status == "active") == (ONE.build in books.held)
    assert agents.guests <= {root for _, held in books.held.values() for root in held}
    assert agents.lost or set(books.held) <= {ONE.build}
    assert gone or standing.status != "deleted"


async def test_an_event_that_keeps_losing_races_is_retried(builds: Builds, books: Books) -> None:
    await placed(builds, books, ONE)

    def always_changed(*_: object) -> None:
        raise Conflict("changed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuildStore, "saving", always_changed)
        (waits,) = await arrived(builds, BUILT)
    assert isinstance(waits, Retry)
    (end,) = await came_of(builds, BUILT)
    assert isinstance(end, BuildEnded)


# Stored records that cannot be read


async def spoil(builds: Builds, assignment: str, value: str, key: str = "id") -> None:
    async with builds.database.write() as tx:
        await tx.execute(
            text(f"UPDATE {assignment} = :value WHERE {key} = :id"), {"value": value, "id": ONE.build}
        )
    builds._applier.cached.clear()


async def test_an_unreadable_build_is_reported_and_does_not_delay_other_builds(
    builds: Builds, books: Books, time: TurnedClock
) -> None:
    other = a_placed(2)
    await placed(builds, books, ONE, other)
    await spoil(builds, "placed_builds SET placed", "{", "build")
    time.now += 200
    assert [late.build for late in await builds.time_out()] == [other.build]
    assert [reply.build for reply in await builds.resume()] == [other.build]
    with pytest.raises(Poison, match=f"build {ONE.build}: what was placed cannot be read any more: "):
        await arrived(builds, BUILT)


async def test_a_cell_answers_the_state_and_history_of_builds(builds: Builds, books: Books) -> None:
    first, second = a_placed(1), a_placed(2)
    await placed(builds, books, first, second)
    (order,) = await came_of(builds, first)
    assert isinstance(order, BuildOrdered)
    await arrived(builds, an_agent_report(order, "failed", cause="no power"))
    await arrived(builds, a_delete(a_placed(8)))
    asked = (first.build, second.build, a_placed(8).build, a_placed(9).build)
    found = await builds.find(FindBuilds(cell=CELL, builds=asked))
    sent = {build.build: build for build in found.builds}
    assert sent.keys() == {first.build, second.build}
    assert sent[first.build].placed == first and sent[second.build].placed == second
    assert (sent[first.build].host, [attempt.cause for attempt in sent[first.build].attempts]) == (
        "host1",
        ["no power"],
    )
    assert (sent[second.build].status, sent[second.build].host) == ("building", "host0")
