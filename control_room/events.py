"""Receives messages of the bus, counts them, and signals the changes to open pages."""

from collections.abc import Collection, Sequence

from bus.clock import Clock
from bus.messages import (
    Attempt,
    BuildEnded,
    BuildUnplaceable,
    HostFailed,
    HostReported,
    IronicSpoke,
    SchedulerAlive,
)
from bus.moves import MoveEnded, MoveProgress
from control_room.core.agent_heartbeats import Heartbeats
from control_room.core.windows import BuildHistory, EndedBuild
from control_room.shared_data import Changes


class NodeChanges(Changes):
    """Bare-metal nodes with messages since they were read, while a page is open."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, None] = {}
        self.of_all = Changes()  # too many nodes to name them

    def add(self, nodes: Collection[str]) -> None:
        """Record messages about the nodes. No names: any node may have changed."""
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

    async def on_ironic_events(self, message: IronicSpoke) -> None:
        self.metal.add(message.nodes)

    async def on_scheduler_alive(self, message: SchedulerAlive) -> None:
        if self.heartbeats.add_scheduler(message.scheduler, self.clock.now(), message.waits):
            self.waiting.notify()


def _duration(attempts: Sequence[Attempt]) -> float | None:
    """Return the seconds from the first order to the end, by the cell's times."""
    began = [attempt.started for attempt in attempts if attempt.started]
    ended = [attempt.ended for attempt in attempts if attempt.ended]
    return max(0.0, max(ended) - min(began)) if began and ended else None
