"""What operators do in the control room, done as the commands do it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from berth.commands.marking import checked_cause, disabling, enabling, forcing_down, host_named
from berth.commands.steering import end_wait
from berth.commands.terminal import CommandRefused
from berth.settings import BadSetting
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, Unavailable, Unroutable
from control_room.acting import ActRefused


class RoomActs:
    """Each raises ActRefused, with why, when it was not done."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def mark_host(self, what: str, root: str, given: str) -> str:
        async with _in_words():
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
                raise ActRefused(said)
            return said

    async def end_wait(self, request: str) -> str:
        async with _in_words():
            said = await end_wait(self._bus, request)
        if not said.waited:
            raise ActRefused(f"It does not wait: {said.why}.")
        return said.why


@asynccontextmanager
async def _in_words() -> AsyncIterator[None]:
    try:
        yield
    except (CommandRefused, BadSetting, Unavailable, Unroutable, AnswerRefused) as problem:
        raise ActRefused(str(problem)) from None
