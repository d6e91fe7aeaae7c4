"""Connects the control room to the bus: counts ended builds, and reports changes to open pages.

The control room must not consume requests: a publisher assumes that a request was received by a scheduler as
soon as any queue has received it.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from bus import topics
from bus.audit_trail import ActsRecorded
from bus.clock import Clock
from bus.ironic import IronicSpoke
from bus.messages import Attempt, BuildEnded, BuildUnplaceable, HostFailed, HostReported, SchedulerAlive
from bus.topics import Address, Query, Topic
from bus.vocabulary import Message
from bus.worker import Worker, on, on_many
from control_room.core.builds import BuildHistory, EndedBuild
from control_room.core.now import Heartbeats
from control_room.kit.shared_data import Changes

M = TypeVar("M", bound=Message)

_COUNTED = (topics.BUILD_ENDED, topics.BUILD_UNPLACEABLE, topics.HOST_FAILED)


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
    """Stores what the control room learns from messages, and notifies the pages that show it."""

    def __init__(self, clock: Clock, page_events: Sequence[Topic[Any]] = ()) -> None:
        """`page_events`: further topics with messages after which pages of features refresh."""
        self.clock = clock
        self.page_events = page_events
        self.history = BuildHistory()
        self.heartbeats = Heartbeats()
        self._of = {topic: Changes() for topic in (*_COUNTED, topics.SCHEDULER_ALIVE, *page_events)}
        self.changes = Changes(*map(self.of, _COUNTED))  # of builds and hosts
        self.metal = NodeChanges()

    def of(self, topic: Topic[Any]) -> Changes:
        """Return the changes that messages of a topic report. Heartbeats of a scheduler count only if its
        number of waiting requests has changed.
        """
        return self._of[topic]

    def on_page_event(self, topic: Topic[Any]) -> Callable[[Message], Awaitable[None]]:
        """Return a handler that notifies the pages which refresh after messages of a topic."""

        async def notify(message: Message) -> None:
            self.of(topic).notify()

        return notify

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
        self.of(topics.BUILD_ENDED).notify()
        return [None] * len(messages)

    async def on_unplaceable(self, message: BuildUnplaceable) -> None:
        now = self.clock.now()
        emptied = next((removal.constraint for removal in message.decision.removals if not removal.left), "")
        cause = emptied or message.decision.code or message.reason
        for build in message.instances:
            self.history.add(EndedBuild(build=build, status="no host", at=now, cause=f"no host: {cause}"))
        self.of(topics.BUILD_UNPLACEABLE).notify()

    async def on_host_failed(self, message: HostFailed) -> None:
        self.history.add_failure(self.clock.now())
        self.of(topics.HOST_FAILED).notify()

    async def on_host_reported(self, message: HostReported) -> None:
        self.heartbeats.add(message, self.clock.now())

    async def on_several_heartbeats(self, message: Any) -> None:
        for report in message.reports:
            await self.on_host_reported(report)

    async def on_ironic_events(self, message: IronicSpoke) -> None:
        self.metal.add(message.nodes)

    async def on_scheduler_alive(self, message: SchedulerAlive) -> None:
        if self.heartbeats.add_scheduler(message.scheduler, self.clock.now(), message.waits):
            self.of(topics.SCHEDULER_ALIVE).notify()


def _duration(attempts: Sequence[Attempt]) -> float | None:
    began = [attempt.started for attempt in attempts if attempt.started]
    ended = [attempt.ended for attempt in attempts if attempt.ended]
    return max(0.0, max(ended) - min(began)) if began and ended else None


ASKS = (
    topics.CELLS, topics.PROVIDERS, topics.EDIT, topics.EDIT_NAME, topics.TREES, topics.CHANGES,
    topics.AGGREGATES, topics.WAITING, topics.DECISION, topics.HOST_HEALTH, topics.FIND_BUILDS,
    topics.FIND_INSTANCES, topics.ALLOCATIONS, topics.FIND_ACTS,
)  # fmt: skip


def control_room(
    events: Events,
    serves: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
    further_asks: Sequence[Query[Any, Any]] = (),
    publishes: Sequence[type[Message]] = (),
    heartbeats: Sequence[Topic[Any]] = (),
) -> Worker:
    """Return the control room's worker; the pages of features send `further_asks`, and publish messages of
    the types `publishes`. `heartbeats`: topics of features with several heartbeats in a message.
    """
    return Worker(
        "control_room",
        consumes=[
            on_many(_every(topics.BUILD_ENDED), events.on_builds_ended, private=True, batch=256),
            on(_every(topics.BUILD_UNPLACEABLE), events.on_unplaceable, private=True),
            *(on(_every(topic), events.on_page_event(topic), private=True) for topic in events.page_events),
            on(topics.HOST_FAILED, events.on_host_failed, private=True),
            on(topics.HOST_REPORTED, events.on_host_reported, private=True),
            *(on(topic, events.on_several_heartbeats, private=True) for topic in heartbeats),
            on(topics.IRONIC_SPOKE, events.on_ironic_events, private=True),
            on(topics.SCHEDULER_ALIVE, events.on_scheduler_alive, private=True),
        ],
        asks=tuple(dict.fromkeys((*ASKS, *further_asks))),
        announces=frozenset({ActsRecorded, *publishes}),
        runs=serves,
    )


def _every(topic: Topic[M]) -> Address[M]:
    """Return the address of all messages of a topic for clients, also of those with a `reply_to`, which is
    the end of their key.
    """
    return Address(topic, f"{topic.pattern.partition('{')[0].removesuffix('.')}.#")
