"""Searches for the moves of plans, in parallel with the steps of plans: a search may take long."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bus.clock import Clock
from bus.vocabulary import Id

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(eq=False)
class _Search(Generic[Q, A]):
    key: Hashable
    after: float
    asked: Q | None = None  # while it goes on
    found: A | None = None


class PlanSearches(Generic[Q, A]):
    """The last search of each plan. `find` answers a query, also if workers do not answer."""

    def __init__(self, find: Callable[[Q], Awaitable[A]], clock: Clock, wake: Callable[[], None]) -> None:
        self._find = find
        self._clock = clock
        self._wake = wake
        self._searches: dict[Id, _Search[Q, A]] = {}
        self._waiting = asyncio.Queue[_Search[Q, A]]()

    def begin(self, plan: Id, key: Hashable, asked: Callable[[], Q], pause: float = 0.0) -> None:
        """Begin the search of a plan that has this key, if it is not begun; `pause` seconds after the first
        call.
        """
        now, search = self._clock.monotonic(), self._searches.get(plan)
        if search is None or search.key != key:
            search = self._searches[plan] = _Search(key, now + pause)
        if search.asked is None and search.found is None and now >= search.after:
            search.asked = asked()
            self._waiting.put_nowait(search)

    def found(self, plan: Id, key: Hashable) -> A | None:
        """Return the answer; None if the search with this key has not ended."""
        search = self._searches.get(plan)
        return search.found if search is not None and search.key == key else None

    def forget(self, plans: Collection[Id]) -> None:
        """Drop the searches of all plans except the given ones."""
        self._searches = {id_: self._searches[id_] for id_ in plans if id_ in self._searches}

    async def run(self) -> None:
        """Search, one after the other, until this scheduler stops."""
        while True:
            search = await self._waiting.get()
            if search in self._searches.values() and search.asked is not None:
                search.found = await self._find(search.asked)
                search.asked = None
                self._wake()
