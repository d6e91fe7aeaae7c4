"""Builders of envelopes and dead letters for tests of transports; functions that publish and receive them."""

from typing import Any

import msgspec

from bus.clock import Clock
from bus.protocol import DeadLetter, Delivery, Envelope, Inbox, Transport
from tests.support.waiting import in_time, until

_clock = Clock()


def an_envelope(number: int = 0, key: str = "build.requested", **more: Any) -> Envelope:
    reply: dict[str, Any] = {"id": _clock.uuid(), "type": "T", "body": msgspec.Raw(b'{"n":%d}' % number)}
    return Envelope(key=key, **(reply | more))


def a_letter(number: int = 0, **more: Any) -> DeadLetter:
    reply: dict[str, Any] = {
        "id": f"letter-{number}",
        "queue": "scheduler:build.requested",
        "key": "build.requested",
        "type": "BuildRequested",
        "reason": "flavor: a name is missing",
        "first_died": 1_700_000_000.25,
        "died": 1_700_000_060.5,
        "attempt": 3,
        "correlation": "story-1",
        "body": b"\xff not JSON \x00",
        "traceback": "Traceback: ...",
    }
    return DeadLetter(**(reply | more))


def number_in(delivery: Delivery) -> int:
    return int(msgspec.json.decode(delivery.envelope.body)["n"])


async def publish(transport: Transport, *envelopes: Envelope, expected: bool = True) -> None:
    await in_time(transport.publish(envelopes, expected=[expected] * len(envelopes)))


async def take(inbox: Inbox) -> Delivery:
    return await in_time(inbox.get())


async def numbers(inbox: Inbox, count: int) -> list[int]:
    """Receive and acknowledge `count` messages; return the numbers in them."""
    found = []
    for _ in range(count):
        delivery = await take(inbox)
        found.append(number_in(delivery))
        delivery.done()
    return found


async def buried(transport: Transport) -> list[DeadLetter]:
    """Wait until there is a dead letter; return all dead letters."""
    letters: list[DeadLetter] = []

    async def are_there() -> bool:
        letters[:] = await transport.dead_letters()
        return bool(letters)

    await until(are_there, picture=lambda: letters)
    return letters


def a_json_letter(id_: str = "letter", **more: Any) -> DeadLetter:
    return a_letter(**{"id": id_, "body": b'{"n":1}', "traceback": "", **more})
