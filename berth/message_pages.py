"""Makes the pages about messages from the AsyncAPI document: one page for each subject of
`topology.subject_of`, and one for the types that messages of several subjects have.
"""

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from berth.reference_tables import markdown_table
from berth.topology import Carried, asyncapi, subject_of, table
from bus.topics import QUERIES, TOPICS, Query
from bus.worker import Worker

TYPES = "types"  # the page of the types of several subjects
_REF = "#/components/schemas/"
_TYPES = {"string": "text", "integer": "whole number", "boolean": "true or false", None: "anything"}
Link = Callable[[str], str]  # returns the link to the description of a type, by its name


def _all() -> list[Carried]:
    return [*TOPICS, *QUERIES]


def subjects() -> list[str]:
    """Return the subjects of all topics and queries."""
    return sorted({subject_of(carried) for carried in _all()})


def index(workers: Sequence[Worker]) -> str:
    """Return a Markdown table of the pages, with the topics and queries of each."""
    names: dict[str, list[str]] = {subject: [] for subject in subjects()}
    for carried, (name, *_) in zip(_all(), table(workers), strict=True):
        names[subject_of(carried)].append(f"`{name}`")
    rows = [(f"[{subject}](messages/{subject}.md)", ", ".join(found)) for subject, found in names.items()]
    return markdown_table(("page", "topics and queries"), rows)


def page(workers: Sequence[Worker], subject: str) -> str:
    """Return the page of a subject in Markdown, or that of the types of several subjects."""
    book = _Book.of(workers)
    if subject == TYPES:
        lines = [
            line for name in book.schemas if book.homes[name] == TYPES for line in book.section(name, TYPES)
        ]
        return _text(lines)
    rows = [
        row for carried, row in zip(_all(), table(workers), strict=True) if subject_of(carried) == subject
    ]
    if not rows:
        return f"This berth has no topics of the subject {subject}.\n"
    columns = ("topic or query", "message", "says", "from", "to")
    lines = [markdown_table(columns, [(f"`{row[0]}`", *row[1:5]) for row in rows])]
    here = [name for name in book.schemas if book.homes[name] == subject]
    messages = [name for name in book.where if name in here]
    lines += ["", "## Messages", ""]
    lines += [line for name in messages for line in book.section(name, subject)]
    if types := [name for name in here if name not in book.where]:
        lines += ["## Types", "", *(line for name in types for line in book.section(name, subject))]
    return _text(lines)


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines).strip() + "\n"


@dataclass(frozen=True)
class _Book:
    """All messages and types. A type is on the page of the subject whose messages have it."""

    schemas: Mapping[str, Any]
    where: Mapping[str, str]  # the topics and queries of a message
    homes: Mapping[str, str]  # the page of each

    @classmethod
    def of(cls, workers: Sequence[Worker]) -> "_Book":
        schemas = asyncapi(workers)["components"]["schemas"]
        where: dict[str, list[str]] = {}
        homes: dict[str, str] = {}
        users: dict[str, set[str]] = {}
        for carried in _all():
            for message, place in _places(carried):
                where.setdefault(message, []).append(place)
                homes.setdefault(message, subject_of(carried))
                for name in _reached(schemas, message):
                    users.setdefault(name, set()).add(subject_of(carried))
        for name in schemas.keys() - homes.keys():
            homes[name] = next(iter(users[name])) if len(users.get(name, ())) == 1 else TYPES
        return cls(schemas, {name: ", ".join(places) for name, places in where.items()}, homes)

    def section(self, name: str, page: str) -> list[str]:
        def link(other: str) -> str:
            place = "" if (of := self.homes[other]) == page else f"{of}.md"
            return f"[{other}]({place}#{other.lower()})"

        return _section(name, self.schemas[name], self.where.get(name, ""), link)


def _reached(schemas: Mapping[str, Any], message: str) -> set[str]:
    """Return the names of a message and of all types that it has, directly or not."""
    found: set[str] = set()
    left = [message]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _references(schemas[name])
    return found


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(_REF)
        for each in schema.values():
            yield from _references(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _places(carried: Carried) -> list[tuple[str, str]]:
    """Return each message of a topic or query by name, with the words for its place."""
    if isinstance(carried, Query):
        return [
            (carried.asks.__name__, f"asks `{carried.name}`"),
            (carried.answer.__name__, f"answers `{carried.name}`"),
        ]
    return [(carried.message.__name__, f"`{carried.pattern}`")]


def _section(name: str, schema: Mapping[str, Any], where: str, link: Link) -> list[str]:
    description = re.sub(r"\s+", " ", schema.get("description", "")).strip()
    lines = [f"### {name}", ""]
    lines += [
        part
        for part in (where and f"{where}. ", description and html.escape(description, quote=False))
        if part
    ]
    if "properties" not in schema:
        return [*lines, "", _type(schema, link), ""]
    needed = schema.get("required", ())
    rows = []
    for field, field_schema in schema["properties"].items():
        default, value = "", field_schema.get("default")
        if field in needed:
            default = "needed"
        elif value not in ("", None, [], (), {}):
            default = "as each of its own" if isinstance(value, dict) else _code(json.dumps(value))
        rows.append((f"`{field}`", _type(field_schema, link), default))
    return [*lines, "", markdown_table(("field", "is", "default"), rows)]


def _type(schema: Mapping[str, Any], link: Link) -> str:
    if "$ref" in schema:
        return link(schema["$ref"].removeprefix(_REF))
    if "anyOf" in schema:
        return " or ".join(_type(each, link) for each in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(_code(json.dumps(value)) for value in schema["enum"])
    if "const" in schema:
        return _code(json.dumps(schema["const"]))
    bounds = _bounds(schema)
    match schema.get("type"):
        case "array":
            items = schema.get("items")
            if isinstance(items, list):
                return f"[{', '.join(_type(each, link) for each in items)}]"
            return f"list{bounds} of {_type(items, link)}" if items else f"list{bounds}"
        case "object" if "properties" in schema:
            fields = [f"`{name}`: {_type(each, link)}" for name, each in schema["properties"].items()]
            return f"object ({', '.join(fields)})" if fields else "object"
        case "object":
            keys, values = schema.get("propertyNames"), schema.get("additionalProperties")
            inside = _type(values, link) if isinstance(values, dict) else "anything"
            by = f" by {_type({'type': 'string', **keys}, link)}" if keys else ""
            return f"table{bounds} of {inside}{by}"
        case "null":
            return "nothing"
        case "string" if "description" in schema:
            return html.escape(schema["description"], quote=False).replace("|", "&#124;") + bounds
        case "string" if "pattern" in schema:
            return f"text like {_code(schema['pattern'].replace('(?!' + chr(92) + 'n)', ''))}{bounds}"
        case kind:
            return _TYPES.get(kind, str(kind)) + bounds


def _bounds(schema: Mapping[str, Any]) -> str:
    """Return the limits in a field's schema as text, such as `at most 9`."""
    names = ("imum", "Length", "Items", "Properties")
    least = next((schema[f"min{name}"] for name in names if f"min{name}" in schema), None)
    most = next((schema[f"max{name}"] for name in names if f"max{name}" in schema), None)
    if "exclusiveMinimum" in schema:
        limits = f"more than {schema['exclusiveMinimum']}"
    elif most is not None:
        limits = f"at most {most}" if least is None else f"{least} to {most}"
    elif least:
        limits = f"at least {least}"
    else:
        return ""
    if schema.get("type") in ("array", "object"):
        return f" ({limits})"
    return f", {limits} long" if schema.get("type") == "string" else f", {limits}"


def _code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"
