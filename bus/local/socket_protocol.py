"""The protocol of the socket: lines of JSON in both directions."""

import msgspec

from bus.protocol import BusDepths, DeadLetter, Envelope, QueueSpec

LINE_LIMIT = 64 * 1024 * 1024


class SocketCall(msgspec.Struct, omit_defaults=True):
    """A client's call with its number (0: no reply wanted)."""

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
