"""A door to the in-process broker for other processes of this machine: a socket file only its owner may open.

So `berth boot` in one terminal reaches the `berth up` of another with nothing installed. The client is a
Transport like any other; what it says and hears are lines of JSON.
"""

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bus.errors import NoSuchLetter, Unavailable, Unroutable
from bus.local.broker import LocalBroker, LocalTransport
from bus.protocol import DeadLetter, Delivery, Envelope, Inbox, QueueSpec

_LINE_LIMIT = 64 * 1024 * 1024


class _Call(msgspec.Struct, omit_defaults=True):
    """What a client says: do this; answer under this number (0: no answer wanted)."""

    do: str
    id: int = 0
    queues: list[QueueSpec] = []
    envelopes: list[Envelope] = []
    expected: list[bool] = []
    queue: str = ""
    number: float = 0  # seconds, prefetch, limit, inbox or tag: what the deed needs
    letter: DeadLetter | None = None
    ids: list[str] = []
    after: str = ""
    beginning: str = ""


class _Say(msgspec.Struct, omit_defaults=True):
    """What the door says: the answer to a call, or a delivery."""

    id: int = 0
    error: str = ""
    unroutable: bool = False
    no_such_letter: bool = False
    letters: list[DeadLetter] = []
    count: int = 0
    inbox: int = 0
    tag: int = 0
    envelope: Envelope | None = None
    crashes: int = 0


_calls = msgspec.json.Decoder(_Call)
_says = msgspec.json.Decoder(_Say)


class SocketServer:
    """The broker's side: one LocalTransport for each process that comes in."""

    def __init__(self, broker: LocalBroker, path: Path) -> None:
        self.broker = broker
        self.path = path
        self._server: asyncio.Server

    async def open(self) -> None:
        self.path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.path))
        self.path.chmod(0o600)  # before it listens: nobody else ever gets in
        self._server = await asyncio.start_unix_server(self._visit, sock=listening, limit=_LINE_LIMIT)

    async def close(self) -> None:
        self._server.close()
        self.path.unlink(missing_ok=True)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = LocalTransport(self.broker)
        visit = _Visit(transport, writer)
        try:
            async with asyncio.TaskGroup() as group:
                async for line in reader:
                    visit.take(_calls.decode(line), group)
                visit.leave()
        except* (ConnectionError, asyncio.CancelledError, msgspec.DecodeError):
            pass  # the visitor is gone, or talks no sense: its unsettled messages go back
        finally:
            await transport.close()
            writer.close()


class _Visit:
    def __init__(self, transport: LocalTransport, writer: asyncio.StreamWriter) -> None:
        self.transport = transport
        self.writer = writer
        self._tags = itertools.count(1)
        self._unsettled: dict[int, Delivery] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._pumps: list[asyncio.Task[None]] = []

    def take(self, call: _Call, group: asyncio.TaskGroup) -> None:
        if call.do in ("done", "requeue"):  # at once and in order, like everything that needs no wait
            delivery = self._unsettled.pop(int(call.number), None)
            if delivery is not None:
                (delivery.done if call.do == "done" else delivery.requeue)()
        else:
            self._pumps.append(group.create_task(self._do(call, group)))
            self._pumps = [task for task in self._pumps if not task.done()]

    def leave(self) -> None:
        for task in self._pumps:
            task.cancel()

    async def _do(self, call: _Call, group: asyncio.TaskGroup) -> None:
        answer = _Say(id=call.id)
        try:
            await self._deed(call, answer, group)
        except Unroutable as problem:
            answer.error, answer.unroutable = str(problem), True
        except NoSuchLetter as problem:
            answer.error, answer.no_such_letter = str(problem), True
        except Exception as problem:
            answer.error = f"{type(problem).__name__}: {problem}"
        self._say(answer)

    async def _deed(self, call: _Call, answer: _Say, group: asyncio.TaskGroup) -> None:
        transport = self.transport
        if call.do == "leave":
            await transport.close()
        elif call.do == "declare":
            await transport.declare(*call.queues)
        elif call.do == "publish":
            await transport.publish(call.envelopes, expected=call.expected)
        elif call.do == "send":
            await transport.send(call.queue, call.envelopes[0], expected=call.expected[0])
        elif call.do == "delay":
            await transport.delay(call.queue, call.envelopes[0], call.number)
        elif call.do == "bury" and call.letter is not None:
            await transport.bury(call.letter)
        elif call.do == "dead":
            answer.letters = await transport.dead_letters(
                int(call.number), after=call.after, beginning=call.beginning
            )
        elif call.do == "exhume":
            letter = self.transport.broker.dead.get(call.ids[0])
            if letter is not None and letter.died == call.number:  # it has not died again meanwhile
                answer.count = await transport.exhume(call.ids)
        elif call.do == "consume":
            inbox = await transport.consume(call.queues[0], int(call.number))
            self._inboxes[call.id] = inbox
            self._pumps.append(group.create_task(self._pump(call.id, inbox)))
        elif call.do == "stop":
            await self._inboxes.pop(int(call.number)).stop()
        else:
            raise ValueError(f"no such deed: {call.do}")

    async def _pump(self, number: int, inbox: Inbox) -> None:
        while True:
            delivery = await inbox.get()
            tag = next(self._tags)
            self._unsettled[tag] = delivery
            self._say(_Say(inbox=number, tag=tag, envelope=delivery.envelope, crashes=delivery.crashes))

    def _say(self, say: _Say) -> None:
        if not self.writer.is_closing():
            self.writer.write(msgspec.json.encode(say) + b"\n")


