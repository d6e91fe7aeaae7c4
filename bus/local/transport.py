"""LocalTransport: a connection to the in-process broker. When a connection closes, its unsettled messages are
redelivered.
"""

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bus.direct import OpenInbox
from bus.errors import NoSuchLetter, Unavailable, Undecodable, Unroutable
from bus.local.broker import LocalBroker, LocalQueue, QueuedItem
from bus.protocol import (
    MAX_IN_HAND_BYTES,
    BusDepths,
    DeadLetter,
    Delivery,
    Envelope,
    Inbox,
    QueueDepth,
    QueueSpec,
    page_of,
)


@dataclass(eq=False, slots=True)
class _LocalDelivery:
    envelope: Envelope
    crashes: int
    item: QueuedItem
    inbox: "_LocalInbox"
    problem: str = ""
    sender: str = ""

    def done(self) -> None:
        if self.inbox.settle(self):
            self.inbox.broker.settled(self.inbox.queue, self.item)

    def requeue(self) -> None:
        if self.inbox.settle(self):
            self.inbox.broker.back(self.inbox.queue, self.item)


class _LocalInbox(OpenInbox):
    def __init__(self, broker: LocalBroker, queue: LocalQueue, prefetch: int) -> None:
        super().__init__()
        self.broker = broker
        self.queue = queue
        self.prefetch = prefetch
        self._ready: deque[_LocalDelivery] = deque()
        self._unsettled: dict[_LocalDelivery, None] = {}
        self._bytes = 0  # total size of unsettled messages

    @property
    def buffered(self) -> int:
        return len(self._ready) + len(self._offered)

    def accept(self) -> bool:
        if len(self._unsettled) >= self.prefetch or self._bytes >= MAX_IN_HAND_BYTES:
            return False
        item = self.broker.pick(self.queue)
        self.broker.delivered(self.queue, item)
        delivery = _LocalDelivery(item.envelope, item.crashes, item, self)
        self._unsettled[delivery] = None
        self._bytes += len(item.envelope.body)
        self._ready.append(delivery)
        self.more.set()
        return True

    def settle(self, delivery: _LocalDelivery) -> bool:
        """Mark a delivered message as settled; return False if it was settled or requeued before."""
        known = delivery in self._unsettled
        if known:
            self._forget(delivery)
        self.queue.wake()
        return known

    async def get(self) -> Delivery:
        while (delivery := self.get_nowait()) is None:
            self.more.clear()
            await self.more.wait()
        if self.queue.spec.notes_readers and isinstance(delivery, _LocalDelivery):
            try:
                await self.broker.safe()  # the journal has stored that the message was delivered
            except asyncio.CancelledError:
                self._ready.appendleft(delivery)
                raise
        return delivery

    def _next_received(self) -> Delivery | None:
        return self._ready.popleft() if self._ready else None

    async def stop(self) -> None:
        self._end_offers()
        self._end(tuple(self._ready))

    def abandon(self) -> None:
        self._offered.clear()
        for delivery in self._unsettled:
            delivery.item.crashes += 1
        self._end(tuple(self._unsettled))

    def _end(self, deliveries: Sequence[_LocalDelivery]) -> None:
        """Stop consuming the queue, and put its unsettled `deliveries` back at its front, in their order."""
        if self in self.queue.readers:
            self.queue.readers.remove(self)
        for delivery in reversed(deliveries):
            self._forget(delivery)
            self.broker.delivered(self.queue, delivery.item, back=True)
            self.queue.items.appendleft(delivery.item)
        self._ready.clear()
        self.queue.wake()

    def _forget(self, delivery: _LocalDelivery) -> None:
        del self._unsettled[delivery]
        self._bytes -= len(delivery.envelope.body)


