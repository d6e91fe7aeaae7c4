"""Guarantees of the bus for workers, the same on both buses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from unittest.mock import AsyncMock

import msgspec
import pytest

from bus import topics
from bus.delivery import failed_messages
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, AnswerUnreadable, Poison, Unavailable
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable, DestroyOrdered
from bus.protocol import MAX_MESSAGE_BYTES, Envelope, encode
from bus.queries import CandidatesFound, FindCandidates
from bus.rabbit.fast_channels.frames import KEPT_BYTES
from bus.requests import Flavor, ResourceGroup
from bus.worker import Outcome, Undeclared, Worker, answers, every, on, on_many
from tests.support.buses import Connect, serving
from tests.support.envelopes import buried
from tests.support.waiting import DEADLINE, patience, until


@pytest.fixture
async def bus(connect: Connect) -> AsyncIterator[Bus]:
    async with Bus(connect()) as bus:
        yield bus


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between the tries of a message, but not the number of tries."""
    shorter = tuple(delay / 20 for delay in failed_messages.FAULT_DELAYS)
    monkeypatch.setattr(failed_messages, "FAULT_DELAYS", shorter)
    monkeypatch.setattr(failed_messages, "LONGEST_PAUSE", 0.05)


def a_small_request(number: int = 1, reply_to: str = "") -> BuildRequested:
    id_ = f"00000000-0000-0000-0000-{number:012d}"
    return BuildRequested(
        request=id_, instances=(id_,), flavor=Flavor(name="small", vcpus=1), reply_to=reply_to
    )


def no_host(request: BuildRequested, reason: str = "full") -> BuildUnplaceable:
    return BuildUnplaceable(request=request.request, instances=request.instances, reason=reason)


def scheduler(handler: Callable[[BuildRequested], Awaitable[BuildUnplaceable | None]]) -> Worker:
    return Worker(
        "scheduler", consumes=[on(topics.BUILD_REQUESTED, handler, emits=[topics.BUILD_UNPLACEABLE])]
    )


GOOD = msgspec.json.decode(encode(a_small_request()))
BAD_INPUT = {
    "malformed JSON": (b'{"request": ', "", "not JSON"),
    "unknown type": (msgspec.json.encode(GOOD), "BuildWished", "type: 'BuildWished'"),
    "absent field": (
        msgspec.json.encode({key: value for key, value in GOOD.items() if key != "flavor"}),
        "",
        "flavor",
    ),
    "two mebibytes": (b'"' + b"x" * (2 * 1024 * 1024) + b'"', "", "bytes"),
}


@pytest.mark.parametrize("body, kind, names", BAD_INPUT.values(), ids=BAD_INPUT.keys())
async def test_invalid_input_is_a_dead_letter_that_names_the_field(
    connect: Connect, bus: Bus, body: bytes, kind: str, names: str
) -> None:
    async def refuse(request: BuildRequested) -> BuildUnplaceable:
        return no_host(request)

    listener = await bus.listen(topics.BUILD_UNPLACEABLE.at())
    async with serving(connect, scheduler(refuse)):
        envelope = Envelope(
            id=bus.clock.uuid(), type=kind, key="build.requested", body=msgspec.Raw(body), framed=False
        )
        await bus.transport.publish([envelope], expected=[True])
        (letter,) = await buried(bus.transport)
        await bus.publish(a_small_request())  # the worker continues
        async with patience():
            await listener.get()
    assert names in letter.reason
    assert body.startswith(letter.body)
    assert len(letter.body) >= min(len(body), KEPT_BYTES)  # the beginning of a message that is too large


async def test_too_large_a_message_is_refused_before_it_is_sent(bus: Bus) -> None:
    request = msgspec.structs.replace(a_small_request(), metadata={"blob": "x" * MAX_MESSAGE_BYTES})
    with pytest.raises(ValueError, match="carries at most"):
        await bus.publish(request)


@pytest.mark.usefixtures("short_pauses")
async def test_an_exception_affects_only_its_message_of_a_list(connect: Connect, bus: Bus) -> None:
    async def handle(requests: Sequence[BuildRequested]) -> list[Outcome]:
        if any(request.request.endswith("3") for request in requests):
            raise KeyError("three")
        return [no_host(request) for request in requests]

    worker = Worker(
        "scheduler", consumes=[on_many(topics.BUILD_REQUESTED, handle, emits=[topics.BUILD_UNPLACEABLE])]
    )
    listener = await bus.listen(topics.BUILD_UNPLACEABLE.at())
    await bus.transport.declare(worker.queue_of(worker.consumes[0]))
    await bus.publish(*(a_small_request(number) for number in range(1, 6)))
    async with serving(connect, worker):
        async with patience():
            message = {(await listener.get()).request[-1] for _ in range(4)}
        (letter,) = await buried(bus.transport)
    assert message == {"1", "2", "4", "5"}
    assert "KeyError" in letter.reason


