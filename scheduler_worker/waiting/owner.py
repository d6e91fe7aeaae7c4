"""Ownership of waiting requests: each belongs to one scheduler; those of silent schedulers are taken over."""

import logging

import msgspec

from bus.clock import Clock
from bus.queries import DecisionFound, FindDecision, FindWaiting, WaitingFound, WaitingRequest
from bus.vocabulary import Id
from scheduler_worker.core.waiting_queue import LineKey, Root
from scheduler_worker.store import decisions, parked
from scheduler_worker.store.parked import OtherScheduler
from scheduler_worker.waiting.queue import WaitingQueue

log = logging.getLogger(__name__)

SILENT_SECONDS = 5.0  # then another scheduler adopts the requests
PAGE = 500
KINDS = 50  # classes in one answer
DECISIONS_KEPT = 7 * 86400.0

_reserved = msgspec.json.Decoder(dict[str, tuple[int, float, str]]).decode


class Keeping:
    """Owns waiting requests: takes over requests of silent schedulers, and answers queries about all."""

    def __init__(self, queue: WaitingQueue, clock: Clock) -> None:
        self._queue = queue
        self._store = queue.store
        self._clock = clock
        # owner → its last heartbeat number, and when it changed
        self._heard: dict[str, tuple[int, float]] = {}

    async def beat(self) -> None:
        """Write this scheduler's heartbeat if it owns waiting requests, and read all heartbeats."""
        store = self._store
        async with store.database.write() as tx:
            if store.requests or store.entered:
                await store.live(tx)
            if store.taken_for_dead:
                store.taken_for_dead = False
                ours = await parked.owned(tx, store.name)
                lost = [request for request in store.requests if request not in ours]
                if lost:
                    log.warning("was taken for dead: %d requests wait with another scheduler now", len(lost))
                    store.leave(lost)
            others = [scheduler for scheduler in await parked.roster(tx) if scheduler.owner != store.name]
            owners = await parked.owners(tx)
            cancelled = await parked.cancelled(tx, store.name)
            if cancelled:
                await parked.drop(tx, cancelled)
        store.leave(cancelled)
        reserved: dict[Root, LineKey] = {}
        for other in others:
            for root, key in _reserved(other.reserved).items():
                reserved[root] = min(key, reserved.get(root, key))
        store.room.keep_for_others(reserved)
        left_behind = self._silent(others, owners - {store.name})
        if left_behind:
            _ = store.sight.source.seen  # Unavailable before placement's memory is there: not yet
        for owner in left_behind:
            await self._adopt(owner, others)
        self._queue.recheck()

    async def sweep(self) -> None:
        """Evaluate all waiting requests slowly, in case no change of a host has woken one that fits."""
        store = self._store
        store.room.sweep(self._clock.monotonic())
        store.wake()

    async def prune(self) -> None:
        before = self._clock.now() - DECISIONS_KEPT
        while True:
            async with self._store.database.write() as tx:
                if await decisions.prune(tx, before, PAGE) < PAGE:
                    return

    async def let_go(self) -> None:
        """Release the ownership of waiting requests at a stop, so that another scheduler takes them over."""
        if not self._store.requests:
            return
        try:
            async with self._store.database.write() as tx:
                await parked.LET_GO(tx, owner=self._store.name)
        except Exception as problem:  # the end of a worker is not the time to wait for its database
            log.warning("could not let go of %d requests: %s", len(self._store.requests), problem)

    def _silent(self, others: list[OtherScheduler], owners: set[str]) -> list[str]:
        now = self._clock.monotonic()
        there = {scheduler.owner: scheduler.beat for scheduler in others}
        self._heard = {owner: self._heard[owner] for owner in there.keys() & self._heard.keys()}
        for owner, beat in there.items():
            if owner not in self._heard or self._heard[owner][0] != beat:
                self._heard[owner] = beat, now
        silent = {owner for owner, (_, at) in self._heard.items() if now - at > SILENT_SECONDS}
        return sorted((owners - there.keys()) | silent)

    async def _adopt(self, before: str, others: list[OtherScheduler]) -> None:
        store, more, several = self._store, True, 0
        while more:
            async with store.database.write() as tx:
                adopted, more = await parked.adopt(tx, store.name, before, PAGE)
                if adopted:
                    await store.live(tx)
            for kept in adopted:
                store.enter_again(kept)
            several += len(adopted)
        async with store.database.write() as tx:
            for scheduler in others:
                if scheduler.owner == before:
                    await parked.BURY(tx, owner=before, beat=scheduler.beat)
        self._heard.pop(before, None)
        if several:
            log.warning("adopted %d requests of %s", several, before or "somebody")

    async def waiting(self, question: FindWaiting) -> WaitingFound:
        """Return the waiting requests of all schedulers from the database."""
        async with self._store.database.read() as tx:
            found = await decisions.waiting(tx, question)
            count = await decisions.count(tx, question.project)
            kinds = await decisions.kinds(tx, question.project, KINDS)
            roster = await parked.roster(tx)
        end = question.after + len(found)
        return WaitingFound(
            waiting=tuple(self._with_hosts(found, roster)),
            count=count,
            kinds=tuple(kinds),
            rescued=sum(scheduler.rescued for scheduler in roster),
            more=end if not question.requests and end < count else None,
        )

    async def decision(self, question: FindDecision) -> DecisionFound:
        """Return why a build or request has no host, or what it lacks if it waits."""
        async with self._store.database.read() as tx:
            found = await parked.find(tx, [question.id])
            if not found:
                return await decisions.decision_of(tx, question.id)
        kept = found[0].parked
        return DecisionFound(
            known=True,
            request=kept.message,
            builds=kept.message.instances if kept.start is None else (kept.start.asked.build,),
            reason=kept.lacks,
            decision=kept.decision,
            at=kept.since,
            waits=True,
            until=kept.until,
            wakes=kept.wakes,
            move=kept.start.asked if kept.start is not None else None,
        )

    def _with_hosts(self, found: list[WaitingRequest], roster: list[OtherScheduler]) -> list[WaitingRequest]:
        kept: dict[Id, list[str]] = {}
        source = self._store.sight.source
        for scheduler in roster:
            for root, (*_, request) in _reserved(scheduler.reserved).items():
                position = source.position(root)
                if position is not None:
                    kept.setdefault(request, []).append(root)
        names = {host.uuid: host.host for host in source.hosts()} if kept else {}
        told = []
        for waits in found:
            hosts = ", ".join(names.get(root, root) for root in kept.get(waits.request, ())[:3])
            wakes = f"{waits.wakes}; kept for it: {hosts}" if hosts else waits.wakes
            told.append(msgspec.structs.replace(waits, wakes=wakes))
        return told
