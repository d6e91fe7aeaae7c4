"""Lists publishers and consumers of all topics, from the workers' tables: text, Markdown or AsyncAPI."""

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from berth import __version__
from berth.ferry.crossings import ways
from berth.reference_tables import markdown_table
from bus.parts import schema_components
from bus.topics import ANYONE, QUERIES, TOPICS, Query, Topic, is_of_client
from bus.worker import Worker, cell_of

Carried = Topic[Any] | Query[Any, Any]


def senders(carried: Carried, workers: Iterable[Worker]) -> list[str]:
    """Return the workers that publish a message or send a query."""
    kinds = {
        _kind(worker)
        for worker in workers
        if (carried in worker.asks if isinstance(carried, Query) else carried.message in worker.emits)
    }
    return [*sorted(kinds), *([ANYONE] if carried.source == ANYONE else [])]


def receivers(carried: Carried, workers: Iterable[Worker]) -> list[str]:
    """Return the workers that consume a message or answer a query, and the receivers outside of berth."""
    if isinstance(carried, Query):
        return sorted({_kind(w) for w in workers if any(row.query is carried for row in w.answers)})
    inside = sorted({_kind(w) for w in workers if any(row.address.topic is carried for row in w.consumes)})
    return [*inside, carried.target] if carried.outsiders else inside


COLUMNS = ("topic or query", "message", "says", "from", "to", "crosses")


def table(workers: Sequence[Worker]) -> list[tuple[str, str, str, str, str, str]]:
    """Return a table row with COLUMNS for each topic and query; the last column is the direction in which
    ferries forward its messages.
    """
    (cell,) = {cell_of(f"{worker.name}:") for worker in workers} - {""}
    way = {of: way.value for of, way in ways(cell, workers).items()}
    names: list[tuple[Carried, str, str]]
    names = [(topic, topic.pattern, topic.message.__name__) for topic in TOPICS]
    names += [
        (query, f"query {query.name}", f"{query.asks.__name__} → {query.answer.__name__}")
        for query in QUERIES
    ]
    return [
        (
            name,
            message,
            carried.says,
            ", ".join(senders(carried, workers)),
            ", ".join(receivers(carried, workers)),
            way.get(carried, ""),
        )
        for carried, name, message in names
    ]


def markdown(workers: Sequence[Worker]) -> str:
    return markdown_table(COLUMNS, [(f"`{name}`", *rest) for name, *rest in table(workers)])


def asyncapi(workers: Sequence[Worker]) -> dict[str, Any]:
    """Return an AsyncAPI 3 document that describes every topic and query."""
    kinds = [topic.message for topic in TOPICS]
    kinds += [kind for query in QUERIES for kind in (query.asks, query.answer)]
    schemas = schema_components(kinds, "#/components/schemas/{name}")
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for topic in TOPICS:
        name = _identifier(topic.pattern)
        description = topic.says
        if topic.outsiders and "reply_to" in topic.message.__struct_fields__:
            description += f"; on {topic.pattern}.<reply_to> when asked so"
        channels[name] = _channel(topic.pattern, description, [topic.message.__name__])
        for verb, action, found in (("sends", "send", senders), ("receives", "receive", receivers)):
            for worker in found(topic, workers):
                operations[f"{_identifier(worker)}_{verb}_{name}"] = _operation(action, name, topic.says)
    for query in QUERIES:
        _describe_query(query, workers, channels, operations)
    messages = {
        kind.__name__: {
            "name": kind.__name__,
            "summary": (kind.__doc__ or "").strip().split("\n")[0],
            "contentType": "application/json",
            "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
        }
        for kind in dict.fromkeys(kinds)
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "berth",
            "version": __version__,
            "description": "Everything that travels on berth's bus.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas},
    }


