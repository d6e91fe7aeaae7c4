"""Shadow mode: berth decides each request to a running Nova's scheduler too, without a claim. Nova's and
berth's decisions are stored and compared.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from uuid import NAMESPACE_OID, UUID, uuid5

from msgspec import structs
from prometheus_client import Counter

from bus.clock import Clock
from bus.decisions import Decision, reason_text
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, Unavailable
from bus.messages import HostReported
from bus.protocol import Ask
from bus.rabbit.foreign.listener import ForeignListener
from bus.sql.database import Database
from bus.worker import Worker, answers, every
from features.nova.bridge import MIRROR_ASKS, mirror_of
from features.nova.core.notifications import (
    NO_VALID_HOST,
    NovaNotification,
    UnreadableNotification,
    notification_of,
)
from features.nova.core.request_spec import MalformedSpec, RequestSpec
from features.nova.core.translation import BridgeOptions, CannotJudge, NoSuchDestination, translated
from features.nova.databases import NovaDatabases
from features.nova.mirror import Mirror
from features.nova.with_what_if import shadow_store
from features.nova.with_what_if.core.fragmentation import free_memory
from features.nova.with_what_if.core.observed_request import (
    check_decidable,
    independent,
    instances_of,
    observed,
    operation_of,
    refused_without_search,
    shown_host,
    shown_roots,
)
from features.nova.with_what_if.core.shadow_report import (
    DecidedRequest,
    NovaOutcome,
    merged_periods,
    of_instance,
    report,
)
from features.nova.with_what_if.messages import NOVA_REPORT, FindNovaReport, NovaReportFound
from features.nova.with_what_if.unread_queues import UnreadQueues
from features.what_if.messages import WHAT_IF, WhatIf, WhatIfAnswered

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0  # for a decision: a scheduler that takes longer could not serve Nova
AT_ONCE = 16  # decisions that are requested concurrently
LOSS_SECONDS = 1.0  # until a loss is stored if no notification arrives
QUEUE_SECONDS = 60.0  # between two checks of Nova's queues
PRUNE_SECONDS = 3600.0
PRUNE_PAGE = 1000
DAY = 86400.0
SKEW_SECONDS = 60.0  # by which clocks of Nova's hosts may differ
LONGEST_NAME = 255  # characters
MOST_OF_INSTANCE = 50  # requests of one instance that are shown

NOTIFICATIONS = Counter(
    "berth_nova_notifications", "notifications of Nova, by what came of them", ["outcome"]
)


@dataclass(frozen=True, kw_only=True)
class ShadowedNova:
    """A running Nova. Shadow mode compares the decisions of its scheduler with berth's."""

    notifications: ForeignListener
    databases: NovaDatabases
    options: BridgeOptions = field(default_factory=BridgeOptions)
    days: float = 14.0  # for which requests are stored
    topics: Sequence[str] = ("versioned_notifications",)  # of the notifications


