"""Cancels builds; placement decides whether a build can be cancelled.

Placement retires the build, so that later claims fail, or reports the host that it holds. So a cancellation
is correct at any time, even before its request was consumed.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from bus.claims import Held, OutsideCell, Released, Retired
from bus.errors import Retry
from bus.messages import BuildCancelled, BuildCancelRequested, BuildDeleteRequested
from bus.vocabulary import Contended, Id
from scheduler_worker.core.existing_claims import place_of
from scheduler_worker.core.order import DELETED
from scheduler_worker.dependencies import Ending
from scheduler_worker.placing.fallback import Fallback

CancelResults = Sequence[BuildCancelled | BuildDeleteRequested]


class Fenced(msgspec.Struct):
    """Builds to cancel, grouped by placement's answer: retired now, on a host, revivable or ended before."""

    ended: list[Id] = msgspec.field(default_factory=list)  # builds that are now retired without a host
    held: dict[Id, Held] = msgspec.field(default_factory=dict)
    revivable: dict[Id, str] = msgspec.field(default_factory=dict)  # build without a host → its cell
    ended_builds: dict[Id, str] = msgspec.field(default_factory=dict)  # build that had a host → its end
    # build that ended without a host before → why
    before: dict[Id, str] = msgspec.field(default_factory=dict)


class Cancellation:
    """The steps by which builds are cancelled: retire them, order their cells to delete them, answer.

    A cell deletes the builds even if the client's queue confirms no answer.
    """

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    async def fence(self, builds: Sequence[Id], why: str) -> Fenced:
        """Retire the builds in placement, so that later claims fail; return which were ended, and which hold
        a host.
        """
        fenced = Fenced()
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
                    fenced.revivable[build] = cell
                case Retired(why=cause):
                    fenced.ended_builds[build] = cause
                case Held():
                    fenced.held[build] = result
                case Contended() | OutsideCell():  # OutsideCell cannot happen: a scheduler is in no cell
                    raise Retry(0.5, f"the claim of {build} is contended")
        return fenced

    async def pass_on(
        self, asked: BuildCancelRequested, fenced: Fenced, waited: bool, why: str
    ) -> CancelResults:
        """Order cells to delete cancelled builds that hold a host or are revivable; answer the client. A
        conductor need not have a record of them yet.
        """
        providers = await self._ending.look_up(list(fenced.held.values()))
        places = {build: place_of(held, providers) for build, held in fenced.held.items()}
        cells = {build: place.cell for build, place in places.items() if place is not None} | fenced.revivable
        if not cells:
            why = "it holds resources where no agent builds: it is no build of ours"
        reply_to = asked.reply_to
        deletes = [
            BuildDeleteRequested(build=id_, cell=cell, reply_to=reply_to) for id_, cell in cells.items()
        ]
        return (*self.answer(asked, waited, why, passed_on=cells), *deletes)

    def answer(self, asked: BuildCancelRequested, waited: bool, why: str, **more: Any) -> CancelResults:
        answer = BuildCancelled(build=asked.build, waited=waited, why=why, reply_to=asked.reply_to, **more)
        return (msgspec.structs.replace(answer, notes=asked.unknown_fields),)


class Cancelling:
    """Cancels builds, also those that a fallback has taken over."""

    def __init__(self, ending: Ending, fallbacks: Sequence[Fallback]) -> None:
        self._ending = ending
        self._steps = Cancellation(ending)
        self._fallbacks = fallbacks

    async def cancel(self, asked: BuildCancelRequested) -> CancelResults:
        """Cancel a build: placement retires it. Return the answer and, if the build holds a host already, the
        message that orders its cell to delete it.
        """
        if (deletes := await self._taken(asked)) is not None:
            return deletes
        steps = self._steps
        if not asked.anywhere:
            return steps.answer(asked, False, "no such build or request waits for a host")
        if not asked.fence and isinstance(await self._ending.retire(asked.build, ""), Released):
            return steps.answer(asked, False, "no build or waiting request has this id", known=False)
        fenced = await steps.fence((asked.build,), DELETED)
        if (deletes := await self._taken(asked)) is not None:  # it was taken over in the meantime
            return deletes
        if fenced.held or fenced.revivable:
            return await steps.pass_on(asked, fenced, False, "")
        if fenced.ended_builds:
            return steps.answer(asked, False, f"it has ended before: {fenced.ended_builds[asked.build]}")
        why = "it has no host, and a request for it will get no host"
        return steps.answer(asked, False, why, known=bool(fenced.before))

    async def _taken(self, asked: BuildCancelRequested) -> CancelResults | None:
        """Return the messages of the fallback that had taken the build over and cancels it, or None."""
        for fallback in self._fallbacks:
            if (deletes := await fallback.cancel(asked)) is not None:
                return deletes
        return None
