"""The stream of changes: every commit of placement as a server-sent event."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager

import msgspec
from msgspec import UNSET
from sse_starlette import EventSourceResponse, ServerSentEvent

from bus.errors import Unavailable
from bus.http import TooManyRequests
from bus.replication import PlacementChanged
from features.placement_additions.bodies import ChangeEvent, ProviderChanged
from features.placement_additions.feed import ChangeFeed
from features.placement_additions.parameters import parameters
from placement_worker.extension import Forgotten
from placement_worker.http.extension import ApiCall, encode, errors

BEAT_SECONDS = 15.0  # between comments in a stream without events, so that proxies keep it open

_ANEW = "read everything again, and follow from there"


async def changes(call: ApiCall) -> EventSourceResponse:
    feed = call.placement.of(ChangeFeed)
    try:
        feed.streams.check(call.identity.user)
    except TooManyRequests as problem:
        raise errors.Problem(429, str(problem), headers={"retry-after": "1"}) from None
    newest = await feed.newest()
    after = _after(call, newest)
    changes = feed.follow(after, call.closing)
    first = None
    if after != newest:
        try:
            first = await anext(changes)  # raises Forgotten if this change is no longer stored
        except Forgotten as forgotten:
            raise errors.Problem(410, f"{forgotten}: {_ANEW}") from None
    return EventSourceResponse(
        _events(first, changes, feed.streams.counted(call.identity.user)),
        headers={name.decode(): value.decode() for name, value in call.common_headers()},
        ping=BEAT_SECONDS,
        ping_message_factory=_beat,
        sep="\n",
    )


def _after(call: ApiCall, newest: int) -> int:
    """Return the change number after which the client's stream begins."""
    given = call.headers.get("last-event-id") or parameters(call, "after").get("after")
    if given is None:
        return newest
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise errors.bad_request(f"after: the number of a change, not {given[:40]!r}")
    after = int(given)
    if after > newest:
        raise errors.Problem(
            410,
            f"after: there has been no change {after}, the newest is {newest}; if there was such a number,"
            f" the database was replaced or restored: {_ANEW}",
        )
    return after


async def _events(
    first: PlacementChanged | None,
    changes: AsyncIterator[PlacementChanged],
    while_open: AbstractContextManager[None],
) -> AsyncIterator[ServerSentEvent]:
    try:
        with while_open:
            yield _beat()  # shows the client immediately that the stream works
            if first is not None:
                yield _event(first)
            async for change in changes:
                yield _event(change)
    except Forgotten as forgotten:  # the client reads too slowly: the next changes are deleted
        yield ServerSentEvent(encode(str(forgotten)).decode(), event="forgotten", sep="\n")
    except Unavailable:
        return  # the client then reconnects and sends the last change number that it received


def _beat() -> ServerSentEvent:
    return ServerSentEvent(comment="berth", sep="\n")


def _event(change: PlacementChanged) -> ServerSentEvent:
    fields = ChangeEvent(
        number=change.number,
        changes=tuple(ProviderChanged(**msgspec.structs.asdict(each)) for each in change.changes),
        aggregates=change.aggregates or UNSET,
    )
    return ServerSentEvent(encode(fields).decode(), event="changed", id=str(change.number), sep="\n")
