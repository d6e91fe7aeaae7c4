"""Aggregates with operators' properties: list, create, show, change, delete, and add or remove hosts.

The Placement API's aggregates of a provider are in aggregates_and_traits.py.
"""

from typing import Any

import msgspec

from bus.aggregates import (
    Aggregate,
    AggregateEdit,
    AggregateEdited,
    AggregateEditRequested,
    AggregateName,
    AggregateRefusal,
    ChangeAggregate,
    DropAggregate,
    FindAggregates,
    Hosts,
    MakeAggregate,
    MetadataKey,
    MetadataValue,
    refusal_reason,
)
from bus.requests import ResourceGroup
from bus.resources import FindProviders
from bus.vocabulary import Contended, Id, Missing, Taken
from placement_worker.http.api_call import ApiAnswer, ApiCall, empty_answer, json_answer
from placement_worker.http.errors import (
    CONCURRENT_UPDATE,
    DUPLICATE_NAME,
    Problem,
    bad_request,
    conflict,
    not_found,
)
from placement_worker.http.schemas import is_uuid
from placement_worker.placement import Placement

MOST = 10_000  # in one answer


class _New(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: AggregateName
    uuid: Id | None = None
    metadata: dict[MetadataKey, MetadataValue] = {}
    hosts: Hosts = ()
    force: bool = False


class _Change(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: AggregateName | None = None
    metadata: dict[MetadataKey, MetadataValue | None] = {}  # null takes the key away
    add: Hosts = ()
    remove: Hosts = ()
    force: bool = False


_new = msgspec.json.Decoder(_New)
_change = msgspec.json.Decoder(_Change)


class AggregateHandlers:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    async def list_all(self, call: ApiCall) -> ApiAnswer:
        asked = _asked(call, "name", "host", "key", "after", "limit")
        limit = asked.pop("limit", str(MOST))
        if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= MOST):
            raise bad_request(f"limit: a number from 1 to {MOST}, not {limit[:40]!r}")
        query = msgspec.structs.replace(FindAggregates(limit=int(limit)), **asked)
        found = await self.placement.aggregates.find(query)
        listed = [
            _body(aggregate, host_count=found.hosts.get(aggregate.id, 0)) for aggregate in found.aggregates
        ]
        return json_answer({"aggregates": listed, "more": found.more})

    async def create(self, call: ApiCall) -> ApiAnswer:
        body = await call.decoded(_new)
        id_ = body.uuid or self.placement.clock.uuid()
        edited = await self._edit(
            MakeAggregate(
                aggregate=id_, name=body.name, metadata=body.metadata, hosts=body.hosts, force=body.force
            )
        )
        location = {"location": call.location(f"/berth/aggregates/{id_}")}
        return json_answer(_edited(edited), status=201 if edited.made else 200, headers=location)

    async def show(self, call: ApiCall) -> ApiAnswer:
        one = await self._named(call)
        inside = await self.placement.lookups.providers(
            FindProviders(like=ResourceGroup(member_of=((one.id,),)), parts=("owner",))
        )
        hosts = [
            {"uuid": each.id, "name": each.host or each.name} for each in inside.providers if not each.parent
        ]
        hosts.sort(key=lambda host: host["name"])
        return json_answer(_body(one, host_count=len(hosts), hosts=hosts))

    async def change(self, call: ApiCall) -> ApiAnswer:
        body = await call.decoded(_change)
        one = await self._named(call)
        metadata = body.metadata.items()
        edit = ChangeAggregate(
            aggregate=one.id,
            name=body.name,
            set={key: value for key, value in metadata if value is not None},
            unset=tuple(key for key, value in metadata if value is None),
            add=body.add,
            remove=body.remove,
            force=body.force,
        )
        return json_answer(_edited(await self._edit(edit)))

    async def delete(self, call: ApiCall) -> ApiAnswer:
        one = await self._named(call)
        await self._edit(DropAggregate(aggregate=one.id, force=_forced(call)))
        return empty_answer()

    async def put_host(self, call: ApiCall) -> ApiAnswer:
        return await self._change_host(call, add=(call.path["host"],), remove=())

    async def delete_host(self, call: ApiCall) -> ApiAnswer:
        return await self._change_host(call, add=(), remove=(call.path["host"],))

    async def _change_host(self, call: ApiCall, *, add: Hosts, remove: Hosts) -> ApiAnswer:
        id_ = (await self._named(call)).id
        edit = ChangeAggregate(aggregate=id_, add=add, remove=remove, force=_forced(call))
        return json_answer(_edited(await self._edit(edit, host=True)))

    async def _named(self, call: ApiCall) -> Aggregate:
        name = call.path["aggregate"]
        query = FindAggregates(ids=(name.lower(),)) if is_uuid(name) else FindAggregates(name=name)
        found = (await self.placement.aggregates.find(query)).aggregates
        if not found:
            raise not_found(f"There is no aggregate {name}.")
        return found[0]

    async def _edit(self, edit: AggregateEdit, *, host: bool = False) -> AggregateEdited:
        match (await self.placement.aggregates.edit(AggregateEditRequested(edit=edit))).result:
            case AggregateEdited() as edited:
                return edited
            case refusal:
                raise _refused(refusal, host)


def _refused(refusal: AggregateRefusal, host: bool) -> Problem:
    why = refusal_reason(refusal)
    match refusal:
        case Missing(what="host") if not host:
            return bad_request(why)
        case Missing():
            return not_found(why)
        case Taken():
            return conflict(why, DUPLICATE_NAME)
        case Contended():
            return conflict(why, CONCURRENT_UPDATE)
        case _:
            return conflict(why)


def _asked(call: ApiCall, *known: str) -> dict[str, str]:
    for name, _ in call.pairs:
        if name not in known:
            raise bad_request(f"{name[:40]!r} is not asked for here; there are: {', '.join(known)}")
    return dict(call.pairs)


def _forced(call: ApiCall) -> bool:
    return _asked(call, "force").get("force", "false").lower() in ("true", "1", "")


def _body(aggregate: Aggregate, **more: Any) -> dict[str, Any]:
    return {"uuid": aggregate.id, "name": aggregate.name, "metadata": aggregate.metadata, **more}


def _edited(edited: AggregateEdited) -> dict[str, Any]:
    return _body(edited.aggregate, added=edited.added, removed=edited.removed, warnings=edited.warnings)
