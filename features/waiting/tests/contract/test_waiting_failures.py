"""Statements that fail while waiting requests are evaluated, stored or cancelled: each request ends."""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bus.errors import Unavailable
from bus.messages import BuildCancelRequested
from bus.sql.statement import Transaction
from features.waiting.core.waiting_queues import WaitingQueues
from features.waiting.scheduler import SWEEP_SECONDS
from features.waiting.store import WaitingStore
from features.waiting.tables import queued
from features.waiting.tables.queued import QueuedRequest
from tests.support.ids import uid
from tests.support.virtual_time import in_virtual_time
from tests.support.waiting_world import WaitingWorld, waiting_world

Failure = Callable[[Transaction], None]


def before_commit(tx: Transaction) -> None:
    raise Unavailable("the connection was lost before the commit")


def after_commit(tx: Transaction) -> None:
    def lost() -> None:
        raise Unavailable("the connection was lost after the commit")

    tx.after_commit(lost)


def fail_once(patch: pytest.MonkeyPatch, owner: object, name: str, fail: Failure) -> list[str]:
    """Let a function of transactions fail at its next call; return the list to which this call is added."""
    works, failed = getattr(owner, name), list[str]()

    async def failing(tx: Transaction, *args: Any, **named: Any) -> Any:
        found = await works(tx, *args, **named)
        if not failed:
            failed.append(name)
            fail(tx)
        return found

    patch.setattr(owner, name, failing)
    return failed


async def waits_for_a_node(world: WaitingWorld) -> str:
    """Let an instance wait for the only node, which is in use; return the instance's id."""
    await world.node(1, free=False)
    build = await world.ask(1)
    await asyncio.sleep(1.0)
    return build


async def ended(world: WaitingWorld) -> bool:
    """Return whether no request waits after two minutes at most."""
    for _ in range(120):
        if not (await world.waiting()).count:
            return True
        await asyncio.sleep(1.0)
    return False


@in_virtual_time
async def test_a_placed_request_is_published_although_an_evaluation_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking, failures = WaitingStore.lacking, [Unavailable("the database is away")]

    async def failing(self: WaitingStore, changed: Any) -> None:
        if failures:
            raise failures.pop()
        await lacking(self, changed)

    async with waiting_world() as world:
        await waits_for_a_node(world)
        monkeypatch.setattr(WaitingStore, "lacking", failing)
        await world.node(1)
        await world.until(1, world.placed)
        assert await ended(world) and not failures


@in_virtual_time
async def test_an_evaluation_that_could_not_be_stored_is_stored_with_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, failures = list[str](), [Unavailable("the database is away")]

    async def evaluated(tx: Transaction, entries: Any) -> None:
        if failures:
            raise failures.pop()
        stored.extend(entry.lacks for entry in entries)

    async with waiting_world() as world:
        monkeypatch.setattr(queued, "evaluated", evaluated)
        entry = SimpleNamespace(request="r", lacks="1 VCPU")
        store: Any = SimpleNamespace(
            database=world.kept, requests={"r": entry}, _unrecorded=set(), _changed=lambda: None
        )
        with pytest.raises(Unavailable):
            await WaitingStore.lacking(store, [cast(QueuedRequest, entry)])
        await WaitingStore.lacking(store, [])
        await WaitingStore.lacking(store, [])
    assert stored == ["1 VCPU"]


@pytest.mark.parametrize("fail", [before_commit, after_commit])
@in_virtual_time
async def test_a_published_request_that_cannot_be_deleted_is_published_and_deleted_again(
    monkeypatch: pytest.MonkeyPatch, fail: Failure
) -> None:
    async with waiting_world() as world:
        await waits_for_a_node(world)
        failed = fail_once(monkeypatch, queued, "drop", fail)
        await world.node(1)
        await world.until(1, world.placed)
        assert await ended(world) and failed == ["drop"]
        assert {(placed.build, placed.chosen.root) for _, placed in world.placed} == {
            (uid(1000, "b"), uid(1, "a"))
        }


@in_virtual_time
async def test_a_taken_over_request_is_evaluated_although_the_takeover_seemed_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with waiting_world() as world:
        await waits_for_a_node(world)
        await world.kill("s1")
        failed = fail_once(monkeypatch, queued, "adopt", after_commit)
        await world.scheduler("s2")
        await asyncio.sleep(15.0)
        await world.node(1)
        await world.until(1, world.placed)
        assert await ended(world) and failed == ["adopt"]


@pytest.mark.parametrize("fail", [before_commit, after_commit])
@in_virtual_time
async def test_a_cancelled_request_that_cannot_be_deleted_is_answered_and_deleted(
    monkeypatch: pytest.MonkeyPatch, fail: Failure
) -> None:
    async with waiting_world() as world:
        build = await waits_for_a_node(world)
        failed = fail_once(monkeypatch, queued, "drop", fail)
        await world.say(BuildCancelRequested(build=build))
        await world.until(1, world.cancelled)
        assert world.cancelled[0].waited
        assert await ended(world) and failed == ["drop"]
        await asyncio.sleep(5.0)
        await world.node(1)
        await asyncio.sleep(5.0)
        assert world.placed == []
        reasons = partial(map, lambda one: one.decision.code)
        assert set(reasons(world.unplaceable)) == {"cancelled"}


@in_virtual_time
async def test_a_change_that_was_missed_is_found_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async with waiting_world() as world:
        await waits_for_a_node(world)
        with monkeypatch.context() as missing:
            missing.setattr(WaitingQueues, "changed", lambda *_: None)
            await world.node(1)
            await asyncio.sleep(1.0)
        assert world.placed == []
        await asyncio.sleep(SWEEP_SECONDS)
        assert world.hosts() == ["host-1"]
        assert (await world.waiting()).rescued == 1
