"""Validates bodies and queries against JSON schemas, with the messages of jsonschema.

Most bodies are simple and valid: if a schema has a `plain` type, msgspec validates it in microseconds, and
jsonschema validates only the remaining bodies.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import jsonschema
import msgspec
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import extend

from bus.codec import holds_zero
from bus.errors import NOT_JSON
from placement_worker.http.errors import bad_request

Json = dict[str, Any]

LONGEST_UUID = 36
_ERRORS = 50  # errors compared to find the most relevant one
_SHOWN = 1000  # characters of it

_CANONICAL = re.compile(r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_BARE = re.compile(r"[0-9a-f]{32}")


def is_uuid_like(value: str) -> bool:
    """Return whether the API accepts the value as a UUID in bodies: also without dashes, and in capitals."""
    return len(value) <= LONGEST_UUID and _BARE.fullmatch(value.replace("-", "").lower()) is not None


def is_uuid(value: str) -> bool:
    return _CANONICAL.fullmatch(value) is not None


def _unique(_: Any, wanted: bool, instance: Any, __: Any) -> Iterator[ValidationError]:
    """Check uniqueness in one pass; the type check refuses items that are no strings."""
    if wanted and isinstance(instance, list):
        texts = [one for one in instance if isinstance(one, str)]
        if len(set(texts)) < len(texts):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    """Match the pattern against the whole text: `$` alone would permit a final newline."""
    if isinstance(instance, str) and not re.fullmatch(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


_Validator = extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"uniqueItems": _unique, "pattern": _pattern}
)

_formats = jsonschema.FormatChecker(formats=())
_formats.checks("uuid")(lambda value: not isinstance(value, str) or is_uuid_like(value))
_query_formats = jsonschema.FormatChecker(formats=())
_query_formats.checks("uuid")(lambda value: not isinstance(value, str) or is_uuid(value))


ByVersion = Mapping[int, "Schema"]  # each from that minor version on


def at(minor: int, schemas: ByVersion) -> "Schema":
    return schemas[max(since for since in schemas if since <= minor)]


class Schema:
    """A JSON schema; `plain` is a type that takes only what the schema takes too."""

    def __init__(self, schema: Json, plain: Any = None, *, query: bool = False) -> None:
        formats = _query_formats if query else _formats
        self._validator = _Validator(schema, format_checker=formats)
        self._plain = None if plain is None else msgspec.json.Decoder(plain)

    def read(self, body: bytes) -> Any:
        try:
            value = msgspec.json.decode(body)
        except NOT_JSON as problem:
            raise bad_request(f"Malformed JSON: {problem}") from None
        refuse_nul(body)
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
        """Return the most relevant error, or an empty string."""
        try:
            worst = best_match(islice(self._validator.iter_errors(value), _ERRORS))
        except RecursionError:
            return "nested too deeply"
        if worst is None:
            return ""
        path = "".join(f"[{part!r}]" for part in list(worst.relative_schema_path)[:-1])
        return f"{worst.message[:_SHOWN]}\n\nFailed validating {worst.validator!r} in schema{path}"


def refuse_nul(body: bytes) -> None:
    """Raise Problem if a text in this JSON holds U+0000, which no database stores."""
    if holds_zero(body):
        raise bad_request("JSON does not validate: a text holds the character U+0000")
