"""The builds of a cell in a database: fixtures, and events that are applied to them."""

from collections.abc import Sequence
from typing import Any

import pytest

from berth.features import packages
from bus.errors import Retry
from bus.messages import BuildPlaced, HostFailed
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from bus.worker import Outcome
from cell_conductor.builds import Builds
from cell_conductor.core.events import AttemptLimits
from tests.support.conductor_builders import (
    FEATURES,
    Books,
    a_build_order,
    a_destroy_order,
    a_placed,
    an_agent_report,
    deliver,
)
from tests.support.virtual_time import TurnedClock


@pytest.fixture
def time() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
async def store(database: Database) -> Database:
    await migrate(database, *packages("conductor"))
    return database


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def builds(store: Database, books: Books, time: TurnedClock) -> Builds:
    return a_conductor(store, books, time)


def a_conductor(store: Database, books: Books, time: TurnedClock, **policy: Any) -> Builds:
    return Builds(
        store,
        books.claim_many,
        books.release_many,
        limits=AttemptLimits(**{"max_attempts": 3, "build_timeout": 100.0, **policy}),
        clock=time.clock,
        **FEATURES,
    )


async def placed(builds: Builds, books: Books, *messages: BuildPlaced) -> None:
    for message in messages:
        books.hold(message)
    await builds.start_many(messages)


async def arrived(builds: Builds, *events: Message) -> list[list[Message] | Retry]:
    outcomes = []
    for event in events:
        outcome = await deliver(builds, event)
        outcomes.append(plain(outcome))
    return outcomes


def plain(outcome: Outcome) -> list[Message] | Retry:
    if isinstance(outcome, Retry):
        return outcome
    assert isinstance(outcome, Sequence)
    return [message for message in outcome if not isinstance(message, HostFailed)]


ONE = a_placed(1)
FIRST, SECOND = a_build_order(ONE, 1), a_build_order(ONE, 2)
BUILT = an_agent_report(FIRST, "built")


async def check_that_destruction_is_repeated(builds: Builds, time: TurnedClock) -> None:
    time.now += 601
    await arrived(builds, *await builds.time_out())
    assert await builds.resume() == []
    time.now += 3599
    assert await builds.resume() == []
    time.now += 1
    assert await builds.resume() == [a_destroy_order(ONE, 1)]
    assert await builds.resume() == []
    await arrived(builds, an_agent_report(a_destroy_order(ONE, 1), "destroyed"))
    time.now += 3600
    assert await builds.resume() == []
