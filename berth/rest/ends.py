"""The log of ends: stores the results of requests with ascending numbers, and wakes the clients that wait."""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from operator import attrgetter
from typing import Any

from msgspec import structs

from berth.kit.rest_ends import EndRule
from berth.rest import store
from berth.rest.bodies import BuildResult
from berth.rest.store import StoredEnd
from bus import protocol, topics
from bus.clock import Clock, set_within
from bus.errors import Unavailable
from bus.messages import BuildCancelled, BuildConflict, BuildDeleted, BuildEnded, BuildUnplaceable
from bus.repetitions import CONFLICT
from bus.sql.database import Database
from bus.sql.failures import retrying
from bus.vocabulary import Message

log = logging.getLogger(__name__)


EVENTS = {topic.pattern.removesuffix(".{cell}"): topic.message for topic in topics.client_topics()}


_EVENT_OF = {kind: event for event, kind in EVENTS.items()}


POLL_SECONDS = 0.5  # between reads of ends that another process stored


RECENT = 10_000  # ends in memory


PAGE = 500


_PRUNE_PAGE = 5000


class Expired(Exception):
    """Error: events cannot be resumed after a number, because later events were deleted, or the number does
    not exist yet.
    """


_of_build = attrgetter("build")


_RULES: Mapping[type[Message], EndRule] = {
    BuildEnded: EndRule(request=attrgetter("request"), subject=_of_build, has_record=True),
    BuildUnplaceable: EndRule(
        request=attrgetter("request"),
        subject=lambda message: f"{message.request} {min(message.instances, default='')}",
        has_record=True,
    ),
    BuildConflict: EndRule(request=attrgetter("request"), subject=attrgetter("request"), repeats=True),
    BuildDeleted: EndRule(request=_of_build, subject=_of_build, repeats=True),
    BuildCancelled: EndRule(request=_of_build, subject=_of_build, repeats=True),
}


