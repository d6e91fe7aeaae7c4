"""Evaluates waiting requests when a change wakes them or they expire, and publishes their results.

Requests of one lane (all builds; for example the moves of one cell) are evaluated together; lanes run in
parallel. A result is published before its request is deleted, so after a crash the next owner publishes it
again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from bus.clock import Clock
from bus.context import resumed
from bus.errors import Retry, Unavailable, Unroutable
from bus.messages import BuildPlaced
from bus.vocabulary import Id, Message, cause_of
from features.waiting.messages import priority_of
from features.waiting.placing import WaitingBuilds
from features.waiting.results import (
    PATIENCE,
    SOON,
    Ended,
    Results,
    RetryLater,
    StillWaiting,
    WaitEvaluator,
    Woken,
)
from features.waiting.store import WaitingStore
from features.waiting.suspects import WaitingSuspects
from features.waiting.tables.queued import QueuedRequest
from scheduler_worker.extension import Publish, log

Lane = tuple[str, str]  # a purpose, and what it evaluates together
BUILDS: Lane = ("", "")

PREEMPTING = 8  # waiting requests evaluated at a time that may preempt instances
BATCH = 128  # waiting requests evaluated in one step
LONGEST_SLEEP = 1.0  # seconds after which the task checks for expired requests at the latest
CLEARS = 0.01  # seconds until the next step if an evaluation released capacity, which no event reports
LONGEST_PAUSE = 10.0  # seconds between evaluations of a request that fails repeatedly without a change


@dataclass(slots=True)
class _Lane:
    """The pending evaluations of one lane: all builds, or the requests of one purpose and its lane."""

    woken: list[Woken] = field(default_factory=list)
    expired: dict[Id, QueuedRequest] = field(default_factory=dict)
    recheck: bool = False
    unsure: bool = False  # True if builds that may hold hosts must be checked


class WaitingQueue:
    """Evaluates waiting requests in a separate task, and publishes the result of each request that is placed
    or fails.
    """

    def __init__(self, store: WaitingStore, builds: WaitingBuilds, publish: Publish, clock: Clock) -> None:
        self.store = store
        self.builds = builds
        self._send = publish
        self._clock = clock
        self._tries: dict[Id, int] = {}  # request → number of `RetryLater` results in succession
        self._preempting: list[QueuedRequest] = []  # waiting requests that may preempt, still to be evaluated
        self._pending: dict[Lane, _Lane] = {}
        self._running: dict[Lane, _Lane] = {}
        self._suspects = WaitingSuspects(store)

    async def run(self) -> None:
        """Evaluate woken requests until cancelled; after a failure of the database or broker, try again."""
        async with asyncio.TaskGroup() as group:
            while True:
                async with _patient():
                    self.store.woken.clear()
                    await self.store.refresh_related()
                    self._collect()
                for name in [pending for pending in self._pending if pending not in self._running]:
                    self._running[name] = self._pending.pop(name)
                    group.create_task(self._work(name, self._running[name]))
                await self._sleep()

    async def retry_preempting(self) -> None:
        """Evaluate requests that may preempt again, because no event shows that there are victims now."""
        entries = [entry for entry in self.store.requests.values() if self.builds.polls(entry)]
        self._preempting = sorted(entries, key=lambda entry: (-priority_of(entry.message.parts), entry.since))
        if self._preempting:
            self.store.held.wake()

    def recheck(self) -> None:
        """Let the instances that waiting requests name, and those that are subjects, be read again."""
        self.store.related.is_outdated = True
        for entry in self.store.requests.values():
            if entry.subject is not None:
                self._lane(entry).recheck = True
        self.store.held.wake()

    async def _sleep(self) -> None:
        queues = self.store.queues
        pause = LONGEST_SLEEP
        if (next_poll := queues.next_retry()) is not None:
            pause = min(pause, max(next_poll - self._clock.monotonic(), 0.0))
        if queues.has_work:
            pause = min(pause, CLEARS)
        try:
            async with asyncio.timeout(pause if self.store.requests else None):
                await self.store.woken.wait()
        except TimeoutError:
            pass

    def _collect(self) -> None:
        store = self.store
        if store.regroup:
            store.compute_classes()
        lanes = (*self._pending.values(), *self._running.values())
        ending = {request for lane in lanes for request in lane.expired}
        for entry in store.due():
            if entry.request not in ending and len(lane := self._lane(entry).expired) < BATCH:
                lane[entry.request] = entry
        if store.check_unsure:
            store.check_unsure = False
            self._pending.setdefault(BUILDS, _Lane()).unsure = True
        for next_request in store.queues.next_requests(self._clock.monotonic(), BATCH):
            entry = store.requests[next_request.request]
            self._lane(entry).woken.append(Woken(entry, next_request.excluded, next_request.forgotten))
        for entry in (*self._preempting[:PREEMPTING], *self._unexplained()):
            if entry.request in store.requests and not store.queues.is_tried(entry.request):
                excluded = store.held.barred(entry)
                self._lane(entry).woken.append(Woken(entry, excluded))
        self._preempting = []

    def _unexplained(self) -> list[QueuedRequest]:
        """Return waiting requests, at most a batch, whose reason is outdated: no rule refuses them now."""
        store = self.store
        some = sorted(store.unexplained)[:BATCH]
        store.unexplained.difference_update(some)
        return [store.requests[request] for request in some if request in store.requests]

    def _lane(self, entry: QueuedRequest) -> _Lane:
        return self._pending.setdefault(_name_of_lane(entry), _Lane())

    async def _work(self, name: Lane, lane: _Lane) -> None:
        purpose, _ = name
        evaluator: WaitEvaluator = self.store.purposes[purpose] if purpose else self.builds
        try:
            # Each step alone: an error in one must not lose the reasons for the others.
            async with _patient():
                await self._evaluate(evaluator, lane.woken)
            async with _patient():
                await self._end(evaluator, list(lane.expired))
            if lane.unsure:
                async with _patient():
                    await self._publish_claimed()
            if lane.recheck:
                async with _patient():
                    waiting = [each for each in self.store.requests.values() if _name_of_lane(each) == name]
                    seen = self.store.fitting.source.seen
                    results = await self.store.purposes[purpose].recheck(waiting)
                    await self._become(evaluator, results, seen)
        finally:
            del self._running[name]
            self.store.woken.set()

    async def _evaluate(self, evaluator: WaitEvaluator, woken: Sequence[Woken]) -> None:
        requests = self.store.requests
        left = [item for item in woken if item.queued.request in requests]
        woken = [replace(item, queued=requests[item.queued.request]) for item in left]
        if not woken:
            return
        try:
            await self._place(evaluator, woken)
        except BaseException:
            self._put_back(woken)
            raise

    def _put_back(self, woken: Sequence[Woken]) -> None:
        """Let requests be evaluated again after an error: some may hold hosts, or be published already."""
        for item in woken:
            self.store.queues.requeue(item.queued.request, self._clock.monotonic() + PATIENCE)
        self.store.doubt(item.queued for item in woken if item.queued.request in self.store.requests)

    async def _place(self, evaluator: WaitEvaluator, woken: Sequence[Woken]) -> None:
        seen, wakes_mark = self.store.fitting.source.seen, self.store.rule_waits.mark
        results = await self._suspects.evaluate(evaluator.evaluate, evaluator.fail, woken)
        for item, result in zip(woken, results, strict=True):
            request = item.queued.request
            if isinstance(result, StillWaiting):
                self._tries.pop(request, None)
                if request not in self.store.requests:  # the request was cancelled during the evaluation
                    continue
                if not result.wakes_on:
                    self.store.queues.requeue(request)
                elif not self.store.hold(item.queued, result.wakes_on, wakes_mark):
                    self.store.queues.requeue(request, self._clock.monotonic())
            elif isinstance(result, RetryLater):
                # The pause doubles with each failure, because a change wakes the request earlier.
                tries = self._tries[request] = self._tries.get(request, -1) + 1
                pause = max(min(result.after * 2.0 ** min(tries, 16), LONGEST_PAUSE), result.after)
                self.store.queues.requeue(request, self._clock.monotonic() + pause)
            elif item.swept and any(
                evaluator.is_placed(each) and not preempts(each) for each in result.messages
            ):
                self.store.rescue(item.queued)
        entries = [item.queued for item in woken]
        await self._become(evaluator, list(zip(entries, results, strict=True)), seen)

    async def _become(self, evaluator: WaitEvaluator, results: Results, seen: int) -> None:
        store, changed = self.store, list[QueuedRequest]()
        for entry, result in results:
            left = store.requests.get(entry.request)  # builds may have been cancelled during the evaluation
            if left is None or isinstance(result, Ended):
                continue
            other = left
            if isinstance(result, StillWaiting) and cause_of(result.lacks) != left.lacks:
                lacks = cause_of(result.lacks)
                wakes = store.wakes(left.kind, result.decision)
                other = replace(
                    left,
                    lacks=lacks,
                    seen=seen,
                    decision=result.decision,
                    wakes=wakes,
                    wakes_on=result.wakes_on,
                )
                store.requests[entry.request] = other
            if (new := result.renewal) is not None:
                store.enter_again(replace(other, subject=new.subject, message=new.message, seen=seen))
                other = store.requests[entry.request]
                store.held.wake()
            if other is not left:
                changed.append(other)
            if isinstance(result, StillWaiting) and not result.wakes_on:
                changed += store.refusal_lifted(other)
        await self._publish(evaluator, results)
        await store.lacking(changed)

    async def _publish_claimed(self) -> None:
        """Publish results of builds that hold their hosts already: now they may fit nowhere else."""
        requests = self.store.requests
        unsure = [requests[request] for request in sorted(self.store.unsure) if request in requests]
        builds = [entry for entry in unsure if entry.subject is None]  # others: by `recheck`
        try:
            await self._publish(self.builds, await self.builds.claimed(builds))
        except BaseException:
            self.store.doubt(())
            raise

    async def _end(self, evaluator: WaitEvaluator, expired: Sequence[Id]) -> None:
        store = self.store
        entries = [store.requests[request] for request in expired if request in store.requests]
        if not entries:
            return
        store.queues.settle(self._clock.monotonic())
        last = [Woken(entry, store.held.barred(entry)) for entry in entries]
        ended = await self._suspects.evaluate(evaluator.end, evaluator.fail, last)
        results = list(zip(entries, ended, strict=True))
        await self._publish(evaluator, results)
        for entry, result in results:
            if not isinstance(result, Ended):
                store.end_at(entry, self._clock.now() + SOON)

    async def _publish(self, evaluator: WaitEvaluator, results: Results) -> None:
        """Publish the results of waiting requests that got hosts, were refused or cancelled; then delete the
        requests from the database; after a failure, repeat both. A request that cannot be published does not
        keep others from it.
        """
        done: list[Id] = []
        for entry, result in results:
            if not isinstance(result, Ended):
                continue
            try:
                with resumed(entry.story):
                    await self._publish_all(evaluator, result.messages)
                if any(map(evaluator.is_placed, result.messages)):
                    self.store.starts.leave([entry.request], started=True)
                    self.store.queues.on_started(entry.request, self._clock.monotonic())
                done.append(entry.request)
            except Exception as problem:
                is_bug = not isinstance(problem, Unavailable | Retry | Unroutable)
                log.warning("request %s: %s", entry.request, problem, exc_info=is_bug)
                after = problem.after if isinstance(problem, Retry) else PATIENCE
                self.store.unsure.add(entry.request)  # the next `sweep` checks whether the builds hold hosts
                if entry.until <= self._clock.now():
                    self.store.end_at(entry, self._clock.now() + after)
                else:
                    self.store.queues.requeue(entry.request, self._clock.monotonic() + after)
        for request in done:
            self._tries.pop(request, None)
        await self.store.drop(done)

    async def _publish_all(self, evaluator: WaitEvaluator, messages: Sequence[Message]) -> None:
        try:
            if messages:
                await self._send(*messages)
        except Unroutable:
            for message in messages:
                try:
                    await self._send(message)
                except Unroutable:
                    if not evaluator.is_placed(message):
                        raise
                    if (instead := await evaluator.undo_placed(message)) is not None:
                        await self._send(instead)


@asynccontextmanager
async def _patient() -> AsyncIterator[None]:
    """In a `with` block, log any error and pause for some seconds; the requests remain waiting."""
    try:
        yield
    except Unavailable as away:
        log.warning("waiting requests: %s", away)
        await asyncio.sleep(PATIENCE)
    except Exception:
        log.exception("waiting requests: a bug; they go on waiting")
        await asyncio.sleep(PATIENCE)


def preempts(message: Message) -> bool:
    """Return whether the message places a build that replaces others."""
    return isinstance(message, BuildPlaced) and message.parts.replace_others


def _name_of_lane(entry: QueuedRequest) -> Lane:
    return BUILDS if entry.subject is None else (entry.subject.purpose, entry.subject.lane)
