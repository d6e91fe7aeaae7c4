"""Records what each message of a load waits for, and prints the mean times of each hop.

Every process of the berth that runs while `recorded` is open imports this module when it starts, and notes
the times at which a message is made, published, confirmed, received, handled and acknowledged.
"""

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from bus.delivery.queue_reader import QueueReader
from bus.delivery.runner import Bus
from bus.delivery.settling import Readable, ServedRow, Spawn, Unsettled
from bus.direct import Handed
from bus.protocol import Delivery
from bus.rabbit.consuming import RabbitInbox, Reading
from bus.rabbit.publishing import Publisher
from bus.sql.statement import PostgresTransaction

_DIRECTORY = "BENCH_HOP_TIMES"
_ROUTE = ("build.requested", "placement.claim", "build.placed", "agent.build", "agent.report")
# No later step of a boot waits for the times in the columns after `work`.
_COLUMNS = (
    "messages", "publish", "deliver", "queue", "wake", "database", "work", "confirm", "finish", "ack",
    "statements", "batch",
)  # fmt: skip

_statements: ContextVar[list[float]] = ContextVar("statements")  # seconds of each, in this handler call


@contextmanager
def recorded() -> Iterator[Path]:
    """Record the hops of all processes started in the `with` block; yield the directory of the records."""
    with tempfile.TemporaryDirectory() as directory:
        start = "from bench import hop_times; hop_times.record()\n"
        Path(directory, "sitecustomize.py").write_text(start)
        before = dict(os.environ)
        os.environ |= {_DIRECTORY: directory, "PYTHONPATH": f"{directory}{os.pathsep}{os.getcwd()}"}
        try:
            yield Path(directory)
        finally:
            os.environ.clear()
            os.environ |= before


def record() -> None:
    """Note the times of all messages in a worker, or in the workers that this process forks. Each worker
    stores its notes when it ends.
    """
    if "run" not in sys.orig_argv and "forkserver" not in " ".join(sys.orig_argv):
        return
    notes: list[list[Any]] = []
    _note_sending(notes)
    _note_receiving(notes)
    directory, leave = os.environ[_DIRECTORY], Bus.__aexit__

    async def leave_and_store(self: Bus, *problem: Any) -> None:
        await leave(self, *problem)
        Path(directory, f"{os.getpid()}.json").write_text(json.dumps(notes))

    Bus.__aexit__ = leave_and_store  # type: ignore[method-assign]


def _note_sending(notes: list[list[Any]]) -> None:
    carry = Publisher._carry
    fetch, command = PostgresTransaction.fetch, PostgresTransaction._execute_command

    async def timed_carry(self: Publisher, queue: Any, load: Any) -> None:
        began = time.time()
        await carry(self, queue, load)
        ended = time.time()
        for envelope, _ in load:
            notes.append(["sent", envelope.id, envelope.causation, envelope.sent_at, began, ended])

    def timed(work: Any) -> Callable[..., Any]:
        async def call(*arguments: Any) -> Any:
            began = time.time()
            try:
                return await work(*arguments)
            finally:
                _statements.get([]).append(time.time() - began)

        return call

    Publisher._carry = timed_carry  # type: ignore[method-assign]
    PostgresTransaction.fetch = timed(fetch)  # type: ignore[method-assign]
    PostgresTransaction._execute_command = timed(command)  # type: ignore[method-assign]


def _key_of(delivery: Delivery) -> Any:
    """Return what identifies a received message: channel and tag, or its id if it was passed on in memory."""
    if isinstance(delivery, Handed):
        return delivery.envelope.id
    parcel = getattr(delivery, "_parcel", None)  # None: a stored request
    return parcel and (parcel.reading, parcel.tag)


