"""Everything in one process: the in-process bus, SQLite files, and every worker of the settings."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from berth import wiring, worker_roles
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.local.journal import Journal
from bus.local.socket_server import SocketServer
from bus.worker import central_queues


@dataclass
class EmbeddedBerth:
    """A running embedded berth, with a bus for its user."""

    broker: LocalBroker
    bus: Bus


@asynccontextmanager
async def embedded(settings: Settings, *, open_socket: bool = False) -> AsyncIterator[EmbeddedBerth]:
    """Run an embedded berth until the block ends. With an open socket, other processes can connect."""
    from berth.searching import SharedMemory  # and with it placement's memory, which few commands need

    directory = Path(settings.database.state_dir)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        stack.enter_context(_alone(directory))
        journal = Journal(directory / "bus.db")
        stack.push_async_callback(journal.close)
        broker = LocalBroker(journal=journal)
        await LocalTransport(broker).declare(*central_queues())
        if open_socket:
            entrance = SocketServer(broker, directory / wiring.SOCKET)
            await entrance.open()
            stack.push_async_callback(entrance.close)
        bus = await stack.enter_async_context(Bus(LocalTransport(broker)))
        shared, turns = SharedMemory(), asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            stopping = {role: asyncio.Event() for role in worker_roles.roles(settings)}
            serving = {
                role: group.create_task(
                    wiring.serve([role], settings, LocalTransport(broker), event, shared, turns)
                )
                for role, event in stopping.items()
            }
            try:
                yield EmbeddedBerth(broker, bus)
            finally:
                for stage in worker_roles.ending(settings):
                    for role in stage:
                        stopping[role].set()
                    await asyncio.wait([serving[role] for role in stage])


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lock the state directory, so that only one berth uses it.

    The directory itself is locked, not a file in it, and the lock ends with the process.
    """
    opened = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another berth is running with its state in {directory}") from None
        if os.fstat(opened).st_uid == os.geteuid():
            os.fchmod(opened, 0o700)  # also when an earlier berth, or a umask, left it open
        yield
    finally:
        os.close(opened)
