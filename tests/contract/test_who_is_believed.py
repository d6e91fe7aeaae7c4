"""A message must agree with its routing key, which alone the broker verifies. On both buses."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from bus import topics
from bus.codec import encode
from bus.context import envelope_of, follow
from bus.delivery.runner import Bus
from bus.errors import NoAnswer
from bus.messages import BuildDeleted, BuildDeleteRequested, HostFailed
from bus.protocol import Envelope, QueueSpec
from bus.queries import BuildsFound, FindBuilds
from bus.resources import FindProviders, ProvidersFound
from bus.vocabulary import Message
from bus.worker import Worker, answers, on
from tests.support.buses import Connect, serving
from tests.support.envelopes import take
from tests.support.ids import uid
from tests.support.waiting import DEADLINE, until

BUILD = uid(1)


@pytest.fixture
async def bus(connect: Connect) -> AsyncIterator[Bus]:
    async with Bus(connect()) as bus:
        yield bus


def a_failure(cell: str) -> HostFailed:
    return HostFailed(root=uid(7), host="h", agent="a", cell=cell, build=BUILD, attempt=1)


async def reasons(bus: Bus) -> list[str]:
    return [letter.reason for letter in await bus.transport.dead_letters()]


async def all_are_dead(bus: Bus, count: int) -> list[str]:
    found: list[str] = []

    async def buried() -> bool:
        found[:] = await reasons(bus)
        return len(found) >= count

    await until(buried)
    return found


class Heard:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def failure(self, message: HostFailed) -> None:
        self.messages.append(message)

    async def delete(self, message: BuildDeleteRequested) -> None:
        self.messages.append(message)

    async def providers(self, question: FindProviders) -> ProvidersFound:
        self.messages.append(question)
        return ProvidersFound(providers=())


async def test_a_message_whose_cell_differs_from_its_key_is_a_dead_letter(connect: Connect, bus: Bus) -> None:
    heard = Heard()
    everywhere = Worker("scheduler", consumes=[on(topics.HOST_FAILED, heard.failure)])
    forged, true = envelope_of(a_failure("c2"), bus.clock), envelope_of(a_failure("c1"), bus.clock)
    forged.key = "host.failed.c1"
    async with serving(connect, everywhere):
        await bus.transport.publish([forged, true], expected=[True, True])
        (reason,) = await all_are_dead(bus, 1)
        await until(lambda: bool(heard.messages))
    assert "host.failed.c1" in reason and "host.failed.c2" in reason
    assert heard.messages == [a_failure("c1")]


async def test_a_message_sent_to_a_queue_by_name_with_a_foreign_key_is_a_dead_letter(
    connect: Connect, bus: Bus
) -> None:
    heard = Heard()
    worker = Worker("conductor.c1", consumes=[on(topics.BUILD_DELETE.at(cell="c1"), heard.delete)])
    queue = worker.queue_of(worker.consumes[0]).name
    async with serving(connect, worker):
        for cell in ("c2", "c1"):
            message = envelope_of(BuildDeleteRequested(build=BUILD, cell=cell), bus.clock)
            await bus.transport.send(queue, message, expected=True)
        (reason,) = await all_are_dead(bus, 1)
        await until(lambda: bool(heard.messages))
    assert "build.delete.c2" in reason
    assert heard.messages == [BuildDeleteRequested(build=BUILD, cell="c1")]


def a_question(bus: Bus, key: str, cell: str, reply_to: str) -> Envelope:
    asked = follow(FindProviders(cell=cell), key, bus.clock)
    asked.reply_to = reply_to
    return asked


ASKED_WRONGLY = [
    pytest.param("ask.placement.providers.c1", "c2", "", "placement.providers.c2", id="for another cell"),
    pytest.param("ask.placement.providers.c1", "c1", "placement.changed", "reply.c1.", id="a topic"),
    pytest.param("ask.placement.providers.c1", "c1", "build.placed.c2", "reply.c1.", id="another's key"),
    pytest.param("ask.placement.providers.c1", "c1", "reply.c2.x", "reply.c1.", id="another cell's replies"),
    pytest.param("ask.placement.providers.c1", "c1", "reply.-c1.x", "reply.c1.", id="of who asks the cell"),
    pytest.param("ask.placement.providers.c1", "c1", "reply.-.x", "reply.c1.", id="the middle's replies"),
    pytest.param("ask.placement.providers", "", "reply.c1.x", "reply.-.", id="a cell's, in the middle"),
    pytest.param("ask.placement.providers", "", "#", "reply.-.", id="everybody"),
]


@pytest.mark.parametrize(("key", "cell", "reply_to", "word"), ASKED_WRONGLY)
async def test_answers_go_nowhere_but_to_addresses_for_answers_of_the_same_wall(
    connect: Connect, bus: Bus, key: str, cell: str, reply_to: str, word: str
) -> None:
    heard = Heard()
    worker = Worker(
        "placement",
        answers=[
            answers(topics.PROVIDERS, heard.providers),
            answers(topics.CELL_PROVIDERS, heard.providers, cell="c1"),
        ],
    )
    ear = QueueSpec("ear", (reply_to or "reply.c2.x",), durable=False)
    inbox = await bus.transport.consume(ear, 10)
    async with serving(connect, worker):
        await bus.transport.publish([a_question(bus, key, cell, reply_to)], expected=[True])
        (reason,) = await all_are_dead(bus, 1)
        ours = BuildDeleted(build=BUILD, cell="c1", reply_to="x")
        mark = Envelope(id="mark", type="", key=ear.keys[0].replace("#", "k"), body=msgspec.Raw(encode(ours)))
        await bus.transport.publish([mark], expected=[True])
        if reply_to == "#":
            while (arrived := await take(inbox)).envelope.id != "mark":
                assert arrived.envelope.key.startswith("ask.")
        else:
            assert (await take(inbox)).envelope.id == "mark"
    assert word in reason
    assert not heard.messages


async def test_a_query_without_a_reply_address_is_handled_without_a_reply(connect: Connect, bus: Bus) -> None:
    heard = Heard()
    worker = Worker("placement", answers=[answers(topics.CELL_PROVIDERS, heard.providers, cell="c1")])
    async with serving(connect, worker):
        await bus.transport.publish(
            [a_question(bus, "ask.placement.providers.c1", "c1", "")], expected=[True]
        )
        await until(lambda: bool(heard.messages))
    assert not await reasons(bus)


async def test_a_cell_cannot_answer_for_another(connect: Connect, bus: Bus) -> None:
    async def lie(question: FindBuilds) -> BuildsFound:
        await asyncio.Event().wait()
        raise AssertionError

    overheard: list[Envelope] = []
    c1 = Worker("conductor.c1", answers=[answers(topics.FIND_BUILDS, lie, cell="c1")])
    c2 = Worker("conductor.c2", answers=[answers(topics.FIND_BUILDS, _none_known, cell="c2")])
    spy = await bus.transport.consume(QueueSpec("spy", ("ask.cell.builds.c1",), durable=False), 10)
    async with serving(connect, c1, c2) as asking, asyncio.TaskGroup() as group:
        ask = asking.asker(topics.FIND_BUILDS, timeout=0.6)
        await asking.asker(topics.FIND_BUILDS)(FindBuilds(cell="c2", builds=(BUILD,)))  # it has an address
        question = group.create_task(_refused(ask(FindBuilds(cell="c1", builds=(BUILD,)))))
        overheard.append((await take(spy)).envelope)
        stolen = overheard[0].reply_to
        assert stolen.startswith("reply.-c1.")
        replies = asking._questions._replies["reply.-c2."].name
        forged = Envelope(
            id="f", type="BuildsFound", key=replies, body=msgspec.Raw(b'{"builds":[]}'),
            causation=overheard[0].id,
        )  # fmt: skip
        async with asyncio.timeout(DEADLINE):
            await bus.transport.publish([forged], expected=[True])
            assert await question


async def _none_known(question: FindBuilds) -> BuildsFound:
    return BuildsFound(builds=())


async def _refused(asking: object) -> bool:
    try:
        await asking  # type: ignore[misc]
    except NoAnswer:
        return True
    return False
