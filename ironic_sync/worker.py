"""The worker of ironic_sync: receives notifications, reads nodes, sweeps, and reports nodes to placement.

Several processes may report one node: placement ignores a report unless its sequence number is higher than
the last one.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bus.clock import Clock
from bus.errors import Poison
from bus.ironic import IronicSpoke, NodeChanged
from bus.messages import InventoryReported
from bus.protocol import Ask
from bus.resources import FindProviders, ProvidersFound
from bus.topics import INVENTORY_REPORTED, IRONIC_NODE, PLACEMENT_CHANGED, PROVIDERS
from bus.worker import Every, Worker, every, on_many
from ironic_sync.api import WITH_ALL, IronicApi
from ironic_sync.core.known_state import KnownStateRules
from ironic_sync.core.rule import Invalid, inventory_of
from ironic_sync.core.selection import NodeSelection
from ironic_sync.following import Following, NotifiedNodes, Publish
from ironic_sync.maintenance import STEP_SECONDS, MaintenanceFlags
from ironic_sync.notifications import Notifications
from ironic_sync.reader import Reader
from ironic_sync.survey import Survey
from ironic_sync.sweep import Sweep, SweepSchedule

Find = Ask[FindProviders, ProvidersFound]
Run = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class FollowedIronic:
    """An Ironic with nodes that berth reports to placement. berth detects changes by notifications, by the
    API, or (recommended) by both.
    """

    selection: NodeSelection
    notifications: Notifications | None = None
    api: IronicApi | None = None
    skip_reserve_in_use: bool = False  # see `core/rule.py`
    reads_at_once: int = 16
    sweep_seconds: float = 60.0  # between two sweeps, which usually read only recently changed nodes
    deaf_sweep_seconds: float = 5.0  # between two sweeps while notifications are not received
    full_every: int = 10  # one of this number of sweeps reads all nodes
    pages_per_second: float = 4.0
    share_gone: float = 0.1  # if more than this fraction of the nodes is deleted, none is removed


def ironic_sync(
    ironic: FollowedIronic | None = None,
    publish: Publish | None = None,
    find: Find | None = None,
    *,
    skip_reserve_in_use: bool = False,
    clock: Clock | None = None,
) -> Worker:
    """Return the worker that reports Ironic's nodes to placement: from NodeChanged messages and, if `ironic`
    is given, also by watching this Ironic.
    """
    if ironic is None:
        return Worker("ironic_sync", consumes=[_by_tools(skip_reserve_in_use, None)])
    if publish is None or (find is None and ironic.api is not None):
        raise TypeError("following an Ironic requires a publisher, and sweeping queries to placement")
    return _following(ironic, publish, find, clock or Clock())


def _following(ironic: FollowedIronic, publish: Publish, find: Find | None, clock: Clock) -> Worker:
    rules = KnownStateRules(
        place=ironic.selection.place,
        can_read=ironic.api is not None,
        only_reads_place=ironic.selection.only_reads_place,
        skip_reserve_in_use=ironic.skip_reserve_in_use,
    )
    notifications = ironic.notifications
    notified = NotifiedNodes(publish)
    runs: list[Run] = []
    timers: list[Every] = []
    after_gap: list[Callable[[], None]] = []
    if ironic.api is None or find is None:
        following = Following(rules, publish, clock, on_reported=notified.add)
    else:
        following = Following(
            rules, publish, clock, lambda uuid: reader.request(uuid), lambda: schedule.hinted(), notified.add
        )
        reader = _reader(ironic, ironic.api, following, clock)
        survey = Survey(ironic.api, find, ironic.selection, rules, following.moment)
        schedule = _sweeps(ironic, survey, following, reader, clock)
        after_gap = [schedule.missed]
        timers = [every(STEP_SECONDS, MaintenanceFlags(ironic.api, find).step)]
        runs = [lambda: reader.run(following.moment, following.found), schedule.run]
    consumes = [_by_tools(ironic.skip_reserve_in_use, following)]
    if notifications is not None:

        def interrupted() -> None:
            following.beliefs.forget_reported()
            for on_gap in after_gap:
                on_gap()

        runs += [lambda: notifications.run(following.handle, interrupted), notified.run]
        consumes.append(on_many(PLACEMENT_CHANGED, following.changed, private=True))
    return Worker(
        "ironic_sync",
        consumes=consumes,
        asks=[PROVIDERS] if ironic.api is not None else [],
        starts=[ironic.api.open] if ironic.api is not None else [],
        timers=timers,
        runs=runs,
        stops=[ironic.api.close] if ironic.api is not None else [],
        announces=frozenset({InventoryReported, IronicSpoke}),
    )


def _reader(ironic: FollowedIronic, api: IronicApi, following: Following, clock: Clock) -> Reader:
    return Reader(
        api,
        clock,
        at_once=ironic.reads_at_once,
        fields=[name for name in ironic.selection.fields() if name not in WITH_ALL],
        filters=ironic.selection.filters(),
        closed=following.closed,
    )


def _sweeps(
    ironic: FollowedIronic, survey: Survey, following: Following, reader: Reader, clock: Clock
) -> SweepSchedule:
    """Return the schedule of sweeps, in which all nodes are compared with placement's providers."""
    notifications = ironic.notifications
    sweep = Sweep(
        survey,
        following.repair,
        clock,
        placed=following.placed,
        unsure=reader.request,
        full_every=ironic.full_every,
        pages_per_second=ironic.pages_per_second,
        share=ironic.share_gone,
    )
    return SweepSchedule(
        sweep=sweep,
        seconds=ironic.sweep_seconds,
        deaf_seconds=ironic.deaf_sweep_seconds,
        is_subscribed=None if notifications is None else lambda: notifications.subscribed,
    )


def _by_tools(skip_reserve_in_use: bool, following: Following | None) -> Any:
    """Return the table row that handles NodeChanged messages, which other tools send with the full state of a
    node.
    """

    def report_of(node: NodeChanged) -> InventoryReported | Poison | None:
        try:
            report = inventory_of(node, skip_reserve_in_use=skip_reserve_in_use)
        except Invalid as problem:
            return Poison(str(problem))
        if report is not None and following is not None:
            following.beliefs.reported_elsewhere(report.root, report.sequence)
        return report

    async def sync(nodes: Sequence[NodeChanged]) -> Sequence[InventoryReported | Poison | None]:
        return [report_of(node) for node in nodes]

    return on_many(IRONIC_NODE, sync, emits=[INVENTORY_REPORTED])
