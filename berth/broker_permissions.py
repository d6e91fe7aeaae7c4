"""Derives the permissions of RabbitMQ users from the workers' tables: patterns of queue and exchange names,
and of routing keys to publish and bind. A user may bind only the wildcards that its workers bind.
"""

import re
from collections.abc import Sequence
from typing import Any

from berth.ferry.crossings import Crossing, Way
from berth.kit.broker_permissions import (
    KEY_FIELD,
    MATCHES_NOTHING,
    NAME_PATTERN,
    RANDOM_PATTERN,
    KeyPatterns,
    Permissions,
    any_of,
    exchange_patterns,
    queue_patterns,
)
from bus.rabbit.topology import LETTER, BrokerNames, letter_key
from bus.topics import TOPIC_OF, Query, Topic
from bus.worker import Answers, On, Worker, asks_as, reply_prefix, suspects_queue


def flood_policy(cell: str, exchange: str = "berth") -> str:
    """Return the name of the RabbitMQ policy that limits the queues of a cell."""
    return f"{exchange} flood {cell}"


def filled_by(cell: str, exchange: str) -> str:
    """Return a regular expression that matches the names of placement's queues to which this cell may
    publish. A policy limits their length, so that one cell cannot fill the broker.
    """
    names, of = BrokerNames(exchange), re.escape(cell)
    return any_of(
        queue_patterns(names, [rf"placement:inventory\.reported\.{of}", rf"ask:placement\..+\.{of}"])
    )


def of_cell(cell: str, workers: Sequence[Worker], exchange: str = "berth") -> Permissions:
    """Return the RabbitMQ permissions of a user for a cell's workers: conductor, one agent, or all of them.

    Names of durable queues are listed exactly, because RabbitMQ cannot limit how many queues a user declares.
    """
    names = BrokerNames(exchange)
    suspects = {suspects_queue(worker.name).name for worker in workers}
    answered = [row for worker in workers for row in worker.answers]
    declared = {_queue_pattern(worker, row) for worker in workers for row in worker.consumes}
    declared |= {_queue_pattern(worker, row) for worker in workers for row in worker.answers}
    replies = _replies_to(cell, [asks_as(worker.name) for worker in workers])
    queues = queue_patterns(names, [*sorted(map(re.escape, suspects)), *sorted(declared), replies])
    emitted = {message for worker in workers for message in worker.emits}
    writes = sorted(_published_by(TOPIC_OF[message], cell) for message in emitted)
    writes += sorted({_asked_by(query, cell) for worker in workers for query in worker.asks})
    writes += sorted(
        {rf"{re.escape(reply_prefix(row.query, row.cell))}{NAME_PATTERN}\.{NAME_PATTERN}" for row in answered}
    )
    reads = sorted({re.escape(row.address.key) for worker in workers for row in worker.consumes})
    reads += sorted(re.escape(f"ask.{row.key}") for row in answered)
    to = rf"[0-9]+\.({'|'.join(queues)})"
    return Permissions(
        configure=any_of(queues),
        write=any_of([*queues, *exchange_patterns(names, "", "queues", "delay", "dead")]),
        read=any_of([*queues, *exchange_patterns(names, "", "queues")]),
        keys=(
            KeyPatterns(names.exchange, any_of(writes), any_of([*reads, replies])),
            KeyPatterns(names.queues, any_of([to]), any_of([rf"\*\.{name}" for name in queues])),
            KeyPatterns(names.delay, any_of([to]), MATCHES_NOTHING),
            KeyPatterns(names.dead, any_of([re.escape(letter_key(cell))]), MATCHES_NOTHING),
        ),
    )


def _queue_pattern(worker: Worker, row: On | Answers) -> str:
    spec = worker.queue_of(row)
    return re.escape(spec.name.replace("*", "+")) + ("" if spec.durable else RANDOM_PATTERN)


