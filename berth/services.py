"""Runs all or some workers in this process, or all workers in supervised processes."""

import asyncio
import ctypes
import fcntl
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from berth import composition, process_watch, worker_roles
from berth.configuration import EFFECTIVE_ENV, SUPERVISED_ENV
from berth.forked_workers import ForkedWorker
from berth.process_runs import recorded_run
from berth.process_watch import EXIT_BLOCKED, WatchLimits, watched
from berth.settings import BadSetting, Settings
from bus.clock import monotonic
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from bus.local.journal import Journal
from bus.local.transport import SocketServer
from bus.protocol import Transport
from bus.worker import central_queues

_BACK_OFF = (0.2, 0.5, 1.0, 2.0, 5.0)
_FAILED = 3  # ends soon after starts, after which a start of berth has failed
_LAST_PORT = 65535
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # the values in <malloc.h>
_END_SECONDS = 15.0  # time for all workers to end, of which 1 s is for the messages that they handle
_SETTLED = 30.0  # seconds of running after which a worker's restart delay is reset


def stop_on_signals(stopping: asyncio.Event) -> None:
    """Set the event `stopping` on SIGTERM, on SIGINT, and when the supervisor of this process ends."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if os.environ.get(SUPERVISED_ENV):

        def parent_gone() -> None:
            loop.remove_reader(0)
            stopping.set()

        loop.add_reader(0, parent_gone)  # the supervisor holds the other end of standard input


async def run_worker(together: Sequence["worker_roles.Role"], settings: Settings, way: Transport) -> None:
    """Run the workers of the roles `together` in this process, on the connection `way` to the broker, until a
    signal stops them.
    """
    stopping = asyncio.Event()
    stop_on_signals(stopping)
    async with serving_metrics(settings.process.metrics_http):
        settle_in()
        limits = WatchLimits(process_watch.BLOCKED_SECONDS, process_watch.STUCK_SECONDS)
        directory = Path(settings.database.state_dir)
        name = worker_roles.name_of(together)
        with watched(limits, name, directory), recorded_run(name, directory) as is_restart:
            await composition.serve(together, settings, way, stopping, is_restart=is_restart)


@asynccontextmanager
async def serving_metrics(address: str) -> AsyncIterator[None]:
    """Serve this process's metrics over HTTP at HOST:PORT until the `with` block ends; "": do not serve
    them.
    """
    if not address:
        yield
        return
    from berth import __version__
    from berth.meters import INFO
    from bus.http import listen, metrics_app, serve  # loaded only if metrics are served

    INFO.labels(__version__).set(1)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve(metrics_app(), listen(address)))
        try:
            yield
        finally:
            serving.cancel()


def settle_in() -> None:
    """Exclude existing objects from garbage collection, which would take a sixth of a busy worker's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Set the C library's allocator to reuse freed memory instead of returning it to the kernel.

    New pages for the arrays of each batch would cost a scheduler 5 % of its time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # only glibc has it
        mallopt(_MMAP_THRESHOLD, 4 * 1024 * 1024)
        mallopt(_TRIM_THRESHOLD, 32 * 1024 * 1024)


def metrics_url(address: str) -> str:
    return f"http://{address}/metrics"


def metrics_addresses(settings: Settings) -> dict[tuple["worker_roles.Role", ...], str]:
    """Return the address of each process's metrics, by its roles: the address of the settings for the first
    process, and the next ports for all further processes; "": no metrics.
    """
    processes = worker_roles.processes_of_up(settings)
    if not settings.process.metrics_http:
        return dict.fromkeys(processes, "")
    host, _, first = settings.process.metrics_http.rpartition(":")
    if int(first) + len(processes) - 1 > _LAST_PORT:
        raise BadSetting(
            f"metrics_http = {settings.process.metrics_http!r}: the {len(processes)} workers need a port"
            f" each, and there are no ports above {_LAST_PORT}"
        )
    return {together: f"{host}:{int(first) + place}" for place, together in enumerate(processes)}


SupervisedProcess = ForkedWorker | asyncio.subprocess.Process


@dataclass
class _Child:
    roles: tuple["worker_roles.Role", ...]
    metrics: str = ""  # HOST:PORT
    process: SupervisedProcess | None = None
    starts: int = 0
    failures: int = 0
    cause: str = ""  # how the process ended last

    @property
    def name(self) -> str:
        return worker_roles.name_of(self.roles)