class LocalTransport:
    """A connection to the in-process broker."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self._inboxes: list[_LocalInbox] = []
        self._private: list[str] = []

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        for inbox in self._inboxes:
            inbox.abandon()
        for name in self._private:
            self.broker.remove(name)
        self._inboxes, self._private = [], []
        await self.broker.safe()

    async def declare(self, *queues: QueueSpec) -> None:
        for spec in queues:
            self.broker.declare(spec)
            if not spec.durable:
                self._private.append(spec.name)
        await self.broker.declared()

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        unroutable = []
        for envelope, must in zip(envelopes, expected, strict=True):
            queues = self.broker.route(envelope.key)
            for queue in queues:
                self.broker.put(queue, msgspec.structs.replace(envelope))
            if must and not queues:
                unroutable.append(envelope.key)
        await self.broker.safe()
        if unroutable:
            raise Unroutable(f"no queue is bound to {', '.join(sorted(set(unroutable)))}")

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        target = self.broker.queues.get(queue)
        if target is None:
            raise Unroutable(f"there is no queue {queue}")
        self.broker.put(target, msgspec.structs.replace(envelope), seconds=seconds)
        await self.broker.safe()

    async def store_dead_letter(self, letter: DeadLetter) -> None:
        self.broker.store_dead_letter(letter)
        await self.broker.safe()

    async def waiting(self, queue: str) -> int:
        known = self.broker.queues.get(queue)
        return 0 if known is None else len(known.items)

    async def consume(self, queue: QueueSpec, prefetch: int) -> Inbox:
        await self.declare(queue)
        target = self.broker.queues[queue.name]
        inbox = _LocalInbox(self.broker, target, prefetch)
        target.readers.append(inbox)
        self._inboxes.append(inbox)
        target.wake()
        return inbox

    async def depths(self, queues: Sequence[str]) -> BusDepths:
        known = {name: found for name in queues if (found := self.broker.queues.get(name))}
        return BusDepths(
            {name: QueueDepth(len(queue.items), len(queue.readers)) for name, queue in known.items()},
            dead=len(self.broker.dead),
            delayed=self.broker.delayed,
        )

    async def dead_letters(self, limit: int = 1000, after: str = "", beginning: str = "") -> list[DeadLetter]:
        return await page_of(self.each_dead_letter(after=after, beginning=beginning), limit)

    async def each_dead_letter(
        self, after: str = "", beginning: str = ""
    ) -> AsyncGenerator[DeadLetter, None]:
        for letter in self.broker.dead_behind(after, beginning):
            yield letter

    async def remove_dead_letters(
        self, ids: Collection[str] | None, rescue: Callable[[DeadLetter], Awaitable[bool]] | None = None
    ) -> int:
        letters = [letter for letter in self.broker.dead.values() if ids is None or letter.id in ids]
        count = 0
        for letter in letters:
            if rescue is not None and not await rescue(letter):
                continue
            count += 1
            # The replayed message may already have become a new dead letter with the same id.
            if self.broker.dead.get(letter.id) is letter:
                self.broker.remove_dead_letters(letter)
        await self.broker.safe()
        return count


# The bus over a Unix socket: a process such as `berth boot` uses the in-process broker of `berth up`.


LINE_LIMIT = 64 * 1024 * 1024


class SocketCall(msgspec.Struct, omit_defaults=True):
    """A call that a process sends over the socket to the broker's process; `id` 0: it expects no reply."""

    do: str
    id: int = 0
    queues: list[QueueSpec] = []
    envelopes: list[Envelope] = []
    expected: list[bool] = []
    queue: str = ""
    number: float = 0  # seconds, prefetch, limit, inbox or tag, depending on `do`
    letter: DeadLetter | None = None
    ids: list[str] = []
    after: str = ""
    beginning: str = ""


class SocketReply(msgspec.Struct, omit_defaults=True):
    """The reply of the broker's process to a call, or a message of a queue that it delivers to a process."""

    id: int = 0
    error: str = ""
    raised: str = ""  # name of the exception's class, if it is in _ERRORS
    letters: list[DeadLetter] = []
    count: int = 0
    depths: BusDepths | None = None
    inbox: int = 0
    tag: int = 0
    envelope: Envelope | None = None
    crashes: int = 0


_ERRORS = {kind.__name__: kind for kind in (Unroutable, NoSuchLetter)}  # the caller raises them too
calls = msgspec.json.Decoder(SocketCall)
words = msgspec.json.Decoder(SocketReply)


class SocketServer:
    """Serves the in-process broker over a Unix socket, with one LocalTransport for each connected process."""

    def __init__(self, broker: LocalBroker, path: Path) -> None:
        self.broker = broker
        self.path = path
        self._server: asyncio.Server

    async def open(self) -> None:
        """Listen on the socket, which only processes of the same user can connect to."""
        self.path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self.path))
        self.path.chmod(0o600)  # before listening, so that no other user can connect
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
                for task in visit.pumps:
                    task.cancel()
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
        self.pumps: list[asyncio.Task[None]] = []

    def take(self, call: SocketCall, group: asyncio.TaskGroup) -> None:
        if call.do in ("done", "requeue"):  # called here and not in a task, to keep the order
            delivery = self._unsettled.pop(int(call.number), None)
            if delivery is not None:
                (delivery.done if call.do == "done" else delivery.requeue)()
        else:
            self.pumps.append(group.create_task(self._do(call, group)))
            self.pumps = [task for task in self.pumps if not task.done()]

    async def _do(self, call: SocketCall, group: asyncio.TaskGroup) -> None:
        answer = SocketReply(id=call.id)
        try:
            await self._deed(call, answer, group)
        except Exception as problem:
            kind = type(problem).__name__
            answer.raised, answer.error = (
                (kind, str(problem)) if kind in _ERRORS else ("", f"{kind}: {problem}")
            )
        self._send(answer)

    async def _deed(self, call: SocketCall, answer: SocketReply, group: asyncio.TaskGroup) -> None:
        transport = self.transport
        if call.do == "leave":
            await transport.close()
        elif call.do == "declare":
            await transport.declare(*call.queues)
        elif call.do == "publish":
            await transport.publish(call.envelopes, expected=call.expected)
        elif call.do == "delay":
            await transport.delay(call.queue, call.envelopes[0], call.number)
        elif call.do == "store_dead_letter" and call.letter is not None:
            await transport.store_dead_letter(call.letter)
        elif call.do == "dead":
            answer.letters = await transport.dead_letters(int(call.number), call.after, call.beginning)
        elif call.do == "depths":
            answer.depths = await transport.depths(call.ids)
        elif call.do == "remove_dead_letters":
            letter = transport.broker.dead.get(call.ids[0])
            if letter is not None and letter.died == call.number:  # no new letter with its id
                answer.count = await transport.remove_dead_letters(call.ids)
        elif call.do == "consume":
            inbox = await transport.consume(call.queues[0], int(call.number))
            self._inboxes[call.id] = inbox
            self.pumps.append(group.create_task(self._pump(call.id, inbox)))
        elif call.do == "stop":
            await self._inboxes.pop(int(call.number)).stop()
        else:
            raise ValueError(f"no such deed: {call.do}")

    async def _pump(self, inbox_id: int, inbox: Inbox) -> None:
        while True:
            delivery = await inbox.get()
            tag = next(self._tags)
            self._unsettled[tag] = delivery
            envelope, crashes = delivery.envelope, delivery.crashes
            self._send(SocketReply(inbox=inbox_id, tag=tag, envelope=envelope, crashes=crashes))

    def _send(self, reply: SocketReply) -> None:
        if not self.writer.is_closing():
            self.writer.write(msgspec.json.encode(reply) + b"\n")


