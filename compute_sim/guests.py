"""Holds a simulated agent's guests and cached images by host, and its jobs."""

import asyncio
import fcntl
import logging
import os
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, get_args
from zlib import crc32

import msgspec
from msgspec.structs import asdict, replace

from bus.agent_builds import AgentBuilds, GuestOrder, allocations_of, reshaped_mappings
from bus.claims import holder_consumer
from bus.errors import Unavailable
from bus.messages import AgentReported, DestroyOrdered
from bus.requests import BuildSpec
from bus.vocabulary import Allocations, Compact
from compute_sim.core.device_book import DeviceBook, GuestKey
from compute_sim.core.faults import CrashPlan
from compute_sim.core.ownership import GuestState

MAX_CACHED = 16  # images that a host caches, least recently used dropped first
MAX_PROPERTIES = 32  # of one image that a host reports


class GuestRecord(Compact, frozen=True):
    """A guest that exists on an agent's host, with its allocations, image and state."""

    build: str
    attempt: int
    cell: str
    agent: str
    root: str
    host: str
    allocations: Allocations
    mappings: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    image: str = ""
    properties: tuple[str, ...] = ()  # NAME=VALUE of the image
    state: GuestState = "running"

    @property
    def consumers(self) -> tuple[str, str]:
        """Return the consumers that may hold the guest's allocations: its build and its holder consumer."""
        return self.build, holder_consumer(self.build, self.attempt)

    @property
    def address(self) -> dict[str, Any]:
        """Return the fields that identify a guest: build, attempt, cell, agent, root and host, by name."""
        return {name: getattr(self, name) for name in ("build", "attempt", "cell", "agent", "root", "host")}


def guest_of(order: GuestOrder) -> GuestRecord:
    """Return a record, in state `arriving`, of the guest that an order creates or brings to the host."""
    return GuestRecord(
        *(order.build, order.attempt, order.cell, order.agent, order.root, order.host),
        *(allocations_of(order), order.mappings),
        *image_of(order.spec),
        "arriving",
    )


def image_of(spec: BuildSpec) -> tuple[str, tuple[str, ...]]:
    """Return the name and the properties of the image that a guest is built from."""
    if spec.image is None:
        return "", ()
    some = list(spec.image.properties.items())[:MAX_PROPERTIES]
    return spec.image.name, tuple(f"{name}={value}" for name, value in some)


@dataclass(eq=False)
class HostGuests:
    """The guests and the cached images of one simulated host."""

    instances: int = 0
    changes: int = 0  # number of all changes of reported values
    # cached images, most recently used last
    images: OrderedDict[str, None] = field(default_factory=OrderedDict)
    properties: Counter[str] = field(default_factory=Counter)  # NAME=VALUE of the instances' images
    there: dict[tuple[str, int], GuestRecord] = field(default_factory=dict)  # by build and attempt


class Guests:
    """All guests of an agent, indexed by build and attempt, and by host."""

    def __init__(self) -> None:
        self.there: dict[str, dict[int, GuestRecord]] = {}
        self.on: defaultdict[str, HostGuests] = defaultdict(HostGuests)

    def add(self, guest: GuestRecord) -> bool:
        """Add a guest to the records; return False if this attempt of its build is recorded already."""
        attempts = self.there.setdefault(guest.build, {})
        if guest.attempt in attempts:
            return False
        attempts[guest.attempt] = guest
        host = self.on[guest.root]
        host.instances += 1
        host.changes += 1
        host.there[guest.build, guest.attempt] = guest
        if guest.image:
            host.images[guest.image] = None
            host.images.move_to_end(guest.image)
            if len(host.images) > MAX_CACHED:
                host.images.popitem(last=False)
            host.properties.update(guest.properties)
        return True

    def of(self, root: str) -> list[GuestRecord]:
        """Return the records of the guests on a host, sorted by build."""
        guests = self.on[root].there if root in self.on else {}
        return [guests[key] for key in sorted(guests)]

    def is_there(self, guest: GuestRecord) -> bool:
        """Return whether this object is the current record of its guest: neither replaced nor removed."""
        return self.there.get(guest.build, {}).get(guest.attempt) is guest

    def change(self, guest: GuestRecord) -> None:
        """Replace the agent's record of a guest by one with other allocations or another state."""
        key = guest.build, guest.attempt
        self.there[guest.build][guest.attempt] = self.on[guest.root].there[key] = guest

    def remove(self, build: str, attempts: range) -> list[GuestRecord]:
        """Remove the records of a build's guests with attempt numbers in this range, and return them."""
        guests = self.there.get(build, {})
        removed = [guests.pop(attempt) for attempt in list(guests) if attempt in attempts]
        for guest in removed:
            host = self.on[guest.root]
            host.instances -= 1
            host.changes += 1
            del host.there[guest.build, guest.attempt]
            for property_ in guest.properties:
                host.properties[property_] -= 1
                if not host.properties[property_]:
                    del host.properties[property_]
        if not guests:
            self.there.pop(build, None)
        return removed


