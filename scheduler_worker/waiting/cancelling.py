"""Cancels waiting requests and requests in the backlog; placement decides whether a build can be cancelled.

Placement retires the build, so that later claims fail, or reports the host that it holds. So a cancellation
is correct at any time, even before its request was consumed.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from bus.claims import Held, OutsideCell, Released, Retired
from bus.context import resumed
from bus.decisions import BACKLOG, Decision
from bus.errors import Retry
from bus.messages import BuildCancelled, BuildCancelRequested, BuildDeleteRequested, BuildUnplaceable
from bus.moves import MoveRefused
from bus.sql.transaction import Transaction
from bus.vocabulary import Contended, Id
from scheduler_worker.core.held_claim import place_of
from scheduler_worker.core.move_start import refused
from scheduler_worker.core.order import CANCELLED, DELETED, unplaceable
from scheduler_worker.dependencies import Ending, Publish
from scheduler_worker.store import backlog, parked
from scheduler_worker.store.parked import FoundParked, ParkedRequest
from scheduler_worker.waiting.store import WaitingStore


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


Deletes = Sequence[BuildDeleteRequested]


class _Fenced(msgspec.Struct):
    """Builds to cancel, grouped by placement's answer: retired now, on a host, shelved or ended before."""

    ended: list[Id] = msgspec.field(default_factory=list)  # builds that are now retired without a host
    held: dict[Id, Held] = msgspec.field(default_factory=dict)
    shelved: dict[Id, str] = msgspec.field(default_factory=dict)  # shelved build → its cell
    ended_builds: dict[Id, str] = msgspec.field(default_factory=dict)  # build that had a host → its end
    # build that ended without a host before → why
    before: dict[Id, str] = msgspec.field(default_factory=dict)


class Cancelling:
    def __init__(self, waiting: WaitingStore, ending: Ending, publish: Publish) -> None:
        self._store = waiting
        self._ending = ending
        self._publish = publish

    async def cancel(self, asked: BuildCancelRequested) -> Deletes:
        """Cancel a build: placement retires it. If it holds a host already, return the message that orders
        its cell to delete the build.
        """
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
            return await find_waiting(tx, build)

    async def _end_wait(self, asked: BuildCancelRequested, found: FoundParked) -> Deletes:
        message = found.parked.message
        builds = message.instances if asked.build == message.request else (asked.build,)
        fenced = await self._fence(builds, CANCELLED)
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
        self, asked: BuildCancelRequested, found: FoundParked, fenced: _Fenced, builds: Sequence[Id]
    ) -> Deletes:
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
            if why != CANCELLED:  # the move ended before, for another reason
                refusal = refused(start.asked, why, "")
            await self._store.refusals.add_moves([(start.asked, message, refusal)])
            return refusal
        end = unplaceable(message, tuple(fenced.ended), CANCELLED, decision)
        await self._store.refusals.add_builds([(message, [end])])
        return end

    async def _pass_on(self, asked: BuildCancelRequested, fenced: _Fenced, waited: bool, why: str) -> Deletes:
        """Order cells to delete cancelled builds that hold a host or are shelved, even if no conductor has a
        record of them yet; answer the client.
        """
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
            if isinstance(result, Held) and not result.allocations:  # no allocations are left
                result = await self._ending.retire(build, why, result.generation)
            match result:
                case Released():
                    fenced.ended.append(build)
                case Retired(unplaceable=True, why=cause):
                    fenced.ended.append(build)
                    fenced.before[build] = cause
                case Retired(revivable=True, cell=cell) if cell:
                    fenced.shelved[build] = cell
                case Retired(why=cause):
                    fenced.ended_builds[build] = cause
                case Held():
                    fenced.held[build] = result
                case Contended() | OutsideCell():  # OutsideCell cannot happen: a scheduler is in no cell
                    raise Retry(0.5, f"the claim of {build} is contended")
        return fenced

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

    async def _answer(self, asked: BuildCancelRequested, waited: bool, why: str, **more: Any) -> None:
        answer = BuildCancelled(build=asked.build, waited=waited, why=why, reply_to=asked.reply_to, **more)
        result = msgspec.structs.replace(answer, notes=asked.unknown_fields)
        await self._publish(result)
