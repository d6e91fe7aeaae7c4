"""Shadow mode on a real RabbitMQ: no notification is lost, and other consumers of Nova lose none."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aio_pika
import pytest

from bus.errors import Unavailable
from bus.rabbit.foreign.listener import ForeignListener
from bus.rabbit.foreign.publisher import ForeignPublisher
from bus.sql.database import Database
from features.nova.tests.support.nova_notifications import asked, refused, selected, used
from features.nova.with_what_if import shadow, shadow_store
from features.nova.with_what_if.tests.support.shadowed_nova import ShadowedWorld, a_shadowed_nova
from placement_worker.testing import Placement
from tests.support.ids import uid
from tests.support.placement_builders import a_placement
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

INFO, ERROR = "versioned_notifications.info", "versioned_notifications.error"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "ANSWER_SECONDS", 0.05)  # no scheduler runs in these tests


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as placement:
        yield placement


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/shadow.db")
    yield database
    await database.close()


@pytest.fixture
async def nova(amqp_url: str, bus_name: str) -> AsyncIterator[ForeignPublisher]:
    publisher = ForeignPublisher(amqp_url, f"{bus_name}.nova", "nova")
    await publisher.ready()
    yield publisher
    await publisher.close()


def a_listener(url: str, name: str, **limits: Any) -> ForeignListener:
    return ForeignListener(
        url,
        exchange=f"{name}.nova",
        keys=["versioned_notifications.*"],
        queue=f"{name}.nova_shadow",
        name="berth nova-shadow",
        made_by="Nova makes it",
        poll_seconds=0.1,
        **limits,
    )


async def knows(world: ShadowedWorld, hosts: tuple[str, ...], requests: int = 1) -> None:
    async def has_hosts() -> bool:
        found = await world.report(instance=uid(1))
        return found.requests == requests and found.listed[0].nova_hosts == hosts

    await until(has_hosts, f"the hosts {hosts}")


async def test_notifications_wait_for_a_stopped_shadow(
    amqp_url: str, bus_name: str, placement: Placement, store: Database, nova: ForeignPublisher
) -> None:
    listener = a_listener(amqp_url, bus_name)
    async with a_shadowed_nova(placement, store, has_scheduler=False, listener=listener) as world:
        await until(lambda: listener.subscribed)
        await nova.publish([(INFO, asked(1))])
        await knows(world, ())
    await nova.publish([(INFO, selected(1)), (INFO, used("compute-1", 1)), (ERROR, refused(2, request="r2"))])
    again = a_listener(amqp_url, bus_name)
    async with a_shadowed_nova(placement, store, has_scheduler=False, listener=again) as world:
        await knows(world, ("compute-1",))

        async def has_both() -> bool:
            return (await world.report()).requests == 2

        await until(has_both, "the refused request of the other routing key")


@pytest.mark.parametrize("limits", [{"kept_seconds": 0.2}, {"most_messages": 3}], ids=["expired", "full"])
async def test_a_stopped_shadow_does_not_fill_novas_rabbitmq(
    amqp_url: str,
    bus_name: str,
    placement: Placement,
    store: Database,
    nova: ForeignPublisher,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, Any],
) -> None:
    monkeypatch.setattr("bus.rabbit.foreign.listener.PREFETCH", 0)
    limits = {"most_messages": 100, **limits}
    listener = a_listener(amqp_url, bus_name, **limits)
    async with a_shadowed_nova(placement, store, has_scheduler=False, listener=listener) as world:
        await until(lambda: listener.subscribed)
        await nova.publish([(INFO, asked(1))])
        await knows(world, ())
        assert (await world.report()).missing == ()

    async def is_limited() -> bool:
        with suppress(Unavailable):  # RabbitMQ may close a connection whose queue expires meanwhile
            await nova.publish([(INFO, used("compute-1", number)) for number in range(2, 7)])
        left = (await listener.unread([listener.queue])).get(listener.queue, 0)
        return left <= (0 if "kept_seconds" in limits else limits["most_messages"])

    await until(is_limited, "the queue is limited")
    again = a_listener(amqp_url, bus_name, **limits)
    async with a_shadowed_nova(placement, store, has_scheduler=False, listener=again) as world:
        world.now[0] += 60

        async def is_missing() -> bool:
            return len((await world.report()).missing) == 1

        await until(is_missing, "the period is in the report")


async def test_a_notification_that_the_broker_refuses_is_reported(
    amqp_url: str, bus_name: str, nova: ForeignPublisher
) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        full = await channel.declare_queue(
            f"{bus_name}.full", exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        await full.bind(f"{bus_name}.nova", INFO)
        await nova.publish([(INFO, asked(1))])
        with pytest.raises(Unavailable, match="the broker refuses a message"):
            await nova.publish([(INFO, asked(2)), (INFO, asked(3))])
        await full.purge()
        await nova.publish([(INFO, asked(2))])


async def test_notifications_are_repeated_until_they_are_stored(
    amqp_url: str,
    bus_name: str,
    placement: Placement,
    store: Database,
    nova: ForeignPublisher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add, attempts = shadow_store.add_outcomes, 0

    async def fails_twice(*arguments: object) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Unavailable("the database is away")
        await add(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shadow_store, "add_outcomes", fails_twice)
    listener = a_listener(amqp_url, bus_name)
    async with a_shadowed_nova(placement, store, has_scheduler=False, listener=listener) as world:
        await until(lambda: listener.subscribed)
        await nova.publish([(INFO, asked(1)), (INFO, used("compute-2", 1))])
        await knows(world, ("compute-2",))
    assert attempts == 3


async def test_other_consumers_receive_every_notification(
    amqp_url: str, bus_name: str, placement: Placement, store: Database, nova: ForeignPublisher
) -> None:
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        channel = await connection.channel()
        ceilometer = await channel.declare_queue(f"{bus_name}.{INFO}", durable=True)
        await ceilometer.bind(f"{bus_name}.nova", INFO)
        listener = a_listener(amqp_url, bus_name)
        async with a_shadowed_nova(placement, store, has_scheduler=False, listener=listener) as world:
            await until(lambda: listener.subscribed)
            await nova.publish([(INFO, asked(1)), (INFO, used("compute-1", 1))])
            await knows(world, ("compute-1",))
        bodies = [(await ceilometer.get(timeout=10, no_ack=True)).body for _ in range(2)]
    assert bodies == [asked(1), used("compute-1", 1)]
