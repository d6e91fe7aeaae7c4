"""JSON schemas of request bodies, by microversion; errors have the messages of the jsonschema package.

Most claims are simple and valid: msgspec validates them by a `plain` type in microseconds, and jsonschema
validates only the remaining bodies.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import jsonschema
import msgspec
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend
from msgspec import UNSET, Meta, UnsetType

from bus.errors import NOT_JSON
from bus.protocol import holds_zero
from bus.vocabulary import MAX_INT, MAX_RATIO
from placement_worker.http.errors import bad_request

Json = dict[str, Any]

LONGEST_UUID = 36
_ERRORS = 50  # number of errors that are compared to find the most relevant one
_SHOWN = 1000  # characters of an error text

_CANONICAL = re.compile(r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_BARE = re.compile(r"[0-9a-f]{32}")


def is_uuid_like(value: str) -> bool:
    """Return whether the API accepts this text as a UUID: also without dashes, and in capital letters."""
    return len(value) <= LONGEST_UUID and _BARE.fullmatch(value.replace("-", "").lower()) is not None


def is_uuid(value: str) -> bool:
    """Return whether the text is a uuid in its canonical form, with hyphens."""
    return _CANONICAL.fullmatch(value) is not None


def _unique(_: Any, wanted: bool, instance: Any, __: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(instance, list):
        texts = [item for item in instance if isinstance(item, str)]
        if len(set(texts)) < len(texts):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    """Yield an error unless the pattern matches the whole text. A search with `$` would permit a final
    newline.
    """
    if isinstance(instance, str) and not re.fullmatch(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


_Validator = extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"uniqueItems": _unique, "pattern": _pattern}
)

_formats = jsonschema.FormatChecker(formats=())
_formats.checks("uuid")(lambda value: not isinstance(value, str) or is_uuid_like(value))
_query_formats = jsonschema.FormatChecker(formats=())
_query_formats.checks("uuid")(lambda value: not isinstance(value, str) or is_uuid(value))


ByVersion = Mapping[int, "Schema"]  # first minor version to which the schema applies → schema


def at(minor: int, schemas: ByVersion) -> "Schema":
    """Return the schema that applies to a minor version: the latest that is not newer."""
    return schemas[max(since for since in schemas if since <= minor)]


class Schema:
    """A JSON schema of HTTP requests. `plain` is a msgspec type for a fast check: each of its values
    satisfies the schema.
    """

    def __init__(self, schema: Json, plain: Any = None, *, query: bool = False) -> None:
        formats = _query_formats if query else _formats
        self._validator = _Validator(schema, format_checker=formats)
        self._plain = None if plain is None else msgspec.json.Decoder(plain)

    def read(self, body: bytes) -> Any:
        """Decode a JSON body; refuse one that does not conform."""
        try:
            value = msgspec.json.decode(body)
        except NOT_JSON as problem:
            raise bad_request(f"Malformed JSON: {problem}") from None
        if holds_zero(body):
            raise bad_request("JSON does not validate: a text holds the character U+0000")
        if self._plain is not None:
            try:
                self._plain.decode(body)
            except msgspec.ValidationError:
                pass
            else:
                return value
        if wrong := self.complaint(value):
            raise bad_request(f"JSON does not validate: {wrong}")
        return value

    def complaint(self, value: Any) -> str:
        """Return the most relevant validation error of an HTTP request's body, or "" if it is valid."""
        try:
            worst = best_match(islice(self._validator.iter_errors(value), _ERRORS))
        except RecursionError:
            return "nested too deeply"
        if worst is None:
            return ""
        path = "".join(f"[{part!r}]" for part in list(worst.relative_schema_path)[:-1])
        return f"{worst.message[:_SHOWN]}\n\nFailed validating {worst.validator!r} in schema{path}"


def _object(properties: Json, required: list[str], **more: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        **more,
    }


def _by(pattern: str, of: Json, least: int = 0) -> Json:
    """Return the schema of an object whose keys match a pattern."""
    return {
        "type": "object",
        "minProperties": least,
        "patternProperties": {pattern: of},
        "additionalProperties": False,
    }


def _with_generation(properties: Json, required: list[str]) -> Json:
    key = "resource_provider_generation"
    return _object(properties | {key: _INTEGER}, [*required, key])


def _number(least: int) -> Json:
    return {"type": "integer", "minimum": least, "maximum": MAX_INT}


_UUID: Json = {"type": "string", "format": "uuid"}
_UUID_OR_NULL: Json = {"anyOf": [_UUID, {"type": "null"}]}
_INTEGER: Json = {"type": "integer"}
_OWNER: Json = {"type": "string", "minLength": 1, "maxLength": 255}
_NAME: Json = {"type": "string", "maxLength": 200}
_KEY = r"^[0-9a-fA-F-]{36}\Z"
_CLASS = "^[A-Z0-9_]+$"

# Types of plain bodies, stricter than the schemas. Nearly all bodies match and need no further validation.


class _Plain(msgspec.Struct, forbid_unknown_fields=True):
    pass


_Uuid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}\Z")]
_Class = Annotated[str, Meta(pattern=r"^[A-Z0-9_]+\Z")]
_Owner = Annotated[str, Meta(min_length=1, max_length=255)]


class _Share(_Plain, kw_only=True):
    resources: Annotated[dict[_Class, Annotated[int, Meta(ge=1)]], Meta(min_length=1)]
    generation: int = 0