QUESTION = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),))


@pytest.mark.parametrize(
    "raised, comes_as",
    [(Poison("groups: no such class"), AnswerRefused), (Unavailable("no database"), Unavailable)],
)
async def test_a_failing_answerer_replies_with_the_error_immediately(
    connect: Connect, bus: Bus, raised: Exception, comes_as: type[Exception]
) -> None:
    async def answer(question: FindCandidates) -> CandidatesFound:
        raise raised

    ask = bus.asker(topics.FIND_CANDIDATES, timeout=DEADLINE)
    async with serving(connect, Worker("placement", answers=[answers(topics.FIND_CANDIDATES, answer)])):
        with pytest.raises(comes_as, match=str(raised) or None):
            await ask(QUESTION)


async def test_an_answer_that_cannot_be_read_is_told_from_a_query_without_effect(
    connect: Connect, bus: Bus
) -> None:
    ask = bus.asker(topics.FIND_CANDIDATES, timeout=DEADLINE)
    wrong = CandidatesFound(seen=0, candidates=(), fitting=-1, considered=0)
    worker = Worker("placement", answers=[answers(topics.FIND_CANDIDATES, AsyncMock(return_value=wrong))])
    async with serving(connect, worker):
        with pytest.raises(AnswerUnreadable, match="its answer cannot be read: CandidatesFound"):
            await ask(QUESTION)


@pytest.mark.parametrize("handled", [False, True], ids=["while it handles", "before its result is confirmed"])
async def test_a_killed_worker_loses_nothing(
    connect: Connect, bus: Bus, monkeypatch: pytest.MonkeyPatch, handled: bool
) -> None:
    taken = asyncio.Event()

    async def hold(*_: object, **__: object) -> None:
        taken.set()
        await asyncio.Event().wait()

    async def refuse(request: BuildRequested) -> BuildUnplaceable:
        return no_host(request)

    listener = await bus.listen(topics.BUILD_UNPLACEABLE.at())

    async def first_life() -> None:
        async with Bus(connect()) as doomed:
            if handled:
                monkeypatch.setattr(doomed.transport, "publish", hold)
            await doomed.serve(scheduler(refuse if handled else hold), asyncio.Event())

    life = asyncio.create_task(first_life())
    worker = scheduler(hold)
    await bus.transport.declare(worker.queue_of(worker.consumes[0]))
    await bus.publish(a_small_request())
    async with patience():
        await taken.wait()
    life.cancel()
    await asyncio.wait([life])
    async with serving(connect, scheduler(refuse)), patience():
        message = await listener.get()
    assert message.request == a_small_request().request


def test_a_handler_with_an_undeclared_return_type_is_refused() -> None:
    async def refuse(request: BuildRequested) -> BuildUnplaceable | list[BuildEnded] | None:
        return None

    with pytest.raises(Undeclared, match=r"BuildEnded.*build\.ended"):
        on(topics.BUILD_REQUESTED, refuse, emits=[topics.BUILD_UNPLACEABLE])


@pytest.mark.usefixtures("short_pauses")
async def test_an_emit_that_was_not_declared_is_a_bug(connect: Connect, bus: Bus) -> None:
    async def sly(requests: Sequence[BuildRequested]) -> list[Outcome]:
        return [no_host(request) for request in requests]

    worker = Worker("sly", consumes=[on_many(topics.BUILD_REQUESTED, sly)])
    async with serving(connect, worker):
        await bus.publish(a_small_request())
        (letter,) = await buried(bus.transport)
    assert "does not declare" in letter.reason


async def test_messages_without_a_consumer_do_not_delay_other_messages_of_a_timer(
    connect: Connect, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.delivery.serving.MAX_UNDELIVERABLE", 3)
    id_ = a_small_request().request
    reply: list[int] = []
    events: list[int] = []

    async def remind() -> list[DestroyOrdered]:
        reply.append(len(reply) + 1)
        return [
            DestroyOrdered(build=id_, attempt=reply[-1], cell="c1", agent=agent, root=id_, host="h")
            for agent in ("here", "gone")
        ]

    async def note(order: DestroyOrdered) -> None:
        events.append(order.attempt)

    agent = Worker("agent", consumes=[on(topics.AGENT_DESTROY.at(agent="here"), note)])
    conductor = Worker("conductor", timers=[every(0.01, remind, emits=[topics.AGENT_DESTROY], at_once=True)])
    async with serving(connect, agent), serving(connect, conductor):
        await until(lambda: {1, 2, 3} <= set(events))
    assert max(events.count(number) for number in (1, 2, 3)) <= 2
