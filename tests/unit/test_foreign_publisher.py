"""The queue of messages that wait for another system's broker."""

import asyncio
from collections.abc import Sequence

import pytest

from bus.errors import BadCredentials, Unavailable
from bus.rabbit.foreign.publisher import BATCH
from tests.support.foreign_publishers import PublisherWithoutBroker
from tests.support.virtual_time import in_virtual_time

AWAY, REJECTED = Unavailable("the broker is away"), BadCredentials("the password is wrong")


def messages(numbers: range) -> list[tuple[str, bytes]]:
    return [("key", b"%d" % number) for number in numbers]


async def run_for(seconds: float, publisher: PublisherWithoutBroker) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await publisher.run()


@in_virtual_time
async def test_messages_of_a_failed_publication_are_published_again_in_order() -> None:
    publisher = PublisherWithoutBroker(AWAY, AWAY, limit=BATCH + 2)
    publisher.add(messages(range(BATCH + 2)))
    await run_for(60.0, publisher)
    assert publisher.published == messages(range(BATCH + 2))


@in_virtual_time
async def test_messages_that_are_added_later_are_published() -> None:
    publisher = PublisherWithoutBroker()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(publisher.run())
        for number in range(3):
            await asyncio.sleep(10.0)
            publisher.add(messages(range(number, number + 1)))
        await asyncio.sleep(1.0)
        running.cancel()
    assert publisher.published == messages(range(3))


@in_virtual_time
async def test_at_the_limit_the_oldest_messages_are_dropped_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    publisher = PublisherWithoutBroker(limit=3)
    publisher.add(messages(range(4)))
    publisher.add(messages(range(4, 6)))
    await run_for(60.0, publisher)
    assert publisher.published == messages(range(3, 6))
    assert caplog.text.count("the oldest are dropped") == 1
    publisher.add(messages(range(4)))
    assert caplog.text.count("the oldest are dropped") == 2, "the broker was reachable in between"


class AddingPublisher(PublisherWithoutBroker):
    """A publisher that gets two further messages during its first publication, which fails."""

    async def publish(self, messages_: Sequence[tuple[str, bytes]]) -> None:
        if self.problems:
            self.add(messages(range(2, 4)))
        await super().publish(messages_)


@in_virtual_time
async def test_messages_that_are_added_during_a_failed_publication_displace_the_oldest() -> None:
    publisher = AddingPublisher(AWAY, limit=3)
    publisher.add(messages(range(2)))
    await run_for(60.0, publisher)
    assert publisher.published == messages(range(1, 4))


@in_virtual_time
async def test_rejected_credentials_end_the_run_only_if_requested() -> None:
    publisher = PublisherWithoutBroker(REJECTED, REJECTED)
    publisher.add(messages(range(2)))
    with pytest.raises(BadCredentials):
        await publisher.run(ends_if_rejected=True)
    await run_for(60.0, publisher)
    assert publisher.published == messages(range(2))