How = Literal["done", "lost", "destroyed", "overtaken", "handed over"]
JobKey = tuple[str, object]  # identifies a job of one build
ROUND = 0.025  # seconds between two rounds of ending jobs, per ended job
LONGEST_ROUND = 0.1  # maximum pause between rounds: each costs a write and wakes other processes


@dataclass(eq=False, slots=True)
class AgentJob:
    """One order, such as the build of a guest, that an agent is executing.

    If the order is delivered again, only the last delivery waits for the job's result.
    """

    build: str
    attempt: int  # of the guest
    key: JobKey
    root: str
    started: float
    due: float
    step: int = 0  # number of the order, if later orders of the guest replace it
    lost: bool = False  # the power failed
    limit: asyncio.Timeout | None = None  # of the running call of a driver
    is_interrupted: bool = False  # a later order ended the job
    waiter: asyncio.Future[How] | None = None

    @property
    def reported(self) -> bool:
        """Return True if no delivery of the job's order waits for the job's result any more."""
        return self.waiter is None or self.waiter.done()

    def finish(self, how: How) -> None:
        if how in ("destroyed", "overtaken"):
            self.is_interrupted = True
            if self.limit is not None:
                self.limit.reschedule(asyncio.get_running_loop().time())
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(how)

    def make_due(self) -> None:
        self.due = min(self.due, asyncio.get_running_loop().time())


class DueJobs:
    """Completes an agent's simulated jobs when they are due; one timer serves all jobs."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, AgentJob]] = []
        self._count = 0  # orders jobs due at the same time
        self._next_round = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._rings = inf

    def watch(self, job: AgentJob) -> None:
        self._count += 1
        heappush(self._due, (job.due, self._count, job))
        self._set_alarm()

    def _set_alarm(self) -> None:
        while self._due and self._due[0][2].reported:
            heappop(self._due)
        when = max(self._due[0][0], self._next_round) if self._due else inf
        if when < self._rings:
            if self._alarm is not None:
                self._alarm.cancel()
            self._rings = when
            self._alarm = asyncio.get_running_loop().call_at(when, self._ring)

    def _ring(self) -> None:
        # An event loop may fire early, so jobs due at the planned time count as due.
        now = max(self._rings, asyncio.get_running_loop().time())
        self._alarm, self._rings = None, inf
        rung = 0
        while self._due and self._due[0][0] <= now:
            heappop(self._due)[2].finish("done")
            rung += 1
        self._next_round = now + min(ROUND * rung, LONGEST_ROUND)
        self._set_alarm()


class AgentJobs:
    """The jobs that an agent executes now, by build, with their number per host."""

    def __init__(self) -> None:
        self.on: Counter[str] = Counter()  # by root
        self._of: dict[str, dict[JobKey, AgentJob]] = {}
        self._due = DueJobs()

    def __iter__(self) -> Iterator[AgentJob]:
        return (job for jobs in self._of.values() for job in jobs.values())

    def begin(self, job: AgentJob) -> AgentJob:
        self._of.setdefault(job.build, {})[job.key] = job
        self.on[job.root] += 1
        return job

    def get(self, build: str, key: JobKey) -> AgentJob | None:
        return self._of.get(build, {}).get(key)

    def end(self, job: AgentJob) -> asyncio.Future[How]:
        """Return a future that gets the job's result when the job ends.

        If an earlier delivery of the order waits, the earlier future is completed with `handed over`.
        """
        job.finish("handed over")
        job.waiter = asyncio.get_running_loop().create_future()
        if job.lost:
            job.finish("lost")
        elif job.due <= asyncio.get_running_loop().time():
            job.finish("done")
        else:
            self._due.watch(job)
        return job.waiter

    def finish(self, job: AgentJob) -> bool:
        """Remove an ended job from the running jobs; return False if it was removed or replaced already."""
        if self.get(job.build, job.key) is not job:
            return False
        jobs = self._of[job.build]
        del jobs[job.key]
        if not jobs:
            del self._of[job.build]
        self.on[job.root] -= 1
        return True

    def destroy(self, order: DestroyOrdered) -> None:
        for job in list(self._of.get(order.build, {}).values()):
            if order.above < job.attempt <= order.attempt:
                self.finish(job)
                job.finish("destroyed")


class PowerSupply:
    """The simulated power supply of an agent's hosts: it fails after some orders, then works again."""

    def __init__(self, agent: str, crashes: CrashPlan, jobs: AgentJobs) -> None:
        self.on = True
        self.failed = 0  # number of failures
        self.changed: Callable[[], None] = lambda: None  # called at each failure and return
        self._agent, self._crashes, self._jobs = agent, crashes, jobs
        self._left = crashes.next_after(agent, 0)
        self._back = asyncio.Event()
        self._back.set()

    async def there(self) -> None:
        await self._back.wait()

    def count_down(self) -> None:
        if self._left:
            self._left -= 1
            if not self._left:
                self.fail()

    def fail(self) -> None:
        """Simulate a power failure of the agent: all running jobs are lost."""
        self.on = False
        self._back.clear()
        for job in self._jobs:
            job.lost = True
            job.finish("lost")
        self.changed()
        asyncio.get_running_loop().call_later(self._crashes.away, self._come_back)

    def _come_back(self) -> None:
        self.failed += 1
        self._left = self._crashes.next_after(self._agent, self.failed)
        self.on = True
        self.changed()
        self._back.set()


