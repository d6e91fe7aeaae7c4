"""Handlers of the routes for aggregates with names, metadata and hosts."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from bus import aggregates
from bus.requests import ResourceGroup
from bus.resources import FindProviders
from bus.vocabulary import Contended, Missing, Taken
from features.placement_additions.bodies import (
    AggregateAfterEdit,
    AggregateChange,
    AggregateCreation,
    AggregateShown,
    AggregatesListed,
    HostInAggregate,
)
from features.placement_additions.parameters import parameters
from placement_worker.http.extension import ApiAnswer, ApiCall, empty_answer, errors, is_uuid, json_answer

MOST = 10_000  # maximum number of aggregates in one answer


async def list_aggregates(call: ApiCall) -> ApiAnswer:
    asked = parameters(call, "name", "host", "key", "after", "limit")
    limit = asked.pop("limit", str(MOST))
    if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= MOST):
        raise errors.bad_request(f"limit: a number from 1 to {MOST}, not {limit[:40]!r}")
    query = msgspec.structs.replace(aggregates.FindAggregates(limit=int(limit)), **asked)
    found = await call.placement.aggregates.find(query)
    listed = [_shown(aggregate, found.hosts.get(aggregate.id, 0)) for aggregate in found.aggregates]
    return json_answer(AggregatesListed(aggregates=listed, more=found.more))


async def create_aggregate(call: ApiCall) -> ApiAnswer:
    body = await call.decoded(AggregateCreation)
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
    body = await call.decoded(AggregateChange)
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


def _forced(call: ApiCall) -> bool:
    return parameters(call, "force").get("force", "false").lower() in ("true", "1", "")


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
