"""Provides waiting requests with estimates of their start times, and stores how fast the queues advance.

The measurements are stored with the scheduler's heartbeat. So every scheduler can answer for all waiting
requests, and a scheduler that takes over waiting requests takes over the measurements of their queues.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import structs
from prometheus_client import Gauge

from bus.clock import Clock
from bus.errors import NOT_JSON
from bus.queries import WaitingRequest
from bus.vocabulary import Id
from features.waiting.core.calibration import P50, P90, Calibration, StartEstimate
from features.waiting.core.start_times import ClassHistory, NewCounts, StartTimes, estimate, new_kind
from features.waiting.core.waiting_queues import WaitingQueues
from features.waiting.messages import priority_of
from features.waiting.tables.queued import OtherScheduler, QueuedRequest

log = logging.getLogger(__name__)

ERROR = Gauge(
    "berth_scheduler_start_calibration_error",
    "recent share of requests that started (in the backlog: were evaluated) before this estimate, minus the"
    " intended share",
    ["queue", "quantile"],
)

Histories = Mapping[str, ClassHistory]
Listed = Sequence[tuple[WaitingRequest, str]]  # waiting requests, each with the name of its scheduler

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, ClassHistory]).decode


def show_calibration(queue: str, calibration: Calibration) -> None:
    """Set the metrics of the estimates for a kind of queue: `waiting` or `backlog`."""
    for name, quantile in (("p50", P50), ("p90", P90)):
        ERROR.labels(queue, name).set(calibration.error(quantile))


class StartEstimates:
    """The start times estimated for one scheduler's waiting requests; times are of the scheduler's clock."""

    def __init__(self, clock: Clock) -> None:
        self.times = StartTimes()
        self._clock = clock
        self._idle = True  # True if no request waits and the last history is stored

    def enter(self, entry: QueuedRequest, position: int, lacks: str, *, is_refused: bool = False) -> None:
        """Begin to estimate when a request starts that lacks capacity, or commits with a key if a rule has
        refused it: from how fast equal requests that lacked the same have started.
        """
        now, priority = self._clock.monotonic(), priority_of(entry.message.parts)
        kind = _refused_kind(entry.kind, lacks) if is_refused else entry.kind
        self.times.enter(entry.request, kind, lacks, priority, position, now)

    def of_first(self, entry: QueuedRequest) -> StartEstimate | None:
        """Return when the first request of a queue starts, as seconds from now; None: unknown."""
        return self.times.estimate(entry.kind, priority_of(entry.message.parts), 1, self._clock.monotonic())

    def leave(self, requests: Iterable[Id], *, started: bool = False) -> None:
        """Record that waiting requests have left their queues, unless it is recorded already. If they got
        hosts (`started`), compare their estimates with the time that they waited.
        """
        now = self._clock.monotonic()
        for request in requests:
            self.times.leave(request, now, started=started)

    def forget(self, requests: Iterable[Id]) -> None:
        """Drop waiting requests that another scheduler has taken over."""
        now = self._clock.monotonic()
        for request in requests:
            self.times.forget(request, now)

    def measure(self, new: Mapping[str, NewCounts], unstored: Mapping[str, int]) -> None:
        """Measure how fast new requests are evaluated, by project; `unstored` are only in memory."""
        self.times.measure(new, unstored, self._clock.monotonic())

    def encoded(self) -> str:
        """Return how fast the queues advance, as a JSON text for the heartbeat; empty if nothing changed."""
        if self._idle and not self.times.waiting:
            return ""
        self._idle = not self.times.waiting
        stored = self.times.stored(self._clock.monotonic())
        show_calibration("waiting", self.times.calibration)
        show_calibration("backlog", self.times.evaluations)
        return _encode(stored).decode()

    def adopt(self, stored: Iterable[str]) -> None:
        """Take over the measured speed of the queues of schedulers that ended, from JSON texts."""
        for text in stored:
            self.times.adopt(_histories(text), self._clock.monotonic())

    def expected(
        self, kind: str, priority: int, position: int, roster: Collection[OtherScheduler]
    ) -> tuple[float, float] | None:
        """Return when a request of an equivalence class will start that comes next (p50 and p90, seconds
        since 1970), or None if unknown. Any scheduler may receive the request, so its largest position counts
        (`position` here, or last of the class at a scheduler in `roster`).
        """
        histories = [_histories(scheduler.starts) for scheduler in roster]
        waiting = [classes[kind].waiting for classes in histories if kind in classes]
        position = max(position, *(several + 1 for several in waiting), 1)
        starts = [estimate(classes, kind, priority, position) for classes in histories]
        starts.append(self.times.estimate(kind, priority, position, self._clock.monotonic()))
        return self._latest(starts)

    def expected_evaluation(
        self, project: str, priority: int, before: Mapping[str, int], roster: Collection[OtherScheduler]
    ) -> tuple[float, float] | None:
        """Return when a new request will be evaluated (p50 and p90, seconds since 1970), or None if unknown.
        `before` has the number of stored requests before it, for each scheduler that may evaluate it. For a
        scheduler without a history of the project, the others' histories are used.
        """
        kind = new_kind(project)
        histories = {scheduler.owner: _histories(scheduler.starts) for scheduler in roster}
        known = {owner: classes for owner, classes in histories.items() if kind in classes}
        return self._latest(
            estimate(classes, kind, priority, requests + classes[kind].unstored + 1)
            for owner, requests in before.items()
            for classes in ([known[owner]] if owner in known else known.values())
        )

    def _latest(self, starts: Iterable[StartEstimate | None]) -> tuple[float, float] | None:
        start, now = max(filter(None, starts), key=lambda each: each.p90, default=None), self._clock.now()
        return None if start is None else (now + start.p50, now + start.p90)

    def estimated(
        self, listed: Listed, queues: WaitingQueues, roster: Collection[OtherScheduler]
    ) -> list[WaitingRequest]:
        """Return waiting requests with their estimated start times. For a request of another scheduler, the
        position among all requests of its class is multiplied by the fraction of them that wait at this other
        scheduler. Without a history of the class at that scheduler, any scheduler's history is used.
        """
        histories = {scheduler.owner: _histories(scheduler.starts) for scheduler in roster}
        now, answers = self._clock.now(), list[WaitingRequest]()
        for request, owner in listed:
            kind, priority = request.kind, request.priority
            if request.wakes_on:
                kind = _refused_kind(kind, request.wakes_on)
            if kind == request.kind and request.request in queues:
                position, _ = queues.place(request.request)
                start = self.times.estimate(kind, priority, position, self._clock.monotonic())
            else:
                position = _position(request, kind, histories, owner)
                start = estimate(histories.get(owner, {}), kind, priority, position)
            if start is None:
                elsewhere = (
                    estimate(classes, kind, priority, request.position) for classes in histories.values()
                )
                start = next(filter(None, elsewhere), None)
            answers.append(_with_start(request, start, now))
        return answers


def _with_start(request: WaitingRequest, start: StartEstimate | None, now: float) -> WaitingRequest:
    if start is None:
        return request
    return structs.replace(request, start_p50=now + start.p50, start_p90=now + start.p90)


def _refused_kind(kind: str, wakes_on: str) -> str:
    return f"{kind} {wakes_on}"


def _position(request: WaitingRequest, kind: str, histories: Mapping[str, Histories], owner: str) -> int:
    waiting = {
        name: history.waiting
        for name, classes in histories.items()
        if (history := classes.get(kind)) is not None
    }
    everywhere = sum(waiting.values())
    share = waiting.get(owner, 0) / everywhere if everywhere else 1.0
    return max(round(request.position * share), 1)


def _histories(text: str) -> dict[str, ClassHistory]:
    """Decode the stored speed of queues, by class; return an empty mapping if it is unreadable."""
    try:
        return _decode(text) if text else {}
    except NOT_JSON as problem:
        log.warning("the stored pace of queues cannot be read: %s", problem)
        return {}