# Holds the agent's state that survives a restart: outcomes of orders, guests, and each guest's devices.


# Section: stores the state that an agent needs after a restart in an append-only file, which is compacted at
# times.
#
# Each change of a guest adds a line, and a report waits until its line is on disk (fdatasync): a guest
# reported as built survives a power failure. Lines added in one turn of the event loop, or during a write,
# are written together, so a thousand builds per second cost some dozens of writes. A line cut short by a
# crash is dropped: it is the last line, and was never reported.


log = logging.getLogger(__name__)

SLACK = 20_000  # obsolete lines before the file is compacted


class GuestThere(Compact, frozen=True, tag=True):
    guest: GuestRecord
    built: bool  # False: the guest is still being built, or its attempt has failed


class OrderFailed(Compact, frozen=True, tag=True):
    """An entry in an agent's file of guests: a build attempt has failed."""

    build: str
    attempt: int
    cell: str
    agent: str
    root: str
    host: str
    cause: str
    retry: bool
    leftover: bool


class OrdersVoid(Compact, frozen=True, tag=True):
    """An entry in an agent's file of guests: the guests of some attempts of a build have been destroyed."""

    build: str
    attempt: int  # the last destroyed attempt
    above: int = 0  # the last attempt before the destroyed attempts


class GuestRenamed(Compact, frozen=True, tag=True):
    """An entry in an agent's file of guests: a guest got another attempt number."""

    guest: GuestRecord
    was: int


class GuestGone(Compact, frozen=True, tag=True):
    """An entry in an agent's file of guests: a guest was removed because its build or a later order
    failed.
    """

    build: str
    attempt: int


class FeatureEntry(NamedTuple):
    """An entry of a feature in an agent's file of guests."""

    tag: str  # first element of the entry
    encoded: bytes  # JSON


GuestLine = GuestThere | OrderFailed | OrdersVoid | GuestRenamed | GuestGone
Line = GuestLine | FeatureEntry
_TAGS = frozenset(type_.__name__ for type_ in get_args(GuestLine))
_encode = msgspec.json.Encoder().encode
_decode_entry = msgspec.json.Decoder(GuestLine).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def feature_entry(entry: msgspec.Struct) -> FeatureEntry:
    """Return the entry of a feature, from a struct that is encoded as an array with its tag."""
    return FeatureEntry(type(entry).__name__, _encode(entry))


def _decode(content: bytes) -> Line:
    tag = msgspec.json.decode(_decode_list(content)[0], type=str)
    return _decode_entry(content) if tag in _TAGS else FeatureEntry(tag, content)


