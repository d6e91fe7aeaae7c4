"""Messages of shadow mode: decisions of a running Nova's scheduler, compared with berth's."""

from typing import Annotated, Literal

from msgspec import Meta

from bus.decisions import Decision
from bus.feature import MessagesPart
from bus.topics import ANYONE, Query
from bus.vocabulary import Cause, Count, LongList, Message, Number, Seconds, Text, Value

Verdict = Literal[
    "same", "different", "nova refused", "berth refused", "both refused", "undecided", "late", "open"
]


class FindNovaReport(Message, frozen=True, kw_only=True):
    """A query to compare Nova's scheduler with berth's: for the requests since a time, or of one instance."""

    since: Seconds = 0.0  # seconds since the epoch
    listed: Annotated[int, Meta(ge=0, le=1000)] = 100  # requests of each kind that are listed, newest first
    instance: Text = ""  # only the requests of this instance, with berth's decisions


class ObservedRequest(Value, frozen=True, kw_only=True):
    """A request to Nova's scheduler, with the results of Nova's scheduler and of berth's."""

    id: Text
    instance: Text
    at: Seconds
    operation: Text
    verdict: Verdict
    instances: Count = 1
    flavor: Text = ""
    project: Text = ""
    nova_hosts: LongList[Text] = ()
    nova_reason: Cause = ""
    nova_seconds: Seconds | None = None
    berth_hosts: LongList[Text] = ()
    berth_reason: Cause = ""  # why berth has no host
    berth_code: Text = ""
    berth_seconds: Seconds | None = None
    decision: Decision | None = None  # only in answers about one instance


class SchedulerFigures(Value, frozen=True, kw_only=True):
    """Statistics of one scheduler, Nova's or berth's: instances, hosts used, imbalance and latency."""

    instances: Count = 0  # number of placed instances, of requests for which both schedulers found hosts
    hosts: Count = 0  # number of hosts with at least one of the instances
    imbalance: Number | None = None  # coefficient of variation of the numbers of instances on all hosts
    # mean fraction of the free memory that is on hosts where the requested flavor no longer fits
    fragmentation: Number | None = None
    p50: Seconds | None = None  # latency of decisions
    p99: Seconds | None = None


class HostShare(Value, frozen=True, kw_only=True):
    """A host, with the number of instances that Nova's scheduler placed on it, and the number for which
    berth's scheduler would have chosen it.
    """

    host: Text
    nova: Count = 0
    berth: Count = 0


class ReasonCount(Value, frozen=True, kw_only=True):
    reason: Cause
    requests: Count


class MissingPeriod(Value, frozen=True, kw_only=True):
    """A period in which notifications of Nova may be lost; its requests may be missing in the comparison."""

    since: Seconds
    until: Seconds


class UnreadQueue(Value, frozen=True, kw_only=True):
    """A queue of Nova's notifications that grows because it has no consumer."""

    queue: Text
    messages: Count


class NovaReportFound(Message, frozen=True, kw_only=True):
    """The comparison of Nova's scheduler with berth's.

    A request is compared only if Nova's decision is known, and berth decided before Nova's decision was
    visible to berth.
    """

    since: Seconds = 0.0
    until: Seconds = 0.0
    requests: Count = 0
    same: Count = 0  # both chose the same hosts
    different: Count = 0
    nova_refused: Count = 0  # only Nova found no host
    berth_refused: Count = 0  # only berth found no host
    both_refused: Count = 0
    undecided: Count = 0  # requests without a decision of berth
    late: Count = 0  # berth decided when Nova's decision was already visible to it
    open: Count = 0  # requests without a known result of Nova
    nova: SchedulerFigures = SchedulerFigures()
    berth: SchedulerFigures = SchedulerFigures()
    shares: LongList[HostShare] = ()  # hosts with the largest differences first
    more_hosts: Count = 0  # number of hosts that `shares` leaves out
    listed: LongList[ObservedRequest] = ()
    undecided_reasons: LongList[ReasonCount] = ()
    missing: LongList[MissingPeriod] = ()
    unread: LongList[UnreadQueue] = ()


NOVA_REPORT = Query(
    "nova.report",
    FindNovaReport,
    NovaReportFound,
    "decisions of a running Nova's scheduler compared with berth's (shadow mode)",
    ANYONE,
    "nova_shadow",
)


PART = MessagesPart(page_asks=(NOVA_REPORT,))
