"""Drains that a control room runs, like `berth drain`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rich.console import Console

from berth.commands.emptying import Emptied, Emptying
from berth.commands.host_states import causes_of, disabling, enabling, host_named
from berth.commands.move_output import MovePrinter
from berth.commands.requesting_moves import ANY
from berth.commands.terminal import CommandRefused, leaves
from berth.room_acts import in_words
from bus.delivery.runner import Bus
from bus.host_marks import UNNAMED
from bus.moves import MoveRequested
from control_room.drained_hosts import DRAIN
from control_room.operations import DrainProgress, OperationRefused
from control_room.queries import NO_ANSWER

log = logging.getLogger(__name__)

_REMEMBERED = 200  # drains that are over
_TROUBLE = (CommandRefused, *NO_ANSWER)


@dataclass
class _Going:
    emptying: Emptying
    task: asyncio.Task[None]
    problem: str = ""


@asynccontextmanager
async def drains_here(bus: Bus) -> AsyncIterator["ControlRoomDrains"]:
    """Until this is left, which stops them."""
    async with asyncio.TaskGroup() as group:
        drains = ControlRoomDrains(bus, group)
        try:
            yield drains
        finally:
            drains.stop_all()


class ControlRoomDrains:
    """One drain per host. They end with the process, and a repeated request continues them."""

    def __init__(self, bus: Bus, group: asyncio.TaskGroup) -> None:
        self._bus = bus
        self._group = group
        self._drains: dict[str, _Going] = {}

    def progress(self, root: str) -> DrainProgress | None:
        one = self._drains.get(root)
        if one is None:
            return None
        far = one.emptying.so_far
        return DrainProgress(not one.task.done(), one.problem or far.sentence(), _stay(far))

    async def start(self, root: str, live: bool, most: int) -> str:
        async with in_words():
            host = await host_named(self._bus, root)
            known = self._drains.get(host.id)
            if known is not None and not known.task.done():
                raise OperationRefused("it is being emptied already")
            said = await disabling(DRAIN)(self._bus, host)
        asked = MoveRequested(move=ANY, build=ANY, kind="live" if live else "migrate")
        telling = MovePrinter(False, Console(quiet=True))
        emptying = Emptying(self._bus, [host], asked, most, telling, because=DRAIN, drawn=False)
        self._drains.pop(host.id, None)
        for old in [one for one, drain in self._drains.items() if drain.task.done()][:-_REMEMBERED]:
            del self._drains[old]
        task = self._group.create_task(self._run(host.id, host.host or host.name, emptying))
        self._drains[host.id] = _Going(emptying, task)
        return said

    async def stop(self, root: str, and_open: bool) -> str:
        """Remove the cause, which ends the drain; moves in progress end by themselves."""
        async with in_words():
            host = await host_named(self._bus, root)
            if DRAIN not in causes_of(host):
                raise OperationRefused("It is not closed to be emptied: somebody else has stopped that.")
            if not and_open:
                await disabling(UNNAMED)(self._bus, host)
                host = await host_named(self._bus, root)
            said = await enabling(DRAIN)(self._bus, host)
        if (one := self._drains.get(host.id)) is not None:
            one.task.cancel()
        return said

    def stop_all(self) -> None:
        for drain in self._drains.values():
            drain.task.cancel()

    async def _run(self, root: str, name: str, emptying: Emptying) -> None:
        try:
            far = await emptying.run()
            log.info("%s is drained: %s", name, far.sentence())
        except* _TROUBLE as trouble:
            self._drains[root].problem = problem = str(next(leaves(trouble)))
            log.warning("the drain of %s has stopped: %s", name, problem)
        except* Exception:
            self._drains[root].problem = "that is a bug; what happened is in the log"
            log.exception("the drain of %s has failed", name)


def _stay(far: Emptied) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(far.stay.items()))
