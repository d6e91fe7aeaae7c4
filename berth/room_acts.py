"""Operations of the control room, executed like the commands."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from berth.commands.following import Silently
from berth.commands.host_states import checked_cause, disabling, enabling, forcing_down, host_named
from berth.commands.steering import end_wait, word_said
from berth.commands.terminal import CommandRefused, leaves
from berth.settings import BadSetting
from bus.delivery.runner import Bus
from bus.moves import MoveStands, Steering
from control_room.operations import OperationRefused
from control_room.queries import NO_ANSWER

_TROUBLE = (CommandRefused, BadSetting, *NO_ANSWER)


class ControlRoomActions:
    """Each raises ActRefused, with why, when it was not done."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def mark_host(self, what: str, root: str, given: str) -> str:
        async with in_words():
            cause = checked_cause(given)
            markings = {
                "disable": disabling(cause),
                "enable": enabling(cause),
                "force-down": forcing_down(True),
                "undo-force-down": forcing_down(False),
            }
            before = await host_named(self._bus, root)
            said = await markings[what](self._bus, before)
            after = await host_named(self._bus, root)
            if set(after.traits) == set(before.traits):
                raise OperationRefused(said)
            return said

    async def steer(self, stands: MoveStands, to: str) -> str:
        """Return the cell's answer: accepted, or why not."""
        async with in_words(), word_said(self._bus, stands, cast(Steering, to), Silently()) as (_, answer):
            said = answer.result() if answer.done() else None
        if said is None:
            return f"{to} is said; cell {stands.cell} has not answered yet"
        if said.refused:
            raise OperationRefused(said.refused)
        return said.phase

    async def end_wait(self, request: str) -> str:
        async with in_words():
            said = await end_wait(self._bus, request)
        if not said.waited:
            raise OperationRefused(f"It does not wait: {said.why}.")
        return said.why


@asynccontextmanager
async def in_words() -> AsyncIterator[None]:
    """Convert refusals of commands to messages of pages."""
    try:
        yield
    except _TROUBLE as problem:
        raise OperationRefused(str(problem)) from None
    except BaseExceptionGroup as group:
        trouble, bugs = group.split(_TROUBLE)
        if trouble is None or bugs is not None:
            raise
        raise OperationRefused("; ".join(dict.fromkeys(map(str, leaves(trouble))))) from None
