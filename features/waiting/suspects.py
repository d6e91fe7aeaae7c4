"""Finds the waiting request whose evaluation makes the scheduler's process end, and lets this request fail.

A suspect is a request of a scheduler that ended. Before a suspect is evaluated, a strike is stored, which
remains if this process ends, too. With ALONE or more strikes, the request is evaluated alone, so that no
request fails because of a different request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from bus.vocabulary import Id
from features.waiting.results import Evaluated, Woken
from features.waiting.store import WaitingStore
from features.waiting.tables import queued
from features.waiting.tables.queued import NO_DIGEST
from scheduler_worker.extension import log

ALONE = 2  # at one strike, the ended scheduler owned the request; at two, another one evaluated it
MAX_STRIKES = 4
WHY = f"{MAX_STRIKES} processes of schedulers ended, the last two while they evaluated only this request"


class WaitingSuspects:
    """Handles stored requests that may have ended their process one at a time."""

    def __init__(self, store: WaitingStore) -> None:
        self._store = store
        self._turns = asyncio.Lock()  # held during the evaluation of suspects

    async def evaluate(
        self,
        evaluate: Callable[[Sequence[Woken]], Awaitable[Sequence[Evaluated]]],
        fail: Callable[[Sequence[Woken], str], Awaitable[Sequence[Evaluated]]],
        woken: Sequence[Woken],
    ) -> list[Evaluated]:
        """Evaluate waiting requests: with ALONE or more strikes one by one; with MAX_STRIKES they fail
        without an evaluation. Return the results in the order of `woken`.
        """
        if not any(item.queued.strikes for item in woken):
            return list(await evaluate(woken))
        results: dict[Id, Evaluated] = {}
        apart = [[item] for item in woken if item.queued.strikes >= ALONE]
        together = [item for item in woken if item.queued.strikes < ALONE]
        for some in (*apart, together) if together else apart:
            async with self._turns:
                suspects = {item.queued.request: item.queued.strikes for item in some if item.queued.strikes}
                if max(suspects.values(), default=0) >= MAX_STRIKES:
                    log.error("request %s fails: %s", *suspects, WHY)
                    found = await fail(some, WHY)
                else:
                    await self._store_strikes({request: strikes + 1 for request, strikes in suspects.items()})
                    found = await evaluate(some)
                    await self._absolve(suspects)
            results |= zip((item.queued.request for item in some), found, strict=True)
        return [results[item.queued.request] for item in woken]

    async def _absolve(self, suspects: Mapping[Id, int]) -> None:
        await self._store_strikes(dict.fromkeys(suspects, 0))
        requests = self._store.requests
        requests |= {each: replace(requests[each], strikes=0) for each in suspects if each in requests}

    async def _store_strikes(self, strikes: Mapping[Id, int]) -> None:
        if strikes:
            async with self._store.database.write() as tx:
                strikes_by_id = {(request, NO_DIGEST): several for request, several in strikes.items()}
                await queued.strike(tx, self._store.rows.name, strikes_by_id)
