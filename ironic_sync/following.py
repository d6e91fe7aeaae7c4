"""Updates the known states of Ironic nodes from notifications and reads, and reports changes to placement."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from bus.clock import Clock, RateLimitedPublisher
from bus.context import NO_CONTEXT, StoredContext, current_tracer, resumed
from bus.errors import BrokerRefused, TooBig, Unavailable, Unroutable
from bus.ironic import MOST_REPORTED, IronicSpoke
from bus.messages import InventoryReported
from bus.protocol import Envelope
from bus.replication import PlacementChanged
from bus.resources import Provider
from ironic_sync.core.known_state import InPlacement, KnownStateRules, Moment, Step
from ironic_sync.core.known_states import KnownStates
from ironic_sync.core.node import IronicNode, Place, ReceivedNotification, Skipped, opened
from ironic_sync.core.rule import Invalid, is_open
from ironic_sync.notifications import CLAIMABLE_SECONDS, EVENTS, LAG_SECONDS, REPORTED_SECONDS, SKIPPED
from ironic_sync.reader import NodeRead
from ironic_sync.survey import SurveyedNode

log = logging.getLogger(__name__)

RECENT_SECONDS = 60.0  # seconds without notifications after which another process is assumed to receive them
AHEAD_SECONDS = 60.0  # a date further in the future is not trusted
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # seconds between attempts to report to placement

Publish = Callable[..., Awaitable[None]]  # publishes messages, and returns when the bus has confirmed them


@dataclass(eq=False, repr=False)
class Following:
    """Holds the known states of Ironic's nodes, and reports each change to placement."""

    rules: KnownStateRules
    publish: Publish
    clock: Clock
    request_read: Callable[[str], None] | None = None
    on_gap: Callable[[], None] = lambda: None  # requests a search for recent changes
    on_reported: Callable[[Collection[str]], None] = lambda _: None  # receives the nodes of notifications

    def __post_init__(self) -> None:
        self.beliefs = KnownStates(self.rules)
        self._contexts = NotificationTraces()
        self._received_at = -math.inf  # monotonic time of the last notification
        self._opening: dict[str, float] = {}  # nodes about to open, with the time of the notification
        self._opened: dict[str, float] = {}  # reported as open, and not yet seen in placement

    def moment(self) -> Moment:
        """Return the current time and the number of notifications so far, to mark the start of a read."""
        return self.beliefs.moment(self.clock.now())

    async def handle(self, bodies: Sequence[bytes]) -> None:
        """Apply messages of Ironic's exchange to the known states; return after reports are published."""
        self._received_at = self.clock.monotonic()
        reports: dict[str, InventoryReported] = {}  # the last report of each node
        dates = []
        nodes = set[str]()
        for body in bodies:
            notification = opened(body)
            if isinstance(notification, Skipped):
                SKIPPED.labels(notification.reason).inc()
                level = logging.WARNING if notification.reason == "unreadable" else logging.DEBUG
                skipped = notification.reason, notification.why[:500]
                log.log(level, "skipped a message of Ironic's: %s: %s", *skipped)
                continue
            step = self._apply_notification(notification)
            nodes.add(notification.uuid)
            if step is not None and step.report is not None:
                reports[notification.uuid] = step.report
                dates.append(notification.at)
        await self.report(tuple(reports.values()))
        if named := nodes - {""}:
            self.on_reported(named)
        now = self.clock.now()
        for date in dates:
            REPORTED_SECONDS.observe(max(0.0, now - date))

    async def found(self, found: Sequence[NodeRead]) -> None:
        """Apply reads of Ironic's nodes to the known states; return after reports are published."""
        reports = (self._apply_read(read.uuid, read.node, read.began) for read in found)
        await self.report([report for report in reports if report is not None])

    async def repair(self, seen: Sequence[SurveyedNode]) -> None:
        """Report nodes that a sweep found to differ from placement; return after reports are published."""
        reports = (
            self._apply_read(node.uuid, node.node, node.began, _in_placement(node.provider)) for node in seen
        )
        await self.report([report for report in reports if report is not None])

    def closed(self, uuid: str) -> bool:
        """Return True if this process's last report of the node showed it as not free; False if free, or
        without a report.
        """
        report = self.beliefs.of(uuid).reported
        return report is not None and not is_open(report)

    def placed(self, providers: Mapping[str, Provider]) -> None:
        """Record for each node the number (`sequence`) of the last report that placement has applied."""
        for uuid, provider in providers.items():
            self.beliefs.placement_has(uuid, provider.sequence)

    async def report(self, reports: Sequence[InventoryReported]) -> None:
        """Publish the nodes' reports to placement; retry while the message broker is unreachable, and drop a
        report that it refuses.
        """
        pause = FIRST_PAUSE
        while reports:
            try:
                await self._publish_once(reports)
                return
            except (Unavailable, Unroutable) as condition:
                if pause == FIRST_PAUSE:
                    log.warning("%d reports of nodes wait: %s", len(reports), condition)
            except (TooBig, BrokerRefused) as problem:
                if len(reports) == 1:
                    log.error("node %s cannot be reported to placement: %s", reports[0].root, problem)
                    return
                for report in reports:
                    await self.report((report,))
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _publish_once(self, reports: Sequence[InventoryReported]) -> None:
        """Publish each report in the OpenTelemetry trace of its node's notification; raise any error."""

        async def publish_reports(context: StoredContext, some: Sequence[InventoryReported]) -> None:
            with resumed(context):
                await self.publish(*some)

        outcomes = await asyncio.gather(
            *(publish_reports(context, some) for context, some in self._contexts.by_trace(reports)),
            return_exceptions=True,
        )
        for problem in outcomes:
            if problem is not None:
                raise problem
        for report in reports:
            self._contexts.end(report.root)

    async def changed(self, changes: Sequence[PlacementChanged]) -> Sequence[None]:
        """Record which reports of nodes placement has applied. If another process's report replaced one of
        this process, read the node again or, without API access, report its known state if that is later.
        """
        now = self.clock.now()
        for change in (change for message in changes for change in message.changes):
            if not change.reshaped:
                continue
            if change.root in self._opened:
                CLAIMABLE_SECONDS.observe(max(0.0, now - self._opened.pop(change.root)))
            if self.beliefs.placement_has(change.root, change.sequence) and self._receives_notifications():
                # A later notification may be unreported: its state equalled the replaced report.
                if self.request_read is not None:
                    self.request_read(change.root)
                elif (again := self.beliefs.newer(change.root, change.sequence)) is not None:
                    await self.report((again,))
        return [None] * len(changes)

    def _receives_notifications(self) -> bool:
        """Return whether this process gets notifications: the last is less than RECENT_SECONDS old."""
        return self.clock.monotonic() < self._received_at + RECENT_SECONDS

    def _apply_notification(self, notification: ReceivedNotification) -> Step | None:
        now = self.clock.now()
        LAG_SECONDS.set(now - notification.at)
        event = f"{notification.event}.{notification.phase}"
        if not notification.uuid:
            EVENTS.labels(event, "hint").inc()
            self.on_gap()
            return None
        try:
            with self._contexts.span(notification):
                step = self.beliefs.handle(notification, latest=now + AHEAD_SECONDS)
        except Invalid as problem:
            EVENTS.labels(event, "invalid").inc()
            log.warning("node %s, %s: %s", notification.uuid, event, problem)
            return None
        except Exception:  # a bug, which would return with the message forever
            EVENTS.labels(event, "bug").inc()
            log.exception("node %s, %s: cannot be taken in", notification.uuid, event)
            return None
        EVENTS.labels(event, step.outcome).inc()
        if step.outcome == "read" or (step.report is not None and is_open(step.report)):
            self._opening.setdefault(notification.uuid, notification.at)
        self._watch(notification.uuid, step.report)
        if step.read and self.request_read is not None:
            self.request_read(notification.uuid)
        elif step.report is None:
            self._contexts.end(notification.uuid)
        return step

    def _apply_read(
        self, uuid: str, node: IronicNode | None, began: Moment, differs: InPlacement | None = None
    ) -> InventoryReported | None:
        try:
            step = self.beliefs.read(uuid, node, began, differs)
        except Invalid as problem:
            log.warning("node %s: %s", uuid, problem)
            return None
        if step.read and self.request_read is not None:
            self.request_read(uuid)
        elif step.report is None:
            self._opening.pop(uuid, None)
            self._contexts.end(uuid)
        self._watch(uuid, step.report)
        return step.report

    def _watch(self, uuid: str, report: InventoryReported | None) -> None:
        """If `report` frees a node, begin to measure the time from its notification until it is free in
        placement.
        """
        if report is None:
            return
        at = self._opening.pop(uuid, None)
        self._opened.pop(uuid, None)
        if at is not None and is_open(report):
            self._opened[uuid] = at


