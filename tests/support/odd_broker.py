"""A broker that keeps its heartbeats but does not answer some requests."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pamqp import commands, frame, heartbeat

_ANSWERS: dict[str, Callable[[Any], Any]] = {
    "Connection.StartOk": lambda _: commands.Connection.Tune(channel_max=64, frame_max=131072, heartbeat=60),
    "Connection.Open": lambda _: commands.Connection.OpenOk(),
    "Connection.Close": lambda _: commands.Connection.CloseOk(),
    "Channel.Open": lambda _: commands.Channel.OpenOk(),
    "Channel.Close": lambda _: commands.Channel.CloseOk(),
    "Confirm.Select": lambda _: commands.Confirm.SelectOk(),
    "Exchange.Declare": lambda _: commands.Exchange.DeclareOk(),
    "Queue.Bind": lambda _: commands.Queue.BindOk(),
    "Basic.Qos": lambda _: commands.Basic.QosOk(),
    "Basic.Consume": lambda asked: commands.Basic.ConsumeOk(asked.consumer_tag),
    "Basic.Cancel": lambda asked: commands.Basic.CancelOk(asked.consumer_tag),
}
_START = commands.Connection.Start(
    server_properties={"capabilities": {"publisher_confirms": True, "basic.nack": True}},
    mechanisms="PLAIN AMQPLAIN",
)
_HEAD_BYTES = 7


@dataclass
class OddBroker:
    silent: Callable[[Any], bool] = lambda _: False
    refuses: Callable[[int], bool] = lambda channel: False  # all messages that are published on this channel
    heard: Counter[str] = field(default_factory=Counter)
    url: str = ""
    consumers: int = 1  # of each queue
    is_suspended: bool = False  # then it sends nothing
    reads: asyncio.Event = field(default_factory=asyncio.Event)  # while it is set
    there: list[asyncio.StreamWriter] = field(default_factory=list)

    def say_blocked(self, blocked: bool) -> None:
        """To all: it is short of memory, or not any more."""
        said = commands.Connection.Blocked("memory") if blocked else commands.Connection.Unblocked()
        for writer in self.there:
            writer.write(frame.marshal(said, 0))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        published: Counter[int] = Counter()  # by channel

        def say(what: Any, channel: int = 0) -> None:
            if not self.is_suspended:
                writer.write(frame.marshal(what, channel))

        async def lives() -> None:
            while True:
                await asyncio.sleep(1.0)
                say(heartbeat.Heartbeat())

        async def answers() -> None:
            while True:
                await self.reads.wait()
                head = await reader.readexactly(_HEAD_BYTES)
                size = int.from_bytes(head[3:])
                _, channel, asked = frame.unmarshal(head + await reader.readexactly(size + 1))
                self.heard[asked.name] += 1
                if asked.name == "Basic.Publish":
                    published[channel] += 1
                if self.silent(asked):
                    continue
                if asked.name == "ContentBody":
                    settle = commands.Basic.Nack if self.refuses(channel) else commands.Basic.Ack
                    say(settle(published[channel]), channel)
                elif isinstance(asked, commands.Queue.Declare):
                    say(commands.Queue.DeclareOk(asked.queue, 0, self.consumers), channel)
                elif asked.name in _ANSWERS:
                    say(_ANSWERS[asked.name](asked), channel)

        self.there.append(writer)
        say(_START)
        living = asyncio.create_task(lives())
        with suppress(asyncio.IncompleteReadError, OSError):
            await answers()
        living.cancel()
        writer.close()
        self.there.remove(writer)


@asynccontextmanager
async def an_odd_broker(silent: Callable[[Any], bool] = lambda _: False) -> AsyncIterator[OddBroker]:
    broker = OddBroker(silent)
    broker.reads.set()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, limit=2**16)
    broker.url = f"amqp://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    try:
        yield broker
    finally:
        server.close()
