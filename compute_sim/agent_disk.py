"""Stores the state that an agent needs after a restart in an SQLite file, a row for each build.

A report waits until the transaction with the change of its guest is committed: a guest reported as built
survives a power failure. Changes made in one turn of the event loop, or during a transaction, are committed
together, so a thousand builds per second cost some dozens of transactions.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from bus.agent_builds import AgentBuilds, Span, reshaped_mappings
from bus.errors import Unavailable
from bus.messages import AgentReported, DestroyOrdered, GuestOrder
from bus.requests import BuildSpec
from bus.sql.failures import reason, result_code
from bus.sql.sqlite import open_file
from bus.vocabulary import Allocations, Compact
from compute_sim.core.device_book import DeviceBook, GuestKey
from compute_sim.core.ownership import GuestState
from compute_sim.guests import GuestRecord, Guests, guest_of, image_of

_TABLE = "CREATE TABLE IF NOT EXISTS builds (build TEXT PRIMARY KEY, state BLOB NOT NULL)"
_READ = "SELECT build, state FROM builds ORDER BY rowid"  # the builds that changed last are the last
_DAMAGED = (
    "the file is damaged, or another version of berth wrote it. Restore it, or move it away: the agent then"
    " starts without these guests"
)


class BuildState(Compact, frozen=True):
    """The part of an agent's guest file about one build, stored as one JSON object."""

    guests: tuple[GuestRecord, ...] = ()
    failed: tuple[AgentReported, ...] = ()
    void: tuple[Span, ...] = ()  # destroyed attempts
    # entries of features, by the name of the memory's type
    memories: dict[str, tuple[msgspec.Raw, ...]] = msgspec.field(default_factory=dict)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(BuildState).decode
GuestRows = list[tuple[str, bytes | None]]  # builds and their encoded states; None: nothing is to be stored


