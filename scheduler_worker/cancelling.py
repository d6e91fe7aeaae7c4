"""Cancels builds and moves that have no host yet; a cancellation of a build with a host is forwarded to its
cell.

Placement decides: it retires the build, after which no claim of it succeeds, or reports the host that it
holds. So a cancellation is correct at any time, even before its request was consumed, and may be repeated.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from bus.claims import Held, OutsideCell, Released, Retired
from bus.context import resumed
from bus.errors import Retry
from bus.messages import BuildCancelled, BuildCancelRequested, BuildDeleteRequested, BuildUnplaceable
from bus.moves import SHELVED, MoveRefused
from bus.vocabulary import Contended, Id
from scheduler_worker.core.held_claim import place_of
from scheduler_worker.core.move_start import refused
from scheduler_worker.core.order import CANCELLED, DELETED
from scheduler_worker.dependencies import Ending, Says
from scheduler_worker.store import parked
from scheduler_worker.store.parked import FoundParked
from scheduler_worker.waiting.store import WaitingStore

Deletes = Sequence[BuildDeleteRequested]


class _Fenced(msgspec.Struct):
    """Placement's answers to the retirement of the builds to cancel."""

    ended: list[Id] = msgspec.field(default_factory=list)  # they will never have a host
    held: dict[Id, Held] = msgspec.field(default_factory=dict)
    shelved: dict[Id, str] = msgspec.field(default_factory=dict)  # they hold nothing for now; in which cell
    over: dict[Id, str] = msgspec.field(default_factory=dict)  # they had one, and have ended: how
    # builds that ended before without a host: how
    before: dict[Id, str] = msgspec.field(default_factory=dict)


class Cancelling:
    def __init__(self, waiting: WaitingStore, ending: Ending, say: Says) -> None:
        self._store = waiting
        self._ending = ending
        self._say = say

    async def cancel(self, asked: BuildCancelRequested) -> Deletes:
        """End a build: placement retires it, so that later claims fail, unless it holds a host already."""
        one = await self._waiting(asked.build)
        if one is not None:
            return await self._end_wait(asked, one)
        if not asked.anywhere:
            await self._answer(asked, False, "no such build or request waits for a host")
            return ()
        if not asked.fence and isinstance(await self._ending.retire(asked.build, ""), Released):
            await self._answer(asked, False, "no build or waiting request has this id", known=False)
            return ()
        fenced = await self._fence((asked.build,), DELETED)
        one = await self._waiting(asked.build)  # it may have come to wait meanwhile
        if one is not None:
            return await self._end_wait(asked, one)
        if fenced.held or fenced.shelved:
            return await self._pass_on(asked, fenced, False, "")
        if fenced.over:
            await self._answer(asked, False, f"it has ended before: {fenced.over[asked.build]}")
        else:
            why = "it has no host, and a request for it will get no host"
            await self._answer(asked, False, why, known=bool(fenced.before))
        return ()

    async def _waiting(self, build: Id) -> FoundParked | None:
        async with self._store.database.read() as tx:
            found = await parked.find(tx, (build,))
        return found[0] if found else None

    async def _end_wait(self, asked: BuildCancelRequested, one: FoundParked) -> Deletes:
        message = one.parked.message
        builds = message.instances if asked.build == message.request else (asked.build,)
        fenced = await self._fence(builds, CANCELLED)
        if fenced.ended:
            said = await self._ended(one, fenced)
            with resumed(one.parked.story):
                await self._say(said)
            await self._remove_request(one, set(fenced.ended))
        placed = len(fenced.held) + len(fenced.shelved) + len(fenced.over)
        why = f"{placed} of {len(builds)} have just been given a host" if placed else CANCELLED
        if placed and one.parked.start is not None:
            why = "it does not wait any more: it has just begun, or was refused"
        if asked.anywhere and (fenced.held or fenced.shelved):
            return await self._pass_on(asked, fenced, bool(fenced.ended), why)
        await self._answer(asked, bool(fenced.ended) or not placed, why)
        return ()

    async def _ended(self, one: FoundParked, fenced: _Fenced) -> BuildUnplaceable | MoveRefused:
        message, start = one.parked.message, one.parked.start
        decision = msgspec.structs.replace(one.parked.decision, code="cancelled")
        if start is not None:
            why = fenced.before.get(message.request, CANCELLED)
            said = refused(start.asked, why, "cancelled", decision)
            if why != CANCELLED:  # with a given reason
                said = refused(start.asked, why, "")
            await self._store.keep_refusals([(start.asked, message, said)])
            return said
        unplaceable = BuildUnplaceable(
            request=message.request,
            instances=tuple(fenced.ended),
            reason=CANCELLED,
            decision=decision,
            reply_to=message.reply_to,
        )
        await self._store.keep_decisions([(message, [unplaceable])])
        return unplaceable

    async def _pass_on(self, asked: BuildCancelRequested, fenced: _Fenced, waited: bool, why: str) -> Deletes:
        """Forward a cancellation to the cells, even if no conductor has a record of the build yet."""
        providers = await self._ending.look_up(list(fenced.held.values()))
        places = {build: place_of(held, providers) for build, held in fenced.held.items()}
        cells = {build: place.cell for build, place in places.items() if place is not None} | fenced.shelved
        if not cells:
            why = "it holds resources where no agent builds: it is no build of ours"
        await self._answer(asked, waited, why, passed_on=cells)
        return [
            BuildDeleteRequested(build=build, cell=cell, reply_to=asked.reply_to)
            for build, cell in cells.items()
        ]

    async def _fence(self, builds: Sequence[Id], why: str) -> _Fenced:
        fenced = _Fenced()
        for build in builds:
            result = await self._ending.retire(build, why)
            if isinstance(result, Held) and not result.allocations:  # its allocations were released
                result = await self._ending.retire(build, why, result.generation)
            match result:
                case Released():
                    fenced.ended.append(build)
                case Retired(unplaceable=True, why=told):
                    fenced.ended.append(build)
                    fenced.before[build] = told
                case Retired(why=told, cell=cell) if told == SHELVED and cell:
                    fenced.shelved[build] = cell
                case Retired(why=told):
                    fenced.over[build] = told
                case Held():
                    fenced.held[build] = result
                case Contended() | OutsideCell():  # no wall is around a scheduler
                    raise Retry(0.5, f"the claim of {build} is contended")
        return fenced

    async def _remove_request(self, one: FoundParked, gone: set[Id]) -> None:
        """Remove a waiting request, or some of its builds, from the database, where its scheduler reads
        it.
        """
        store, kept, left = self._store, one.parked, None
        ours = one.owner in (store.name, "")
        async with store.database.write() as tx:
            if not gone.issuperset(kept.message.instances):
                left = await parked.without(tx, kept, gone)
            elif ours:
                await parked.drop(tx, (kept.request,))
            else:
                await parked.cancel(tx, {kept.request: CANCELLED})
        if ours:
            store.leave((kept.request,))
            if left is not None:
                store.enter_again(left)

    async def _answer(self, asked: BuildCancelRequested, waited: bool, why: str, **more: Any) -> None:
        result = BuildCancelled(build=asked.build, waited=waited, why=why, reply_to=asked.reply_to, **more)
        await self._say(result)