@dataclass
class Supervisor:
    """Runs all workers in processes, which several may share, and restarts processes that end."""

    settings: Settings
    tell: Callable[[str], None] = print
    children: list[_Child] = field(default_factory=list)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run all processes until `stopping` is set; start again those that end."""
        self.children = [_Child(*process) for process in metrics_addresses(self.settings).items()]
        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(self._keep(child, stopping)) for child in self.children]
            await stopping.wait()
            await self._end()
            for watch in watches:
                watch.cancel()

    def processes(self) -> dict[str, tuple[int, str]]:
        """Return the process id and the metrics address of each running process, by name."""
        return {
            child.name: (child.process.pid, child.metrics)
            for child in self.children
            if child.process is not None and child.process.returncode is None
        }

    def failed(self) -> str:
        """Return which process ended several times soon after its starts, with the cause; empty: none did."""
        for child in self.children:
            if child.failures >= _FAILED:
                return f"{child.name} ended {child.failures} times, last with {child.cause}"
        return ""

    async def _keep(self, child: _Child, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            began = monotonic()
            cause = await self._end_of(child)
            if stopping.is_set():
                return
            child.failures = 0 if monotonic() - began > _SETTLED else child.failures + 1
            child.cause = cause
            pause = _BACK_OFF[min(child.failures, len(_BACK_OFF) - 1)]
            self.tell(f"{child.name}: ended with {cause}; starting it again in {pause} s")
            await asyncio.sleep(pause)

    async def _end_of(self, child: _Child) -> str:
        """Start a process of workers, wait until it ends, and return the cause as text."""
        try:
            child.process = await self._start(child)
        except (EOFError, OSError) as problem:  # also if the process that forks workers has just ended
            return f"a failed start ({str(problem) or type(problem).__name__})"
        code = await child.process.wait()
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{cause}, because its event loop was blocked" if code == EXIT_BLOCKED else cause

    async def _start(self, child: _Child) -> SupervisedProcess:
        settings = self.settings.having(metrics_http=child.metrics)
        effective = {EFFECTIVE_ENV: msgspec.json.encode(settings).decode(), SUPERVISED_ENV: "1"}
        child.starts += 1
        return await self.spawn(self.command(child.roles), os.environ | effective)

    async def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> SupervisedProcess:
        """Start a process."""
        return await ForkedWorker.start(command, environment)

    @staticmethod
    def command(together: Sequence["worker_roles.Role"]) -> Sequence[str]:
        """Return the command of a process that runs these roles together."""
        first, cells = together[0], dict.fromkeys(role.cell for role in together if role.cell)
        command = ["berth", "run", *dict.fromkeys(role.worker for role in together)]
        if cells:
            command += ["--cell", ",".join(cells)]
        if first.agent and len(together) == 1:
            command += ["--agent", first.agent]
        return command

    async def _end(self) -> None:
        """Stop the workers, each after the messages that it handles now; kill workers that take too long."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                for stage in worker_roles.stages_of(worker_roles.roles_of(self.settings)):
                    await self._send(signal.SIGTERM, stage)
        except TimeoutError:
            await self._send(signal.SIGKILL, worker_roles.roles_of(self.settings))

    async def _send(self, number: signal.Signals, roles: Sequence["worker_roles.Role"]) -> None:
        """Send a signal to the running processes of the given roles, and wait until they have ended."""
        processes = [child.process for child in self.children if child.roles[0] in roles]
        running = [process for process in processes if process is not None and process.returncode is None]
        for process in running:
            process.send_signal(number)
        await asyncio.gather(*(process.wait() for process in running))


@dataclass
class EmbeddedBerth:
    """A berth that runs in this process, with a bus for the calling code."""

    broker: LocalBroker
    bus: Bus


@asynccontextmanager
async def embedded(settings: Settings, *, open_socket: bool = False) -> AsyncIterator[EmbeddedBerth]:
    """Run a berth in this process until the `with` block ends; `open_socket` lets other processes connect."""
    from placement_worker import Memory  # imports placement's index, which few commands need

    directory = Path(settings.database.state_dir)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        stack.enter_context(_alone(directory))
        journal = Journal(directory / "bus.db")
        stack.push_async_callback(journal.close)
        broker = LocalBroker(journal=journal)
        await LocalTransport(broker).declare(*central_queues())
        if open_socket:
            entrance = SocketServer(broker, directory / composition.SOCKET)
            await entrance.open()
            stack.push_async_callback(entrance.close)
        bus = await stack.enter_async_context(Bus(LocalTransport(broker)))
        shared, turns = Memory(), asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            stopping = {role: asyncio.Event() for role in worker_roles.roles_of(settings)}
            serving = {
                role: group.create_task(
                    composition.serve([role], settings, LocalTransport(broker), event, shared, turns)
                )
                for role, event in stopping.items()
            }
            try:
                yield EmbeddedBerth(broker, bus)
            finally:
                for stage in worker_roles.stages_of(worker_roles.roles_of(settings)):
                    for role in stage:
                        stopping[role].set()
                    await asyncio.wait([serving[role] for role in stage])


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lock the state directory while the `with` block runs; raise Unavailable if another berth uses it."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another berth is running with its state in {directory}") from None
        if os.fstat(opened).st_uid == os.geteuid():
            os.fchmod(opened, 0o700)  # also for a directory that was created with other permissions
        yield
    finally:
        os.close(opened)