def _describe_query(
    query: Query[Any, Any], workers: Sequence[Worker], channels: dict[str, Any], operations: dict[str, Any]
) -> None:
    name = _identifier(query.name)
    channels[name] = _channel(f"ask.{query.name}", query.says, [query.asks.__name__])
    channels[f"{name}_answer"] = {
        "address": None,
        "description": f"the private queue named by reply_to; answers {query.name}",
        "messages": {query.answer.__name__: {"$ref": f"#/components/messages/{query.answer.__name__}"}},
    }
    reply = {"channel": {"$ref": f"#/channels/{name}_answer"}}
    for verb, action, found in (("asks", "send", senders), ("answers", "receive", receivers)):
        for worker in found(query, workers):
            operation = _operation(action, name, query.says) | {"reply": reply}
            operations[f"{_identifier(worker)}_{verb}_{name}"] = operation


def _channel(pattern: str, description: str, messages: Sequence[str]) -> dict[str, Any]:
    exchange = "berth.clients" if is_of_client(pattern) else "berth"
    channel: dict[str, Any] = {
        "address": pattern,
        "description": description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {"amqp": {"is": "routingKey", "exchange": {"name": exchange, "type": "topic"}}},
    }
    fields = re.findall(r"\{(\w+)\}", pattern)
    if fields:
        channel["parameters"] = {field: {"description": f"the {field}'s name"} for field in fields}
    return channel


def _operation(action: str, channel: str, summary: str) -> dict[str, Any]:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": summary}


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")


def _kind(worker: Worker) -> str:
    """Return a worker's type, which is the first part of its name: conductor for conductor.c1."""
    return worker.name.split(".")[0]


_REF = "#/components/schemas/"
_TYPES = {"string": "text", "integer": "whole number", "boolean": "true or false", None: "anything"}


def messages_markdown(workers: Sequence[Worker]) -> str:
    """Return a Markdown list of all messages and their fields, made from the AsyncAPI document."""
    document = asyncapi(workers)
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    on: dict[str, list[str]] = {}
    for channel in document["channels"].values():
        for message in channel["messages"]:
            on.setdefault(message, []).append(
                channel["address"] or channel["description"].rpartition("; ")[2]
            )
    lines = ["### Messages", ""]
    for name in on:
        lines += _section(name, schemas[name], ", ".join(map(_where, on[name])))
    lines += ["### What they are made of", ""]
    for name in schemas:
        if name not in on:
            lines += _section(name, schemas[name], "")
    return "\n".join(lines).strip() + "\n"


def _where(address: str) -> str:
    if address.startswith("answers "):
        return f"answers `{address.removeprefix('answers ')}`"
    return f"asks `{address.removeprefix('ask.')}`" if address.startswith("ask.") else f"`{address}`"


def _section(name: str, schema: Mapping[str, Any], where: str) -> list[str]:
    description = re.sub(r"\s+", " ", schema.get("description", "")).strip()
    lines = [f"#### {name}", ""]
    lines += [
        part
        for part in (where and f"{where}. ", description and html.escape(description, quote=False))
        if part
    ]
    if "properties" not in schema:
        return [*lines, "", _type(schema), ""]
    needed = schema.get("required", ())
    rows = []
    for field, field_schema in schema["properties"].items():
        default, value = "", field_schema.get("default")
        if field in needed:
            default = "needed"
        elif value not in ("", None, [], (), {}):
            default = "as each of its own" if isinstance(value, dict) else _code(json.dumps(value))
        rows.append((f"`{field}`", _type(field_schema), default))
    return [*lines, "", markdown_table(("field", "is", "default"), rows)]


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(_code(json.dumps(value)) for value in schema["enum"])
    if "const" in schema:
        return _code(json.dumps(schema["const"]))
    bounds = _bounds(schema)
    match schema.get("type"):
        case "array":
            parts = [_type(each) for each in schema.get("prefixItems", ())]
            items = schema.get("items")
            if parts:
                return f"[{', '.join(parts)}]"
            return f"list{bounds} of {_type(items)}" if items else f"list{bounds}"
        case "object" if "properties" in schema:
            fields = [f"`{name}`: {_type(each)}" for name, each in schema["properties"].items()]
            return f"object ({', '.join(fields)})" if fields else "object"
        case "object":
            keys, values = schema.get("propertyNames"), schema.get("additionalProperties")
            inside = _type(values) if isinstance(values, dict) else "anything"
            by = f" by {_type({'type': 'string', **keys})}" if keys else ""
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
