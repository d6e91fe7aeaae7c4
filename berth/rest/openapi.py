"""The OpenAPI 3.1 document of the REST API, generated from the types of its bodies."""

from collections.abc import Mapping
from typing import Any

from berth.features import added
from berth.kit.http_descriptions import EVENT_STREAM, DescribedOperation, OperationKey
from berth.kit.rest import RestPart
from berth.openapi import document
from berth.rest import bodies
from bus.messages import BuildRequested

ADDRESS = "/v1/openapi.json"
_SUMMARY = "Boots, deletes and moves instances, and reports the ends of these requests."
_IN_PATH = {"id": "uuid of the request, build or move"}
_PROJECT = {"project": "id of the project; default: the project of the token"}
_WAIT = {"wait": "seconds to wait for a result, at most 300"}
_AFTER = {"after": "number of the last event that the client has; default: the newest event"}

_OF_BUILDS: Mapping[OperationKey, DescribedOperation] = {
    (ADDRESS, "GET"): DescribedOperation("Return this document.", dict[str, Any], is_open=True),
    ("/v1/requests", "POST"): DescribedOperation(
        "Request one instance, or several. A repetition changes nothing.",
        bodies.Accepted,
        body=BuildRequested,
        status=202,
        refusals=(400, 409),
    ),
    ("/v1/requests/batch", "POST"): DescribedOperation(
        "Send up to 1,000 build requests, which are accepted together or not at all.",
        bodies.BatchAccepted,
        body=bodies.BatchRequested,
        status=202,
        refusals=(400, 409),
    ),
    ("/v1/requests/{id}", "GET"): DescribedOperation(
        "Show a build request and the results of its builds.",
        bodies.RequestState,
        query=_WAIT,
        refusals=(400, 404, 429),
    ),
    ("/v1/builds", "GET"): DescribedOperation(
        "List instances that meet all parameters, by id.",
        bodies.BuildsListed,
        query={
            **_PROJECT,
            "cell": "name of a cell; default: all cells",
            "host": "name of a host, or uuid of its root provider",
            "name": "display name of the instance",
            "status": "statuses, separated by commas; default: all but deleted",
            "since": "only instances that changed in this time, such as 10m",
            "after": "`after` of the previous page",
            "limit": "largest number of instances, from 1 to 1000",
        },
        refusals=(400,),
    ),
    ("/v1/builds/{id}", "GET"): DescribedOperation(
        "Show a build, wherever it is.", bodies.BuildDetails, refusals=(400, 404)
    ),
    ("/v1/builds/{id}", "DELETE"): DescribedOperation(
        "Delete an instance, or cancel a request that waits. The result is an event.",
        bodies.BuildAccepted,
        status=202,
        refusals=(400, 404),
    ),
}
_OF_EVENTS: Mapping[OperationKey, DescribedOperation] = {
    ("/v1/events", "GET"): DescribedOperation(
        "List the results of the project's requests over HTTP, by number.",
        bodies.EventsListed,
        query={**_PROJECT, **_AFTER, **_WAIT},
        refusals=(400, 410, 429),
    ),
    ("/v1/events/stream", "GET"): DescribedOperation(
        "Follow these results as server-sent events, whose `id` is the number; the schema describes each.",
        bodies.Event,
        query={**_PROJECT, **_AFTER},
        refusals=(400, 410, 429),
        media=EVENT_STREAM,
    ),
}


_OF_BERTH: Mapping[OperationKey, DescribedOperation] = {
    ("/v1/problems", "GET"): DescribedOperation(
        "List what is wrong now: each problem with its consequence and the next command. For operators.",
        bodies.ProblemsListed,
    )
}


def operations() -> dict[OperationKey, DescribedOperation]:
    """Return the descriptions of all operations, also of those that features add."""
    of_features = {
        key: each.described for part in added(RestPart, "rest") for key, each in part.operations.items()
    }
    return {**_OF_BUILDS, **of_features, **_OF_EVENTS, **_OF_BERTH}


def rest_document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the REST API."""
    return document(operations(), _SUMMARY, _IN_PATH)
