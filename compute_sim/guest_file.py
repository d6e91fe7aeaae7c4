"""A file of an agent's own: what it must know after a restart. It grows by lines, and is shortened at times.

A line is added when something has happened to a guest, and what is said of it waits until that line is on the
disk (fdatasync): a guest that was reported built is known after a power cut. Lines that come in one turn of
the event loop, or while others are being written, go together with the next write, so a thousand builds a
second cost some dozens of writes. A line that a crash cut short is the last one, was never spoken of, and is
left out.
"""

import asyncio
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal
from zlib import crc32

import msgspec

from bus.errors import Unavailable
from bus.moves import MovePhase
from bus.vocabulary import Compact
from compute_sim.guests import GuestRecord

log = logging.getLogger(__name__)

SLACK = 20_000  # lines that say nothing any more, before it is written anew


class GuestThere(Compact, frozen=True, tag=True):
    guest: GuestRecord
    built: bool  # False: it is what a failed attempt left


class OrderFailed(Compact, frozen=True, tag=True):
    """What was said of an attempt that failed."""

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
    """Whatever was ordered of a build up to this attempt is destroyed; what is not above that one stays."""

    build: str
    attempt: int
    above: int = 0


class GuestRenamed(Compact, frozen=True, tag=True):
    """What was this attempt's guest is another's."""

    guest: GuestRecord
    was: int


class GuestGone(Compact, frozen=True, tag=True):
    """What was there is not any more, though nobody ordered so: a phase of a move failed."""

    build: str
    attempt: int


class MovePhaseSaid(Compact, frozen=True, tag=True):
    """What was said of a phase of a move that is over."""

    move: str
    build: str
    phase: MovePhase
    step: int
    attempt: int
    cell: str
    agent: str
    root: str
    host: str
    outcome: Literal["done", "failed"]
    percent: int
    leftover: bool
    retry: bool
    cause: str


GuestLine = GuestThere | OrderFailed | OrdersVoid | GuestRenamed | GuestGone | MovePhaseSaid
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(GuestLine).decode


class GuestFile:
    """One process has it open at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._snapshot: Callable[[], Iterable[GuestLine]] = tuple
        self._lines = 0  # in the file
        self._long = SLACK  # more than so many may be too many: then it is looked what it must say
        self._waiting: list[bytes] = []
        self._added = self._kept = 0  # lines ever added; of them those that are on the disk
        self._writing: asyncio.Future[None] | None = None
        self._file = -1
        self._lock = -1
        self._in_use = threading.Lock()  # a number that is closed may be another's file a moment later

    def open(self) -> list[GuestLine]:
        """What is known from before."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Unavailable(f"another agent of this name is running: it has {self.path}") from None
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        said, sound = _read(self.path.read_bytes())
        self._cut(sound)
        os.lseek(self._file, 0, os.SEEK_END)
        self._lines = len(said)
        return said

    def _cut(self, sound: int) -> None:
        """What a crash cut short goes. What was damaged otherwise is kept beside, for people to look at."""
        rest = self.path.read_bytes()[sound:]
        if not rest:
            return
        if rest.count(b"\n") > 1:
            damaged = self.path.with_suffix(".damaged")
            damaged.write_bytes(rest)
            log.error(
                "%s: cannot be read from byte %d on: guests may be unknown; see %s", self.path, sound, damaged
            )
        else:
            log.warning("%s: its last line was never written whole, and is left out", self.path)
        os.ftruncate(self._file, sound)

    def shorten_by(self, snapshot: Callable[[], Iterable[GuestLine]]) -> None:
        """From now on this says what the whole file must say, whenever it has grown too long."""
        self._snapshot = snapshot

    def add(self, *lines: GuestLine) -> None:
        self._waiting += [_line(one) for one in lines]
        self._added += len(lines)

    async def settled(self) -> None:
        """Returns when all that was added until now is on the disk."""
        until = self._added
        while self._kept < until:
            if self._writing is None:
                loop = asyncio.get_running_loop()
                self._writing = loop.create_future()
                loop.call_soon(self._begin, self._writing)  # whatever is added in this turn goes with it
            await asyncio.shield(self._writing)

    def close(self) -> None:
        """What nobody waited for is written as well."""
        with self._in_use:
            if self._file < 0:
                return
            if self._waiting:
                _write(self._file, self._waiting)
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

        def told(written: asyncio.Future[int]) -> None:
            self._writing = None
            if written.cancelled() or (problem := written.exception()) is not None:
                self._waiting[:0] = lines
                if not done.done():
                    done.set_exception(
                        Unavailable(f"{self.path}: {'cut short' if written.cancelled() else problem}")
                    )
                    done.exception()  # it was looked at: whoever waits is told, and there may be nobody
                return
            self._lines = written.result()
            self._kept += len(lines)
            if not done.done():
                done.set_result(None)

        work.add_done_callback(told)

    def _write(self, lines: list[bytes], anew: list[GuestLine] | None) -> int:
        """In a thread: how many lines there are in the file now."""
        with self._in_use:
            if self._file < 0:
                raise OSError("it was closed")
            if anew is None:
                _write(self._file, lines)
                return self._lines + len(lines)
            beside = self.path.with_suffix(".new")
            file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            _write(file, [_line(one) for one in anew])
            os.rename(beside, self.path)
            _sync_directory(self.path.parent)
            os.close(self._file)
            self._file = file
            return len(anew)


def _line(one: GuestLine) -> bytes:
    text = _encode(one)
    return b"%08x %s\n" % (crc32(text), text)


def _read(text: bytes) -> tuple[list[GuestLine], int]:
    """What the lines say, and where the first begins that is not whole."""
    said: list[GuestLine] = []
    sound = 0
    for line in _lines(text):
        check, _, content = line.partition(b" ")
        try:
            if int(check, 16) != crc32(content):
                break
            said.append(_decode(content))
        except (ValueError, msgspec.DecodeError):
            break
        sound += len(line) + 1
    return said, sound


def _lines(text: bytes) -> Iterator[bytes]:
    start = 0
    while (end := text.find(b"\n", start)) >= 0:
        yield text[start:end]
        start = end + 1


def _write(file: int, lines: list[bytes]) -> None:
    left = memoryview(b"".join(lines))
    while left:
        left = left[os.write(file, left) :]
    os.fdatasync(file) if hasattr(os, "fdatasync") else os.fsync(file)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