class Shadow:
    """Lets berth decide requests to Nova's scheduler, without claims, and stores them with Nova's results."""

    def __init__(
        self,
        nova: ShadowedNova,
        database: Database,
        mirror: Mirror,
        what_if: Ask[WhatIf, WhatIfAnswered],
        clock: Clock,
    ) -> None:
        self._nova = nova
        self._database = database
        self._mirror = mirror
        self._what_if = what_if
        self._clock = clock
        self.unread = UnreadQueues(nova.notifications, nova.topics)
        self._lost_until: float | None = None  # end of a period with losses that is not stored yet
        self._slots = asyncio.Semaphore(AT_ONCE)

    def subscribed(self) -> None:
        """Record the present time as that of the subscription, if earlier notifications may be lost."""
        log.warning("subscribed to Nova's notifications")
        if self._nova.notifications.has_lost:
            self._lost_until = self._clock.now()

    async def record_loss(self) -> None:
        """Store the period from the latest stored notification to the recorded subscription, if notifications
        of this period may be lost.
        """
        if (until := self._lost_until) is not None:
            async with self._database.write() as tx:
                lost = await shadow_store.add_missing(tx, until)
            if self._lost_until == until:
                self._lost_until = None
            if lost is not None:
                log.warning("notifications of Nova between %.0f and %.0f may be lost", lost.since, lost.until)

    async def handle(self, bodies: Sequence[bytes]) -> None:
        """Store Nova's notifications with berth's decisions on the requests in them; raise Unavailable if
        the database is unreachable."""
        await self.record_loss()
        read = [found for body in bodies if (found := _readable(body)) is not None]
        decisions = await self._decide_all(read)
        outcomes = {each.id: self._outcome(each) for each in read if each.event != "asked"}
        if decisions or outcomes:
            async with self._database.write() as tx:
                await shadow_store.add_requests(tx, decisions)
                await shadow_store.add_outcomes(tx, outcomes)

    async def answer(self, question: FindNovaReport) -> NovaReportFound:
        """Return a comparison of Nova's and berth's decisions since a time, or for one instance."""
        now = self._clock.now()
        if question.instance:
            return await self._of_instance(question, now)
        requests = [each async for each in shadow_store.requests_since(self._database, question.since)]
        since = question.since - SKEW_SECONDS
        outcomes = [each async for each in shadow_store.outcomes_since(self._database, since)]
        async with self._database.read() as tx:
            missing = await shadow_store.missing_since(tx, question.since)
        cloud = self._mirror.cloud
        hosts = {shown_host(cloud, host.host, host.node) for host in cloud.hosts.values()}
        found = await asyncio.to_thread(
            report, requests, outcomes, hosts, since=question.since, until=now, listed=question.listed
        )
        return structs.replace(found, missing=merged_periods(missing), unread=self.unread.growing)

    async def prune(self) -> None:
        """Delete stored requests to Nova's scheduler, and Nova's results, that are older than `days`."""
        before = self._clock.now() - self._nova.days * DAY
        await self._database.delete_old(shadow_store.prune, before, PRUNE_PAGE)

    async def _of_instance(self, question: FindNovaReport, now: float) -> NovaReportFound:
        async with self._database.read() as tx:
            found, outcomes = await shadow_store.of_instance(tx, question.instance, MOST_OF_INSTANCE)
        decisions = {request.id: decision for request, decision in found}
        shown = of_instance((request for request, _ in found), outcomes)
        listed = tuple(structs.replace(each, decision=decisions[each.id]) for each in shown)
        return NovaReportFound(until=now, requests=len(listed), listed=listed)

    async def _decide_all(self, read: Sequence[NovaNotification]) -> list[tuple[DecidedRequest, Decision]]:
        asked = {each.id: each for each in read if each.event == "asked"}
        refused = {
            (each.request, "" if each.request else each.instance): each
            for each in read
            if each.event == "refused" and each.operation == "boot" and each.cause == NO_VALID_HOST
        }
        if not asked and not refused:
            return []
        async with self._database.read() as tx:
            known = await shadow_store.known_ids(tx, asked)
            stored = await shadow_store.observed_keys(tx, refused)
        earlier = stored | {(each.request, each.instance) for each in asked.values()}
        unsearched = [
            each
            for (request, instance), each in refused.items()
            if not any(request == of and (request or instance == whose) for of, whose in earlier)
        ]
        fresh = [each for id_, each in asked.items() if id_ not in known]
        return list(await asyncio.gather(*(self._decide(each) for each in (*fresh, *unsearched))))

    async def _decide(self, notification: NovaNotification) -> tuple[DecidedRequest, Decision]:
        is_searched = notification.event == "asked"
        id_ = notification.id
        if not is_searched:  # errors of all instances of a request are about the same decision
            id_ = f"refused:{notification.request or notification.instance}"
        found = DecidedRequest(
            id=id_,
            request=notification.request,
            instance=notification.instance,
            at=notification.at,
            is_searched=is_searched,
        )
        try:
            async with self._slots:
                spec = await self._spec(notification)
                found = replace(
                    found,
                    operation=operation_of(spec),
                    project=(spec.project_id or "")[:LONGEST_NAME],
                    flavor=spec.flavor.name[:LONGEST_NAME],
                    instances=max(1, spec.num_instances),
                )
                found, decision = await self._decided(found, spec)
        except MalformedSpec as problem:
            found, decision = replace(found, undecided=str(problem)), Decision()
        except CannotJudge as why:
            found, decision = replace(found, undecided=f"berth cannot decide about {why}"), Decision()
        except UNANSWERED as problem:
            why_not = f"no scheduler of berth decided: {problem}"
            found, decision = replace(found, undecided=why_not), Decision()
        NOTIFICATIONS.labels("undecided" if found.undecided else "decided").inc()
        return replace(found, lag=max(0.0, self._clock.now() - found.at)), decision

    async def _spec(self, notification: NovaNotification) -> RequestSpec:
        """Return the RequestSpec of a notification's request: from the scheduler's notification, completed
        from Nova's database; or, for a request refused without a search, from the database alone.
        """
        is_asked = notification.event == "asked"
        try:
            stored = await self._nova.databases.request_spec(notification.instance)
        except (Unavailable, MalformedSpec):
            if not is_asked:
                raise
            stored = None
        if not is_asked:
            return refused_without_search(stored)
        return observed(notification.spec or {}, stored)

    async def _decided(self, found: DecidedRequest, spec: RequestSpec) -> tuple[DecidedRequest, Decision]:
        check_decidable(spec)
        alone = independent(spec)
        instances = instances_of(spec, _uuid(found.instance))
        began = self._clock.monotonic()

        def question() -> WhatIf:
            request = str(uuid5(NAMESPACE_OID, found.id))
            made = translated(alone, instances, self._mirror.cloud, self._nova.options, request=request)
            return WhatIf(request=made.question.request, best=1, is_external=True)

        found = replace(found, free=free_memory(self._mirror.cloud, spec.flavor))
        try:
            try:
                asked = question()
            except NoSuchDestination:
                await self._mirror.refresh()
                asked = question()
        except NoSuchDestination as problem:
            return replace(found, reason=str(problem), code="host"), Decision(code="host")
        answer = await self._what_if(asked)
        found = replace(found, seconds=self._clock.monotonic() - began)
        if not answer.fits:
            reason = answer.refusal or reason_of(answer.decision)
            return replace(found, reason=reason, code=answer.decision.code), answer.decision
        placed = [(each.root, each.host, each.instances) for each in answer.placed]
        return replace(found, hosts=shown_roots(self._mirror.cloud, placed)), answer.decision

    def _outcome(self, notification: NovaNotification) -> NovaOutcome:
        NOTIFICATIONS.labels("outcome").inc()
        host = shown_host(self._mirror.cloud, notification.host, notification.node)
        return NovaOutcome(
            request=notification.request,
            instance=notification.instance,
            at=notification.at,
            event=notification.event,
            operation=notification.operation,
            host=host,
            cause=notification.cause,
            reason=notification.reason,
        )


