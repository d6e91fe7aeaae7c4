"""Cancels requests of the queue."""

from collections.abc import Sequence

import msgspec

from bus.context import resumed
from bus.messages import BuildCancelled, BuildCancelRequested
from bus.vocabulary import Id, Message
from features.waiting.store import WaitingStore
from features.waiting.tables import queued
from features.waiting.tables.queued import FoundQueued, QueuedRequest
from scheduler_worker.extension import (
    CANCELLED,
    CANCELLED_CODE,
    Cancellation,
    CancelResults,
    Ending,
    Fenced,
    Publish,
    unplaceable,
)


class CancelledWaits:
    """Cancels requests that wait."""

    def __init__(self, waiting: WaitingStore, ending: Ending, publish: Publish) -> None:
        self._store = waiting
        self._steps = Cancellation(ending)
        self._publish = publish

    async def cancel(self, asked: BuildCancelRequested) -> CancelResults | None:
        """Cancel a request that waits, or one of its builds; return None if no request with this id waits."""
        found = await self._waiting(asked.build)
        return None if found is None else await self._end_wait(asked, found)

    async def _waiting(self, build: Id) -> FoundQueued | None:
        async with self._store.database.read() as tx:
            found = await queued.find(tx, build)
        return None if found is None or not self._store.can_read(found.queued) else found

    async def _end_wait(self, asked: BuildCancelRequested, found: FoundQueued) -> CancelResults:
        message = found.queued.message
        builds = message.instances if asked.build == message.request else (asked.build,)
        fenced = await self._steps.fence(builds, CANCELLED)
        if fenced.ended:
            ended = await self._ended(found, fenced)
            with resumed(found.queued.story):
                await self._publish(ended)
        results = await self._answer_waiting(asked, found, fenced, builds)
        if not fenced.ended:
            return results
        await self._publish(*(each for each in results if isinstance(each, BuildCancelled)))
        # Last: after an error the message is handled again, and must find the request again.
        await self._remove_request(found, set(fenced.ended))
        return [each for each in results if not isinstance(each, BuildCancelled)]

    async def _answer_waiting(
        self, asked: BuildCancelRequested, found: FoundQueued, fenced: Fenced, builds: Sequence[Id]
    ) -> CancelResults:
        placed = len(fenced.held) + len(fenced.revivable) + len(fenced.ended_builds)
        why = f"{placed} of {len(builds)} have just been given a host" if placed else CANCELLED
        if placed and found.queued.subject is not None:
            why = self._store.purpose_of(found.queued).not_waiting
        if asked.anywhere and (fenced.held or fenced.revivable):
            return await self._steps.pass_on(asked, fenced, bool(fenced.ended), why)
        return self._steps.answer(asked, bool(fenced.ended) or not placed, why)

    async def _ended(self, found: FoundQueued, fenced: Fenced) -> Message:
        if found.queued.subject is not None:
            return await self._store.purpose_of(found.queued).cancelled(found.queued, fenced)
        message = found.queued.message
        decision = msgspec.structs.replace(found.queued.decision, code=CANCELLED_CODE)
        end = unplaceable(message, tuple(fenced.ended), CANCELLED, decision)
        await self._store.refusals.add_builds([(message, [end])])
        return end

    async def _remove_request(self, found: FoundQueued, removed: set[Id]) -> None:
        """Delete the builds `removed` of a waiting request from the database. If no build is left, delete the
        request too; if another scheduler owns it, mark it as cancelled, and its owner deletes it.

        A new request is not changed: when its scheduler evaluates it, the retired builds get the same result
        again.
        """
        store, entry = self._store, found.queued
        if found.before is not None:
            return
        ours = found.owner == store.rows.name
        with store.rows.noting_unknown_commits():
            left = await self._removed(entry, removed, ours=ours)
        if ours:
            if left is None:
                store.leave((entry.request,))
            else:
                store.enter_again(left)

    async def _removed(self, entry: QueuedRequest, removed: set[Id], *, ours: bool) -> QueuedRequest | None:
        async with self._store.database.write() as tx:
            if not removed.issuperset(entry.message.instances):
                return await queued.without(tx, entry, removed)
            if ours:
                await queued.drop(tx, (entry.request,))
            else:
                await queued.cancel(tx, {entry.request: CANCELLED})
        return None
