"""The control room's operations on moves and drains, with the functions that the commands also use."""

import asyncio
import logging
from dataclasses import dataclass
from typing import cast

from berth.operations.host_states import causes_of, disabling, enabling, host_named
from berth.operations.publishing import leaves
from berth.operations.refusing import TROUBLE, operations_refused
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.host_health import UNNAMED
from control_room.shared_data import BackgroundTasks
from features.moves.emptying import Emptying, EmptyingListener
from features.moves.messages import MoveRequested, MoveStands, Steering
from features.moves.moving import ANY, MoveListener, steering

log = logging.getLogger(__name__)

DRAIN = "drain"  # the cause for which drains disable hosts
_REMEMBERED = 200  # ended drains with progress that is still shown


async def steer(bus: Bus, stands: MoveStands, to: str) -> str:
    """Ask a move's cell to confirm, revert, abort or force the move (`to`); return the move's phase in the
    cell's reply, or a sentence if the cell does not answer. Raise OperationRefused if it refuses.
    """
    with operations_refused():
        async with steering(bus, stands, cast(Steering, to), MoveListener()) as (_, answer):
            steered = answer.result() if answer.done() else None
    if steered is None:
        return f"{to} is requested; cell {stands.cell} has not answered yet"
    if steered.refused:
        raise OperationRefused(steered.refused)
    return steered.phase


@dataclass(frozen=True)
class DrainProgress:
    """The progress of a host's drain that this control room runs, or the result of the host's last drain."""

    is_running: bool
    text: str
    unmoved: tuple[tuple[str, str], ...] = ()  # build, and the reason


@dataclass
class _RunningDrain:
    emptying: Emptying
    task: asyncio.Task[None]
    problem: str = ""


class Drains:
    """Runs the drains that users of this control room start. They stop when its process ends; a repeated
    request resumes a drain.

    Each operation raises OperationRefused if it fails.
    """

    def __init__(self, bus: Bus, tasks: BackgroundTasks) -> None:
        self._bus = bus
        self._tasks = tasks
        self._drains: dict[str, _RunningDrain] = {}

    def progress(self, root: str) -> DrainProgress | None:
        drain = self._drains.get(root)
        if drain is None:
            return None
        emptied = drain.emptying.so_far
        text = drain.problem or emptied.sentence()
        return DrainProgress(not drain.task.done(), text, tuple(sorted(emptied.stay.items())))

    async def start(self, root: str, live: bool, most: int) -> str:
        """Disable a host and begin to move its instances away, `most` at a time; return its new state."""
        with operations_refused():
            host = await host_named(self._bus, root)
            known = self._drains.get(host.id)
            if known is not None and not known.task.done():
                raise OperationRefused("it is being emptied already")
            state = (await disabling(DRAIN)(self._bus, host)).says
        move = MoveRequested(move=ANY, build=ANY, kind="live" if live else "migrate")
        emptying = Emptying(self._bus, [host], move, most, EmptyingListener(), because=DRAIN)
        self._drains.pop(host.id, None)
        for ended in [root for root, drain in self._drains.items() if drain.task.done()][:-_REMEMBERED]:
            del self._drains[ended]
        task = self._tasks.start(self._run(host.id, host.host or host.name, emptying))
        self._drains[host.id] = _RunningDrain(emptying, task)
        return state

    async def stop(self, root: str, and_open: bool) -> str:
        """Stop the drain of a host, even if another process runs it, and return the host's new state. Moves
        in progress complete. With `and_open` the host is enabled unless it has another cause; else it stays
        disabled.
        """
        with operations_refused():
            host = await host_named(self._bus, root)
            if DRAIN not in causes_of(host):
                raise OperationRefused("It is not being drained: another operator has stopped that.")
            if not and_open:
                await disabling(UNNAMED)(self._bus, host)
                host = await host_named(self._bus, root)
            state = (await enabling(DRAIN)(self._bus, host)).says
        if (drain := self._drains.get(host.id)) is not None:
            drain.task.cancel()
        return state

    async def _run(self, root: str, name: str, emptying: Emptying) -> None:
        try:
            log.info("%s is drained: %s", name, (await emptying.run()).sentence())
        except* TROUBLE as trouble:
            self._drains[root].problem = problem = str(next(leaves(trouble)))
            log.warning("the drain of %s has stopped: %s", name, problem)
        except* Exception:
            self._drains[root].problem = "an internal error occurred; the log has the details"
            log.exception("the drain of %s has failed", name)
