"""Records the API requests that change something, or may not, in the audit trail."""

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
from bus.vocabulary import Message
from placement_worker.http.access import AccessPolicy
from placement_worker.http.api_call import ApiCall

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2
RETRY_SECONDS = 5.0
MOST_BUFFERED = 20_000  # records, while the broker does not confirm any
UNKNOWN_A_FLUSH = 5  # records of requests without a valid token, which anyone can send

WRITES = frozenset(("PUT", "POST", "PATCH", "DELETE"))


@dataclass(eq=False)
class RecordedRequests:
    """The records of API requests, which are published together five times a second."""

    publish: Callable[[Message], Awaitable[None]]
    clock: Clock
    policy: AccessPolicy
    known_by: str
    _records: list[ActRecord] = field(default_factory=list)
    _unknown: int = 0

    def add(self, call: ApiCall, detail: str) -> None:
        """Record an answered request, unless it only reads and was permitted."""
        denied = call.status in (401, 403)
        if not (denied or (call.method in WRITES and call.rule)) or len(self._records) >= MOST_BUFFERED:
            return
        if call.status == 401:
            if self._unknown >= UNKNOWN_A_FLUSH:
                return
            self._unknown += 1
        self._records.append(self._record(call, detail, denied))

    def _record(self, call: ApiCall, detail: str, denied: bool) -> ActRecord:
        client = call.scope.get("client")
        path = [*call.path.values()]
        caller = Caller(
            operator=self.policy.operator(call.identity, self.known_by),
            door="placement api",
            through=f"{call.method} {call.pattern or 'unknown URL'}",
            origin=client[0] if client else "",
            request=call.id,
        )
        target = Target(path[0] if path else "", project=call.path.get("project", ""))
        outcome: Outcome = "failed" if call.status >= 500 else "refused" if call.status >= 400 else "done"
        before, after = acts.difference(call.before, call.after)
        return structs.replace(
            caller.record(self.clock.uuid(), self.clock.now(), call.rule or "sign in", target),
            asked=acts.shortened(call.asked.decode("utf-8", "replace")),
            before=before,
            after=after,
            outcome="denied" if denied else outcome,
            detail=acts.shortened(detail),
        )

    async def run(self) -> None:
        """Publish the records until this task is cancelled, and then the remaining ones."""
        try:
            while True:
                await asyncio.sleep(FLUSH_SECONDS)
                if not await self.flush():
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self.flush()

    async def flush(self) -> bool:
        """Publish the records; return False if they could not be delivered and are kept."""
        self._unknown = 0
        for message in in_messages(tuple(self._records)):
            try:
                await self.publish(message)
            except (Unavailable, Unroutable, BrokerRefused) as problem:
                log.warning("%d records of API requests wait: %s", len(self._records), problem)
                return False
            del self._records[: len(message.records)]
        return True
