"""Cancels waiting requests, and takes over the waiting requests of schedulers that send no heartbeats.

Placement decides about a cancellation: it retires the build, so that later claims fail, or reports the host
that it holds. So a cancellation is correct at any time, even before its request was consumed.
"""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from bus.claims import Held, OutsideCell, Released, Retired
from bus.clock import Clock
from bus.context import resumed
from bus.decisions import FindRefused, RefusedFound
from bus.errors import Retry
from bus.messages import BuildCancelled, BuildCancelRequested, BuildDeleteRequested, BuildUnplaceable
from bus.moves import SHELVED, MoveRefused
from bus.queries import DecisionFound, FindDecision, FindWaiting, WaitingFound, WaitingRequest
from bus.vocabulary import Contended, Id
from scheduler_worker.backlog import Backlog
from scheduler_worker.core.held_claim import place_of
from scheduler_worker.core.move_start import refused
from scheduler_worker.core.order import CANCELLED, DELETED, unplaceable
from scheduler_worker.core.waiting_queue import QueueKey, Root
from scheduler_worker.dependencies import Ending, Publish
from scheduler_worker.store import backlog, decisions, parked
from scheduler_worker.store.parked import FoundParked, OtherScheduler
from scheduler_worker.waiting.queue import WaitingQueue
from scheduler_worker.waiting.store import WaitingStore

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0  # then another scheduler adopts the requests
PAGE = 500
KINDS = 50  # classes in one answer

_reserved = msgspec.json.Decoder(dict[str, tuple[int, float, str]]).decode


