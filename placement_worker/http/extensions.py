"""berth's additional routes: versions, health, metrics, bulk load, stream of changes, aggregates."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sse_starlette import EventSourceResponse, ServerSentEvent

from bus import aggregates
from bus.errors import Unavailable
from bus.http import TooManyRequests
from bus.replication import PlacementChanged
from bus.requests import ResourceGroup
from bus.resources import FindProviders, LoadProviders
from bus.vocabulary import Contended, Missing, Taken
from placement_worker.http import errors
from placement_worker.http.api_call import (
    FIRST_VERSION,
    LATEST_VERSION,
    ApiAnswer,
    ApiCall,
    empty_answer,
    encode,
    json_answer,
)
from placement_worker.http.bodies import (
    AggregateAfterEdit,
    AggregateChange,
    AggregateCreation,
    AggregateShown,
    AggregatesListed,
    ChangeEvent,
    HostInAggregate,
    LoadResults,
    ProviderChanged,
)
from placement_worker.http.schemas import is_uuid
from placement_worker.memory import Forgotten

_load = msgspec.json.Decoder(LoadProviders)

BEAT_SECONDS = 15.0  # between comments in a stream without events, so that proxies keep it open

_ANEW = "read everything again, and follow from there"


async def versions(call: ApiCall) -> ApiAnswer:
    version = {
        "id": "v1.0",
        "max_version": LATEST_VERSION,
        "min_version": FIRST_VERSION,
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return json_answer({"versions": [version]})


async def alive(call: ApiCall) -> ApiAnswer:
    return json_answer({"status": "alive"})


async def ready(call: ApiCall) -> ApiAnswer:
    """Answer the readiness check: ready if the database answers and the index is complete, unless the process
    is being stopped.
    """
    if call.closing.is_set():
        raise errors.Problem(503, "it is being stopped")
    await call.placement.memory.fresh()
    return json_answer({"status": "ready", "seen": call.placement.memory.index.seen})


async def metrics(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(body=generate_latest(), kind=CONTENT_TYPE_LATEST)


async def load(call: ApiCall) -> ApiAnswer:
    loaded = await call.placement.bulk_load.load(await call.decoded(_load))
    return json_answer(LoadResults(results=loaded.results))


async def changes(call: ApiCall) -> EventSourceResponse:
    try:
        call.streams.check(call.identity.user)
    except TooManyRequests as problem:
        raise errors.Problem(429, str(problem), headers={"retry-after": "1"}) from None
    after = await _after(call)
    changes = call.placement.memory.feed(after, call.closing)
    first = None
    if after != call.placement.memory.index.seen:
        try:
            first = await anext(changes)  # raises Forgotten if this change is no longer stored
        except Forgotten as forgotten:
            raise errors.Problem(410, f"{forgotten}: {_ANEW}") from None
    return EventSourceResponse(
        _events(first, changes, call.streams.counted(call.identity.user)),
        headers={name.decode(): value.decode() for name, value in call.common_headers()},
        ping=BEAT_SECONDS,
        ping_message_factory=_beat,
        sep="\n",
    )


async def _after(call: ApiCall) -> int:
    await call.placement.memory.fresh()
    newest = call.placement.memory.index.seen
    given = call.headers.get("last-event-id") or _asked(call, "after").get("after")
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


# Routes for aggregates with name, metadata and hosts

MOST = 10_000  # maximum number of aggregates in one answer

_new = msgspec.json.Decoder(AggregateCreation)
_change = msgspec.json.Decoder(AggregateChange)


async def list_aggregates(call: ApiCall) -> ApiAnswer:
    asked = _asked(call, "name", "host", "key", "after", "limit")
    limit = asked.pop("limit", str(MOST))
    if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= MOST):
        raise errors.bad_request(f"limit: a number from 1 to {MOST}, not {limit[:40]!r}")
    query = msgspec.structs.replace(aggregates.FindAggregates(limit=int(limit)), **asked)
    found = await call.placement.aggregates.find(query)
    listed = [_shown(aggregate, found.hosts.get(aggregate.id, 0)) for aggregate in found.aggregates]
    return json_answer(AggregatesListed(aggregates=listed, more=found.more))


async def create_aggregate(call: ApiCall) -> ApiAnswer:
    body = await call.decoded(_new)
    id_ = body.uuid or call.placement.clock.uuid()
    edit = aggregates.MakeAggregate(
        aggregate=id_, name=body.name, metadata=body.metadata, hosts=body.hosts, force=body.force
    )
    edited = await _edit(call, edit)
    location = {"location": call.location(f"/berth/aggregates/{id_}")}
    return json_answer(_edited(edited), status=201 if edited.made else 200, headers=location)


async def show_aggregate(call: ApiCall) -> ApiAnswer:
    aggregate = await _named(call)
    inside = await call.placement.lookups.providers(
        FindProviders(like=ResourceGroup(member_of=((aggregate.id,),)), parts=("owner",))
    )
    hosts = [
        HostInAggregate(uuid=root.id, name=root.host or root.name)
        for root in inside.providers
        if not root.parent
    ]
    hosts.sort(key=lambda host: host.name)
    return json_answer(_shown(aggregate, len(hosts), hosts))


async def change_aggregate(call: ApiCall) -> ApiAnswer:
    body = await call.decoded(_change)
    aggregate = await _named(call)
    metadata = body.metadata.items()
    edit = aggregates.ChangeAggregate(
        aggregate=aggregate.id,
        name=body.name,
        set={key: value for key, value in metadata if value is not None},
        unset=tuple(key for key, value in metadata if value is None),
        add=body.add,
        remove=body.remove,
        force=body.force,
    )
    return json_answer(_edited(await _edit(call, edit)))


async def delete_aggregate(call: ApiCall) -> ApiAnswer:
    aggregate = await _named(call)
    await _edit(call, aggregates.DropAggregate(aggregate=aggregate.id, force=_forced(call)))
    return empty_answer()


async def change_host(field: str, call: ApiCall) -> ApiAnswer:
    """Add the host that the URL names to the aggregate that the URL names (`field`: `add`), or remove it from
    there (`remove`).
    """
    hosts: dict[str, Any] = {field: (call.path["host"],)}
    edit = aggregates.ChangeAggregate(aggregate=(await _named(call)).id, force=_forced(call), **hosts)
    return json_answer(_edited(await _edit(call, edit, host=True)))


async def _named(call: ApiCall) -> aggregates.Aggregate:
    name = call.path["aggregate"]
    query = (
        aggregates.FindAggregates(ids=(name.lower(),))
        if is_uuid(name)
        else aggregates.FindAggregates(name=name)
    )
    found = (await call.placement.aggregates.find(query)).aggregates
    if not found:
        raise errors.not_found(f"There is no aggregate {name}.")
    return found[0]


async def _edit(
    call: ApiCall, edit: aggregates.AggregateEdit, *, host: bool = False
) -> aggregates.AggregateEdited:
    result = (await call.placement.aggregates.edit(aggregates.AggregateEditRequested(edit=edit))).result
    if isinstance(result, aggregates.AggregateEdited):
        return result
    why = aggregates.refusal_reason(result)
    match result:
        case Missing(what=kind):
            raise errors.bad_request(why) if kind == "host" and not host else errors.not_found(why)
        case Taken():
            raise errors.conflict(why, errors.DUPLICATE_NAME)
        case Contended():
            raise errors.conflict(why, errors.CONCURRENT_UPDATE)
        case _:
            raise errors.conflict(why)


def _asked(call: ApiCall, *known: str) -> dict[str, str]:
    for name, _ in call.pairs:
        if name not in known:
            raise errors.bad_request(f"{name[:40]!r} is not a parameter here; there are: {', '.join(known)}")
    return dict(call.pairs)


def _forced(call: ApiCall) -> bool:
    return _asked(call, "force").get("force", "false").lower() in ("true", "1", "")


def _shown(
    aggregate: aggregates.Aggregate, host_count: int, hosts: list[HostInAggregate] | UnsetType = UNSET
) -> AggregateShown:
    return AggregateShown(
        uuid=aggregate.id,
        name=aggregate.name,
        metadata=aggregate.metadata,
        host_count=host_count,
        hosts=hosts,
    )


def _edited(edited: aggregates.AggregateEdited) -> AggregateAfterEdit:
    return AggregateAfterEdit(
        uuid=edited.aggregate.id,
        name=edited.aggregate.name,
        metadata=edited.aggregate.metadata,
        added=edited.added,
        removed=edited.removed,
        warnings=edited.warnings,
    )
