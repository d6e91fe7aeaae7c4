"""A socket file that only its owner may open, through which other processes of this machine reach the broker.

So `berth boot` in one terminal reaches the `berth up` of another with nothing installed.
"""

import asyncio
import itertools
import socket
from pathlib import Path

import msgspec

from bus.errors import NoSuchLetter, Unroutable
from bus.local.broker import LocalBroker
from bus.local.transport import LocalTransport
from bus.protocol import BusDepths, DeadLetter, Delivery, Envelope, Inbox, QueueSpec

LINE_LIMIT = 64 * 1024 * 1024


class SocketCall(msgspec.Struct, omit_defaults=True):
    """A call of a client over the socket, with its number (0: the client expects no reply)."""

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


class SocketReply(msgspec.Struct, omit_defaults=True):
    """The server's reply to a call, or a delivery."""

    id: int = 0
    error: str = ""
    unroutable: bool = False
    no_such_letter: bool = False
    letters: list[DeadLetter] = []
    count: int = 0
    depths: BusDepths | None = None
    inbox: int = 0
    tag: int = 0
    envelope: Envelope | None = None
    crashes: int = 0


calls = msgspec.json.Decoder(SocketCall)
words = msgspec.json.Decoder(SocketReply)


class SocketServer:
    """The server of the socket: one LocalTransport for each connected process."""

    def __init__(self, broker: LocalBroker, path: Path) -> None:
        self.broker = broker
        self.path = path
        self._server: asyncio.Server

    async def open(self) -> None:
        self.path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.path))
        self.path.chmod(0o600)  # before it listens, so that no other user can connect
        self._server = await asyncio.start_unix_server(self._visit, sock=listening, limit=LINE_LIMIT)

    async def close(self) -> None:
        self._server.close()
        self.path.unlink(missing_ok=True)

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = LocalTransport(self.broker)
        visit = _ClientConnection(transport, writer)
        try:
            async with asyncio.TaskGroup() as group:
                async for line in reader:
                    visit.take(calls.decode(line), group)
                visit.leave()
        except* (ConnectionError, asyncio.CancelledError, msgspec.DecodeError):
            pass  # the client disconnected or sent garbage: its unsettled messages are requeued
        finally:
            await transport.close()
            writer.close()


class _ClientConnection:
    def __init__(self, transport: LocalTransport, writer: asyncio.StreamWriter) -> None:
        self.transport = transport
        self.writer = writer
        self._tags = itertools.count(1)
        self._unsettled: dict[int, Delivery] = {}
        self._inboxes: dict[int, Inbox] = {}
        self._pumps: list[asyncio.Task[None]] = []

    def take(self, call: SocketCall, group: asyncio.TaskGroup) -> None:
        if call.do in ("done", "requeue"):  # immediately and in order, because it needs no wait
            delivery = self._unsettled.pop(int(call.number), None)
            if delivery is not None:
                (delivery.done if call.do == "done" else delivery.requeue)()
        else:
            self._pumps.append(group.create_task(self._do(call, group)))
            self._pumps = [task for task in self._pumps if not task.done()]

    def leave(self) -> None:
        for task in self._pumps:
            task.cancel()

    async def _do(self, call: SocketCall, group: asyncio.TaskGroup) -> None:
        answer = SocketReply(id=call.id)
        try:
            await self._deed(call, answer, group)
        except Unroutable as problem:
            answer.error, answer.unroutable = str(problem), True
        except NoSuchLetter as problem:
            answer.error, answer.no_such_letter = str(problem), True
        except Exception as problem:
            answer.error = f"{type(problem).__name__}: {problem}"
        self._send(answer)

    async def _deed(self, call: SocketCall, answer: SocketReply, group: asyncio.TaskGroup) -> None:
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
        elif call.do == "store_dead_letter" and call.letter is not None:
            await transport.store_dead_letter(call.letter)
        elif call.do == "dead":
            answer.letters = await transport.dead_letters(
                int(call.number), after=call.after, beginning=call.beginning
            )
        elif call.do == "depths":
            answer.depths = await transport.depths(call.ids)
        elif call.do == "remove_dead_letters":
            letter = self.transport.broker.dead.get(call.ids[0])
            if letter is not None and letter.died == call.number:  # it has not died again meanwhile
                answer.count = await transport.remove_dead_letters(call.ids)
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
            self._send(
                SocketReply(inbox=number, tag=tag, envelope=delivery.envelope, crashes=delivery.crashes)
            )

    def _send(self, say: SocketReply) -> None:
        if not self.writer.is_closing():
            self.writer.write(msgspec.json.encode(say) + b"\n")
