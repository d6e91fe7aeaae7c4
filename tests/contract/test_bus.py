"""Guarantees of the bus for workers, the same on both buses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise

import msgspec
import pytest

from bus import topics
from bus.context import current, envelope_of
from bus.delivery import settling
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, NoAnswer, Poison, Retry, Unavailable, Unroutable
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable, DestroyOrdered
from bus.protocol import MAX_MESSAGE_BYTES, Envelope, decode, encode
from bus.queries import BuildsFound, CandidatesFound, FindBuilds, FindCandidates
from bus.rabbit.fast_channels.frames import KEPT_BYTES
from bus.requests import Flavor, ResourceGroup
from bus.worker import Outcome, Undeclared, Worker, answers, answers_many, every, on, on_many
from tests.support.buses import Connect, serving
from tests.support.envelopes import buried
from tests.support.waiting import DEADLINE, until


@pytest.fixture
async def bus(connect: Connect) -> AsyncIterator[Bus]:
    async with Bus(connect()) as bus:
        yield bus


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between the tries of a message, but not the number of tries."""
    shorter = tuple(delay / 20 for delay in settling.FAULT_DELAYS)
    monkeypatch.setattr(settling, "FAULT_DELAYS", shorter)
    monkeypatch.setattr(settling, "LONGEST_PAUSE", 0.05)


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


async def test_caused_messages_carry_the_correlation_and_the_trace(connect: Connect, bus: Bus) -> None:
    seen: list[Envelope] = []

    async def note(ended: BuildUnplaceable) -> None:
        envelope = current.get()
        assert envelope is not None
        seen.append(envelope)

    async def refuse(request: BuildRequested) -> BuildUnplaceable:
        return no_host(request)

    reader = Worker("reader", consumes=[on(topics.BUILD_UNPLACEABLE, note)])
    first = envelope_of(a_small_request(), bus.clock)
    async with serving(connect, scheduler(refuse), reader):
        await bus.transport.publish([first], expected=[True])
        await until(lambda: seen)
    assert seen[0].correlation == first.id
    assert seen[0].causation == first.id
    trace, span = first.traceparent.split("-")[1:3]
    assert seen[0].traceparent.split("-")[1] == trace
    assert seen[0].traceparent.split("-")[2] != span


async def test_a_retried_message_is_delivered_later_as_another_attempt(connect: Connect, bus: Bus) -> None:
    attempts: list[tuple[int, float]] = []
    loop = asyncio.get_running_loop()

    async def third_time_lucky(request: BuildRequested) -> BuildUnplaceable:
        envelope = current.get()
        assert envelope is not None
        attempts.append((envelope.attempt, loop.time()))
        if envelope.attempt < 3:
            raise Retry(after=0.1)
        return no_host(request)

    listener = await bus.listen(topics.BUILD_UNPLACEABLE.at())
    async with serving(connect, scheduler(third_time_lucky)):
        await bus.publish(a_small_request())
        async with asyncio.timeout(DEADLINE):
            await listener.get()
    assert [number for number, _ in attempts] == [1, 2, 3]
    times = [when for _, when in attempts]
    assert all(later - sooner >= 0.09 for sooner, later in pairwise(times))


async def test_a_rejected_message_is_a_dead_letter_with_the_reason(connect: Connect, bus: Bus) -> None:
    async def refuse(request: BuildRequested) -> None:
        raise Poison("flavor: nobody sells 'small' any more")

    async with serving(connect, scheduler(refuse)):
        await bus.publish(a_small_request())
        (letter,) = await buried(bus.transport)
    assert letter.reason == "flavor: nobody sells 'small' any more"
    assert letter.key == "build.requested"
    assert letter.first_died > 0
    assert decode(BuildRequested, letter.body) == a_small_request()


@pytest.mark.usefixtures("short_pauses")
async def test_an_exception_is_retried_five_times_and_then_a_dead_letter_with_traceback(
    connect: Connect, bus: Bus
) -> None:
    tries = []

    async def stumble(request: BuildRequested) -> None:
        tries.append(request)
        raise ZeroDivisionError("one over none")

    async with serving(connect, scheduler(stumble)):
        await bus.publish(a_small_request())
        (letter,) = await buried(bus.transport)
    assert len(tries) == 6
    assert letter.reason == "ZeroDivisionError: one over none"
    assert "in stumble" in letter.traceback


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
        async with asyncio.timeout(DEADLINE):
            await listener.get()
    assert names in letter.reason
    assert body.startswith(letter.body)
    assert len(letter.body) >= min(len(body), KEPT_BYTES)  # the beginning of a message that is too large


