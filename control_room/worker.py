"""Connects the control room to the bus: counts ended builds, and reports changes to open pages.

The control room must not consume requests: a publisher assumes that a request was received by a scheduler as
soon as any queue has received it.
"""

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from bus import topics
from bus.audit_trail import ActsRecorded
from bus.clock import Clock
from bus.ironic import IronicSpoke
from bus.messages import (
    Attempt,
    BuildCancelRequested,
    BuildEnded,
    BuildUnplaceable,
    HostFailed,
    HostReported,
    SchedulerAlive,
)
from bus.relays import HeartbeatsMerged
from bus.topics import Address, Query
from bus.vocabulary import Message
from bus.worker import Worker, on, on_many
from control_room.core.builds import BuildHistory, EndedBuild
from control_room.core.now import Heartbeats
from control_room.shared_data import Changes
from features.moves.messages import (
    FIND_MOVES,
    MOVE_ENDED,
    MOVE_PROGRESS,
    MoveEnded,
    MoveProgress,
    MoveRequested,
    MoveSteered,
)


class NodeChanges(Changes):
    """Stores, while the page of bare-metal nodes is open, the ids of nodes to read again, because messages
    about them came since the last read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, None] = {}
        self.of_all = Changes()  # messages without the names of nodes

    def add(self, nodes: Collection[str]) -> None:
        """Record that messages about the given bare-metal nodes came; no ids: any node may have changed."""
        if self.is_watched:
            self.nodes.update(dict.fromkeys(nodes))
            if not nodes:
                self.of_all.notify()
            self.notify()


class Events:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.history = BuildHistory()
        self.heartbeats = Heartbeats()
        self.changes = Changes()  # of builds, moves and hosts
        self.moves = Changes()
        self.waiting = Changes()
        self.projects = Changes()  # of quotas, and of numbers of waiting requests
        self.metal = NodeChanges()

    async def on_builds_ended(self, messages: Sequence[BuildEnded]) -> Sequence[None]:
        now = self.clock.now()
        for message in messages:
            self.history.add(
                EndedBuild(
                    build=message.build,
                    status=message.status,
                    at=now,
                    cell=message.cell,
                    host=message.host,
                    seconds=_duration(message.attempts),
                    attempts=len(message.attempts),
                    cause=message.reason if message.status == "error" else "",
                )
            )
        self.changes.notify()
        return [None] * len(messages)

    async def on_unplaceable(self, message: BuildUnplaceable) -> None:
        now = self.clock.now()
        emptied = next((removal.constraint for removal in message.decision.removals if not removal.left), "")
        cause = emptied or message.decision.code or message.reason
        for build in message.instances:
            self.history.add(EndedBuild(build=build, status="no host", at=now, cause=f"no host: {cause}"))
        self.changes.notify()

    async def on_host_failed(self, message: HostFailed) -> None:
        self.history.add_failure(self.clock.now())
        self.changes.notify()

    async def on_move_ended(self, message: MoveEnded) -> None:
        self.history.add_move(message.end, self.clock.now())
        self.changes.notify()
        self.moves.notify()

    async def on_move_changed(self, message: MoveProgress) -> None:
        self.moves.notify()

    async def on_host_reported(self, message: HostReported) -> None:
        self.heartbeats.add(message, self.clock.now())

    async def on_heartbeats_merged(self, merged: HeartbeatsMerged) -> None:
        for report in merged.reports:
            await self.on_host_reported(report)

    async def on_ironic_events(self, message: IronicSpoke) -> None:
        self.metal.add(message.nodes)

    async def on_scheduler_alive(self, message: SchedulerAlive) -> None:
        if self.heartbeats.add_scheduler(message.scheduler, self.clock.now(), message.waits):
            self.waiting.notify()
            self.projects.notify()


def _duration(attempts: Sequence[Attempt]) -> float | None:
    began = [attempt.started for attempt in attempts if attempt.started]
    ended = [attempt.ended for attempt in attempts if attempt.ended]
    return max(0.0, max(ended) - min(began)) if began and ended else None


ASKS = (
    topics.CELLS, topics.PROVIDERS, topics.EDIT, topics.EDIT_NAME, topics.TREES, topics.CHANGES,
    topics.AGGREGATES, topics.WAITING, topics.DECISION, topics.HOST_HEALTH, topics.FIND_BUILDS,
    topics.FIND_INSTANCES, FIND_MOVES, topics.ALLOCATIONS, topics.FIND_ACTS,
)  # fmt: skip

COMMANDS: frozenset[type[Message]] = frozenset(
    {BuildCancelRequested, MoveRequested, MoveSteered, ActsRecorded}
)


def control_room(
    events: Events,
    serves: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    further_asks: Sequence[Query[Any, Any]] = (),
) -> Worker:
    """Return the control room's worker; `further_asks` are the queries of the pages of features."""
    return Worker(
        "control_room",
        consumes=[
            # `#` also matches keys that end with the `reply_to` of the request
            on_many(
                Address(topics.BUILD_ENDED, "build.ended.#"), events.on_builds_ended, private=True, batch=256
            ),
            on(Address(topics.BUILD_UNPLACEABLE, "build.unplaceable.#"), events.on_unplaceable, private=True),
            on(Address(MOVE_ENDED, "move.ended.#"), events.on_move_ended, private=True),
            on(Address(MOVE_PROGRESS, "move.told.#"), events.on_move_changed, private=True),
            on(topics.HOST_FAILED, events.on_host_failed, private=True),
            on(topics.HOST_REPORTED, events.on_host_reported, private=True),
            on(topics.HEARTBEATS_MERGED, events.on_heartbeats_merged, private=True),
            on(topics.IRONIC_SPOKE, events.on_ironic_events, private=True),
            on(topics.SCHEDULER_ALIVE, events.on_scheduler_alive, private=True),
        ],
        asks=(*ASKS, *further_asks),
        announces=COMMANDS,
        runs=serves,
    )
