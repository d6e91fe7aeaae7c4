"""A message whose handling ends the process becomes a dead letter after four restarts; no other message
does.
"""

import asyncio
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pytest

from bus import topics
from bus.clock import Clock
from bus.context import envelope_of, follow
from bus.local import LocalBroker, LocalTransport
from bus.local.journal import Journal
from bus.messages import BuildCancelRequested
from bus.names import FindNames
from bus.protocol import DeadLetter, Envelope, Transport
from bus.rabbit import RabbitTransport
from tests.integration.dying_worker import DEADLY, worker
from tests.support.buses import queues_of
from tests.support.waiting import until

pytestmark = pytest.mark.slow

DEADLY_ID = f"{DEADLY}0000-0000-0000-0000-000000000000"
INNOCENT = [f"00000000-0000-0000-0000-{number:012d}" for number in range(127)]
NAMES = [*INNOCENT[:64], DEADLY_ID, *INNOCENT[64:]]


@dataclass
class Supervised:
    """A worker process that is started again whenever it ends."""

    broker: str
    exchange: str
    outcomes: Path
    publish: Callable[[list[Envelope]], Awaitable[None]]
    letters: Callable[[], Awaitable[list[DeadLetter]]]
    starts: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep_running(self) -> None:
        while not self.stopping.is_set():
            self.starts += 1
            arguments = (self.broker, self.exchange, str(self.outcomes))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.integration.dying_worker", *arguments
            )
            stopping = asyncio.ensure_future(self.stopping.wait())
            try:
                ended = asyncio.ensure_future(process.wait())
                await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not ended.done():
                    process.terminate()
                assert await ended == (0 if self.stopping.is_set() else -signal.SIGKILL)
            finally:
                stopping.cancel()
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    def handled(self) -> list[str]:
        return self.outcomes.read_text().split() if self.outcomes.exists() else []


@pytest.fixture
async def supervised(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, bus_name: str
) -> AsyncIterator[Supervised]:
    outcomes = tmp_path / "outcomes"
    if kind == "messages":
        url = request.getfixturevalue("amqp_url")
        transport = RabbitTransport(url, exchange=bus_name, declares_shared=True)
        await transport.open()
        yield Supervised(url, bus_name, outcomes, partial(publish, transport), transport.dead_letters)
        await transport.close()
        return

    async def publish_and_close(envelopes: list[Envelope]) -> None:
        journal = Journal(tmp_path / "bus.db")
        await publish(LocalTransport(LocalBroker(journal=journal)), envelopes)
        await journal.close()

    async def letters() -> list[DeadLetter]:
        with closing(sqlite3.connect(tmp_path / "bus.db")) as file:
            return [
                msgspec.json.decode(row[0], type=DeadLetter)
                for row in file.execute("SELECT letter FROM dead")
            ]

    yield Supervised(str(tmp_path), "", outcomes, publish_and_close, letters)


async def publish(transport: Transport, envelopes: list[Envelope]) -> None:
    await transport.declare(*queues_of(worker(Path())))
    await transport.publish(envelopes, expected=[True] * len(envelopes))


# Messages on RabbitMQ, and questions on an embedded bus.
@pytest.mark.parametrize("kind", [pytest.param("messages", marks=pytest.mark.services), "questions"])
async def test_a_message_that_kills_its_process_is_set_aside(supervised: Supervised, kind: str) -> None:
    await supervised.publish(envelopes(kind))
    letters: list[DeadLetter] = []

    async def buried() -> bool:
        letters[:] = await supervised.letters()
        return bool(letters)

    async with asyncio.TaskGroup() as group:
        group.create_task(supervised.keep_running())
        await until(lambda: set(INNOCENT) <= set(supervised.handled()), picture=supervised.handled)
        await until(buried)
        supervised.stopping.set()
    assert supervised.starts <= 1 + 4
    assert sorted(supervised.handled()) == INNOCENT
    (letter,) = letters
    assert DEADLY_ID in bytes(letter.body).decode()
    assert letter.queue == {"messages": "scheduler:build.cancel", "questions": "ask:placement.names"}[kind]
    assert letter.reason == (
        "the process that handled it ended 2 times while it handled no other suspect, "
        "and before that while it handled several"
    )


def envelopes(kind: str) -> list[Envelope]:
    clock = Clock()
    if kind == "messages":
        return [envelope_of(BuildCancelRequested(build=name), clock) for name in NAMES]
    questions = [FindNames(kind="trait", prefix=name) for name in NAMES]
    return [
        follow(question, f"ask.{topics.NAMES.key(question)}", clock, framed=True) for question in questions
    ]
