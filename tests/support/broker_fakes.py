"""A fake of RabbitMQ's users and queues, for commands that create and remove users."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from berth import broker_inspection, broker_users, composition
from berth.broker_inspection import DeletedQueues
from berth.settings import Settings
from bus.errors import BrokerRefused
from bus.local import LocalBroker, LocalTransport
from tests.support.buses import Connect

SETTINGS = Settings().having(amqp_url="amqp://guest:guest@mq/", cells=("c1",))


class FakeBroker:
    by = "a fake"
    refuses = False

    def __init__(self, *queues: str) -> None:
        self.known: dict[str, str] = {}
        self.closed: list[str] = []
        self.may_write: dict[str, str] = {}
        self._queues = queues

    async def users(self) -> set[str]:
        return set(self.known)

    async def take(self, definitions: Mapping[str, Any]) -> None:
        if self.refuses:
            raise BrokerRefused("no")
        self.known |= {definition["name"]: definition["password_hash"] for definition in definitions["users"]}
        self.may_write |= {each["user"]: each["write"] for each in definitions["permissions"]}

    async def drop(self, user: str, *policies: str) -> None:
        if self.known.pop(user, None):
            self.closed.append(user)

    async def queues(self) -> list[str]:
        return list(self._queues)


def replace_broker(patch: pytest.MonkeyPatch, broker: FakeBroker, deleted: list[str]) -> Connect:
    """Make the commands use a fake of RabbitMQ's users and queues, and return connections to a local bus."""
    local = LocalBroker()

    async def fake(*_: Any) -> FakeBroker:
        return broker

    async def delete(url: str, names: Sequence[str], **_: Any) -> DeletedQueues:
        deleted.extend(names)
        return DeletedQueues(messages=len(names))

    patch.setattr(broker_users, "broker_users", fake)
    patch.setattr(broker_inspection, "delete_queues", delete)
    patch.setattr(composition, "transport", lambda settings, name: LocalTransport(local))
    return lambda: LocalTransport(local)
