"""Publishers and consumers of all topics, read from the workers' tables, as text, Markdown or AsyncAPI."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from berth import __version__
from bus.ferry.crossings import ways
from bus.routing import ANYONE, Query, Topic
from bus.topics import QUERIES, TOPICS
from bus.worker import Worker, cell_of


def emitters(topic: Topic[Any], workers: Iterable[Worker]) -> list[str]:
    inside = sorted({_kind(w) for w in workers if topic.message in w.emits})
    return [*inside, ANYONE] if topic.source == ANYONE else inside


def hearers(topic: Topic[Any], workers: Iterable[Worker]) -> list[str]:
    inside = sorted({_kind(w) for w in workers if any(row.address.topic is topic for row in w.consumes)})
    return [*inside, topic.target] if topic.outsiders else inside


def askers(query: Query[Any, Any], workers: Iterable[Worker]) -> list[str]:
    inside = sorted({_kind(w) for w in workers if query in w.asks})
    return [*inside, ANYONE] if query.source == ANYONE else inside


def answerers(query: Query[Any, Any], workers: Iterable[Worker]) -> list[str]:
    return sorted({_kind(w) for w in workers if any(row.query is query for row in w.answers)})


COLUMNS = ("topic or query", "message", "says", "from", "to", "wall")


def table(workers: Sequence[Worker]) -> list[tuple[str, str, str, str, str, str]]:
    """Return one row for each topic and query, with the values of COLUMNS. `wall`: the direction in which its
    messages cross the border of a cell.
    """
    (cell,) = {cell_of(f"{worker.name}:") for worker in workers} - {""}
    way = {of: way.value for of, way in ways(cell, workers).items()}
    rows = [
        (
            topic.pattern,
            topic.message.__name__,
            topic.says,
            ", ".join(emitters(topic, workers)),
            ", ".join(hearers(topic, workers)),
            way.get(topic, ""),
        )
        for topic in TOPICS
    ]
    rows += [
        (
            f"query {query.name}",
            f"{query.asks.__name__} → {query.answer.__name__}",
            query.says,
            ", ".join(askers(query, workers)),
            ", ".join(answerers(query, workers)),
            way.get(query, ""),
        )
        for query in QUERIES
    ]
    return rows


def markdown(workers: Sequence[Worker]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{name}` | {message} | {says} | {emits} | {hears} | {wall} |"
        for name, message, says, emits, hears, wall in table(workers)
    ]
    return "\n".join(lines) + "\n"


def asyncapi(workers: Sequence[Worker]) -> dict[str, Any]:
    """Return an AsyncAPI 3 document of every topic and query."""
    kinds = [topic.message for topic in TOPICS]
    kinds += [kind for query in QUERIES for kind in (query.asks, query.answer)]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for topic in TOPICS:
        name = _identifier(topic.pattern)
        says = f"{topic.says}; on {topic.pattern}.<reply_to> when asked so" if _by_name(topic) else topic.says
        channels[name] = _channel(topic.pattern, says, [topic.message.__name__])
        for worker in emitters(topic, workers):
            operations[f"{_identifier(worker)}_sends_{name}"] = _operation("send", name, topic.says)
        for worker in hearers(topic, workers):
            operations[f"{_identifier(worker)}_receives_{name}"] = _operation("receive", name, topic.says)
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
    for verb, action, found in (("asks", "send", askers), ("answers", "receive", answerers)):
        for worker in found(query, workers):
            operation = _operation(action, name, query.says) | {"reply": reply}
            operations[f"{_identifier(worker)}_{verb}_{name}"] = operation


def _channel(pattern: str, says: str, messages: Sequence[str]) -> dict[str, Any]:
    channel: dict[str, Any] = {
        "address": pattern,
        "description": says,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {"amqp": {"is": "routingKey", "exchange": {"name": "berth", "type": "topic"}}},
    }
    fields = re.findall(r"\{(\w+)\}", pattern)
    if fields:
        channel["parameters"] = {field: {"description": f"the {field}'s name"} for field in fields}
    return channel


def _operation(action: str, channel: str, says: str) -> dict[str, Any]:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "summary": says}


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")


def _by_name(topic: Topic[Any]) -> bool:
    """Return whether a requester may receive answers under a routing key of its choice."""
    return topic.outsiders and "reply_to" in topic.message.__struct_fields__


def _kind(worker: Worker) -> str:
    """Return the type of a worker by its name: conductor.c1 and conductor.c2 are of one type."""
    return worker.name.split(".")[0]