class GuestFile:
    """An agent's guest file, in SQLite; only one process may open it at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state_of: Callable[[str], BuildState]
        self._changed: dict[str, None] = {}  # builds with changes that are not committed
        self._changes = self._committed = 0  # changes ever made, and those committed
        self._committing: asyncio.Future[str] | None = None  # result: the error; empty: none
        self._database: sqlite3.Connection | None = None
        self._in_use = threading.RLock()

    def open(self, state_of: Callable[[str], BuildState]) -> Iterator[tuple[str, BuildState]]:
        """Open an agent's guest file and yield each build in it with its state. Raise Unavailable if another
        process has the file open, or if it is damaged. Before each write, `state_of` is called with each
        changed build, and returns the state to store.
        """
        self._state_of = state_of
        try:
            self._database = self._connect()
            self._database.execute(_TABLE)
            (found,) = self._database.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            for build, state in self._database.execute(_READ):
                yield build, _decode(state)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            self.close()
            match result_code(error):
                case sqlite3.SQLITE_BUSY:
                    why = f"another agent of this name is running: it has {self.path}"
                case 0 | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                    why = f"{self.path}: {reason(error)}: {_DAMAGED}"
                case _:
                    why = f"{self.path}: {reason(error)}"
            raise Unavailable(why) from None

    def change(self, build: str) -> None:
        """Store the state of a build with the next transaction."""
        self._changed[build] = None
        self._changes += 1

    async def settled(self) -> None:
        """Wait until all changes so far are committed."""
        until = self._changes
        while self._committed < until:
            if self._committing is None:
                loop = asyncio.get_running_loop()
                self._committing = loop.create_future()
                # changes made in this turn of the event loop are included
                loop.call_soon(self._begin, self._committing)
            if problem := await asyncio.shield(self._committing):
                raise Unavailable(f"{self.path}: {problem}")

    def close(self) -> None:
        """Commit the changes that are not committed yet, and close the file."""
        with self._in_use:
            if self._database is None:
                return
            if self._changed:
                self._write(self._rows(self._changed))
            self._database.close()
            self._database = None

    def _begin(self, done: asyncio.Future[str]) -> None:
        """Begin to write all changes since the last transaction; `done` gets the error, or "" when they are
        committed. After an error, the next transaction writes them, too.
        """
        until, builds, self._changed = self._changes, self._changed, {}

        def end(commit: asyncio.Future[None]) -> None:
            self._committing = None
            error = asyncio.CancelledError() if commit.cancelled() else commit.exception()
            if error is None:
                self._committed = until
            else:
                self._changed = builds | self._changed
            done.set_result(reason(error) if error is not None else "")

        self._commit(self._rows(builds)).add_done_callback(end)

    def _connect(self) -> sqlite3.Connection:
        return open_file(self.path, 0.0, "PRAGMA locking_mode = EXCLUSIVE")

    def _commit(self, rows: GuestRows) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(None, self._write, rows)

    def _rows(self, builds: Iterable[str]) -> GuestRows:
        states = ((build, self._state_of(build)) for build in builds)
        return [(build, _encode(state) if state != BuildState() else None) for build, state in states]

    def _write(self, rows: GuestRows) -> None:
        with self._in_use:
            if self._database is None:
                raise OSError("it was closed")
            with self._database as database:
                database.execute("BEGIN")
                forgotten = ((build,) for build, state in rows if state is None)
                database.executemany("DELETE FROM builds WHERE build = ?", forgotten)
                stored = (row for row in rows if row[1] is not None)
                database.executemany("INSERT OR REPLACE INTO builds VALUES (?, ?)", stored)


class OrderMemory(Protocol):
    """A feature's record of the orders of an agent, with entries in the agent's guest file."""

    entry: ClassVar[type[Any]]  # is stored as JSON

    def __init__(self, *, dropped: Callable[[str], None]) -> None:
        """Subclasses call `dropped` with the id of a build when they drop entries of it."""

    def recall(self, entry: Any) -> None:
        """Remember what an entry of the file says."""

    def entries(self, build: str) -> Sequence[Any]:
        """Return the entries for all that is remembered of a build."""


M = TypeVar("M", bound=OrderMemory)


@dataclass(eq=False)
class AgentDisk:
    """The state of a simulated agent on disk: outcomes of orders, guests and their devices."""

    builds: AgentBuilds = field(default_factory=AgentBuilds)
    hosted: Guests = field(default_factory=Guests)
    devices: DeviceBook = field(default_factory=DeviceBook)
    # guests that stopped at a power failure and have not been started again
    asleep: set[GuestKey] = field(default_factory=set)
    file: GuestFile | None = None
    memories: dict[str, Any] = field(default_factory=dict, init=False)  # of features, by the names of types
    # entries in the file that no memory has recalled: name of the memory's type → build → entries
    _unread: dict[str, dict[str, tuple[msgspec.Raw, ...]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.file is None:
            return
        self.builds.dropped = self.store
        for build, state in self.file.open(self._state):
            self._recall(build, state)
        self.lose_power()

    def memory(self, type_: type[M]) -> M:
        """Return the memory of a feature; the first call recalls its entries in the file."""
        name = type_.__name__
        if name not in self.memories:
            memory = self.memories[name] = type_(dropped=self.store)
            for entries in self._unread.pop(name, {}).values():
                for entry in entries:
                    memory.recall(msgspec.json.decode(entry, type=type_.entry))
        found: M = self.memories[name]
        return found

    def store(self, build: str) -> None:
        """Store what is known of a build in the file; `settled` waits for it."""
        if self.file is not None:
            self.file.change(build)

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
        """Record that a guest has been started after a power failure."""
        self.asleep.discard((guest.build, guest.attempt))

    def begin(self, order: GuestOrder) -> None:
        """Record an order's guest before the order is executed; after a crash the guest may be incomplete."""
        self._enter(guest_of(order))

    def become(self, guest: GuestRecord, state: GuestState) -> GuestRecord:
        """Change the state of a guest, and store it."""
        now = replace(guest, state=state)
        self.hosted.change(now)
        if state == "running":
            self._record_built(now)
        self.store(now.build)
        return now

    def rename(self, guest: GuestRecord, attempt: int, spec: BuildSpec | None = None) -> GuestRecord:
        """Give a guest another attempt number, and with `spec` another image; return its new record."""
        image, properties = image_of(spec) if spec is not None else (guest.image, guest.properties)
        now = replace(guest, attempt=attempt, image=image, properties=properties)
        self.remove(now.build, range(guest.attempt, guest.attempt + 1))
        self._enter(now)
        self.builds.void(now.build, guest.attempt, guest.attempt - 1)
        if now.state == "running":
            self._record_built(now)
        self.store(now.build)
        return now

    def lose(self, guest: GuestRecord) -> None:
        """Remove a guest that no longer exists because its build or a later order failed."""
        self.remove(guest.build, range(guest.attempt, guest.attempt + 1))
        self.store(guest.build)

    def remove(self, build: str, attempts: range) -> None:
        """Remove the guests of these attempts, and release their devices."""
        for guest in self.hosted.remove(build, attempts):
            self.devices.release((guest.build, guest.attempt))
            self.wake(guest)

    def move(self, guest: GuestRecord, allocations: Allocations) -> None:
        """Replace the recorded allocations of a guest after a reshape of its host."""
        mappings = reshaped_mappings(guest.mappings, guest.allocations, allocations)
        now = replace(guest, allocations=allocations, mappings=mappings)
        self.hosted.change(now)
        self.devices.move((now.build, now.attempt), allocations)
        self.store(now.build)

    def finished(self, outcome: AgentReported) -> None:
        """Record the reported outcome of a build attempt; a built guest is recorded as running."""
        self.builds.finished(outcome)
        guest = self.guest(outcome.build, outcome.attempt)
        if guest is not None and outcome.outcome == "built":
            self.hosted.change(replace(guest, state="running"))
        self.store(outcome.build)

    def destroyed(self, order: DestroyOrdered) -> AgentReported:
        """Remove the guests that the order names, store it, and return the report."""
        outcome = self.builds.destroyed(order)
        self.remove(order.build, range(order.above + 1, order.attempt + 1))
        self.store(order.build)
        return outcome

    async def settled(self) -> None:
        """Wait until all changes of the agent's state are stored in its file."""
        if self.file is not None:
            await self.file.settled()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _enter(self, guest: GuestRecord) -> None:
        if self.hosted.add(guest):
            self.devices.hold((guest.build, guest.attempt), guest.allocations)

    def _record_built(self, guest: GuestRecord) -> None:
        if self.builds.outcome((guest.build, guest.attempt)) is None:
            self.builds.finished(AgentReported(**guest.address, outcome="built"))

    def _recall(self, build: str, state: BuildState) -> None:
        for above, attempt in state.void:
            self.builds.void(build, attempt, above)
        for outcome in state.failed:
            self.builds.finished(outcome)
        for guest in state.guests:
            self._enter(guest)
            if guest.state != "arriving":
                self._record_built(guest)
        for name, entries in state.memories.items():
            self._unread.setdefault(name, {})[build] = entries

    def _state(self, build: str) -> BuildState:
        outcomes, void = self.builds.known(build)
        guests = self.hosted.there.get(build, {}).values()
        memories = {name: entries[build] for name, entries in self._unread.items() if build in entries}
        for name, memory in self.memories.items():
            if entries := memory.entries(build):
                memories[name] = tuple(msgspec.Raw(_encode(entry)) for entry in entries)
        return BuildState(
            # the order of a guest that is being built is delivered again after a restart
            tuple(guest for guest in guests if (build, guest.attempt) not in self.builds.running),
            tuple(outcome for outcome in outcomes if outcome.outcome == "failed"),
            void,
            memories,
        )
