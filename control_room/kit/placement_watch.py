"""Receives placement's changes while a page that shows them is open."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from bus.delivery.runner import Listener
from bus.errors import Unavailable
from bus.replication import PlacementChanged
from control_room.kit.shared_data import BackgroundTasks

_RETRY_SECONDS = 1.0  # until placement's changes are received again after the bus was unreachable


class PlacementWatch:
    """Calls `on_change` for each of placement's changes, while at least one page that shows them is open."""

    def __init__(
        self,
        listen: Callable[[], Awaitable[Listener[PlacementChanged]]],
        tasks: BackgroundTasks,
        on_change: Callable[[PlacementChanged], None],
    ) -> None:
        self._listen = listen
        self._tasks = tasks
        self._on_change = on_change
        self._pages = 0
        self._following: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Return whether a visitor has a page open that needs placement's changes."""
        return bool(self._pages)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Receive placement's changes while the `with` block runs, that is, while a page is open."""
        self._pages += 1
        if self._following is None:
            self._following = self._tasks.start(self._follow())
        try:
            yield
        finally:
            self._pages -= 1
            if not self._pages and self._following is not None:
                self._following.cancel()
                self._following = None

    async def _follow(self) -> None:
        while True:
            with suppress(Unavailable):
                listener = await self._listen()
                try:
                    while True:
                        self._on_change(await listener.get())
                finally:
                    await listener.stop()
            await asyncio.sleep(_RETRY_SECONDS)
