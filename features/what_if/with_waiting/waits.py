"""Adds to the answers of what-if questions how a request would wait: in the backlog, and for capacity."""

from collections.abc import Callable, Collection, Mapping

from bus.messages import BuildRequested
from bus.queries import HeldHost
from features.waiting.answers import held_named
from features.waiting.core.shares import Contender
from features.waiting.messages import priority_of
from features.waiting.store import WaitingStore
from features.waiting.tables import queued
from features.waiting.tables.queued import OtherScheduler
from features.what_if.messages import BacklogPlace
from features.what_if.questions import Supposed
from scheduler_worker.extension import Searching


class WhatIfWaits:
    """Estimates how long the request of a what-if question would wait."""

    def __init__(
        self,
        scheduler: Searching,
        waiting: WaitingStore,
        held: Callable[[list[OtherScheduler]], list[HeldHost]],
    ) -> None:
        self._scheduler = scheduler
        self._held = held  # returns the hosts held for waiting requests
        self._waiting = waiting

    async def suppose(self, supposed: Supposed) -> Supposed:
        """Add the place of the request in the backlog of its project to the answer, if there is one, and its
        expected start if it fits nowhere.
        """
        request, fits = supposed.question.request, supposed.answer.fits
        if supposed.question.is_external or not supposed.names_others:
            return supposed
        async with self._waiting.database.read() as tx:
            before = await queued.before(tx, request.project, priority_of(request.parts))
            roster = await queued.roster(tx) if before or not fits else []
        if not fits:
            supposed = supposed.having(held=held_named(supposed.answer.decision, self._held(roster)))
        if before:
            supposed = supposed.having(backlog=self._place(request, before, roster))
        if fits:
            return supposed
        [order] = await self._scheduler.resolved([request])
        kind, queues = self._waiting.kind(order), self._waiting.queues
        contender = Contender(request.project, priority_of(request.parts), self._scheduler.clock.now())
        position = queues.place_of_new(kind, contender)
        start = self._waiting.starts.expected(kind, priority_of(request.parts), position, roster)
        return supposed if start is None else supposed.having(start_p50=start[0], start_p90=start[1])

    def _place(
        self, request: BuildRequested, before: Mapping[str, int], roster: Collection[OtherScheduler]
    ) -> BacklogPlace:
        """Return the request's place in the backlog, from the numbers of requests before it by scheduler."""
        weight, priority = self._waiting.weights.of(request.project), priority_of(request.parts)
        start = self._waiting.starts.expected_evaluation(request.project, priority, before, roster)
        start_p50, start_p90 = start or (None, None)
        return BacklogPlace(
            before=sum(before.values()), weight=weight, start_p50=start_p50, start_p90=start_p90
        )
