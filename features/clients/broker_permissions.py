"""The permissions of clients' RabbitMQ users, and the limits of their queues."""

import re

from berth.kit import (
    KEY_FIELD,
    MATCHES_NOTHING,
    NAME_PATTERN,
    RANDOM_PATTERN,
    KeyPatterns,
    Permissions,
    UserLimits,
    any_of,
    exchange_patterns,
    queue_patterns,
)
from bus import topics
from bus.rabbit.topology import BrokerNames
from features.clients.messages import CLIENT_ASKED, CLIENT_RELAY, CLIENT_REQUESTED

# A full queue of a client drops its oldest messages: if it refused new ones, they would be repeated forever.
LIMITS = UserLimits(connections=20, channels=200, queue_bytes=64 * 1024 * 1024, overflow="drop-head")


def floods(exchange: str) -> dict[str, str]:
    """Return the name of the policy that limits the scheduler's queues for clients, and a regular expression
    that matches the names of these queues.
    """
    asked = [re.escape(f"ask:{query.at(client='*')}") for query in (CLIENT_ASKED, CLIENT_RELAY)]
    queues = [re.escape(f"scheduler:{CLIENT_REQUESTED.at().key}"), *asked]
    pattern = any_of(queue_patterns(BrokerNames(exchange), [queue.replace(r"\*", r"\+") for queue in queues]))
    return {f"{exchange} flood of clients": pattern}


def permissions_of(name: str, exchange: str = "berth", *, has_role: bool = False) -> Permissions:
    """Return an API client's broker permissions: to publish requests and queries, and consume results. A
    client with a role may also relay messages, and declares private queues with random names.

    A client may not write to the exchange of berth's workers, because RabbitMQ 3.10 does not check the
    additional keys (CC, BCC) of a message, nor the keys of messages that another exchange or a queue forwards
    to it.
    """
    names, client = BrokerNames(exchange), re.escape(name)
    below = rf"client\.{client}\.[A-Za-z0-9._-]+"
    numbers = [rf"client\.{client}\.[0-9]{{1,2}}"]
    keys = [rf"client\.{client}", rf"ask\.scheduler\.client\.{client}"]
    shared, to_queues = [""], MATCHES_NOTHING
    if has_role:
        numbers.append(rf"client\.{client}\.{RANDOM_PATTERN}\.{RANDOM_PATTERN}")
        keys.append(rf"ask\.scheduler\.relay\.{client}")
        shared.append("queues")
        to_queues = any_of([rf"\*\.{queue}" for queue in queue_patterns(names, numbers)])
    queues = queue_patterns(names, numbers)
    client_key = rf"{client}(_{NAME_PATTERN})?"
    any_cell = rf"({NAME_PATTERN}|\\*)"
    patterns = [
        KEY_FIELD.sub(any_cell, topic.pattern.replace(".", r"\.")) for topic in topics.client_topics()
    ]
    results = [rf"{pattern}\.{client_key}" for pattern in patterns]
    return Permissions(
        configure=any_of(queues),
        write=any_of([*queues, *exchange_patterns(names, "clients")]),
        read=any_of([*queues, *exchange_patterns(names, *shared)]),
        keys=(
            KeyPatterns(names.clients, any_of(keys), MATCHES_NOTHING),
            KeyPatterns(names.exchange, MATCHES_NOTHING, any_of([*results, below])),
            KeyPatterns(names.queues, MATCHES_NOTHING, to_queues),
            *(
                KeyPatterns(exchange_name, MATCHES_NOTHING, MATCHES_NOTHING)
                for exchange_name in (names.delay, names.dead)
            ),
        ),
    )
