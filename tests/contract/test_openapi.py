"""The OpenAPI documents of the routes under /berth and of the REST API: complete, valid, as served."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
from jsonschema import Draft202012Validator

from berth.placement_http import DOCUMENT_ADDRESS, api_parts, placement_document
from berth.rest.app import handlers
from berth.rest.openapi import ADDRESS as REST_ADDRESS
from berth.rest.openapi import operations as rest_operations
from berth.rest.openapi import rest_document
from placement_worker.http.app import routes
from tests.support.http_placement import HttpPlacement

DOCUMENT: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(placement_document()))
DOCUMENTS = (DOCUMENT, msgspec.json.decode(msgspec.json.encode(rest_document())))

# The parts of the OpenAPI 3.1 specification that the document uses; other fields are errors.
OBJECT = {"type": "object", "additionalProperties": False}
MEDIA = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": OBJECT | {"required": ["schema"], "properties": {"schema": {"type": "object"}}},
}
PARAMETER = OBJECT | {
    "required": ["name", "in", "schema"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "in": {"enum": ["query", "path"]},
        "description": {"type": "string"},
        "required": {"type": "boolean"},
        "schema": {"type": "object"},
    },
    "if": {"properties": {"in": {"const": "path"}}},
    "then": {"required": ["required"], "properties": {"required": {"const": True}}},
}
RESPONSE = OBJECT | {
    "required": ["description"],
    "properties": {"description": {"type": "string", "minLength": 1}, "content": MEDIA},
}
SECURITY = {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "array"}}}
OPERATION = OBJECT | {
    "required": ["operationId", "summary", "responses"],
    "properties": {
        "operationId": {"type": "string", "pattern": "^[a-z_]+$"},
        "summary": {"type": "string", "minLength": 1},
        "parameters": {"type": "array", "items": PARAMETER, "uniqueItems": True},
        "requestBody": OBJECT
        | {"required": ["content"], "properties": {"required": {"type": "boolean"}, "content": MEDIA}},
        "responses": OBJECT | {"patternProperties": {"^[1-5][0-9]{2}$": RESPONSE}, "minProperties": 1},
        "security": SECURITY,
    },
}
OPENAPI = OBJECT | {
    "required": ["openapi", "info", "paths"],
    "properties": {
        "openapi": {"pattern": r"^3\.1\.\d+$"},
        "info": OBJECT
        | {
            "required": ["title", "version"],
            "properties": {
                "title": {"type": "string"},
                "version": {"type": "string"},
                "summary": {"type": "string"},
                "license": OBJECT
                | {
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "identifier": {"type": "string"}},
                },
            },
        },
        "servers": {"type": "array", "items": OBJECT | {"properties": {"url": {"type": "string"}}}},
        "security": SECURITY,
        "paths": OBJECT
        | {
            "patternProperties": {
                "^/": OBJECT | {"patternProperties": {"^(get|put|post|delete|patch)$": OPERATION}}
            }
        },
        "components": OBJECT
        | {
            "properties": {
                "schemas": {"type": "object", "propertyNames": {"pattern": r"^[a-zA-Z0-9._-]+$"}},
                "securitySchemes": {
                    "additionalProperties": OBJECT
                    | {
                        "required": ["type", "in", "name"],
                        "properties": {
                            "type": {"const": "apiKey"},
                            "in": {"const": "header"},
                            "name": {"type": "string"},
                        },
                    }
                },
            }
        },
    },
}


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(reference := part.get("$ref"), str):
            yield reference
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)


def test_every_route_under_berth_is_described_and_no_other() -> None:
    served = {
        (pattern, operation.method)
        for pattern, operations in routes(api_parts()).items()
        if pattern.startswith("/berth/")
        for operation in operations
    }
    assert {
        (pattern, method.upper()) for pattern, methods in DOCUMENT["paths"].items() for method in methods
    } == served


def test_the_operations_that_take_a_body_are_those_with_a_body_in_the_document() -> None:
    for pattern, operations in routes(api_parts()).items():
        for operation in operations if pattern.startswith("/berth/") else ():
            described = DOCUMENT["paths"][pattern][operation.method.lower()]
            assert ("requestBody" in described) == bool(operation.body), pattern


def test_every_route_of_the_rest_api_is_described_and_no_other() -> None:
    assert {*handlers(), (REST_ADDRESS, "GET")} == rest_operations().keys()


@pytest.mark.parametrize("described", DOCUMENTS, ids=["placement", "rest"])
def test_the_document_is_valid_openapi(described: dict[str, Any]) -> None:
    jsonschema.validate(described, OPENAPI)
    for name, schema in described["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert schema.get("type") or schema.keys() & {"anyOf", "$ref"}, name
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert {*references(described)} <= known
    ids = [each["operationId"] for methods in described["paths"].values() for each in methods.values()]
    assert len(ids) == len({*ids})


@pytest.mark.parametrize("described", DOCUMENTS, ids=["placement", "rest"])
def test_every_variable_of_an_address_is_a_parameter(described: dict[str, Any]) -> None:
    for address, methods in described["paths"].items():
        for operation in methods.values():
            named = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
            assert named == re.findall(r"{(\w+)}", address)


@pytest.mark.parametrize("token", ["admin", ""])
async def test_the_document_is_served_without_a_token(near: HttpPlacement, token: str) -> None:
    answer = await near.client.get(DOCUMENT_ADDRESS, headers={"x-auth-token": token} if token else {})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == DOCUMENT