def _in_placement(provider: Provider | None) -> InPlacement:
    return InPlacement() if provider is None else InPlacement(provider.sequence, Place.of(provider))


class NotificationTraces:
    """Holds for each node the OpenTelemetry trace of its notification, until the report is published."""

    def __init__(self) -> None:
        self._contexts: dict[str, StoredContext] = {}

    @contextmanager
    def span(self, notification: ReceivedNotification) -> Iterator[None]:
        """Run the block that handles a notification in the first span of a new OpenTelemetry trace."""
        if (tracer := current_tracer()) is None:
            yield
            return
        event = f"baremetal.node.{notification.event}.{notification.phase}"
        parent, nothing = tracer.beginning(event), msgspec.Raw(b"")
        envelope = Envelope(id=notification.id, type=event, key=event, body=nothing, traceparent=parent)
        span = tracer.handling("ironic_sync", event, envelope)
        if span is None:
            yield
            return
        self._contexts[notification.uuid] = StoredContext(notification.id, notification.id, parent)
        try:
            yield
        except BaseException as problem:
            span.end(problem)
            raise
        span.end()

    def end(self, uuid: str) -> None:
        """Forget the OpenTelemetry trace of a node's notification: no further message is published in it."""
        self._contexts.pop(uuid, None)

    def by_trace(
        self, reports: Sequence[InventoryReported]
    ) -> list[tuple[StoredContext, list[InventoryReported]]]:
        """Group the reports of nodes by the OpenTelemetry trace of their node's notification."""
        if not self._contexts:
            return [(NO_CONTEXT, list(reports))]
        found: dict[StoredContext, list[InventoryReported]] = {}
        for report in reports:
            found.setdefault(self._contexts.get(report.root, NO_CONTEXT), []).append(report)
        return list(found.items())


class NotifiedNodes:
    """Publishes at intervals which nodes Ironic's notifications named, so that open web pages refresh."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._nodes: set[str] = set()
        self._notifier = RateLimitedPublisher(self._publish_nodes, "the list of nodes with events")
        self.run = self._notifier.run

    def add(self, nodes: Collection[str]) -> None:
        """Add nodes to the next published message, because Ironic sent notifications about them."""
        self._nodes.update(nodes)
        self._notifier.due()

    async def _publish_nodes(self) -> None:
        nodes, self._nodes = self._nodes, set()
        await self._publish(IronicSpoke(nodes=tuple(sorted(nodes)) if len(nodes) <= MOST_REPORTED else ()))