def _note_receiving(notes: list[list[Any]]) -> None:
    arrive, offer, settle = RabbitInbox._arrived, RabbitInbox.offer, Reading.settle
    following, handle = QueueReader._next, ServedRow.handle
    arrivals: dict[Any, float] = {}  # by channel and tag, or by id of a message handed over in memory
    ready: dict[ServedRow, float] = {}
    settled: dict[Any, list[list[Any]]] = defaultdict(list)  # handled, and not acknowledged

    def timed_arrive(self: RabbitInbox, reading: Reading, message: Any) -> None:
        arrivals[reading, message.tag] = time.time()
        arrive(self, reading, message)

    def timed_offer(self: RabbitInbox, delivery: Delivery) -> bool:
        arrivals[delivery.envelope.id] = time.time()
        return offer(self, delivery)

    def timed_settle(self: Reading) -> None:
        tags = list(self.acks)
        settle(self)
        now = time.time()
        for tag in tags:
            for note in settled.pop((self, tag), ()):
                note[-1] = now

    async def timed_following(self: QueueReader) -> list[Delivery]:
        ready[self.served] = time.time()
        return await following(self)

    async def timed_handle(
        self: ServedRow, readable: Readable, spawn: Spawn | None = None
    ) -> list[Unsettled]:
        began = time.time()
        free = ready.get(self, began)
        statements: list[float] = []
        _statements.set(statements)
        unsettled = await handle(self, readable, spawn)
        ended = time.time()
        row = self.labels[1]
        for delivery, _ in readable:
            key, envelope = _key_of(delivery), delivery.envelope
            came = arrivals.get(key, began)
            times = envelope.sent_at, came, free, began, ended, sum(statements)
            note = [row, envelope.id, envelope.causation, *times, len(statements), len(readable), 0.0]
            notes.append(note := ["handled", *note])
            settled[key].append(note)
        return unsettled

    RabbitInbox._arrived = timed_arrive  # type: ignore[method-assign]
    RabbitInbox.offer = timed_offer  # type: ignore[assignment, method-assign]
    Reading.settle = timed_settle  # type: ignore[method-assign]
    QueueReader._next = timed_following  # type: ignore[method-assign]
    ServedRow.handle = timed_handle  # type: ignore[method-assign]


def table(directory: Path, since: float) -> str:
    """Return a table of the mean milliseconds of each hop of a boot, from the records in a directory about
    the messages made after the time `since`.
    """
    notes = [note for path in directory.glob("*.json") for note in json.loads(path.read_text())]
    sent = {note[1]: note[2:] for note in notes if note[0] == "sent"}
    handled = [note[1:] for note in notes if note[0] == "handled" and note[4] >= since]
    handled = [note for note in handled if note[0].startswith(_ROUTE)]
    made: defaultdict[str, float] = defaultdict(float)  # when the last message that a message caused was made
    for causation, at in [(cause, at) for cause, at, *_ in sent.values()] + [note[2:4] for note in handled]:
        made[causation] = max(made[causation], at)
    rows: defaultdict[str, list[list[float]]] = defaultdict(list)
    for row, id_, _, sent_at, came, free, began, ended, database, statements, batch, answered in handled:
        posted, confirmed = sent[id_][2:] if id_ in sent else (sent_at, sent_at)
        free = max(free, came)
        result = made[id_] or ended
        work = result - began - database
        waits = [posted - sent_at, came - posted, free - came, began - free, database, work]
        later = [confirmed - posted, ended - result, answered - ended if answered else 0.0]
        rows[row].append([*(1000 * seconds for seconds in (*waits, *later)), statements / batch, batch])
    lines = [f"{'mean ms':22}" + "".join(f"{name:>11}" for name in _COLUMNS)]
    for row in sorted(rows, key=lambda row: next(at for at, of in enumerate(_ROUTE) if row.startswith(of))):
        means = [sum(column) / len(rows[row]) for column in zip(*rows[row], strict=True)]
        cells = [f"{len(rows[row]):11}", *(f"{mean:11.2f}" for mean in means)]
        lines.append(f"{row:22}" + "".join(cells))
    return "\n".join(lines)
