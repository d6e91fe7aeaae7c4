"""The problems of waiting requests: those that do not progress, and those that will expire."""

from collections.abc import Iterable

from berth.kit import ProblemReader, ProblemsPart
from bus import topics
from bus.problems import Alert, KnownProblem, ProblemKind
from bus.queries import FindWaiting, WaitingRequest
from control_room.kit import several
from features.waiting.settings import WaitingSettings

PAGES = 10  # of waiting requests that are read

REQUEST_STARVES = ProblemKind(
    name="request-starves",
    severity="warning",
    says="Waiting without progress: {requests} of flavor {flavor}; {lacks}.",
    consequence="These requests get no host until capacity becomes free, and are refused at their time"
    " limit.",
    do="`berth why {first}` names the cause and which change would help; `berth request list` lists all"
    " requests.",
    link="/waiting",
)
REQUEST_EXPIRES = ProblemKind(
    name="request-expires",
    severity="warning",
    says="Waiting longer than permitted: {requests} of flavor {flavor} will reach the time limit before a"
    " host is expected.",
    consequence="These requests are refused at their time limit.",
    do="`berth why {first}` names the cause; free capacity (`berth request list` lists what is ahead),"
    " or send"
    " the request with a longer --wait.",
    link="/waiting",
)
REQUEST_FORGOTTEN = ProblemKind(
    name="request-forgotten",
    severity="warning",
    says="A request waited although a host fitted it.",
    consequence="The periodic check placed it. That no change woke the request is a bug in berth.",
    do="Report the bug with the scheduler's log of that minute.",
    link="/waiting",
    alert=Alert(name="BerthForgotten", expr="sum(increase(berth_scheduler_rescued_total[1h])) > 0"),
)


def overdue(waiting: Iterable[WaitingRequest], now: float, starving_after: float) -> list[KnownProblem]:
    """Return a problem for each equivalence class of requests that starve, or that will expire. A request
    starves if it has waited for `starving_after` seconds, and no start is expected.
    """
    starving: dict[str, list[WaitingRequest]] = {}
    expiring: dict[str, list[WaitingRequest]] = {}
    for request in waiting:
        if request.start_p50 is None:
            if now - request.since >= starving_after:
                starving.setdefault(request.kind, []).append(request)
        elif request.start_p50 > request.until:
            expiring.setdefault(request.kind, []).append(request)
    return [
        *(_problem(REQUEST_STARVES, requests) for requests in starving.values()),
        *(_problem(REQUEST_EXPIRES, requests) for requests in expiring.values()),
    ]


def _problem(kind: ProblemKind, requests: list[WaitingRequest]) -> KnownProblem:
    oldest = min(requests, key=lambda request: request.since)
    count = several(len(requests), "request")
    return kind.problem(
        count,
        oldest.since,
        requests=count,
        flavor=oldest.flavor,
        lacks=oldest.lacks.partition(". ")[0].rstrip("."),  # without the closest hosts
        first=oldest.request,
    )


async def find(reader: ProblemReader) -> list[KnownProblem]:
    ask, requests, after = reader.asker(topics.WAITING), list[WaitingRequest](), 0
    for _ in range(PAGES):
        found = await ask(FindWaiting(after=after, limit=500))
        requests += found.waiting
        if found.more is None:
            break
        after = found.more
    return overdue(requests, reader.now, reader.settings.of(WaitingSettings).starving)


PART = ProblemsPart(
    kinds=(REQUEST_STARVES, REQUEST_EXPIRES, REQUEST_FORGOTTEN), find=find, asks=(topics.WAITING,)
)