class EndLog:
    """Stores the ends of requests, and wakes clients that wait for them. Several processes may share the
    database.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        keep: float,
        keep_requests: float,
        of_features: Mapping[type[Message], EndRule],
    ) -> None:
        self._database = database
        self._rules = {**_RULES, **of_features}
        self._clock = clock
        self._keep = keep
        self._keep_requests = keep_requests  # at least as long as a request may wait for its end
        self._recent: deque[StoredEnd] = deque(maxlen=RECENT)
        self._complete_after = -1  # memory has all ends with higher numbers; -1: nothing was read yet
        self._seen = 0
        self._due = asyncio.Event()
        self._watches: dict[str, set[asyncio.Event]] = {}  # the waiting clients, by project or request
        self.is_closed = False  # True: the server stops, so no client waits for further ends
        database.on_new_history(self._forget)
        self.record = retrying(clock)(self._record)

    async def _record(self, messages: Sequence[Message]) -> Sequence[None]:
        """Store messages with ascending numbers. Repetitions, messages about requests that are not stored
        here, and messages without a result for the client are ignored.
        """
        judged = ((message, self._rules.get(type(message))) for message in messages)
        ends = [_end(message, rule) for message, rule in judged if rule is not None and rule.is_end(message)]
        if not ends:
            return [None] * len(messages)
        async with self._database.write() as tx:
            projects = await store.projects_of(tx, [end.request for end in ends])
            known = [replace(end, project=projects[end.request]) for end in ends if end.request in projects]
            if known:
                await store.add_ends(tx, known, self._clock.now())
        self._due.set()
        return [None] * len(messages)

    def _forget(self) -> None:
        """Discard the ends in memory, to read them again: after the database has failed over, the latest
        numbers may be used again.
        """
        self._complete_after = -1
        self._recent.clear()
        self._due.set()

    async def checked(self, after: int | None) -> int:
        """Return the number `after`, or with None the newest number; raise Expired if events cannot be
        resumed from it.
        """
        async with self._database.read_single() as tx:
            newest, pruned = await store.counter(tx)
        if after is None:
            return newest
        if after > newest:
            raise Expired(f"after: the newest event is {newest}; read the state of your requests again")
        if after < pruned:
            raise Expired(f"after: events up to {pruned} were deleted; read the state of your requests again")
        return after

    async def after(self, number: int, project: str) -> list[StoredEnd]:
        """Return a page of the project's ends with numbers above `number`."""
        if 0 <= self._complete_after <= number:
            newer = bisect_right(self._recent, number, key=lambda end: end.number)
            recent = (self._recent[at] for at in range(newer, len(self._recent)))
            return [end for end in recent if end.project == project][:PAGE]
        async with self._database.read_single() as tx:
            return await store.ends_after(tx, number, PAGE, project)

    @contextmanager
    def watching(self, key: str) -> Iterator[asyncio.Event]:
        """Yield an asyncio event that is set whenever new ends of a project or request (`key`) were read."""
        changed = asyncio.Event()
        self._watches.setdefault(key, set()).add(changed)
        try:
            yield changed
        finally:
            self._watches[key].discard(changed)
            if not self._watches[key]:
                del self._watches[key]

    async def follow(self) -> None:
        """Read new ends into memory and wake the clients that wait for them, until cancelled."""
        while True:
            try:
                is_page_full = await self._read()
            except Unavailable as problem:
                log.warning("clients wait for the log of ends: %s", problem)
                is_page_full = False
            if not is_page_full:
                await self._wait()

    async def _read(self) -> bool:
        async with self._database.read_single() as tx:
            if self._complete_after < 0:
                self._seen = self._complete_after = (await store.counter(tx))[0]
                self._wake(list(self._watches))
                return False
            found = await store.ends_after(tx, self._seen, PAGE)
        for end in found:
            if len(self._recent) == RECENT:
                self._complete_after = self._recent[0].number
            self._recent.append(end)
            self._seen = end.number
        self._wake({key for end in found for key in (end.project, end.request)})
        return len(found) == PAGE

    def _wake(self, keys: Collection[str]) -> None:
        for key in keys:
            for changed in self._watches.get(key, ()):
                changed.set()

    async def _wait(self) -> None:
        await set_within(self._due, POLL_SECONDS)
        self._due.clear()

    def close(self) -> None:
        """Let all clients stop waiting, because the server stops."""
        self.is_closed = True
        self._wake(list(self._watches))

    async def prune(self) -> None:
        """Delete ends after `keep` seconds, and requests after `keep_requests` seconds."""
        now = self._clock.now()
        for delete, keep in ((store.prune_ends, self._keep), (store.prune_requests, self._keep_requests)):
            await self._database.delete_old(delete, now - keep, _PRUNE_PAGE)


def _end(message: Message, rule: EndRule) -> StoredEnd:
    """Return a message as the log stores it, without the decision record that only operators use."""
    bare: Any = structs.replace(message, reply_to="")
    if rule.has_record:
        bare = structs.replace(bare, decision=structs.replace(bare.decision, record=None))
    body = protocol.encode(bare)
    subject = rule.subject(message)
    if rule.repeats:
        subject = f"{subject} {sha256(body).hexdigest()[:16]}"
    event = _EVENT_OF[type(message)]
    return StoredEnd(event=event, subject=subject, request=rule.request(message), body=body.decode())


def results_of(event: str, body: str) -> list[BuildResult]:
    """Return the results of builds in a stored end; empty for other events."""
    if EVENTS[event] is BuildEnded:
        ended = protocol.decode(BuildEnded, body.encode())
        return [
            BuildResult(
                build=ended.build, status=ended.status, host=ended.host, cell=ended.cell, reason=ended.reason
            )
        ]
    if EVENTS[event] is BuildUnplaceable:
        refusal = protocol.decode(BuildUnplaceable, body.encode())
        return [
            BuildResult(build=build, status="refused", reason=refusal.reason, code=refusal.decision.code)
            for build in refusal.instances
        ]
    if EVENTS[event] is BuildConflict:
        conflict = protocol.decode(BuildConflict, body.encode())
        return [
            BuildResult(build=build, status="refused", reason=conflict.reason, code=CONFLICT)
            for build in conflict.instances
        ]
    return []
