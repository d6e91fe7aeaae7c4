"""SocketTransport: the bus over the socket of another process of this machine. See `socket_server`."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bus.errors import NoSuchLetter, Unavailable, Undecodable, Unroutable
from bus.local.socket_server import SocketCall, SocketReply, words
from bus.protocol import BusDepths, DeadLetter, Delivery, Envelope, Inbox, QueueSpec


class SocketTransport(asyncio.Protocol):
    """A Transport that reaches the in-process broker of another process over its socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[SocketReply]] = {}
        self._inboxes: dict[int, _SocketInbox] = {}
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
        """Close the connection; return when messages in hand are requeued and private queues are deleted."""
        if self._line is not None:
            with suppress(Unavailable):
                await self._call(SocketCall("leave"))
            self._line.close()

    async def declare(self, *queues: QueueSpec) -> None:
        await self._call(SocketCall("declare", queues=list(queues)))

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        await self._call(SocketCall("publish", envelopes=list(envelopes), expected=list(expected)))

    async def send(self, queue: str, envelope: Envelope, *, expected: bool = False) -> None:
        try:
            msgspec.json.decode(envelope.body)  # it goes into a line of JSON as it is
        except (msgspec.DecodeError, RecursionError) as problem:
            raise Undecodable(f"not JSON: {problem}") from None
        await self._call(SocketCall("send", queue=queue, envelopes=[envelope], expected=[expected]))

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        await self._call(SocketCall("delay", queue=queue, envelopes=[envelope], number=seconds))

    async def store_dead_letter(self, letter: DeadLetter) -> None:
        await self._call(SocketCall("store_dead_letter", letter=letter))

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        number = next(self._numbers)
        inbox = self._inboxes[number] = _SocketInbox(self, number)
        await self._call(SocketCall("consume", queues=[queue], number=prefetch), number)
        return inbox

    async def waiting(self, queue: str) -> int:
        depth = (await self.depths([queue])).queues.get(queue)
        return depth.messages if depth else 0

    async def depths(self, queues: Sequence[str]) -> BusDepths:
        reply = await self._call(SocketCall("depths", ids=list(queues)))
        return reply.depths or BusDepths({}, 0, 0)

    async def dead_letters(
        self, limit: int = 1000, *, after: str = "", beginning: str = ""
    ) -> list[DeadLetter]:
        return (await self._call(SocketCall("dead", number=limit, after=after, beginning=beginning))).letters

    async def each_dead_letter(
        self, *, after: str = "", beginning: str = ""
    ) -> AsyncGenerator[DeadLetter, None]:
        while page := await self.dead_letters(after=after, beginning=beginning):
            for letter in page:
                yield letter
            after = page[-1].id

    async def remove_dead_letters(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[bool]] | None = None
    ) -> int:
        taken: set[str] = set()
        after = ""
        while page := await self.dead_letters(after=after):
            for letter in page:
                gone = False
                chosen = letter.id not in taken and (ids is None or letter.id in ids)
                if chosen and (rescue is None or await rescue(letter)):
                    call = SocketCall("remove_dead_letters", ids=[letter.id], number=letter.died)
                    gone = bool((await self._call(call)).count)
                    if gone or rescue is not None:
                        taken.add(letter.id)
                if not gone:
                    after = letter.id
        return len(taken)

    def say(self, call: SocketCall) -> None:
        if self._line is not None and not self._line.is_closing():
            self._line.write(msgspec.json.encode(call) + b"\n")

    async def _call(self, call: SocketCall, number: int = 0) -> SocketReply:
        if self._line is None or self._line.is_closing():
            raise Unavailable(f"the berth at {self.path} is not reachable any more")
        call.id = number or next(self._numbers)
        answer = self._answers[call.id] = asyncio.get_running_loop().create_future()
        self.say(call)
        try:
            reply: SocketReply = await answer
        finally:
            self._answers.pop(call.id, None)
        if reply.unroutable:
            raise Unroutable(reply.error)
        if reply.no_such_letter:
            raise NoSuchLetter(reply.error)
        if reply.error:
            raise Unavailable(reply.error)
        return reply

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        self._line = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            reply = words.decode(line)
            if reply.tag:
                self._inboxes[reply.inbox].arrived(reply)
            elif reply.id in self._answers and not self._answers[reply.id].done():
                self._answers[reply.id].set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        gone = Unavailable(f"the berth at {self.path} is not reachable any more")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(gone)
        for inbox in self._inboxes.values():
            inbox.lost(gone)


class _SocketDelivery:
    problem = ""

    def __init__(self, transport: SocketTransport, reply: SocketReply, envelope: Envelope) -> None:
        self.envelope = envelope
        self.crashes = reply.crashes
        self._transport = transport
        self._tag = reply.tag

    def done(self) -> None:
        self._transport.say(SocketCall("done", number=self._tag))

    def requeue(self) -> None:
        self._transport.say(SocketCall("requeue", number=self._tag))


class _SocketInbox:
    def __init__(self, transport: SocketTransport, number: int) -> None:
        self._transport = transport
        self._number = number
        self._ready: deque[_SocketDelivery] = deque()
        self._arrived = asyncio.Event()
        self._lost: Exception | None = None

    def arrived(self, reply: SocketReply) -> None:
        if reply.envelope is not None:
            self._ready.append(_SocketDelivery(self._transport, reply, reply.envelope))
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
            await self._transport._call(SocketCall("stop", number=self._number))
        while self._ready:
            self._ready.popleft().requeue()
