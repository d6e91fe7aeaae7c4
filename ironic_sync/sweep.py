"""Compares Ironic with placement in rounds, and reports nodes that changed without a notification.

A round reads recently changed nodes. At the start, periodically and after errors, a round reads all nodes;
only such a round finds deleted nodes. If placement received a newer report of a node meanwhile, the state
read from Ironic is discarded and the node is read again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from bus.clock import Clock, monotonic, set_within
from bus.errors import Unavailable
from bus.resources import Provider
from ironic_sync.api import IronicRefused
from ironic_sync.core.difference import WAITING, allowance
from ironic_sync.core.rule import sequence_at
from ironic_sync.notifications import (
    DIFFERENCES,
    NODES,
    SUBSCRIBED,
    SWEEP_SECONDS,
    SWEEPS_FAILED,
    SWEPT_AT,
    UNREPAIRED,
)
from ironic_sync.survey import Horizon, ReadAll, Survey, SurveyedNode

log = logging.getLogger(__name__)

Tell = Callable[[Sequence[SurveyedNode]], Awaitable[None]]


@dataclass(eq=False, repr=False)
class Sweep:
    """Compares Ironic with placement in rounds; calls `repair` to report differing nodes to placement."""

    survey: Survey
    repair: Tell
    clock: Clock
    _: KW_ONLY
    full_every: int = 10  # one of this number of rounds reads all nodes
    pages_per_second: float = 4.0
    share: float = 0.1  # if more than this fraction of the nodes is deleted, none is removed
    allow_removals: bool = False  # remove deleted nodes however many there are
    placed: Callable[[Mapping[str, Provider]], None] = lambda placed: None  # receives placement's providers
    # called for a node whose report in placement is newer than the sweep's read: read the node again
    unsure: Callable[[str], None] = lambda uuid: None
    held_back: int = field(default=0, init=False)  # deleted nodes, at least so many, that were not removed
    _rounds_to_full: int = field(default=0, init=False)
    _horizon: Horizon | None = field(default=None, init=False)
    # the sequence of each node in placement before it was read
    _known: dict[str, int] = field(default_factory=dict, init=False)

    async def round(self, *, deaf: bool = False) -> None:
        """Compare recently changed nodes with placement, or all nodes: every `full_every` rounds, after an
        error, or if too many nodes changed.

        If Ironic cannot list changed nodes, compare nothing or, without notifications (`deaf`), all nodes.
        """
        await self._compare(full=self._rounds_to_full == 0 or (deaf and self._horizon is None))

    async def everything(self) -> None:
        """Read all nodes from Ironic now, and compare them with placement."""
        await self._compare(full=True)

    async def read_changed(self) -> None:
        """Compare the nodes that changed since the last round with placement; do nothing if Ironic cannot
        list them or too many changed.
        """
        await self._compare(full=False, all_if_must=False)

    async def _compare(self, *, full: bool, all_if_must: bool = True) -> None:
        try:
            if full or (not await self._read_changed() and all_if_must):
                await self._everything()
                self._rounds_to_full = self.full_every
            self._rounds_to_full = max(self._rounds_to_full - 1, 0)
        except (Unavailable, IronicRefused):
            SWEEPS_FAILED.inc()
            self._rounds_to_full = 0
            raise

    async def _everything(self) -> None:
        start, began = self.clock.now(), monotonic()
        horizon = await self.survey.horizon()
        placed = await self.survey.placed()
        self.placed(placed)
        self._known = {uuid: provider.sequence for uuid, provider in placed.items()}
        read: dict[str, str | None] = {}
        left: Counter[str] = Counter()
        page_began = monotonic()
        async for found in self.survey.everything(placed, read):
            left += await self._repair(found)
            await self._pause(monotonic() - page_began)
            page_began = monotonic()
        found = await self._unlisted(placed, read)
        left += await self._repair(found)
        self._horizon = horizon
        for aspect in WAITING:
            UNREPAIRED.labels(aspect).set(left[aspect])
        NODES.set(len(read))
        SWEPT_AT.set(start)
        SWEEP_SECONDS.labels("full").observe(monotonic() - began)

    async def _read_changed(self) -> bool:
        if self._horizon is None:
            return True  # Ironic cannot list changed nodes: only rounds that read all nodes find changes
        began = monotonic()
        try:
            reads, horizon = await self.survey.read_changed(self._horizon)
        except ReadAll as why:
            log.info("sweeping all: %s", why)
            return False
        placed = await self.survey.placed_now(str(raw["uuid"]) for raw, _ in reads)
        self.placed(placed)
        await self._repair(await self.survey.judged(reads, placed))
        self._horizon = horizon
        SWEEP_SECONDS.labels("recent").observe(monotonic() - began)
        return True

    async def _unlisted(self, placed: Mapping[str, Provider], read: Collection[str]) -> list[SurveyedNode]:
        """Read the nodes that placement has and Ironic did not list; return differing and deleted nodes.

        If more than the permitted share of nodes is deleted, a mistake is likely: deleted nodes are not
        returned, unless `allow_removals` is set.
        """
        present = sum(not provider.gone for provider in placed.values())
        most = allowance(present, self.share)
        unread = self.survey.unread(placed, read)
        found = await self.survey.each(unread, placed, None if self.allow_removals else most)
        missing = sum(node.node is None for node in found)
        self.held_back = missing if missing > most and not self.allow_removals else 0
        UNREPAIRED.labels("gone").set(self.held_back)
        if self.held_back:
            text = "at least %d of %d nodes are missing in Ironic, and more than %d at once are probably a"
            remedy = "no node is removed. If they were really deleted: berth ironic sweep --allow-removals"
            log.error(f"{text} mistake: {remedy}", self.held_back, present, most)
        return [node for node in found if node.node is not None or not self.held_back]

    async def _repair(self, found: Sequence[SurveyedNode]) -> Counter[str]:
        """Report nodes with repairable differences to placement; return the numbers of differences that only
        operators can fix, by kind.
        """
        counts = Counter(difference.what for node in found for difference in node.differences)
        for aspect, number in counts.items():
            DIFFERENCES.labels(aspect).inc(number)
        repairable = [node for node in found if node.repairable]
        if repairable:
            now = await self.survey.placed_now(node.uuid for node in repairable)
            latest = []
            for node in repairable:
                if self._is_latest(node, now.get(node.uuid)):
                    latest.append(node)
                elif node.node is not None:
                    self.unsure(node.uuid)
            self._known.update((uuid, provider.sequence) for uuid, provider in now.items())
            if different := self.survey.still_different(latest, now):
                log.info("reporting %d nodes that changed without a notification", len(different))
                await self.repair(different)
        return Counter({aspect: counts[aspect] for aspect in WAITING})

    def _is_latest(self, seen: SurveyedNode, now: Provider | None) -> bool:
        """Return False if, since the sweep compared the node, placement applied a report newer than `seen` to
        the provider (`now`).
        """
        if now is None:
            return True
        return now.sequence < sequence_at(seen.began.at) or now.sequence == self._known.get(seen.uuid)

    async def _pause(self, spent: float) -> None:
        """Wait before the next page is read, to limit Ironic's load and the delay of notifications; `spent`
        seconds have passed since the last page.
        """
        await asyncio.sleep(max(0.0, self.clock.chance.uniform(0.8, 1.2) / self.pages_per_second - spent))


SOONEST_SECONDS = 5.0  # between two full sweeps, however often notifications may have been lost
SETTLING_SECONDS = 2.0  # until a hinted change has taken effect


@dataclass(eq=False, repr=False, kw_only=True)
class SweepSchedule:
    """Decides when the next sweep of Ironic starts, and whether it reads all nodes or only changed nodes."""

    sweep: Sweep
    seconds: float
    deaf_seconds: float
    is_subscribed: Callable[[], bool] | None  # missing: notifications are not used
    _requested: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _gap: bool = field(default=True, init=False)  # notifications may be lost: the next sweep reads all nodes
    _settled_at: float | None = field(default=None, init=False)  # when the hinted change has taken effect
    _everything_at: float = field(default=0.0, init=False)  # the earliest time of the next full sweep

    def missed(self) -> None:
        """Start a comparison of all Ironic nodes with placement soon, because notifications may be lost."""
        self._gap = True
        self._requested.set()

    def hinted(self) -> None:
        """Compare Ironic and placement soon, because a notification shows that some node has changed."""
        self._settled_at = asyncio.get_running_loop().time() + SETTLING_SECONDS
        self._requested.set()

    async def run(self) -> None:
        """Run a round after each interval, and earlier after failures or on request, until cancelled."""
        if self.is_subscribed is not None:  # subscribe first, so that no later change is missed
            await self._wake_within(SOONEST_SECONDS)
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._compare()
            except (Unavailable, IronicRefused) as problem:
                log.warning("no sweep over Ironic's nodes: %s", problem)
                self._gap = True
                await asyncio.sleep(min(self.seconds, 2 * SOONEST_SECONDS))
            else:
                await self._until_due(began)

    async def _compare(self) -> None:
        loop = asyncio.get_running_loop()
        self._settled_at = None
        if not self._gap:
            await self.sweep.round(deaf=self._disconnected())
            return
        await self.sweep.read_changed()  # two requests to Ironic find most differences immediately
        await asyncio.sleep(self._everything_at - loop.time())
        self._gap = False
        await self.sweep.everything()
        self._everything_at = loop.time() + SOONEST_SECONDS

    async def _until_due(self, began: float) -> None:
        loop = asyncio.get_running_loop()
        while not self._gap:
            due = began + (min(self.deaf_seconds, self.seconds) if self._disconnected() else self.seconds)
            if self._settled_at is not None:
                due = min(due, max(began + SOONEST_SECONDS, self._settled_at))
            if loop.time() >= due:
                return
            await self._wake_within(min(due - loop.time(), self.deaf_seconds))

    def _disconnected(self) -> bool:
        if self.is_subscribed is None:
            return False
        subscribed = self.is_subscribed()
        SUBSCRIBED.set(subscribed)
        return not subscribed

    async def _wake_within(self, seconds: float) -> None:
        self._requested.clear()
        await set_within(self._requested, seconds)
