"""The feature's part of the HTTP API: bulk load, changes, aggregates and explanations."""

from collections.abc import Mapping
from functools import partial

from berth.kit import EVENT_STREAM, DescribedOperation, HttpApiPart, HttpDescription, OperationKey
from features.placement_additions import aggregates, bodies
from features.placement_additions.loading import BulkLoad
from features.placement_additions.messages import LoadProviders
from features.placement_additions.stream import changes
from placement_worker.http.extension import (
    LATEST_MINOR,
    ApiAnswer,
    ApiCall,
    HttpPart,
    delete,
    get,
    json_answer,
    patch,
    post,
    put,
    search_candidates,
    why_none,
)

BULK_BODY = 64 << 20  # bytes
CANDIDATES_SINCE = 10  # first minor version with allocation candidates


async def load(call: ApiCall) -> ApiAnswer:
    loaded = await call.placement.of(BulkLoad).load(await call.decoded(LoadProviders))
    return json_answer(bodies.LoadResults(results=loaded.results))


async def explain(call: ApiCall) -> ApiAnswer:
    """Answer with the number of hosts that each requirement of a query removed, and hosts that nearly fit."""
    minor = call.minor if call.minor >= CANDIDATES_SINCE else LATEST_MINOR
    _, found = await search_candidates(call, minor)
    return json_answer(
        bodies.Explanation(
            seen=found.seen,
            considered=found.considered,
            fitting=found.fitting,
            why="" if found.fits else why_none(found),
            removals=found.removals,
            nearest=found.nearest,
        )
    )


HTTP = HttpPart(
    routes={
        "/berth/explain": (get("placement:allocation_candidates:list", explain),),
        "/berth/providers": (post("berth:providers:load", load, body=BULK_BODY),),
        "/berth/changes": (get("berth:changes:list", changes, json=False),),
        "/berth/aggregates": (
            get("berth:aggregates:list", aggregates.list_aggregates),
            post("berth:aggregates:create", aggregates.create_aggregate),
        ),
        "/berth/aggregates/{aggregate}": (
            get("berth:aggregates:show", aggregates.show_aggregate),
            patch("berth:aggregates:update", aggregates.change_aggregate),
            delete("berth:aggregates:delete", aggregates.delete_aggregate),
        ),
        "/berth/aggregates/{aggregate}/hosts/{host}": (
            put("berth:aggregates:update", partial(aggregates.change_host, "add"), body=0),
            delete("berth:aggregates:update", partial(aggregates.change_host, "remove")),
        ),
    },
    rules={
        "berth:providers:load": "rule:admin_or_service_api",
        "berth:changes:list": "rule:berth:reader",
        "berth:aggregates:list": "rule:berth:reader",
        "berth:aggregates:show": "rule:berth:reader",
        "berth:aggregates:create": "rule:berth:operator or rule:service_api",
        "berth:aggregates:update": "rule:berth:operator or rule:service_api",
        "berth:aggregates:delete": "rule:berth:operator or rule:service_api",
    },
)


# The description of these operations in the OpenAPI document.


_FORCE = {"force": "true: also if the zone of a host with instances changes"}
_QUERY_OF_CANDIDATES = {
    "resources": "amounts by resource class, as in GET /allocation_candidates: VCPU:1,MEMORY_MB:512",
    "required": "traits that are required, or forbidden with a leading !",
    "member_of": "aggregates",
    "in_tree": "uuid of a provider of the tree",
}
_OPERATIONS: Mapping[OperationKey, DescribedOperation] = {
    ("/berth/explain", "GET"): DescribedOperation(
        "Return how many hosts each requirement of a query rejected, and the closest hosts.",
        bodies.Explanation,
        query=_QUERY_OF_CANDIDATES,
        refusals=(400,),
    ),
    ("/berth/providers", "POST"): DescribedOperation(
        "Create or change up to 20,000 providers, parents before children.",
        bodies.LoadResults,
        body=LoadProviders,
        refusals=(400, 415),
    ),
    ("/berth/changes", "GET"): DescribedOperation(
        "Follow all commits as server-sent events; the schema is that of the data of an event `changed`.",
        bodies.ChangeEvent,
        query={"after": "number of the last change that the client has; default: the newest change"},
        refusals=(400, 410, 429),
        media=EVENT_STREAM,
    ),
    ("/berth/aggregates", "GET"): DescribedOperation(
        "List the aggregates that match all parameters, by uuid.",
        bodies.AggregatesListed,
        query={
            "name": "name of the aggregate",
            "host": "name of a host, or uuid of its root provider",
            "key": "key of the metadata",
            "after": "uuid of the last aggregate of the previous page",
            "limit": "largest number of aggregates, from 1 to 10000",
        },
        refusals=(400,),
    ),
    ("/berth/aggregates", "POST"): DescribedOperation(
        "Create an aggregate.",
        bodies.AggregateAfterEdit,
        body=bodies.AggregateCreation,
        status=201,
        further={200: "It exists already like this."},
        refusals=(400, 409, 415),
    ),
    ("/berth/aggregates/{aggregate}", "GET"): DescribedOperation(
        "Show an aggregate and its hosts.", bodies.AggregateShown, refusals=(404,)
    ),
    ("/berth/aggregates/{aggregate}", "PATCH"): DescribedOperation(
        "Change the name, metadata and hosts of an aggregate, all or nothing.",
        bodies.AggregateAfterEdit,
        body=bodies.AggregateChange,
        refusals=(400, 404, 409, 415),
    ),
    ("/berth/aggregates/{aggregate}", "DELETE"): DescribedOperation(
        "Delete an aggregate.", query=_FORCE, status=204, refusals=(404, 409)
    ),
    ("/berth/aggregates/{aggregate}/hosts/{host}", "PUT"): DescribedOperation(
        "Add a host to an aggregate.", bodies.AggregateAfterEdit, query=_FORCE, refusals=(404, 409)
    ),
    ("/berth/aggregates/{aggregate}/hosts/{host}", "DELETE"): DescribedOperation(
        "Remove a host from an aggregate.", bodies.AggregateAfterEdit, query=_FORCE, refusals=(404, 409)
    ),
}

DESCRIPTION = HttpDescription(
    operations=_OPERATIONS,
    in_path={
        "aggregate": "uuid or name of the aggregate",
        "host": "name of the host, or uuid of its root provider",
    },
)


PART = HttpApiPart(HTTP, DESCRIPTION)
