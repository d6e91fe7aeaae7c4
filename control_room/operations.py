"""Acts and computations of the pages, with the same functions as the commands."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bus.decisions import Record, RecordedHost
from bus.messages import BuildRequested
from bus.moves import MoveStands
from bus.queries import BuildStands
from control_room.bus_operations import BusMeans
from control_room.core.metal import MetalSeen
from control_room.core.what_if_form import Supposition


class ActRefused(Exception):
    """The act was not done; the text gives the reason."""


@dataclass(frozen=True)
class DrainFar:
    """The progress of a drain that this control room runs, or ran last."""

    going: bool
    says: str
    stay: tuple[tuple[str, str], ...] = ()  # build, and why it does


class DrainsHere(Protocol):
    """Drains that this control room sees to: they end with it, as with the command."""

    def far(self, root: str) -> DrainFar | None: ...

    async def begin(self, root: str, live: bool, most: int) -> str: ...

    async def stop(self, root: str, and_open: bool) -> str:
        """Stop a drain, whichever process runs it: a drain continues only while its host is closed for its
        cause.
        """


class ChangesHeard(Protocol):
    """Placement's changes, as they are published."""

    async def get(self) -> Sequence[tuple[str, bool]]:
        """The roots of the next, and whether more than their use is another."""

    async def stop(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class MetalMeans:
    # Ironic's nodes, and what placement has of them: all, or these
    read: Callable[[Sequence[str] | None], Awaitable[MetalSeen]]
    changes: Callable[[], Awaitable[ChangesHeard]]  # from now on


@dataclass(frozen=True, kw_only=True)
class RoomMeans:
    # disable, enable, force-down or undo-force-down; the root; a cause, or none: how it stands then
    mark_host: Callable[[str, str, str], Awaitable[str]]
    end_wait: Callable[[str], Awaitable[str]]  # of a request or a move; returns the answer
    steer: Callable[[MoveStands, str], Awaitable[str]]  # confirm, revert, abort or force
    drains: DrainsHere
    metal: MetalMeans
    scores: Callable[[Record, str], Mapping[str, float]]
    replay: Callable[[str, Record], RecordedHost | None]
    requested: Callable[[BuildStands], BuildRequested]  # what was asked for it, as its record has it
    what_if_request: Callable[[Supposition], Awaitable[tuple[BuildRequested, Sequence[str]]]]  # and notes
    bus: BusMeans