class SocketTransport(asyncio.Protocol):
    """Connects to the in-process broker of another process over its Unix socket."""

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
                "start one with `berth up`, or set BERTH_AMQP_URL to its RabbitMQ"
            ) from None

    async def close(self) -> None:
        """Close the connection; return when its messages are requeued and its private queues are deleted."""
        if self._line is not None:
            with suppress(Unavailable):
                await self._call(SocketCall("leave"))
            self._line.close()

    async def declare(self, *queues: QueueSpec) -> None:
        await self._call(SocketCall("declare", queues=list(queues)))

    async def publish(self, envelopes: Sequence[Envelope], *, expected: Sequence[bool]) -> None:
        await self._call(SocketCall("publish", envelopes=list(envelopes), expected=list(expected)))

    async def delay(self, queue: str, envelope: Envelope, seconds: float) -> None:
        try:
            msgspec.json.decode(envelope.body)  # raises if invalid: the body becomes part of a JSON text
        except (msgspec.DecodeError, RecursionError) as problem:
            raise Undecodable(f"not JSON: {problem}") from None
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

    async def dead_letters(self, limit: int = 1000, after: str = "", beginning: str = "") -> list[DeadLetter]:
        return (await self._call(SocketCall("dead", number=limit, after=after, beginning=beginning))).letters

    async def each_dead_letter(
        self, after: str = "", beginning: str = ""
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
                removed = False
                chosen = letter.id not in taken and (ids is None or letter.id in ids)
                if chosen and (rescue is None or await rescue(letter)):
                    call = SocketCall("remove_dead_letters", ids=[letter.id], number=letter.died)
                    removed = bool((await self._call(call)).count)
                    if removed or rescue is not None:
                        taken.add(letter.id)
                if not removed:
                    after = letter.id
        return len(taken)

    def send_call(self, call: SocketCall) -> None:
        if self._line is not None and not self._line.is_closing():
            self._line.write(msgspec.json.encode(call) + b"\n")

    async def _call(self, call: SocketCall, number: int = 0) -> SocketReply:
        if self._line is None or self._line.is_closing():
            raise Unavailable(f"the berth at {self.path} is not reachable any more")
        call.id = number or next(self._numbers)
        answer = self._answers[call.id] = asyncio.get_running_loop().create_future()
        self.send_call(call)
        try:
            reply: SocketReply = await answer
        finally:
            self._answers.pop(call.id, None)
        if reply.error:
            raise _ERRORS.get(reply.raised, Unavailable)(reply.error)
        return reply

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
        problem = Unavailable(f"the berth at {self.path} is not reachable any more")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(problem)
        for inbox in self._inboxes.values():
            inbox.lost(problem)


class _SocketDelivery:
    problem = ""
    sender = ""

    def __init__(self, transport: SocketTransport, reply: SocketReply, envelope: Envelope) -> None:
        self.envelope = envelope
        self.crashes = reply.crashes
        self._transport = transport
        self._tag = reply.tag

    def done(self) -> None:
        self._transport.send_call(SocketCall("done", number=self._tag))

    def requeue(self) -> None:
        self._transport.send_call(SocketCall("requeue", number=self._tag))


class _SocketInbox:
    def __init__(self, transport: SocketTransport, number: int) -> None:
        self._transport = transport
        self._number = number
        self._ready: deque[_SocketDelivery] = deque()
        self._arrived = asyncio.Event()
        self._lost: Exception | None = None

    @property
    def buffered(self) -> int:
        return len(self._ready)

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
