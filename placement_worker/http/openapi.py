"""The OpenAPI 3.1 document of the routes under /berth, generated from the types of their bodies.

The Placement API itself has a published reference, and is not in the document.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from bus.parts import schema_components
from bus.resources import LoadProviders
from placement_worker.http import bodies
from placement_worker.http.api_call import ApiAnswer, ApiCall, DescribedOperation, Handler
from placement_worker.http.errors import JSON as _JSON
from placement_worker.http.extension import HttpPart

ADDRESS = "/berth/openapi.json"
EVENT_STREAM = "text/event-stream"
_REFERENCE = "#/components/schemas/{name}"
_TOKEN = "token"
_SUMMARY = "Resources that berth serves in addition to the OpenStack Placement API."
_REFUSALS = {
    400: "The request is malformed.",
    401: "A valid token is required.",
    403: "Policy does not permit the operation.",
    404: "The object does not exist.",
    409: "The edit conflicts with the present state.",
    410: "The number has expired, or is in the future.",
    413: "The body is too large.",
    415: "The body is not of the content type application/json.",
    429: "Too many requests of this user that wait, or follow a stream, are in progress.",
    503: "The database does not answer.",
}
_IN_PATH = {
    "aggregate": "uuid or name of the aggregate",
    "host": "name of the host, or uuid of its root provider",
}
_FORCE = {"force": "true: also if the zone of a host with instances changes"}
_QUERY_OF_CANDIDATES = {
    "resources": "amounts by resource class, as in GET /allocation_candidates: VCPU:1,MEMORY_MB:512",
    "required": "traits that are required, or forbidden with a leading !",
    "member_of": "aggregates",
    "in_tree": "uuid of a provider of the tree",
}


OPERATIONS: Mapping[tuple[str, str], DescribedOperation] = {
    (ADDRESS, "GET"): DescribedOperation("Return this document.", dict[str, Any], is_open=True),
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


def serving(parts: Sequence[HttpPart]) -> Handler:
    """Return the handler that answers with the OpenAPI document of the routes under /berth."""

    @cache
    def body() -> bytes:
        return msgspec.json.encode(placement_document(parts))

    async def serve(call: ApiCall) -> ApiAnswer:
        return ApiAnswer(body=body(), kind=_JSON)

    return serve


def placement_document(parts: Sequence[HttpPart]) -> dict[str, Any]:
    """Return the OpenAPI document of the routes under /berth, with those of features."""
    operations, in_path = {**OPERATIONS}, {**_IN_PATH}
    for part in parts:
        operations |= part.described
        in_path |= part.in_path
    return document(operations, _SUMMARY, in_path)


def document(
    operations: Mapping[tuple[str, str], DescribedOperation], summary: str, in_path: Mapping[str, str]
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the operations; `in_path` describes the fields of their URLs."""
    types = [type_ for each in operations.values() for type_ in (each.answer, each.body) if type_ is not None]
    distinct = [*dict.fromkeys(type_ for type_ in types if isinstance(type_, type)), bodies.Refusal]
    schemas = schema_components(distinct, _REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for (address, method), operation in operations.items():
        described = _operation(address, method, operation, in_path)
        paths.setdefault(address, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "berth",
            "version": "1.0",
            "summary": summary,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{_TOKEN: []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {_TOKEN: {"type": "apiKey", "in": "header", "name": "X-Auth-Token"}},
        },
    }


def _operation(
    address: str, method: str, operation: DescribedOperation, in_path: Mapping[str, str]
) -> dict[str, Any]:
    answer = {} if operation.answer is None else {"content": _content(operation.answer, operation.media)}
    responses = {str(operation.status): {"description": operation.summary, **answer}}
    for status, why in (operation.further or {}).items():
        responses[str(status)] = {"description": why, **answer}
    too_large = () if operation.body is None else (413,)
    always = () if operation.is_open else (401, 403, 503)
    for status in dict.fromkeys((*operation.refusals, *too_large, *always)):
        responses[str(status)] = {
            "description": _REFUSALS[status],
            "content": _content(bodies.Refusal, _JSON),
        }
    described: dict[str, Any] = {
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", address)[1:]]),
        "summary": operation.summary,
        "parameters": [
            *(_parameter(name, "path", in_path[name]) for name in re.findall(r"{(\w+)}", address)),
            *(_parameter(name, "query", text) for name, text in (operation.query or {}).items()),
        ],
        "responses": responses,
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body, _JSON)}
    if operation.is_open:
        described["security"] = []
    return described


def _parameter(name: str, place: str, text: str) -> dict[str, Any]:
    required = place == "path"
    return {
        "name": name,
        "in": place,
        "description": text,
        "required": required,
        "schema": {"type": "string"},
    }


def _content(type_: type[Any], media: str) -> dict[str, Any]:
    if not isinstance(type_, type):  # not a class, such as a mapping: described as any JSON object
        return {media: {"schema": {"type": "object"}}}
    return {media: {"schema": {"$ref": _REFERENCE.format(name=type_.__name__)}}}