class GuestFile:
    """An agent's append-only file of guests; only one process may open it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._snapshot: Callable[[], Iterable[Line]] = tuple
        self._lines = 0  # in the file
        self._long = SLACK  # above this size, check whether compaction is worthwhile
        self._waiting: list[bytes] = []
        self._added = self._kept = 0  # lines ever added, and lines on disk
        self._writing: asyncio.Future[None] | None = None
        self._file = -1
        self._sound = 0  # bytes of whole lines in the file
        self._lock = -1
        self._in_use = threading.Lock()  # a closed descriptor number may be reused for another file

    def open(self) -> list[Line]:
        """Open an agent's file of guests, cut it off at the first damaged entry, and return the entries.
        Raise Unavailable if another process has it open.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Unavailable(f"another agent of this name is running: it has {self.path}") from None
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        lines, sound = _read(self.path.read_bytes())
        self._cut(sound)
        self._sound = os.lseek(self._file, 0, os.SEEK_END)
        self._lines = len(lines)
        return lines

    def _cut(self, sound: int) -> None:
        # Of a crash only the last line is cut short. Other damage is saved to a second file for inspection.
        rest = self.path.read_bytes()[sound:]
        if not rest:
            return
        if rest.count(b"\n") > 1:
            damaged = self.path.with_suffix(".damaged")
            damaged.write_bytes(rest)
            log.error(
                "%s: unreadable from byte %d on: guests may be unknown; see %s", self.path, sound, damaged
            )
        else:
            log.warning("%s: its last line was never written whole, and is left out", self.path)
        os.ftruncate(self._file, sound)

    def shorten_by(self, snapshot: Callable[[], Iterable[Line]]) -> None:
        """Set the function that returns the agent's whole state as lines, which replace a file that is too
        long.
        """
        self._snapshot = snapshot

    def add(self, *lines: Line) -> None:
        self._waiting += [_line(line) for line in lines]
        self._added += len(lines)

    async def settled(self) -> None:
        """Wait until all lines added so far to the agent's file of guests are on disk."""
        until = self._added
        while self._kept < until:
            if self._writing is None:
                loop = asyncio.get_running_loop()
                self._writing = loop.create_future()
                # lines added in this turn of the event loop are included
                loop.call_soon(self._begin, self._writing)
            await asyncio.shield(self._writing)

    def close(self) -> None:
        """Write the lines that are not written yet, and close the file."""
        with self._in_use:
            if self._file < 0:
                return
            if self._waiting:
                self._append(self._waiting)
            os.close(self._file)
            os.close(self._lock)
            self._file = -1

    def _begin(self, done: asyncio.Future[None]) -> None:
        lines, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        anew = None
        if self._lines + len(lines) > self._long:
            known = list(self._snapshot())
            self._long = 2 * len(known) + SLACK
            if self._lines + len(lines) > self._long:
                anew = known
        work = loop.run_in_executor(None, self._write, lines, anew)

        def on_written(written: asyncio.Future[int]) -> None:
            self._writing = None
            if written.cancelled() or (problem := written.exception()) is not None:
                self._waiting[:0] = lines
                if not done.done():
                    why = "cut short" if written.cancelled() else problem
                    done.set_exception(Unavailable(f"{self.path}: {why}"))
                    done.exception()  # mark the exception as retrieved: there may be no waiter
                return
            self._lines = written.result()
            self._kept += len(lines)
            if not done.done():
                done.set_result(None)

        work.add_done_callback(on_written)

    def _write(self, lines: list[bytes], anew: list[Line] | None) -> int:
        with self._in_use:
            if self._file < 0:
                raise OSError("it was closed")
            if anew is None:
                self._append(lines)
                return self._lines + len(lines)
            self._replace([_line(line) for line in anew])
            return len(anew)

    def _append(self, lines: list[bytes]) -> None:
        """Append lines; after an error, the next call cuts off what was written of them."""
        if os.lseek(self._file, 0, os.SEEK_CUR) != self._sound:
            os.ftruncate(self._file, self._sound)
            os.lseek(self._file, self._sound, os.SEEK_SET)
        self._sound += _write(self._file, lines)

    def _replace(self, lines: list[bytes]) -> None:
        path = self.path.with_suffix(".new")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            written = _write(file, lines)
            os.rename(path, self.path)
        except BaseException:
            os.close(file)
            raise
        before, self._file, self._sound = self._file, file, written  # also if the next step fails
        os.close(before)
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _line(line: Line) -> bytes:
    text = line.encoded if isinstance(line, FeatureEntry) else _encode(line)
    return b"%08x %s\n" % (crc32(text), text)


def _read(text: bytes) -> tuple[list[Line], int]:
    found: list[Line] = []
    sound = 0
    while (end := text.find(b"\n", sound)) >= 0:
        check, _, content = text[sound:end].partition(b" ")
        try:
            if int(check, 16) != crc32(content):
                break
            found.append(_decode(content))
        except (ValueError, msgspec.DecodeError):
            break
        sound = end + 1
    return found, sound


