"""Encoding of messages and frames as JSON, readable by any AMQP client."""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from bus.errors import NOT_JSON, TooBig, Undecodable
from bus.protocol import MAX_FRAME_ENVELOPES, MAX_MESSAGE_BYTES, Envelope
from bus.vocabulary import Message

M = TypeVar("M", bound=Message)

FRAME_TYPE = "berth.frame"

_encoder = msgspec.json.Encoder()
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_frame_decoder = msgspec.json.Decoder(list[Envelope])

_ZERO = rb"\u0000"
_zero = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")  # not \\u0000, a backslash followed by u0000


def encode(message: Message) -> bytes:
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooBig(
            f"{type(message).__name__} is {len(data)} bytes; the bus carries at most {MAX_MESSAGE_BYTES}"
        )
    return data


def decode(kind: type[M], body: bytes | msgspec.Raw, named: str = "") -> M:
    """Return the message in the bytes. Raise Undecodable with the name of the offending field.

    `named` is the type given by the sender; empty if it gave none, as plain AMQP clients do.
    """
    if named and named != kind.__name__:
        raise Undecodable(f"type: {named!r} is unknown on this topic, which carries {kind.__name__}")
    size = memoryview(body).nbytes
    if size > MAX_MESSAGE_BYTES:
        raise Undecodable(f"the message is {size} bytes; the bus carries at most {MAX_MESSAGE_BYTES}")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        message: M = decoder.decode(body)
    except msgspec.ValidationError as problem:
        raise Undecodable(f"{kind.__name__}: {problem}") from None
    except NOT_JSON as problem:
        raise Undecodable(f"{kind.__name__}: not JSON: {problem}") from None
    if holds_zero(bytes(body)):
        raise Undecodable(f"{kind.__name__}: it contains the character U+0000, which PostgreSQL cannot store")
    return message


def holds_zero(body: bytes) -> bool:
    """Return whether a JSON text contains the character U+0000, which databases cannot store."""
    return _ZERO in body and _zero.search(body) is not None


def encode_frame(envelopes: Sequence[Envelope]) -> bytes:
    return _encoder.encode(envelopes)


def decode_frame(body: bytes) -> list[Envelope]:
    try:
        envelopes = _frame_decoder.decode(body)
    except NOT_JSON as problem:
        raise Undecodable(f"not a frame: {problem}") from None
    if len(envelopes) > MAX_FRAME_ENVELOPES:
        raise Undecodable(
            f"not a frame: it holds {len(envelopes)} envelopes; the bus carries at most {MAX_FRAME_ENVELOPES}"
        )
    return envelopes
