"""Reads past states of placement from its history."""

import zlib
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import msgspec
from msgspec import structs

from berth.kit import BadSetting, is_time, seconds_since
from bus.aggregates import ZONE
from bus.clock import moment_text
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.resources import Provider
from bus.vocabulary import MAX_ORDINAL
from control_room.kit import KnownHost, host_of_tree
from features.history.messages import HISTORY, FindHistory, HistoryFound, LoggedCommit, SnapshotPart
from features.history.past import PastCloud
from placement_worker.extension import Tree, packed

SECONDS = 60.0  # for an answer: placement may have to archive the latest changes first

_part = msgspec.json.Decoder(SnapshotPart).decode
_commits = msgspec.json.Decoder(tuple[LoggedCommit, ...]).decode


@dataclass(frozen=True)
class PastTime:
    """A past time, or a change number of placement if `number` is set; `text` describes it in messages."""

    text: str
    at: float = 0.0
    number: int | None = None

    def includes(self, commit: LoggedCommit) -> bool:
        """Return whether the state at this time includes a commit."""
        return commit.at <= self.at if self.number is None else commit.number <= self.number


class StateHistory:
    """The history of placement from a moment on: first the state at that moment, then each later commit."""

    def __init__(self, bus: Bus, moment: PastTime, until: float = 0.0) -> None:
        self._ask = bus.asker(HISTORY, timeout=SECONDS)
        self._moment = moment
        self._query = FindHistory(number=moment.number, at=moment.at, until=until)
        self._cloud = PastCloud(0, 0.0)  # replaced by the snapshot
        self._next: LoggedCommit | None = None  # the first commit after the moment
        self._commits = self._read()

    async def state(self) -> PastCloud:
        """Return placement's state at the history's moment; raise OperationRefused if changes are missing."""
        async for commit in self._commits:
            if not self._moment.includes(commit):
                self._next = commit
                break
            follow(self._cloud, commit)
        number = self._moment.number
        if number is not None and self._cloud.number != number:
            raise OperationRefused(f"the changes {self._cloud.number + 1} to {number} are not stored yet")
        return self._cloud

    @property
    def snapshot(self) -> int:
        """Return the change number of the stored snapshot from which the past state was computed."""
        return self._query.snapshot or 0

    async def later(self) -> AsyncIterator[LoggedCommit]:
        """Yield the commits after the history's moment, up to its time `until`; call `state` before."""
        if self._next is not None:
            yield self._next
        async for commit in self._commits:
            if commit.at > self._query.until:
                return
            yield commit

    async def _read(self) -> AsyncIterator[LoggedCommit]:
        """Load the snapshot, and then yield each commit after it."""
        found, cut = HistoryFound(more=True), b""
        while found.more:
            found = await self._ask(self._query)
            if found.refused:
                since = f" ({moment_text(found.snapshot_at)})" if found.snapshot_at else ""
                raise OperationRefused(f"no state of {self._moment.text} is stored: {found.refused}{since}")
            if self._query.snapshot is None:
                self._cloud = PastCloud(found.snapshot, found.snapshot_at)
            cursor = {name: getattr(found, name) for name in ("snapshot", "parts", "after", "skip")}
            self._query = structs.replace(self._query, **cursor)
            for piece in found.pieces:
                cut += b64decode("".join(piece.body))
                if piece.is_cut:
                    continue
                text, cut = zlib.decompress(cut), b""
                if piece.is_snapshot:
                    self._cloud.load(_part(text))
                    continue
                for commit in _commits(text):
                    if commit.number > found.snapshot:
                        yield commit


def follow(cloud: PastCloud, commit: LoggedCommit) -> None:
    """Apply the next commit to a past state of placement; raise OperationRefused if commits between the state
    and this commit are missing.
    """
    if commit.number != cloud.number + 1:
        missing = f"the changes {cloud.number + 1} to {commit.number - 1} are not stored"
        raise OperationRefused(f"{missing}: a previous version of berth wrote them, or placement was stopped")
    cloud.apply(commit)


def moment_of(text: str, now: float) -> PastTime:
    """Return the moment that an operator wrote: a change number, a duration before now, or a time in ISO
    format, in UTC unless it has another offset. Raise BadSetting for any other text.
    """
    if text.isascii() and text.isdecimal():
        return PastTime(f"change {text}", number=min(int(text), MAX_ORDINAL))
    if is_time(text):
        return PastTime(f"{text} ago", max(now - seconds_since(text), 0.0))
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return PastTime(moment_text(at.timestamp()), max(at.timestamp(), 0.0))
    except (ValueError, OverflowError):
        example = "2026-03-29T14:30, 2026-03-29T14:30+02:00"
        raise BadSetting(
            f"{text!r} is no time: use {example}, a duration (90s, 30m, 12h, 7d ago), or a change number"
        ) from None


def hosts_of(cloud: PastCloud) -> list[KnownHost]:
    """Return the hosts of a past state of placement, as input for computing how many instances fit."""
    zones = {each.id: each.metadata[ZONE] for each in cloud.aggregates.values() if ZONE in each.metadata}
    page = packed(cloud.trees())
    hosts = [host for tree in page.trees if (host := host_of_tree(page, tree, zones)) is not None]
    closed = {cell.name for cell in cloud.cells.values() if not cell.enabled}
    return [replace(host, closed=True) if host.cell in closed else host for host in hosts]


def providers_of(tree: Tree) -> list[Provider]:
    """Return the providers of a tree in the form in which placement answers queries for providers."""
    return [
        Provider(
            id=state.uuid, name=state.name, parent=state.parent, root=tree.root, generation=state.generation,
            inventories=state.inventories, used=state.used, traits=state.traits, aggregates=state.aggregates,
            cell=tree.cell, agent=tree.agent, zone=tree.zone, host=tree.host, sequence=tree.sequence,
        )
        for state in tree.providers
    ]  # fmt: skip
