"""Receives messages of the bus and counts them."""

from collections.abc import Sequence

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
from control_room.core.agent_heartbeats import RollCall
from control_room.core.windows import EndHeard, HeardLately
from control_room.page_refresh import MetalNews, Stirring


class Hearing:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lately = HeardLately()
        self.roll = RollCall()
        self.stirring = Stirring()
        self.moving = Stirring()  # by moves alone
        self.waiting = Stirring()  # changes of waiting requests
        self.metal = MetalNews()

    async def ended(self, messages: Sequence[BuildEnded]) -> Sequence[None]:
        now = self.clock.now()
        for message in messages:
            self.lately.handle(
                EndHeard(
                    build=message.build,
                    status=message.status,
                    at=now,
                    cell=message.cell,
                    host=message.host,
                    seconds=_taken(message.attempts),
                    attempts=len(message.attempts),
                    cause=message.reason if message.status == "error" else "",
                )
            )
        self.stirring.stir()
        return [None] * len(messages)

    async def unplaceable(self, message: BuildUnplaceable) -> None:
        now = self.clock.now()
        emptied = next((removal.constraint for removal in message.decision.removals if not removal.left), "")
        cause = emptied or message.decision.code or message.reason
        for build in message.instances:
            self.lately.handle(EndHeard(build=build, status="no host", at=now, cause=f"no host: {cause}"))
        self.stirring.stir()

    async def host_failed(self, message: HostFailed) -> None:
        self.lately.hear_failure(self.clock.now())
        self.stirring.stir()

    async def move_ended(self, message: MoveEnded) -> None:
        self.lately.hear_move(message.end, self.clock.now())
        self.stirring.stir()
        self.moving.stir()

    async def move_told(self, message: MoveProgress) -> None:
        self.moving.stir()

    async def host_reported(self, message: HostReported) -> None:
        self.roll.handle(message, self.clock.now())

    async def ironic_spoke(self, message: IronicSpoke) -> None:
        self.metal.heard(message.nodes)

    async def scheduler_alive(self, message: SchedulerAlive) -> None:
        if self.roll.hear_scheduler(message.scheduler, self.clock.now(), message.waits):
            self.waiting.stir()


def _taken(attempts: Sequence[Attempt]) -> float | None:
    """From the first order to the end, as the cell has it."""
    began = [attempt.started for attempt in attempts if attempt.started]
    ended = [attempt.ended for attempt in attempts if attempt.ended]
    return max(0.0, max(ended) - min(began)) if began and ended else None