async def test_too_large_a_message_is_refused_before_it_is_sent(bus: Bus) -> None:
    request = msgspec.structs.replace(a_small_request(), metadata={"blob": "x" * MAX_MESSAGE_BYTES})
    with pytest.raises(ValueError, match="carries at most"):
        await bus.publish(request)


async def test_a_batch_handler_receives_waiting_messages_and_settles_each(connect: Connect, bus: Bus) -> None:
    sizes: list[int] = []
    tried: list[int] = []

    async def handle(requests: Sequence[BuildRequested]) -> list[Outcome]:
        sizes.append(len(requests))
        numbers = [int(request.request[-3:]) for request in requests]
        tried.extend(numbers)
        outcomes: list[Outcome] = []
        for request, number in zip(requests, numbers, strict=True):
            if number == 7:
                outcomes.append(Poison("unlucky"))
            elif number == 8 and tried.count(8) == 1:
                outcomes.append(Retry(after=0.1))
            else:
                outcomes.append(no_host(request))
        return outcomes

    worker = Worker(
        "scheduler",
        consumes=[
            on_many(topics.BUILD_REQUESTED, handle, emits=[topics.BUILD_UNPLACEABLE], batch=64, concurrency=1)
        ],
    )
    listener = await bus.listen(topics.BUILD_UNPLACEABLE.at())
    await bus.transport.declare(worker.queue_of(worker.consumes[0]))
    await bus.publish(*(a_small_request(number) for number in range(1, 101)))
    async with serving(connect, worker):
        async with asyncio.timeout(DEADLINE):
            reasons = {each.request: each.reason for each in [await listener.get() for _ in range(100)]}
        (letter,) = await buried(bus.transport)
    unlucky = {a_small_request(7).request: "unlucky"}  # answered, besides the dead letter
    assert reasons == {a_small_request(number).request: "full" for number in range(1, 101)} | unlucky
    assert letter.reason == "unlucky"
    assert 1 < max(sizes) <= 64


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
        async with asyncio.timeout(DEADLINE):
            message = {(await listener.get()).request[-1] for _ in range(4)}
        (letter,) = await buried(bus.transport)
    assert message == {"1", "2", "4", "5"}
    assert "KeyError" in letter.reason


QUESTION = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),))


def an_answer(seen: int) -> CandidatesFound:
    return CandidatesFound(seen=seen, candidates=(), fitting=0, considered=0)


async def test_waiting_queries_are_answered_together(connect: Connect, bus: Bus) -> None:
    sizes = []

    async def answer(questions: Sequence[FindCandidates]) -> list[CandidatesFound]:
        sizes.append(len(questions))
        return [an_answer(question.after) for question in questions]

    worker = Worker("placement", answers=[answers_many(topics.FIND_CANDIDATES, answer, concurrency=1)])
    ask = bus.asker_of_many(topics.FIND_CANDIDATES, timeout=DEADLINE)
    async with serving(connect, worker):
        found = await ask([msgspec.structs.replace(QUESTION, after=number) for number in range(200)])
    assert [answer.seen for answer in found] == list(range(200))
    assert max(sizes) > 1


async def test_a_query_to_a_cell_reaches_only_its_conductor(connect: Connect, bus: Bus) -> None:
    asked: list[str] = []

    def conductor(cell: str) -> Worker:
        async def answer(question: FindBuilds) -> BuildsFound:
            asked.append(f"{cell} was asked of {question.cell}")
            return BuildsFound(builds=())

        return Worker(f"conductor.{cell}", answers=[answers(topics.FIND_BUILDS, answer, cell=cell)])

    ask = bus.asker(topics.FIND_BUILDS, timeout=DEADLINE)
    builds = (a_small_request().request,)
    async with serving(connect, conductor("c1")), serving(connect, conductor("c2")):
        for cell in ("c2", "c1", "c2"):
            await ask(FindBuilds(cell=cell, builds=builds))
        with pytest.raises(Unroutable, match=r"cell\.builds\.c3"):
            await ask(FindBuilds(cell="c3", builds=builds))
    assert asked == ["c2 was asked of c2", "c1 was asked of c1", "c2 was asked of c2"]


