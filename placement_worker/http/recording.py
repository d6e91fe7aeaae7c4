"""Records requests to HTTP APIs that change something, or are denied, in the audit trail."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec import structs

from bus import acts
from bus.acts import Target
from bus.audit_trail import ActRecord, Outcome
from bus.clock import Clock
from bus.delivery.recording import Caller, in_messages
from bus.errors import BrokerRefused, Unavailable, Unroutable
from bus.http import origin_of
from bus.vocabulary import Message, cause_of
from placement_worker.http.access import AccessPolicy
from placement_worker.http.api_call import ApiCall

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2
RETRY_SECONDS = 5.0
MOST_BUFFERED = 20_000  # number of unpublished records; while there are more, records are dropped
UNKNOWN_A_FLUSH = 5  # records per `flush` about requests without a valid token, which anyone can send

WRITES = frozenset(("PUT", "POST", "PATCH", "DELETE"))
SIGN_IN = "sign in"  # the act of a request without a valid token


@dataclass(eq=False)
class RecordedRequests:
    """The records of requests to an HTTP API, which are published together five times a second."""

    publish: Callable[[Message], Awaitable[None]]
    clock: Clock
    policy: AccessPolicy
    known_by: str
    _records: list[ActRecord] = field(default_factory=list)
    _unknown: int = 0

    def add(self, call: ApiCall, detail: str) -> None:
        """Record an answered request to the Placement API, unless it only reads and was permitted."""
        if call.status not in (401, 403) and not (call.method in WRITES and call.rule):
            return
        path = [*call.path.values()]
        caller = Caller(
            operator=self.policy.operator(call.identity, self.known_by),
            interface="placement api",
            through=f"{call.method} {call.pattern or 'unknown URL'}",
            origin=origin_of(call.scope),
            request=call.id,
        )
        target = Target(path[0] if path else "", project=call.path.get("project", ""))
        before, after = acts.difference(call.before, call.after)
        asked = cause_of(call.asked.decode("utf-8", "replace"))
        states = {"asked": asked, "before": before, "after": after}
        self.put(caller, call.rule or SIGN_IN, target, (call.status, detail), **states)

    def put(self, caller: Caller, act: str, target: Target, response: tuple[int, str], **states: str) -> None:
        """Record an act, unless too many records wait already. Its outcome follows from the response, an HTTP
        status and a reason.
        """
        status, detail = response
        if len(self._records) >= MOST_BUFFERED or (status == 401 and self._unknown >= UNKNOWN_A_FLUSH):
            return
        self._unknown += status == 401
        outcome: Outcome = "done"
        if status >= 400:
            outcome = "denied" if status in (401, 403) else "failed" if status >= 500 else "refused"
        record = caller.record(self.clock.uuid(), self.clock.now(), act, target)
        detail = cause_of(detail)
        self._records.append(structs.replace(record, outcome=outcome, detail=detail, **states))

    async def run(self) -> None:
        """Publish the records until this task is cancelled, and then the remaining records."""
        try:
            while True:
                await asyncio.sleep(FLUSH_SECONDS)
                if not await self.flush():
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self.flush()

    async def flush(self) -> bool:
        """Publish the records. If some cannot be delivered, keep these and return False."""
        self._unknown = 0
        for message in in_messages(tuple(self._records)):
            try:
                await self.publish(message)
            except (Unavailable, Unroutable, BrokerRefused) as problem:
                log.warning("%d records of API requests wait: %s", len(self._records), problem)
                return False
            del self._records[: len(message.records)]
        return True
