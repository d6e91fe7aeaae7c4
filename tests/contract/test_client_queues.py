"""A client's queue that takes no messages delays the results of this client only, and none is lost."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest

from bus import topics
from bus.delivery import failed_messages, settling
from bus.delivery.runner import Bus, Listener
from bus.errors import Unconfirmed
from bus.messages import BuildRequested, BuildUnplaceable
from bus.protocol import Delivery, Envelope, Inbox, Intake, Transport
from bus.requests import Flavor
from bus.worker import Outcome, Worker, on_many
from tests.support.buses import Connect, serving
from tests.support.waiting import in_time, until


class StuckQueue:
    """A connection to a broker where the queue of the client `stuck` confirms no results while it is down."""

    def __init__(self, broker: Transport) -> None:
        self._broker = broker
        self.is_down = True
        self.unconfirmed = 0
        self.late = asyncio.Event()  # set: the time limit for the confirms of the client has passed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        stuck = [each for each in envelopes if self.is_down and each.key.endswith(".stuck")]
        pairs = [pair for pair in zip(envelopes, expected, strict=True) if pair[0] not in stuck]
        await self._broker.publish([each for each, _ in pairs], expected=[must for _, must in pairs])
        if stuck:
            self.unconfirmed += len(stuck)
            await self.late.wait()
            raise Unconfirmed([each.key for each in stuck], causes=[each.causation for each in stuck])


class Refusing:
    """A worker that finds no host for any request, with one handler call at a time."""

    def __init__(self, intake: Intake | None = None) -> None:
        self.handled: Counter[str] = Counter()
        self.worker = Worker(
            "scheduler",
            consumes=[
                on_many(
                    topics.BUILD_REQUESTED,
                    self.refuse,
                    emits=[topics.BUILD_UNPLACEABLE],
                    concurrency=1,
                    intake=intake,
                )
            ],
        )

    async def refuse(self, requests: Sequence[BuildRequested]) -> Sequence[Outcome]:
        self.handled.update(request.request for request in requests)
        return [
            BuildUnplaceable(
                request=each.request, instances=each.instances, reason="full", reply_to=each.reply_to
            )
            for each in requests
        ]


class RecordingIntake:
    """An intake that returns messages as they arrive, and records whose handler calls have ended."""

    def __init__(self) -> None:
        self.ended: list[Delivery] = []

    async def open(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)

    def handled(self, deliveries: Sequence[Delivery]) -> None:
        self.ended += deliveries


def a_request(number: int, reply_to: str) -> BuildRequested:
    id_ = f"00000000-0000-0000-0000-{number:012d}"
    return BuildRequested(
        request=id_, instances=(id_,), flavor=Flavor(name="small", vcpus=1), reply_to=reply_to
    )


async def results(listener: Listener[BuildUnplaceable], count: int) -> list[int]:
    return [int((await in_time(listener.get())).request[-12:]) for _ in range(count)]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "CONFIRM_SECONDS", 0.05)
    monkeypatch.setattr(failed_messages, "REPEATED_SECONDS", 0.1)


async def test_results_for_a_client_that_confirms_none_hold_no_handler_and_are_repeated(
    connect: Connect,
) -> None:
    stuck, refusing = StuckQueue(connect()), Refusing()
    async with Bus(connect()) as outside, serving(lambda: stuck, refusing.worker) as bus:
        shop = await outside.listen(topics.BUILD_UNPLACEABLE.at(reply_to="shop"))
        late = await outside.listen(topics.BUILD_UNPLACEABLE.at(reply_to="stuck"))
        for number in range(1, 6):
            await bus.publish(a_request(number, "stuck"), a_request(10 + number, "shop"))
            assert await results(shop, 1) == [10 + number]
        await until(lambda: stuck.unconfirmed == 5)
        stuck.is_down = False
        stuck.late.set()
        assert sorted(await results(late, 5)) == [1, 2, 3, 4, 5]
        assert sorted(refusing.handled.values()) == [1] * 5 + [2] * 5, "other requests are not repeated"


async def test_an_intake_learns_once_that_a_call_has_ended_and_before_clients_confirm(
    connect: Connect,
) -> None:
    stuck, intake = StuckQueue(connect()), RecordingIntake()
    refusing = Refusing(cast(Intake, intake))
    async with Bus(connect()) as outside, serving(lambda: stuck, refusing.worker) as bus:
        late = await outside.listen(topics.BUILD_UNPLACEABLE.at(reply_to="stuck"))
        await bus.publish(a_request(1, "stuck"), a_request(2, "shop"))
        await until(lambda: len(intake.ended) == 2)
        assert stuck.unconfirmed == 1
        stuck.is_down = False
        stuck.late.set()
        assert await results(late, 1) == [1]
        await bus.publish(a_request(3, "shop"))
        await until(lambda: len(intake.ended) > 2)
        assert len({*map(id, intake.ended)}) == len(intake.ended)


async def test_a_result_is_repeated_until_the_queue_confirms_it(connect: Connect) -> None:
    stuck, refusing = StuckQueue(connect()), Refusing()
    stuck.late.set()
    async with Bus(connect()) as outside, serving(lambda: stuck, refusing.worker) as bus:
        late = await outside.listen(topics.BUILD_UNPLACEABLE.at(reply_to="stuck"))
        await bus.publish(a_request(1, "stuck"))
        await until(lambda: stuck.unconfirmed >= 3)
        stuck.is_down = False
        assert await results(late, 1) == [1]


@pytest.mark.parametrize("is_late", [False, True], ids=["while it waits for the confirm", "repeated later"])
async def test_a_result_that_is_not_confirmed_survives_the_end_of_its_worker(
    connect: Connect, is_late: bool
) -> None:
    stuck, refusing = StuckQueue(connect()), Refusing()
    if is_late:
        stuck.late.set()
    async with Bus(connect()) as outside:
        late = await outside.listen(topics.BUILD_UNPLACEABLE.at(reply_to="stuck"))
        async with serving(lambda: stuck, refusing.worker) as bus:
            await bus.publish(a_request(1, "stuck"))
            await until(lambda: stuck.unconfirmed >= (2 if is_late else 1))
        async with serving(connect, Refusing().worker):
            assert await results(late, 1) == [1]
