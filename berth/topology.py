"""Lists publishers and consumers of all topics, from the workers' tables: text, Markdown or AsyncAPI.
`berth.message_pages` makes pages from the AsyncAPI document.
"""

import re
from collections.abc import Iterable, Sequence
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


def messages_of(carried: Carried) -> list[type[Any]]:
    """Return the message of a topic, or the question and the answer of a query."""
    return [carried.asks, carried.answer] if isinstance(carried, Query) else [carried.message]


def subject_of(carried: Carried) -> str:
    """Return the subject of a topic or query, by which pages about messages are divided: the name of its
    feature; of the kernel the first word.
    """
    package, _, module = messages_of(carried)[0].__module__.partition(".")
    if package == "features":
        return module.partition(".")[0]
    return (carried.name if isinstance(carried, Query) else carried.pattern).partition(".")[0]


def asyncapi(workers: Sequence[Worker], subject: str = "") -> dict[str, Any]:
    """Return an AsyncAPI 3 document that describes every topic and query, or those of a subject."""
    topics = [topic for topic in TOPICS if subject in ("", subject_of(topic))]
    queries = [query for query in QUERIES if subject in ("", subject_of(query))]
    chosen: list[Carried] = [*topics, *queries]
    kinds = [kind for carried in chosen for kind in messages_of(carried)]
    schemas = _as_draft_7(schema_components(kinds, "#/components/schemas/{name}"))
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for topic in topics:
        name = _identifier(topic.pattern)
        description = topic.says
        if topic.outsiders and "reply_to" in topic.message.__struct_fields__:
            description += f"; on {topic.pattern}.<reply_to> when asked so"
        channels[name] = _channel(topic.pattern, description, [topic.message.__name__])
        for verb, action, found in (("sends", "send", senders), ("receives", "receive", receivers)):
            for worker in found(topic, workers):
                operations[f"{_identifier(worker)}_{verb}_{name}"] = _operation(action, name, topic.says)
    for query in queries:
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


def _as_draft_7(schema: Any) -> Any:
    """Return a schema of JSON Schema 2020-12 in the words of AsyncAPI 3, which has those of draft 7."""
    if isinstance(schema, list):
        return [_as_draft_7(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _as_draft_7(each) for name, each in schema.items()}
    if "prefixItems" in made:
        made["additionalItems"] = made.pop("items", True)
        made["items"] = made.pop("prefixItems")
    if isinstance(schema.get("discriminator"), dict):
        made["discriminator"] = schema["discriminator"]["propertyName"]
    return made


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