def reason_of(decision: Decision) -> str:
    """Return why a decision chose no host: the constraint that removed the last hosts; if there is none, the
    meaning of the decision's code.
    """
    for removal in decision.removals:
        if not removal.left:
            return f"{removal.constraint} removed the last {removal.removed} of {decision.considered} hosts"
    return reason_text(decision.code) or "no host was found"


def _readable(body: bytes) -> NovaNotification | None:
    try:
        found = notification_of(body)
    except UnreadableNotification as problem:
        NOTIFICATIONS.labels("unreadable").inc()
        log.warning("skipped a message of Nova: %s", str(problem)[:500])
        return None
    if found is None:
        NOTIFICATIONS.labels("ignored").inc()
    return found


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise MalformedSpec(f"instance_uuid: {text[:50]!r} is no UUID") from None


def nova_shadow(nova: ShadowedNova, database: Database, bus: Bus, clock: Clock) -> Worker:
    """Return the worker of shadow mode, which sends each request of a running Nova to berth too, and reports
    where Nova's and berth's decisions differ.
    """
    mirror = mirror_of(nova.databases, bus, clock)
    shadow = Shadow(nova, database, mirror, bus.asker(WHAT_IF, timeout=ANSWER_SECONDS), clock)
    return Worker(
        "nova_shadow",
        answers=[answers(NOVA_REPORT, shadow.answer, concurrency=2)],
        asks=(WHAT_IF, *MIRROR_ASKS),
        timers=[
            every(PRUNE_SECONDS, shadow.prune, at_once=True),
            every(QUEUE_SECONDS, shadow.unread.check, at_once=True),
            every(LOSS_SECONDS, shadow.record_loss),
        ],
        starts=[mirror.refresh],
        runs=[mirror.run, lambda: nova.notifications.run(shadow.handle, shadow.subscribed)],
        stops=[nova.databases.close],
        announces=frozenset({HostReported}),
    )
