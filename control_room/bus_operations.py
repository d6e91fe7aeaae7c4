"""Functions of the Bus page for its bus: read its load, and its dead letters."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.protocol import BusDepths, DeadLetter
from control_room.bus_load import KnownQueue


class EachLetter(Protocol):
    def __call__(self, *, after: str = "", beginning: str = "") -> AsyncGenerator[DeadLetter, None]: ...


@dataclass(frozen=True, kw_only=True)
class BusMeans:
    # of the workers of the cells, and of the agents as (cell, agent)
    queues: Callable[[Collection[str], Collection[tuple[str, str]]], Awaitable[Sequence[KnownQueue]]]
    elsewhere: Sequence[str]  # cells with queues and dead letters on their own broker
    depths: Callable[[Sequence[str]], Awaitable[BusDepths]]
    letters: EachLetter
    replay: Callable[[Collection[str]], Awaitable[tuple[int, Sequence[str]]]]  # how many; why others stay
    drop: Callable[[Collection[str]], Awaitable[int]]