class _Claim12(_Plain, kw_only=True):
    allocations: Annotated[dict[_Uuid, _Share], Meta(min_length=1)]
    project_id: _Owner
    user_id: _Owner


class _Claim28(_Plain, kw_only=True):
    allocations: dict[_Uuid, _Share]
    project_id: _Owner
    user_id: _Owner
    consumer_generation: int | None


class _Claim34(_Claim28, kw_only=True):
    mappings: (
        Annotated[dict[str, Annotated[list[_Uuid], Meta(min_length=1)]], Meta(min_length=1)] | UnsetType
    ) = UNSET


class _Claim38(_Claim34, kw_only=True):
    consumer_type: Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}\Z")]


_CLAIMS: dict[int, Any] = {0: None, 8: None, 12: _Claim12, 28: _Claim28, 34: _Claim34, 38: _Claim38}

_PROVIDER: Json = {"name": _NAME, "uuid": _UUID}
POST_PROVIDER = {
    0: Schema(_object(_PROVIDER, ["name"])),
    14: Schema(_object(_PROVIDER | {"parent_provider_uuid": _UUID_OR_NULL}, ["name"])),
}
PUT_PROVIDER = {
    0: Schema(_object({"name": _NAME}, ["name"])),
    14: Schema(_object({"name": _NAME, "parent_provider_uuid": _UUID_OR_NULL}, ["name"])),
}

_INVENTORY: Json = {
    "resource_provider_generation": _INTEGER,
    "total": _number(1),
    "reserved": _number(0),
    "min_unit": _number(1),
    "max_unit": _number(1),
    "step_size": _number(1),
    "allocation_ratio": {"type": "number", "maximum": MAX_RATIO},
}
_STOCKS: Json = {
    "resource_provider_generation": _INTEGER,
    "inventories": _by(_CLASS, _object(_INVENTORY, ["total"])),
}
_INVENTORIES = _object(_STOCKS, [*_STOCKS])
POST_INVENTORY = Schema(
    _object(
        _INVENTORY | {"resource_class": {"type": "string", "pattern": _CLASS}}, ["total", "resource_class"]
    )
)
PUT_INVENTORY = Schema(_object(_INVENTORY, ["total", "resource_provider_generation"]))
PUT_INVENTORIES = Schema(_INVENTORIES)

_UUIDS: Json = {"type": "array", "items": _UUID, "uniqueItems": True}
PUT_AGGREGATES = {0: Schema(_UUIDS), 19: Schema(_with_generation({"aggregates": _UUIDS}, ["aggregates"]))}
PUT_TRAITS = Schema(_with_generation({"traits": {"type": "array", "items": _OWNER}}, ["traits"]))
NAME_CLASS = Schema(
    _object({"name": {"type": "string", "pattern": "^CUSTOM_[A-Z0-9_]+$", "maxLength": 255}}, ["name"])
)

_RESOURCES = _by(_CLASS, {"type": "integer", "minimum": 1}, 1)
_MAPPINGS: Json = {
    "type": "object",
    "minProperties": 1,
    "patternProperties": {"[a-zA-Z0-9_-]{1,64}": {"type": "array", "minItems": 1, "items": _UUID}},
}
_TYPE: Json = {"type": "string", "pattern": _CLASS, "minLength": 1, "maxLength": 255}


def _allocations(minor: int, *, may_be_empty: bool) -> Json:
    if minor < 12:
        provider = _object({"uuid": _UUID}, ["uuid"])
        item = _object(
            {"resource_provider": provider, "resources": _RESOURCES}, ["resource_provider", "resources"]
        )
        properties: Json = {"allocations": {"type": "array", "minItems": 1, "items": item}}
    else:
        share = _object({"generation": _INTEGER, "resources": _RESOURCES}, ["resources"])
        properties = {"allocations": _by(_KEY, share, 0 if may_be_empty else 1)}
    required = ["allocations"]
    if minor >= 8:
        properties |= {"project_id": _OWNER, "user_id": _OWNER}
        required += ["project_id", "user_id"]
    if minor >= 28:
        properties["consumer_generation"] = {"type": ["integer", "null"]}
        required.append("consumer_generation")
    if minor >= 34:
        properties["mappings"] = _MAPPINGS
    if minor >= 38:
        properties["consumer_type"] = _TYPE
        required.append("consumer_type")
    return _object(properties, required)


def _post_allocations(minor: int) -> Schema:
    several = Annotated[dict[_Uuid, _CLAIMS[minor]], Meta(min_length=1)]  # type: ignore[valid-type]
    return Schema(_by(_KEY, _allocations(minor, may_be_empty=True), 1), several if minor >= 28 else None)


PUT_ALLOCATIONS = {
    minor: Schema(_allocations(minor, may_be_empty=minor >= 28), plain) for minor, plain in _CLAIMS.items()
}
POST_ALLOCATIONS = {minor: _post_allocations(minor) for minor in (12, 28, 34, 38)}
_ANY_CLAIMS = {minor: _by(_KEY, _allocations(minor, may_be_empty=True)) for minor in (28, 34, 38)}
RESHAPE = {
    minor: Schema(
        _object(
            {"inventories": _by(_KEY, _INVENTORIES, 1), "allocations": claims}, ["inventories", "allocations"]
        )
    )
    for minor, claims in _ANY_CLAIMS.items()
}
