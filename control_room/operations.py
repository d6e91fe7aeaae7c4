"""Operations and computations of the pages, which share their functions with the commands."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.decisions import Record, RecordedHost
from bus.messages import BuildRequested
from bus.moves import MoveStands
from bus.protocol import BusDepths, DeadLetter
from bus.queries import BuildStands
from control_room.bus_load import KnownQueue
from control_room.core.metal import MetalNodes
from control_room.core.what_if_form import WhatIfRequest


@dataclass(frozen=True)
class DrainProgress:
    """The progress of a drain that this control room runs, or ran last."""

    is_running: bool
    text: str
    unmoved: tuple[tuple[str, str], ...] = ()  # build, and the reason


class Drains(Protocol):
    """Drains that this control room runs: they end with it, as with the command."""

    def progress(self, root: str) -> DrainProgress | None: ...

    async def start(self, root: str, live: bool, most: int) -> str: ...

    async def stop(self, root: str, and_open: bool) -> str:
        """Stop a drain, whichever process runs it: it continues only while its host is closed for its
        cause.
        """


class ChangeSubscription(Protocol):
    """A subscription to placement's changes as they are published."""

    async def get(self) -> Sequence[tuple[str, bool]]:
        """Return the roots of the next change of placement, each with whether more than its usage changed."""

    async def stop(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class MetalOperations:
    # Ironic's nodes with placement's records: all (None), or the named ones
    read: Callable[[Sequence[str] | None], Awaitable[MetalNodes]]
    changes: Callable[[], Awaitable[ChangeSubscription]]  # from now on


class LetterReader(Protocol):
    def __call__(self, *, after: str = "", beginning: str = "") -> AsyncGenerator[DeadLetter, None]: ...


@dataclass(frozen=True, kw_only=True)
class BusOperations:
    # of the workers of the cells, and of the agents as (cell, agent)
    queues: Callable[[Collection[str], Collection[tuple[str, str]]], Awaitable[Sequence[KnownQueue]]]
    elsewhere: Sequence[str]  # cells with queues and dead letters on their own broker
    depths: Callable[[Sequence[str]], Awaitable[BusDepths]]
    letters: LetterReader
    replay: Callable[[Collection[str]], Awaitable[tuple[int, Sequence[str]]]]  # count; reasons of the others
    drop: Callable[[Collection[str]], Awaitable[int]]


@dataclass(frozen=True, kw_only=True)
class Operations:
    # disable, enable, force-down or undo-force-down; root; cause. Returns the host's new state
    mark_host: Callable[[str, str, str], Awaitable[str]]
    end_wait: Callable[[str], Awaitable[str]]  # of a request or a move; returns the answer
    steer: Callable[[MoveStands, str], Awaitable[str]]  # confirm, revert, abort or force
    drains: Drains
    metal: MetalOperations
    scores: Callable[[Record, str], Mapping[str, float]]
    replay: Callable[[str, Record], RecordedHost | None]
    requested: Callable[[BuildStands], BuildRequested]  # the request in the build's record
    what_if_request: Callable[[WhatIfRequest], Awaitable[tuple[BuildRequested, Sequence[str]]]]  # and notes
    bus: BusOperations
