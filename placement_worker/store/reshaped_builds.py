"""Builds on reshaped hosts whose conductors are not informed yet, written with the reshape."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from bus.messages import BuildReshaped
from bus.sql.statement import Statement
from bus.sql.transaction import Transaction

_KEEP = Statement("INSERT INTO reshaped_builds (number, builds) VALUES (:number, :builds)")
_OLDEST = Statement("SELECT number, builds FROM reshaped_builds ORDER BY number LIMIT :most")
_FORGET = Statement("DELETE FROM reshaped_builds WHERE number IN (SELECT n.number FROM {n})", number=int)

_encode = msgspec.json.Encoder().encode
_builds = msgspec.json.Decoder(tuple[BuildReshaped, ...]).decode


async def keep(tx: Transaction, number: int, told: Sequence[BuildReshaped]) -> None:
    """Store the messages for this change."""
    await _KEEP(tx, number=number, builds=_encode(told).decode())


async def untold(tx: Transaction, most: int) -> tuple[list[int], list[BuildReshaped]]:
    """Return the numbers of the oldest unpublished changes, and their messages."""
    rows = await _OLDEST(tx, most=most)
    said = [replace(reshaped, number=number) for number, builds in rows for reshaped in _builds(builds)]
    return [number for number, _ in rows], said


async def forget(tx: Transaction, numbers: Sequence[int]) -> None:
    """Delete published entries."""
    await _FORGET(tx, [(number,) for number in numbers])