class WaitingOwner:
    """Takes over waiting requests of silent schedulers, and answers queries about all waiting requests."""

    def __init__(self, queue: WaitingQueue, backlog: Backlog, clock: Clock) -> None:
        self._queue = queue
        self._backlog = backlog
        self._store = queue.store
        self._clock = clock
        # owner → its last heartbeat number, and when it changed
        self._received: dict[str, tuple[int, float]] = {}

    async def beat(self) -> None:
        """Store this scheduler's heartbeat if it owns waiting requests, read the other schedulers'
        heartbeats, and take over the waiting requests of silent schedulers.
        """
        store = self._store
        async with store.database.write() as tx:
            if store.requests or store.entered:
                await store.live(tx, store.starts.encoded())
            if store.taken_for_dead:
                store.taken_for_dead = False
                ours = await parked.owned(tx, store.name)
                lost = [request for request in store.requests if request not in ours]
                if lost:
                    log.warning("was taken for dead: %d requests wait with another scheduler now", len(lost))
                    store.starts.forget(lost)
                    store.leave(lost)
            others = [scheduler for scheduler in await parked.roster(tx) if scheduler.owner != store.name]
            owners = await parked.owners(tx) | await backlog.owners(tx)
            cancelled = await parked.cancelled(tx, store.name)
            if cancelled:
                await parked.drop(tx, cancelled)
        store.leave(cancelled)
        reserved: dict[Root, QueueKey] = {}
        for other in others:
            for root, key in _reserved(other.reserved).items():
                reserved[root] = min(key, reserved.get(root, key))
        store.queues.reserve_elsewhere(reserved)
        left_behind = self._silent(others, owners - {store.name})
        if left_behind:
            _ = store.sight.source.seen  # raises Unavailable until placement's index is loaded
        for owner in left_behind:
            await self._adopt(owner, others)
        self._queue.recheck()

    async def sweep(self) -> None:
        """Evaluate all hosts for all waiting requests, in case a change of a host or a quota was missed; and
        check again for claims of former owners."""
        store = self._store
        store.doubt(())
        store.on_quotas({""})
        store.queues.sweep(self._clock.monotonic())
        store.wake()

    async def prune(self, keep: float) -> None:
        """Delete stored decisions that are older than `keep` seconds."""
        before = self._clock.now() - keep
        while True:
            async with self._store.database.write() as tx:
                if await decisions.prune(tx, before, PAGE) < PAGE:
                    return

    async def release_ownership(self) -> None:
        """Release this scheduler's waiting requests when it stops; another scheduler takes them over."""
        try:
            await self._backlog.release()
            if not self._store.requests:
                return
            async with self._store.database.write() as tx:
                await parked.RELEASE(tx, owner=self._store.name)
        except Exception as problem:  # a stopping worker does not wait for its database
            log.warning("could not release %d requests: %s", len(self._store.requests), problem)

    def _silent(self, schedulers: list[OtherScheduler], owners: set[str]) -> list[str]:
        now = self._clock.monotonic()
        beats = {scheduler.owner: scheduler.beat for scheduler in schedulers}
        self._received = {owner: self._received[owner] for owner in beats.keys() & self._received.keys()}
        for owner, beat in beats.items():
            if owner not in self._received or self._received[owner][0] != beat:
                self._received[owner] = beat, now
        silent = {owner for owner, (_, at) in self._received.items() if now - at > SILENT_SECONDS}
        return sorted((owners - beats.keys()) | silent)

    async def _adopt(self, before: str, schedulers: list[OtherScheduler]) -> None:
        store, more, several = self._store, True, 0
        store.starts.adopt(scheduler.starts for scheduler in schedulers if scheduler.owner == before)
        while more:
            async with store.database.write() as tx:
                adopted, more = await parked.adopt(tx, store.name, before, PAGE)
                if adopted:
                    await store.live(tx)
            for entry in adopted:
                store.enter_again(entry)
            store.doubt(adopted)
            several += len(adopted)
        several += await self._backlog.adopt(before)
        async with store.database.write() as tx:
            for scheduler in schedulers:
                if scheduler.owner == before:
                    await parked.BURY(tx, owner=before, beat=scheduler.beat)
        self._received.pop(before, None)
        if several:
            log.warning("adopted %d requests of %s", several, before or "an earlier process")

    async def waiting(self, question: FindWaiting) -> WaitingFound:
        """Return the waiting requests of all schedulers from the database."""
        store = self._store
        async with store.database.read() as tx:
            found = await decisions.waiting(tx, question)
            count = await decisions.count(tx, question.project)
            by_project = await decisions.counts(tx, question.projects)
            kinds = await decisions.kinds(tx, question.project, KINDS)
            roster = await parked.roster(tx)
        end = question.after + len(found)
        return WaitingFound(
            waiting=tuple(self._with_hosts(store.starts.estimated(found, store.queues, roster), roster)),
            count=count,
            kinds=tuple(kinds),
            rescued=sum(scheduler.rescued for scheduler in roster),
            more=end if not question.requests and end < count else None,
            by_project=by_project,
        )

    async def refused(self, question: FindRefused) -> RefusedFound:
        """Return a page of the builds that ended without a host."""
        async with self._store.database.read() as tx:
            return await decisions.refused(tx, question)

    async def decision(self, question: FindDecision) -> DecisionFound:
        """Return why a build or request got no host, or which capacity it lacks while it waits."""
        async with self._store.database.read() as tx:
            found = await parked.find(tx, [question.id])
            if not found:
                return await decisions.decision_of(tx, question.id)
            entry = found[0].parked
            listed = await decisions.waiting(tx, FindWaiting(requests=(entry.request,)))
            roster = await parked.roster(tx)
        estimated = self._store.starts.estimated(listed, self._store.queues, roster)
        start = estimated[0] if estimated else None
        return DecisionFound(
            known=True,
            request=entry.message,
            builds=entry.message.instances if entry.start is None else (entry.start.asked.build,),
            reason=entry.lacks,
            decision=entry.decision,
            at=entry.since,
            waits=True,
            until=entry.until,
            wakes=entry.wakes,
            move=entry.start.asked if entry.start is not None else None,
            start_p50=start.start_p50 if start else None,
            start_p90=start.start_p90 if start else None,
        )

    def _with_hosts(self, found: list[WaitingRequest], roster: list[OtherScheduler]) -> list[WaitingRequest]:
        reserved: dict[Id, list[str]] = {}
        source = self._store.sight.source
        for scheduler in roster:
            for root, (*_, request) in _reserved(scheduler.reserved).items():
                position = source.position(root)
                if position is not None:
                    reserved.setdefault(request, []).append(root)
        names = {host.uuid: host.host for host in source.hosts()} if reserved else {}
        answers = []
        for waits in found:
            hosts = ", ".join(names.get(root, root) for root in reserved.get(waits.request, ())[:3])
            wakes = f"{waits.wakes}; kept for it: {hosts}" if hosts else waits.wakes
            answers.append(msgspec.structs.replace(waits, wakes=wakes))
        return answers


Deletes = Sequence[BuildDeleteRequested]


class _Fenced(msgspec.Struct):
    """Builds to cancel, grouped by placement's answer: retired now, on a host, shelved or ended before."""

    ended: list[Id] = msgspec.field(default_factory=list)  # builds that are retired now
    held: dict[Id, Held] = msgspec.field(default_factory=dict)
    shelved: dict[Id, str] = msgspec.field(default_factory=dict)  # shelved build → its cell
    ended_builds: dict[Id, str] = msgspec.field(default_factory=dict)  # ended build that had a host → its end
    # build that ended before without a host → its end
    before: dict[Id, str] = msgspec.field(default_factory=dict)


