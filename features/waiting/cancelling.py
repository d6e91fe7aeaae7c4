"""Cancels waiting requests, and requests in the backlog."""

from collections.abc import Sequence

import msgspec

from bus.context import resumed
from bus.decisions import BACKLOG, Decision
from bus.messages import BuildCancelRequested, BuildUnplaceable
from bus.sql.statement import Transaction
from bus.vocabulary import Id
from features.moves.core.start import refused
from features.moves.messages import MoveRefused
from features.moves.placing import refusal_of
from features.waiting.store import WaitingStore
from features.waiting.tables import backlog, parked
from features.waiting.tables.parked import FoundParked, ParkedRequest
from scheduler_worker.extension import CANCELLED, Cancellation, Deletes, Ending, Fenced, Publish, unplaceable


async def find_waiting(tx: Transaction, id_: Id) -> FoundParked | None:
    """Return the waiting or backlog request with this id, or with a build of this id; None if not found."""
    if found := await parked.find(tx, (id_,)):
        return found[0]
    stored = await backlog.find(tx, id_)
    if stored is None:
        return None
    lacks = f"it is in the backlog, with at most {stored.before} requests of its project before it"
    entry = ParkedRequest(
        message=stored.message,
        kind="",
        since=stored.since,
        until=stored.since,
        seen=0,
        lacks=lacks,
        wakes="it is the turn of its project",
        decision=Decision(code=BACKLOG),
    )
    return FoundParked(entry, stored.owner, stored)


class CancelledWaits:
    """Cancels requests that wait."""

    def __init__(self, waiting: WaitingStore, ending: Ending, publish: Publish) -> None:
        self._store = waiting
        self._steps = Cancellation(ending, publish)
        self._publish = publish

    async def cancel(self, asked: BuildCancelRequested) -> Deletes | None:
        """Cancel a request that waits, or one of its builds; return None if no request with this id waits."""
        found = await self._waiting(asked.build)
        return None if found is None else await self._end_wait(asked, found)

    async def _waiting(self, build: Id) -> FoundParked | None:
        async with self._store.database.read() as tx:
            return await find_waiting(tx, build)

    async def _end_wait(self, asked: BuildCancelRequested, found: FoundParked) -> Deletes:
        message = found.parked.message
        builds = message.instances if asked.build == message.request else (asked.build,)
        fenced = await self._steps.fence(builds, CANCELLED)
        if fenced.ended:
            ended = await self._ended(found, fenced)
            with resumed(found.parked.story):
                await self._publish(ended)
        deletes = await self._answer_waiting(asked, found, fenced, builds)
        if fenced.ended:
            # Last: after an error the message is handled again, and must find the request again.
            await self._remove_request(found, set(fenced.ended))
        return deletes

    async def _answer_waiting(
        self, asked: BuildCancelRequested, found: FoundParked, fenced: Fenced, builds: Sequence[Id]
    ) -> Deletes:
        placed = len(fenced.held) + len(fenced.shelved) + len(fenced.ended_builds)
        why = f"{placed} of {len(builds)} have just been given a host" if placed else CANCELLED
        if placed and found.parked.start is not None:
            why = "it does not wait any more: it has just started, or was refused"
        if asked.anywhere and (fenced.held or fenced.shelved):
            return await self._steps.pass_on(asked, fenced, bool(fenced.ended), why)
        await self._steps.answer(asked, bool(fenced.ended) or not placed, why)
        return ()

    async def _ended(self, found: FoundParked, fenced: Fenced) -> BuildUnplaceable | MoveRefused:
        message, start = found.parked.message, found.parked.start
        decision = msgspec.structs.replace(found.parked.decision, code="cancelled")
        if start is not None:
            why = fenced.before.get(message.request, CANCELLED)
            refusal = refused(start.asked, why, "cancelled", decision)
            if why != CANCELLED:  # the move ended before, for another reason
                refusal = refused(start.asked, why, "")
            await self._store.refusals.add([refusal_of(start.asked, message, refusal)])
            return refusal
        end = unplaceable(message, tuple(fenced.ended), CANCELLED, decision)
        await self._store.refusals.add_builds([(message, [end])])
        return end

    async def _remove_request(self, found: FoundParked, removed: set[Id]) -> None:
        """Delete the builds `removed` of a waiting request from the database. If no build is left, delete the
        request too; if another scheduler owns it, mark it as cancelled, and its owner deletes it.

        A request in the backlog is not changed: when its scheduler evaluates it, the retired builds get the
        same result again.
        """
        store, entry = self._store, found.parked
        if found.backlogged is not None:
            return
        ours = found.owner in (store.name, "")
        with store.noting_unknown_commits():
            left = await self._removed(entry, removed, ours=ours)
        if ours:
            if left is None:
                store.leave((entry.request,))
            else:
                store.enter_again(left)

    async def _removed(self, entry: ParkedRequest, removed: set[Id], *, ours: bool) -> ParkedRequest | None:
        async with self._store.database.write() as tx:
            if not removed.issuperset(entry.message.instances):
                return await parked.without(tx, entry, removed)
            if ours:
                await parked.drop(tx, (entry.request,))
            else:
                await parked.cancel(tx, {entry.request: CANCELLED})
        return None
