"""Reads the file that `rabbitmqctl export_definitions` wrote, and prepares it for another broker."""

from typing import Any, TypeVar

import msgspec

from bus.errors import NOT_JSON
from bus.rabbit.topology import BrokerNames

# Parameters that identify the old cluster, and must not be imported into another one.
_OF_THE_CLUSTER = ("cluster_name", "internal_cluster_id")

T = TypeVar("T")


class NotDefinitions(ValueError):
    """A file has no definitions of RabbitMQ, or no queues of the virtual host; the text gives the reason."""


class _ExportedQueue(msgspec.Struct, frozen=True):
    name: str
    vhost: str | None = None  # None in a file with the definitions of a single virtual host
    durable: bool = True
    arguments: dict[str, Any] = {}


class _ExportedExchange(msgspec.Struct, frozen=True):
    name: str
    vhost: str | None = None


class _ExportedBinding(msgspec.Struct, frozen=True):
    source: str
    destination: str
    destination_type: str
    vhost: str | None = None


class _Definitions(msgspec.Struct, frozen=True):
    queues: list[_ExportedQueue]
    exchanges: list[_ExportedExchange] = []
    bindings: list[_ExportedBinding] = []


def durable_queues(exported: bytes, vhost: str, exchange: str) -> list[str]:
    """Return the names of the durable queues of a virtual host, or raise NotDefinitions.

    Streams are left out, and the queues of any installation of berth that uses another exchange than
    `exchange`.
    """
    definitions = _decoded(exported, _Definitions)
    queues = definitions.queues
    found = [queue for queue in queues if queue.vhost in (None, vhost)]
    of_others = _queues_of_others(definitions, vhost, exchange)
    names = [
        queue.name
        for queue in found
        if queue.durable and queue.arguments.get("x-queue-type") != "stream" and queue.name not in of_others
    ]
    if not names:
        others = sorted({queue.vhost for queue in queues if queue.vhost is not None})
        has = f"has queues of {', '.join(map(repr, others))}" if others else "has no queues at all"
        raise NotDefinitions(
            f"has no durable queue of the virtual host {vhost!r} for the exchange {exchange}: the file {has}"
        )
    return sorted(names)


def _queues_of_others(definitions: _Definitions, vhost: str, exchange: str) -> set[str]:
    """Return the queues that are bound only to exchanges of other installations of berth."""
    exchanges = {each.name for each in definitions.exchanges if each.vhost in (None, vhost)}
    others = {name for name in exchanges if BrokerNames(name).queues in exchanges} - {exchange}
    names = map(BrokerNames, others)
    foreign = {
        name for each in names for name in (each.exchange, each.clients, each.queues, each.delay, each.dead)
    }
    sources: dict[str, set[str]] = {}
    for binding in definitions.bindings:
        if binding.vhost in (None, vhost) and binding.destination_type == "queue":
            sources.setdefault(binding.destination, set()).add(binding.source)
    return {queue for queue, bound_to in sources.items() if bound_to <= foreign}


def importable(exported: bytes) -> tuple[bytes, int]:
    """Return definitions that another broker can import, and the number of bindings that were left out.

    RabbitMQ exports the bindings of private queues without these queues, and refuses to import such a file.
    """
    listed, found = _decoded(exported, _Definitions), _decoded(exported, dict[str, Any])
    queues = {(queue.vhost, queue.name) for queue in listed.queues}
    exchanges = {(exchange.vhost, exchange.name) for exchange in listed.exchanges}

    def has_both_ends(binding: _ExportedBinding) -> bool:
        source, target = (binding.vhost, binding.source), (binding.vhost, binding.destination)
        targets = queues if binding.destination_type == "queue" else exchanges
        # Every broker has the exchanges amq.*, so RabbitMQ does not export them, but only their bindings.
        return target in targets and (source in exchanges or binding.source.startswith("amq."))

    kept = [
        as_exported
        for binding, as_exported in zip(listed.bindings, found.get("bindings", []), strict=True)
        if has_both_ends(binding)
    ]
    parameters = [each for each in found.get("global_parameters", []) if each["name"] not in _OF_THE_CLUSTER]
    changed = {**found, "bindings": kept, "global_parameters": parameters}
    return msgspec.json.format(msgspec.json.encode(changed), indent=1), len(listed.bindings) - len(kept)


def _decoded(exported: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(exported, type=type_)
    except NOT_JSON as problem:
        raise NotDefinitions(f"was not written by `rabbitmqctl export_definitions FILE`: {problem}") from None