class Cancelling:
    def __init__(self, waiting: WaitingStore, ending: Ending, publish: Publish) -> None:
        self._store = waiting
        self._ending = ending
        self._publish = publish

    async def cancel(self, asked: BuildCancelRequested) -> Deletes:
        """Cancel a build: placement retires it, or its cell deletes it if it holds a host already."""
        found = await self._waiting(asked.build)
        if found is not None:
            return await self._end_wait(asked, found)
        if not asked.anywhere:
            await self._answer(asked, False, "no such build or request waits for a host")
            return ()
        if not asked.fence and isinstance(await self._ending.retire(asked.build, ""), Released):
            await self._answer(asked, False, "no build or waiting request has this id", known=False)
            return ()
        fenced = await self._fence((asked.build,), DELETED)
        found = await self._waiting(asked.build)  # the build may have begun to wait in the meantime
        if found is not None:
            return await self._end_wait(asked, found)
        if fenced.held or fenced.shelved:
            return await self._pass_on(asked, fenced, False, "")
        if fenced.ended_builds:
            await self._answer(asked, False, f"it has ended before: {fenced.ended_builds[asked.build]}")
        else:
            why = "it has no host, and a request for it will get no host"
            await self._answer(asked, False, why, known=bool(fenced.before))
        return ()

    async def _waiting(self, build: Id) -> FoundParked | None:
        async with self._store.database.read() as tx:
            found = await parked.find(tx, (build,))
        return found[0] if found else None

    async def _end_wait(self, asked: BuildCancelRequested, found: FoundParked) -> Deletes:
        message = found.parked.message
        builds = message.instances if asked.build == message.request else (asked.build,)
        fenced = await self._fence(builds, CANCELLED)
        if fenced.ended:
            ended = await self._ended(found, fenced)
            with resumed(found.parked.story):
                await self._publish(ended)
            await self._remove_request(found, set(fenced.ended))
        placed = len(fenced.held) + len(fenced.shelved) + len(fenced.ended_builds)
        why = f"{placed} of {len(builds)} have just been given a host" if placed else CANCELLED
        if placed and found.parked.start is not None:
            why = "it does not wait any more: it has just begun, or was refused"
        if asked.anywhere and (fenced.held or fenced.shelved):
            return await self._pass_on(asked, fenced, bool(fenced.ended), why)
        await self._answer(asked, bool(fenced.ended) or not placed, why)
        return ()

    async def _ended(self, found: FoundParked, fenced: _Fenced) -> BuildUnplaceable | MoveRefused:
        message, start = found.parked.message, found.parked.start
        decision = msgspec.structs.replace(found.parked.decision, code="cancelled")
        if start is not None:
            why = fenced.before.get(message.request, CANCELLED)
            refusal = refused(start.asked, why, "cancelled", decision)
            if why != CANCELLED:  # with a given reason
                refusal = refused(start.asked, why, "")
            await self._store.store_refusals([(start.asked, message, refusal)])
            return refusal
        end = unplaceable(message, tuple(fenced.ended), CANCELLED, decision)
        await self._store.store_decisions([(message, [end])])
        return end

    async def _pass_on(self, asked: BuildCancelRequested, fenced: _Fenced, waited: bool, why: str) -> Deletes:
        """Order cells to delete cancelled builds, even if no conductor has a record of them yet."""
        providers = await self._ending.look_up(list(fenced.held.values()))
        places = {build: place_of(held, providers) for build, held in fenced.held.items()}
        cells = {build: place.cell for build, place in places.items() if place is not None} | fenced.shelved
        if not cells:
            why = "it holds resources where no agent builds: it is no build of ours"
        await self._answer(asked, waited, why, passed_on=cells)
        reply_to = asked.reply_to
        return [BuildDeleteRequested(build=id_, cell=cell, reply_to=reply_to) for id_, cell in cells.items()]

    async def _fence(self, builds: Sequence[Id], why: str) -> _Fenced:
        fenced = _Fenced()
        for build in builds:
            result = await self._ending.retire(build, why)
            if isinstance(result, Held) and not result.allocations:  # its allocations were released
                result = await self._ending.retire(build, why, result.generation)
            match result:
                case Released():
                    fenced.ended.append(build)
                case Retired(unplaceable=True, why=cause):
                    fenced.ended.append(build)
                    fenced.before[build] = cause
                case Retired(why=cause, cell=cell) if cause == SHELVED and cell:
                    fenced.shelved[build] = cell
                case Retired(why=cause):
                    fenced.ended_builds[build] = cause
                case Held():
                    fenced.held[build] = result
                case Contended() | OutsideCell():  # OutsideCell cannot happen: a scheduler is in no cell
                    raise Retry(0.5, f"the claim of {build} is contended")
        return fenced

    async def _remove_request(self, found: FoundParked, removed: set[Id]) -> None:
        """Delete the builds `removed` of a waiting request from the database.

        If no build is left, delete the request too. If another scheduler owns such a request, mark the
        request as cancelled, so that its owner deletes the request.
        """
        store, entry, left = self._store, found.parked, None
        ours = found.owner in (store.name, "")
        async with store.database.write() as tx:
            if not removed.issuperset(entry.message.instances):
                left = await parked.without(tx, entry, removed)
            elif ours:
                await parked.drop(tx, (entry.request,))
            else:
                await parked.cancel(tx, {entry.request: CANCELLED})
        if ours:
            if left is None:
                store.leave((entry.request,))
            else:
                store.enter_again(left)

    async def _answer(self, asked: BuildCancelRequested, waited: bool, why: str, **more: Any) -> None:
        result = BuildCancelled(build=asked.build, waited=waited, why=why, reply_to=asked.reply_to, **more)
        await self._publish(result)