def _write(file: int, lines: list[bytes]) -> int:
    """Write lines at the file's position; return their size as soon as they are on disk."""
    content = b"".join(lines)
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
    os.fdatasync(file) if hasattr(os, "fdatasync") else os.fsync(file)
    return len(content)


S = TypeVar("S", bound=msgspec.Struct)


class OrderMemory(Protocol):
    """A feature's record of the orders of an agent, with entries in the agent's file of guests."""

    entry: ClassVar[type[Any]]  # a struct that is encoded as an array with its tag

    def recall(self, entry: Any) -> None:
        """Remember what an entry of the file says."""

    def entries(self) -> Iterable[Any]:
        """Return the entries for all that is remembered."""


M = TypeVar("M", bound=OrderMemory)


@dataclass(eq=False)
class AgentDisk:
    builds: AgentBuilds = field(default_factory=AgentBuilds)
    hosted: Guests = field(default_factory=Guests)
    devices: DeviceBook = field(default_factory=DeviceBook)
    # guests that stopped at a power failure and have not been started again
    asleep: set[GuestKey] = field(default_factory=set)
    file: GuestFile | None = None
    memories: dict[type[OrderMemory], Any] = field(default_factory=dict, init=False)
    # entries in the file that no memory has recalled, by tag
    _unread: dict[str, list[FeatureEntry]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.file is None:
            return
        for line in self.file.open():
            self._recall(line)
        self.lose_power()
        self.file.shorten_by(self._all)

    def memory(self, type_: type[M]) -> M:
        """Return the memory of a feature; the first call recalls its entries in the file."""
        if type_ not in self.memories:
            memory = self.memories[type_] = type_()
            for entry in self._unread.pop(type_.entry.__name__, ()):
                memory.recall(msgspec.json.decode(entry.encoded, type=type_.entry))
        found: M = self.memories[type_]
        return found

    def store_entry(self, entry: msgspec.Struct) -> None:
        """Add an entry of a feature to the file."""
        self._store(feature_entry(entry))

    @property
    def guests(self) -> dict[str, dict[int, str]]:
        """Return the root provider of each guest's host: build → attempt → root."""
        there = self.hosted.there
        return {build: {attempt: g.root for attempt, g in guests.items()} for build, guests in there.items()}

    @property
    def all_guests(self) -> list[GuestRecord]:
        return [guest for attempts in self.hosted.there.values() for guest in attempts.values()]

    def running(self) -> list[GuestRecord]:
        """Return the agent's guests that run now. Among all agents, at most one guest of a build may run."""
        awake = (guest for guest in self.all_guests if (guest.build, guest.attempt) not in self.asleep)
        return [guest for guest in awake if guest.state == "running"]

    def guest(self, build: str, attempt: int) -> GuestRecord | None:
        return self.hosted.there.get(build, {}).get(attempt)

    def lose_power(self) -> None:
        """Mark all running guests as stopped by a power failure; they must be started again."""
        self.asleep = {(guest.build, guest.attempt) for guest in self.all_guests if guest.state == "running"}

    def wake(self, guest: GuestRecord) -> None:
        self.asleep.discard((guest.build, guest.attempt))

    def begin(self, order: GuestOrder) -> None:
        """Record an order's guest before the order is executed; after a crash the guest may be incomplete."""
        self._enter(guest_of(order))

    def become(self, guest: GuestRecord, state: GuestState) -> GuestRecord:
        now = replace(guest, state=state)
        self.hosted.change(now)
        if state == "running":
            self._record_built(now)
        self._store(GuestThere(now, state != "arriving"))
        return now

    def rename(self, guest: GuestRecord, attempt: int, spec: BuildSpec | None = None) -> GuestRecord:
        """Give a guest another attempt number, and with `spec` another image; return its new record."""
        image, properties = image_of(spec) if spec is not None else (guest.image, guest.properties)
        now = replace(guest, attempt=attempt, image=image, properties=properties)
        self._rename(now, guest.attempt)
        self._store(GuestRenamed(now, guest.attempt))
        return now

    def lose(self, guest: GuestRecord) -> None:
        """Remove a guest that no longer exists because its build or a later order failed."""
        self.remove(guest.build, range(guest.attempt, guest.attempt + 1))
        self._store(GuestGone(guest.build, guest.attempt))

    def remove(self, build: str, attempts: range) -> None:
        for guest in self.hosted.remove(build, attempts):
            self.devices.release((guest.build, guest.attempt))
            self.wake(guest)

    def move(self, guest: GuestRecord, allocations: Allocations) -> None:
        """Replace the recorded allocations of a guest after a reshape of its host."""
        mappings = reshaped_mappings(guest.mappings, guest.allocations, allocations)
        now = replace(guest, allocations=allocations, mappings=mappings)
        self._change(now)
        if self.file is not None and (guest.build, guest.attempt) not in self.builds.running:
            went = self.builds.outcome((guest.build, guest.attempt))
            self.file.add(GuestThere(now, went is None or went.outcome == "built"))

    def finished(self, outcome: AgentReported) -> None:
        """Record the reported outcome of a build attempt; a built guest is recorded as running."""
        self.builds.finished(outcome)
        guest = self.guest(outcome.build, outcome.attempt)
        if guest is not None and outcome.outcome == "built":
            self.hosted.change(replace(guest, state="running"))
        self._store(*self._lines_of(outcome))

    def destroyed(self, order: DestroyOrdered) -> AgentReported:
        outcome = self.builds.destroyed(order)
        self.remove(order.build, range(order.above + 1, order.attempt + 1))
        self._store(OrdersVoid(order.build, order.attempt, order.above))
        return outcome

    async def settled(self) -> None:
        """Wait until all changes of the agent's state are stored in its file."""
        if self.file is not None:
            await self.file.settled()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _store(self, *added: Line) -> None:
        if self.file is not None:
            self.file.add(*added)

    def _enter(self, guest: GuestRecord) -> None:
        if self.hosted.add(guest):
            self.devices.hold((guest.build, guest.attempt), guest.allocations)

    def _change(self, guest: GuestRecord) -> None:
        self.hosted.change(guest)
        self.devices.move((guest.build, guest.attempt), guest.allocations)

    def _rename(self, now: GuestRecord, was: int) -> None:
        self.remove(now.build, range(was, was + 1))
        self._enter(now)
        self.builds.void(now.build, was, was - 1)
        if now.state == "running":
            self._record_built(now)

    def _record_built(self, guest: GuestRecord) -> None:
        if self.builds.outcome((guest.build, guest.attempt)) is None:
            self.builds.finished(AgentReported(**guest.address, outcome="built"))

    def _recall(self, line: Line) -> None:
        match line:
            case FeatureEntry():
                self._unread.setdefault(line.tag, []).append(line)
            case GuestThere(guest=guest, built=built):
                if not built and guest.state == "running":  # written by a version without states
                    guest = replace(guest, state="arriving")
                if self.guest(guest.build, guest.attempt) is not None:  # a change of a known guest
                    self._change(guest)
                else:
                    self._enter(guest)
                if built:
                    self._record_built(guest)
            case OrderFailed():
                self.builds.finished(AgentReported(outcome="failed", **asdict(line)))
            case OrdersVoid():
                self.builds.void(line.build, line.attempt, line.above)
                self.remove(line.build, range(line.above + 1, line.attempt + 1))
            case GuestRenamed():
                self._rename(line.guest, line.was)
            case GuestGone():
                self.remove(line.build, range(line.attempt, line.attempt + 1))

    def _lines_of(self, outcome: AgentReported) -> Iterable[GuestLine]:
        guest = self.guest(outcome.build, outcome.attempt)
        if guest is not None:
            yield GuestThere(guest, outcome.outcome == "built")
        if outcome.outcome == "failed":
            yield _of_fields(OrderFailed, outcome)

    def _all(self) -> Iterable[Line]:
        finished, void = self.builds.known()
        for build, spans in void.items():
            for above, attempt in spans:
                yield OrdersVoid(build, attempt, above)
        for outcome in finished:
            yield from self._lines_of(outcome)
        listed = {(outcome.build, outcome.attempt) for outcome in finished}
        for guest in self.all_guests:
            key = guest.build, guest.attempt
            if key not in listed and key not in self.builds.running:
                # The guest is still arriving, or the outcome of its attempt is no longer stored.
                yield GuestThere(guest, guest.state != "arriving")
        for memory in self.memories.values():
            yield from map(feature_entry, memory.entries())
        for unread in self._unread.values():
            yield from unread


def _of_fields(made: type[S], source: msgspec.Struct) -> S:
    return made(**{name: getattr(source, name) for name in made.__struct_fields__})
