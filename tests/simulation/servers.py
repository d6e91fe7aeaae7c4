"""Faults of the servers of a simulated world: the broker's connections and queues, and the databases."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.databases import StandbyCopy

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

_LEADERLESS = 0.3  # elections, a second
_POLLS, _POLL_SECONDS = 1000, 0.005  # for an agent that writes
_QUEUES_TRIED = 40  # until one has messages


class ServerFaults:
    def __init__(self, world: "SimulatedWorld", chance: Random) -> None:
        self.world = world
        self.chance = chance

    def work(self) -> list[Coroutine[None, None, None]]:
        """Return coroutines that cause the faults of the world's plan, and end after the last fault."""
        faults = self.world.faults
        return [
            *(self._interrupt() for _ in range(faults.redeliveries)),
            *(self._lose_leaders() for _ in range(faults.leaderless)),
            *(self._lose_queue() for _ in range(faults.lost_queues)),
            *(self._lose_commits() for _ in range(faults.lost_commits)),
            *(self._kill_in_commit() for _ in range(faults.killed_in_commit)),
        ]

    async def _moment(self) -> None:
        """Wait until a random moment of the time in which the client sends requests."""
        await asyncio.sleep(1.0 + self.chance.random() * (0.5 * self.world.requests + 5.0))

    async def _interrupt(self) -> None:
        await self._moment()
        broker = self.world.broker
        inboxes = [
            inbox
            for queue in broker.durable_queues()
            if not queue.for_suspects
            for inbox in queue.inboxes
            if inbox._unsettled
        ]
        if inboxes:
            inbox = self.chance.choice(inboxes)
            self.world.note(f"interrupt a consumer of {inbox.queue.spec.name}")
            broker.interrupt(inbox)
            self.world.happened["redelivery"] += 1

    async def _lose_leaders(self) -> None:
        await self._moment()
        broker = self.world.broker
        led = [queue for queue in broker.durable_queues() if queue.led is None]
        chosen = self.chance.sample(led, min(len(led), self.chance.randint(1, 5)))
        for queue in chosen:
            self.world.note(f"no leader of {queue.spec.name}")
            broker.lose_leader(queue)
        self.world.happened["leader"] += 1
        await asyncio.sleep(self.chance.expovariate(_LEADERLESS))
        for queue in chosen:
            self.world.note(f"a leader of {queue.spec.name}")
            broker.elect_leader(queue)

    async def _lose_queue(self) -> None:
        """Lose a queue with messages that the broker has confirmed and no consumer has received."""
        await self._moment()
        broker = self.world.broker
        for _ in range(_QUEUES_TRIED):
            queue = self.chance.choice(broker.durable_queues())
            queue.stalled = True
            await asyncio.sleep(self.chance.expovariate(2.0))
            queue.stalled = False
            if queue.items and broker.queues.get(queue.spec.name) is queue:
                self.world.note(f"lose {queue.spec.name} with {len(queue.items)} messages")
                broker.lose_queue(queue)
                self.world.happened["queue"] += 1
                return
            queue.wake()

    async def _lose_commits(self) -> None:
        await self._moment()
        databases = self.world.databases
        all_of_them = list(databases.values())
        chosen = all_of_them if self.chance.random() < 0.5 else [self.chance.choice(all_of_them)]
        copy = await StandbyCopy.of(chosen)
        await asyncio.sleep(self.chance.expovariate(0.7))
        self.world.commits_lost = True
        self.world.happened["commits"] += 1
        await copy.promote()
        names = [name for name, database in databases.items() if database in chosen]
        self.world.note(f"fail-over of {', '.join(names)}")

    async def _kill_in_commit(self) -> None:
        """Kill an agent while changes of its file are not committed yet."""
        await self._moment()
        for _ in range(_POLLS):
            if writing := self.world.agents_writing():
                await self.world.kill(self.chance.choice(writing), self.chance)
                return
            await asyncio.sleep(_POLL_SECONDS)