def queues_within(cell: str, exchange: str = "berth") -> str:
    """Return a pattern of the names of all queues that any worker of this cell can have declared."""
    of = re.escape(cell)
    queues = [
        rf"(agent|conductor|gateway)\.{of}[.:].+",
        rf"ask:cell\.{NAME_PATTERN}\.{of}",
        rf"ask:agent\.{NAME_PATTERN}\.{of}\..+",
        _replies_to(cell),
    ]
    return any_of(queue_patterns(BrokerNames(exchange), queues))


def of_ferry(
    crossings: Sequence[Crossing], *, at_cell_broker: bool = False, exchange: str = "berth"
) -> Permissions:
    """Return a ferry's RabbitMQ permissions.

    At the central broker the ferry may consume messages into the cell, and publish messages out of the cell;
    at the cell's broker the reverse, and there it also declares the exchanges.
    """
    names = BrokerNames(exchange)
    (cell,) = {crossing.cell for crossing in crossings}
    owned = queue_patterns(names, [rf"ferry\.{re.escape(cell)}:.+"])
    # the exchanges and queues that all workers of the broker share
    made = [re.escape(names.exchange) + r"(\.(queues|delay|dead)(\.[0-9]+)?)?"] if at_cell_broker else []
    letters = any_of([LETTER, rf"{LETTER}\.\*", r"[0-9]+\.#"]) if at_cell_broker else MATCHES_NOTHING
    consumed = [crossing for crossing in crossings if crossing.way is (Way.OUT if at_cell_broker else Way.IN)]
    writes = sorted({_carried_by(crossing) for crossing in crossings if crossing not in consumed})
    reads = [re.escape(key) for crossing in consumed for key in crossing.keys]
    to = rf"[0-9]+\.({'|'.join(owned)})"
    return Permissions(
        configure=any_of([*owned, *made]),
        write=any_of([*owned, *exchange_patterns(names, "", "queues", "delay", "dead"), *made]),
        read=any_of([*owned, *exchange_patterns(names, "", "queues"), *made]),
        keys=(
            KeyPatterns(names.exchange, any_of(writes), any_of(reads)),
            KeyPatterns(names.queues, any_of([to]), any_of([rf"\*\.{name}" for name in owned])),
            # to forward messages again later that a client's queue does not confirm
            KeyPatterns(
                names.delay, any_of([to]), any_of([r"[0-9]+\.#"]) if at_cell_broker else MATCHES_NOTHING
            ),
            KeyPatterns(names.dead, any_of([re.escape(letter_key(cell))]), letters),
        ),
    )


def _carried_by(crossing: Crossing) -> str:
    if isinstance(crossing.of, Topic):
        return _published_by(crossing.of, crossing.cell)
    if isinstance(crossing.of, Query):
        return _asked_by(crossing.of, crossing.cell)
    return rf"{re.escape(crossing.name)}\.{NAME_PATTERN}\.{NAME_PATTERN}"


def _published_by(topic: Topic[Any], cell: str) -> str:
    """Return a regular expression of a topic's routing keys, for one cell or (if `cell` is empty) for all."""
    keys = _filled(topic.pattern, cell)
    return rf"{keys}(\.{NAME_PATTERN})?" if topic.outsiders else keys


def _asked_by(query: Query[Any, Any], cell: str) -> str:
    return rf"ask\.{_filled(query.name, cell)}"


def _replies_to(cell: str, askers: Sequence[str] = ()) -> str:
    """Return a regular expression of a cell's reply addresses, for the given workers or for all of them."""
    if askers:
        own = "|".join(map(re.escape, askers))
        return rf"reply\.{re.escape(cell)}\.({own})-{RANDOM_PATTERN}\.{RANDOM_PATTERN}"
    return rf"reply\.{re.escape(cell)}\.{NAME_PATTERN}\.{NAME_PATTERN}"


def _filled(pattern: str, cell: str) -> str:
    escaped = pattern.replace(".", r"\.")
    return KEY_FIELD.sub(
        lambda field: re.escape(cell) if cell and field[1] == "cell" else NAME_PATTERN, escaped
    )