async def test_a_query_without_an_answer_raises_after_its_timeout(bus: Bus) -> None:
    ask = bus.asker(topics.FIND_CANDIDATES, timeout=0.2)
    with pytest.raises(NoAnswer, match=r"placement\.candidates"):
        await ask(QUESTION)


async def test_a_query_whose_queue_is_lost_has_no_answer_and_the_next_declares_it_again() -> None:
    broker = LocalBroker()
    async with Bus(LocalTransport(broker)) as bus:
        ask = bus.asker(topics.FIND_CANDIDATES, timeout=0.1)
        with pytest.raises(NoAnswer, match="no answer within"):
            await ask(QUESTION)
        broker.remove("ask:placement.candidates")
        with pytest.raises(NoAnswer, match="no queue is bound to"):
            await ask(QUESTION)
        with pytest.raises(NoAnswer, match="no answer within"):
            await ask(QUESTION)


@pytest.mark.parametrize(
    "raised, comes_as",
    [
        (Poison("groups: no such class"), AnswerRefused),
        (Poison("unavailable: that is how its sentence begins"), AnswerRefused),
        (Poison(""), AnswerRefused),
        (Unavailable("no database"), Unavailable),
        (Unavailable(""), Unavailable),
    ],
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


async def test_slow_messages_delay_no_others_and_are_completed_at_the_stop(
    connect: Connect, bus: Bus
) -> None:
    may_finish, stopping = asyncio.Event(), asyncio.Event()
    lists: list[list[int]] = []

    def number_of(message: BuildRequested | BuildUnplaceable) -> int:
        return int(message.request[-3:])

    async def handle(requests: Sequence[BuildRequested]) -> list[Outcome]:
        lists.append([number_of(request) for request in requests])
        if any(map(is_slow, requests)):
            await may_finish.wait()
        return [no_host(request) for request in requests]

    def is_slow(request: BuildRequested) -> bool:
        return number_of(request) in (2, 4)

    row = on_many(
        topics.BUILD_REQUESTED, handle, emits=[topics.BUILD_UNPLACEABLE], concurrency=1, slow=is_slow
    )
    worker = Worker("scheduler", consumes=[row])
    listener = await bus.listen(topics.BUILD_UNPLACEABLE.at())

    async def answered(count: int) -> list[int]:
        async with asyncio.timeout(DEADLINE):
            return sorted([number_of(await listener.get()) for _ in range(count)])

    async with Bus(connect()) as first, asyncio.TaskGroup() as group:
        await first.transport.declare(worker.queue_of(row))
        await bus.publish(*map(a_small_request, (1, 2, 3)))
        serving_first = group.create_task(first.serve(worker, stopping, drain=DEADLINE))
        assert await answered(2) == [1, 3]
        await bus.publish(*map(a_small_request, (4, 5)))
        assert await answered(1) == [5]
        await until(lambda: [4] in lists)
        stopping.set()
        await asyncio.wait([serving_first], timeout=0.2)
        assert not serving_first.done()
        may_finish.set()
    assert await answered(2) == [2, 4]
    async with serving(connect, worker):
        await bus.publish(a_small_request(6))
        assert await answered(1) == [6]
    assert sorted(number for numbers in lists for number in numbers) == [1, 2, 3, 4, 5, 6]


async def test_a_stopping_worker_finishes_the_messages_in_hand(connect: Connect, bus: Bus) -> None:
    at_work, may_finish = asyncio.Event(), asyncio.Event()
    handled: list[str] = []

    async def slow(request: BuildRequested) -> BuildUnplaceable:
        at_work.set()
        await may_finish.wait()
        handled.append(request.request)
        return no_host(request)

    worker = Worker(
        "scheduler",
        consumes=[on(topics.BUILD_REQUESTED, slow, emits=[topics.BUILD_UNPLACEABLE], concurrency=1)],
    )
    listener = await bus.listen(topics.BUILD_UNPLACEABLE.at())
    stopping = asyncio.Event()
    async with Bus(connect()) as first, asyncio.TaskGroup() as group:
        await first.transport.declare(worker.queue_of(worker.consumes[0]))
        await bus.publish(a_small_request(1), a_small_request(2), a_small_request(3))
        group.create_task(first.serve(worker, stopping, drain=DEADLINE))
        async with asyncio.timeout(DEADLINE):
            await at_work.wait()
        stopping.set()
        may_finish.set()
    assert handled == [a_small_request(1).request]
    async with serving(connect, worker), asyncio.timeout(DEADLINE):
        message = sorted([(await listener.get()).request for _ in range(3)])
    assert message == [a_small_request(number).request for number in (1, 2, 3)]
    assert len(handled) == 3


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
    async with asyncio.timeout(DEADLINE):
        await taken.wait()
    life.cancel()
    await asyncio.wait([life])
    async with serving(connect, scheduler(refuse)), asyncio.timeout(DEADLINE):
        message = await listener.get()
    assert message.request == a_small_request().request


async def test_a_publication_waits_until_a_consumer_exists(connect: Connect, bus: Bus) -> None:
    """A build must not fail because its conductor was not started yet."""
    tried = asyncio.Event()
    events: list[BuildRequested] = []

    async def pass_on(ended: BuildEnded) -> BuildRequested:
        tried.set()
        return a_small_request()

    async def note(request: BuildRequested) -> None:
        events.append(request)

    passing = Worker("passing", consumes=[on(topics.BUILD_ENDED, pass_on, emits=[topics.BUILD_REQUESTED])])
    id_ = a_small_request().request
    async with serving(connect, passing):
        await bus.publish(BuildEnded(build=id_, request=id_, cell="c1", status="active"))
        async with asyncio.timeout(DEADLINE):
            await tried.wait()
        async with serving(connect, Worker("late", consumes=[on(topics.BUILD_REQUESTED, note)])):
            await until(lambda: events)
    assert events[0] == a_small_request()


async def test_every_replica_receives_a_broadcast_topic(connect: Connect, bus: Bus) -> None:
    events: list[str] = []

    def replica(name: str) -> Worker:
        async def note(ended: BuildEnded) -> None:
            events.append(name)

        return Worker("reader", consumes=[on(topics.BUILD_ENDED, note, private=True)])

    id_ = a_small_request().request
    async with serving(connect, replica("one")), serving(connect, replica("two")):
        await bus.publish(BuildEnded(build=id_, request=id_, cell="c1", status="active"))
        await until(lambda: len(events) >= 2)
    assert sorted(events) == ["one", "two"]


async def test_only_the_addressed_client_receives_a_reply(connect: Connect, bus: Bus) -> None:
    mine = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to="me"))
    plain = await bus.listen(topics.BUILD_UNPLACEABLE.at())
    await bus.publish(
        msgspec.structs.replace(no_host(a_small_request(1)), reply_to="me"), no_host(a_small_request(2))
    )
    async with asyncio.timeout(DEADLINE):
        assert (await mine.get()).request == a_small_request(1).request
        assert (await plain.get()).request == a_small_request(2).request


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


@pytest.mark.usefixtures("short_pauses")
async def test_a_message_with_an_unknown_reply_to_is_retried_normally(connect: Connect, bus: Bus) -> None:
    tries = []

    async def wait_for_it(request: BuildRequested) -> BuildUnplaceable:
        tries.append(request)
        if len(tries) < 3:
            raise Unavailable("the database is restarting")
        return no_host(request)

    listener = await bus.listen(topics.BUILD_UNPLACEABLE.at())
    envelope = envelope_of(a_small_request(), bus.clock)
    envelope.reply_to = "amq.gen-of-a-stranger"
    async with serving(connect, scheduler(wait_for_it)):
        await bus.transport.publish([envelope], expected=[True])
        async with asyncio.timeout(DEADLINE):
            assert (await listener.get()).request == a_small_request().request


async def test_messages_without_a_consumer_do_not_delay_other_messages_of_a_timer(
    connect: Connect, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bus.delivery.runner.MAX_UNDELIVERABLE", 3)
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
