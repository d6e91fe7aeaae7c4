"""The worker: hears of Ironic's nodes, reads them, sweeps over them, and tells placement.

Placement knows by the sequence which of two reports of a node counts, whoever made them.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bus.clock import Clock
from bus.errors import Poison, Unavailable
from bus.messages import FindProviders, InventoryReported, NodeChanged, ProvidersFound
from bus.protocol import Ask
from bus.topics import INVENTORY_REPORTED, IRONIC_NODE, PLACEMENT_CHANGED, PROVIDERS
from bus.worker import Worker, on_many
from ironic_sync.access import IronicRefused
from ironic_sync.api import WITH_ALL, IronicApi
from ironic_sync.core.belief import BeliefRules
from ironic_sync.core.rule import Invalid, inventory_of
from ironic_sync.core.selection import NodeSelection
from ironic_sync.following import Following, Publish
from ironic_sync.notifications import Notifications
from ironic_sync.reader import Reader
from ironic_sync.survey import Survey
from ironic_sync.sweep import Sweep

log = logging.getLogger(__name__)

SOONEST_SECONDS = 5.0  # from one sweep to the next, however often something may have passed us by
SETTLING_SECONDS = 2.0  # until what was hinted at is so

Find = Ask[FindProviders, ProvidersFound]
Run = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class FollowedIronic:
    """An Ironic to be followed: by what it says, by what can be read of it, or best by both."""

    selection: NodeSelection
    notifications: Notifications | None = None
    api: IronicApi | None = None
    skip_reserve_in_use: bool = False  # see `core/rule.py`
    reads_at_once: int = 16
    sweep_seconds: float = 60.0  # from one look at what changed lately to the next
    full_every: int = 10  # such looks, of which one is at everything
    pages_per_second: float = 4.0
    share_gone: float = 0.1  # of the nodes; more are not removed at once


def ironic_sync(
    ironic: FollowedIronic | None = None,
    publish: Publish | None = None,
    find: Find | None = None,
    *,
    skip_reserve_in_use: bool = False,
    clock: Clock | None = None,
) -> Worker:
    """Takes what tools and simulations say of nodes as it is; and follows an Ironic, if one is given.

    With `skip_reserve_in_use` an available node with an instance stays unreserved, as Nova can be told.
    """
    if ironic is None:
        return Worker("ironic_sync", consumes=[_by_tools(skip_reserve_in_use, None)])
    if publish is None or (find is None and ironic.api is not None):
        raise TypeError(
            "following an Ironic takes a way to publish, and to sweep over it one to ask placement"
        )
    return _following(ironic, publish, find, clock or Clock())


def _following(ironic: FollowedIronic, publish: Publish, find: Find | None, clock: Clock) -> Worker:
    rules = BeliefRules(
        place=ironic.selection.place,
        can_read=ironic.api is not None,
        only_reads_place=ironic.selection.only_reads_place,
        skip_reserve_in_use=ironic.skip_reserve_in_use,
    )
    wake = _Wake()
    runs: list[Run] = []
    if ironic.api is None or find is None:
        following = Following(rules, publish, clock)
    else:
        following = Following(rules, publish, clock, lambda uuid: reader.wish(uuid), wake.hinted)
        reader = Reader(
            ironic.api,
            clock,
            at_once=ironic.reads_at_once,
            fields=[name for name in ironic.selection.fields() if name not in WITH_ALL],
            filters=ironic.selection.filters(),
            closed=following.closed,
        )
        sweep = Sweep(
            Survey(ironic.api, find, ironic.selection, rules, following.moment),
            following.repair,
            clock,
            placed=following.placed,
            unsure=reader.wish,
            full_every=ironic.full_every,
            pages_per_second=ironic.pages_per_second,
            share=ironic.share_gone,
        )
        runs = [
            lambda: reader.run(following.moment, following.found),
            lambda: _sweeping(sweep, ironic.sweep_seconds, wake, heard=ironic.notifications is not None),
        ]
    notifications = ironic.notifications
    consumes = [_by_tools(ironic.skip_reserve_in_use, following)]
    if notifications is not None:

        def interrupted() -> None:
            following.interrupted()
            wake.missed()

        runs.append(lambda: notifications.run(following.hear, interrupted))
        consumes.append(on_many(PLACEMENT_CHANGED, following.changed, private=True))
    return Worker(
        "ironic_sync",
        consumes=consumes,
        asks=[PROVIDERS] if ironic.api is not None else [],
        starts=[ironic.api.open] if ironic.api is not None else [],
        runs=runs,
        stops=[ironic.api.close] if ironic.api is not None else [],
        announces=frozenset({InventoryReported}),
    )


def _by_tools(skip_reserve_in_use: bool, following: Following | None) -> Any:
    """The row of those who say themselves how a node is."""

    def told(node: NodeChanged) -> InventoryReported | Poison | None:
        try:
            report = inventory_of(node, skip_reserve_in_use=skip_reserve_in_use)
        except Invalid as problem:
            return Poison(str(problem))
        if report is not None and following is not None:
            following.told_by_others(report.root, report.sequence)
        return report

    async def sync(nodes: Sequence[NodeChanged]) -> Sequence[InventoryReported | Poison | None]:
        return [told(node) for node in nodes]

    return on_many(IRONIC_NODE, sync, emits=[INVENTORY_REPORTED])


class _Wake:
    """Why a sweep does not wait until it is due."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.gap = True  # something may have passed us by: only everything will do

    def missed(self) -> None:
        self.gap = True
        self._event.set()

    def hinted(self) -> None:
        self._event.set()

    async def within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()

    def taken(self) -> None:
        self.gap = False
        self._event.clear()


async def _sweeping(sweep: Sweep, seconds: float, wake: _Wake, *, heard: bool) -> None:
    """Round after round; of everything at first, and whenever notifications may have passed us by."""
    if heard:  # what is not read yet when we begin to hear cannot pass us by
        await wake.within(SOONEST_SECONDS)
    while True:
        everything, pause = wake.gap, seconds
        wake.taken()
        try:
            await (sweep.everything() if everything else sweep.round())
        except (Unavailable, IronicRefused) as problem:
            log.warning("no sweep over Ironic's nodes: %s", problem)
            wake.gap, pause = True, min(seconds, 2 * SOONEST_SECONDS)
        await asyncio.sleep(min(SOONEST_SECONDS, pause))
        if await wake.within(max(0.0, pause - SOONEST_SECONDS)) and not wake.gap:
            await asyncio.sleep(SETTLING_SECONDS)
