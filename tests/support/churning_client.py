"""A client that requests builds and deletes each when it is active."""

import asyncio
import random
from dataclasses import dataclass, field

from berth.kit.publishing import publish
from berth.loadtest import mixed
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Listener
from bus.messages import BuildDeleteRequested, BuildEnded, BuildRequested
from tests.support.berth_processes import Running
from tests.support.waiting import receive_all

RATE = 300.0  # requests a second at most
OPEN = 1_500  # requested builds that are not deleted, at most
REPLY_TO = "churn"


@dataclass
class ChurningClient:
    """A client that requests builds at a fixed rate, and deletes each as soon as it is active."""

    berth: Running
    builds: int  # the number of builds that it requests
    asked: int = 0
    statuses: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    changed: list[str] = field(default_factory=list)  # builds with two different ends
    refused: set[str] = field(default_factory=set)

    async def request(self) -> None:
        began, chance, flavors = monotonic(), random.Random(1), mixed(20)
        bus = self.berth.bus
        while self.asked < self.builds:
            due = min(int(RATE * (monotonic() - began)) + 1, self.builds, self.ended + OPEN) - self.asked
            ids = [bus.clock.uuid() for _ in range(max(0, min(due, 128)))]
            requests = [
                BuildRequested(
                    request=build, instances=(build,), flavor=chance.choice(flavors), reply_to=REPLY_TO
                )
                for build in ids
            ]
            await publish(bus, *requests)
            self.asked += len(ids)
            await asyncio.sleep(0.01)

    async def listen(self, group: asyncio.TaskGroup) -> list["asyncio.Task[None]"]:
        """Bind the client's queues, then delete active builds and count ends until cancelled."""
        bus = self.berth.bus
        ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=REPLY_TO), 5000)
        deleted = await bus.listen(topics.BUILD_DELETED.at(reply_to=REPLY_TO), 5000)
        refused = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=REPLY_TO), 5000)
        readers = (
            self._delete(ended),
            receive_all(deleted, lambda end: self.deleted.add(end.build)),
            receive_all(refused, lambda end: self.refused.update(end.instances)),
        )
        return [group.create_task(reader) for reader in readers]

    async def _delete(self, ended: Listener[BuildEnded]) -> None:
        while True:
            end = await ended.get()
            before = self.statuses.setdefault(end.build, end.status)
            if before != end.status:
                self.changed.append(end.build)
            await publish(
                self.berth.bus, BuildDeleteRequested(build=end.build, cell=end.cell, reply_to=REPLY_TO)
            )

    @property
    def ended(self) -> int:
        return len(self.deleted) + len(self.refused)
