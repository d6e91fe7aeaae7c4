"""Generates OpenAPI 3.1 documents of HTTP APIs from the types of their bodies."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from berth.kit.http_descriptions import DescribedOperation, OperationKey
from bus.parts import schema_components
from placement_worker.http.errors import JSON


class ApiError(msgspec.Struct, kw_only=True):
    """One error in the body of a refused request."""

    status: int
    title: str
    detail: str
    request_id: str
    code: str | UnsetType = UNSET


class Refusal(msgspec.Struct, kw_only=True):
    """The body of a refused request, in the format of the Placement API."""

    errors: list[ApiError]


_REFERENCE = "#/components/schemas/{name}"


_TOKEN = "token"


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


def document(
    operations: Mapping[OperationKey, DescribedOperation], summary: str, in_path: Mapping[str, str]
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the operations; `in_path` describes the fields of their URLs."""
    types = [type_ for each in operations.values() for type_ in (each.answer, each.body) if type_ is not None]
    distinct = [*dict.fromkeys(type_ for type_ in types if isinstance(type_, type)), Refusal]
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
        responses[str(status)] = {"description": _REFUSALS[status], "content": _content(Refusal, JSON)}
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
        described["requestBody"] = {"required": True, "content": _content(operation.body, JSON)}
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