class DoorTransport(asyncio.Protocol):
    """The visitor's side: a Transport that reaches a broker of another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[_Say]] = {}
        self._inboxes: dict[int, _DoorInbox] = {}
        self._rest = b""
        self._line: asyncio.Transport | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_unix_connection(lambda: self, str(self.path))
        except OSError as problem:
            raise Unavailable(
                f"no berth answers at {self.path} ({problem.strerror}): "
                "start one with `berth up`, or say where its RabbitMQ is with BERTH_AMQP_URL"
            ) from None

    async def close(self) -> None:
        """When it returns, what we had in hand is back in its queue, and our private queues are gone."""
        if self._line is not None:
            with suppress(Unavailable):
                await self._call(_Call("leave"))
            self._line.close()

    async def declare(self, *queues: QueueSpec) -> None:
        await self._call(_Call("declare", queues=list(queues)))

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        await self._call(_Call("publish", envelopes=list(envelopes), expected=list(expected)))

    async def send(self, queue: str, envelope: Envelope, *, expected: bool = False) -> None:
        await self._call(_Call("send", queue=queue, envelopes=[envelope], expected=[expected]))

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        await self._call(_Call("delay", queue=queue, envelopes=[envelope], number=seconds))

    async def bury(self, letter: DeadLetter) -> None:
        await self._call(_Call("bury", letter=letter))

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        number = next(self._numbers)
        inbox = self._inboxes[number] = _DoorInbox(self, number)
        await self._call(_Call("consume", queues=[queue], number=prefetch), number)
        return inbox

    async def dead_letters(
        self, limit: int = 1000, *, after: str = "", beginning: str = ""
    ) -> list[DeadLetter]:
        return (await self._call(_Call("dead", number=limit, after=after, beginning=beginning))).letters

    async def each_dead_letter(
        self, *, after: str = "", beginning: str = ""
    ) -> AsyncGenerator[DeadLetter, None]:
        while page := await self.dead_letters(after=after, beginning=beginning):
            for letter in page:
                yield letter
            after = page[-1].id

    async def exhume(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[None]] | None = None
    ) -> int:
        taken: set[str] = set()
        after = ""
        while page := await self.dead_letters(after=after):
            for letter in page:
                gone = False
                if letter.id not in taken and (ids is None or letter.id in ids):
                    if rescue is not None:
                        await rescue(letter)
                    call = _Call("exhume", ids=[letter.id], number=letter.died)
                    gone = bool((await self._call(call)).count)
                    if gone or rescue is not None:
                        taken.add(letter.id)
                if not gone:
                    after = letter.id
        return len(taken)

    def say(self, call: _Call) -> None:
        if self._line is not None and not self._line.is_closing():
            self._line.write(msgspec.json.encode(call) + b"\n")

    async def _call(self, call: _Call, number: int = 0) -> _Say:
        if self._line is None or self._line.is_closing():
            raise Unavailable(f"the berth at {self.path} has gone away")
        call.id = number or next(self._numbers)
        answer = self._answers[call.id] = asyncio.get_running_loop().create_future()
        self.say(call)
        try:
            said: _Say = await answer
        finally:
            self._answers.pop(call.id, None)
        if said.unroutable:
            raise Unroutable(said.error)
        if said.no_such_letter:
            raise NoSuchLetter(said.error)
        if said.error:
            raise Unavailable(said.error)
        return said

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        self._line = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said = _says.decode(line)
            if said.tag:
                self._inboxes[said.inbox].arrived(said)
            elif said.id in self._answers and not self._answers[said.id].done():
                self._answers[said.id].set_result(said)

    def connection_lost(self, exc: Exception | None) -> None:
        gone = Unavailable(f"the berth at {self.path} has gone away")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(gone)
        for inbox in self._inboxes.values():
            inbox.lost(gone)


class _DoorDelivery:
    problem = ""

    def __init__(self, door: DoorTransport, said: _Say, envelope: Envelope) -> None:
        self.envelope = envelope
        self.crashes = said.crashes
        self._door = door
        self._tag = said.tag

    def done(self) -> None:
        self._door.say(_Call("done", number=self._tag))

    def requeue(self) -> None:
        self._door.say(_Call("requeue", number=self._tag))


class _DoorInbox:
    def __init__(self, door: DoorTransport, number: int) -> None:
        self._door = door
        self._number = number
        self._ready: deque[_DoorDelivery] = deque()
        self._arrived = asyncio.Event()
        self._lost: Exception | None = None

    def arrived(self, said: _Say) -> None:
        if said.envelope is not None:
            self._ready.append(_DoorDelivery(self._door, said, said.envelope))
            self._arrived.set()

    def lost(self, why: Exception) -> None:
        self._lost = why
        self._arrived.set()

    async def get(self) -> Delivery:
        while not self._ready:
            if self._lost is not None:
                raise self._lost
            self._arrived.clear()
            await self._arrived.wait()
        return self._ready.popleft()

    def get_nowait(self) -> Delivery | None:
        return self._ready.popleft() if self._ready else None

    async def stop(self) -> None:
        with suppress(Unavailable):
            await self._door._call(_Call("stop", number=self._number))
        while self._ready:
            self._ready.popleft().requeue()
