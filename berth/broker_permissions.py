"""Derives the permissions of RabbitMQ users from the workers' tables: patterns of queue and exchange names,
and of routing keys to publish and bind. A user may bind only the wildcards that its workers bind.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_bytes
from typing import Any, Literal

from berth.ferry.crossings import Crossing, Way
from bus import topics
from bus.rabbit.topology import LETTER, BrokerNames, letter_key
from bus.topics import QUERIES, TOPIC_OF, Query, Topic
from bus.worker import Answers, On, Worker, asks_as, reply_prefix, suspects_queue

_WORD = r"[A-Za-z0-9_-]+"
_RANDOM = "[0-9a-f]{8}"
_NONE = "^$"  # a pattern that matches no name and no key: neither is ever empty
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class KeyPatterns:
    """Regular expressions of the routing keys that a user may publish to one exchange, or bind queues by."""

    exchange: str
    write: str
    read: str


@dataclass(frozen=True)
class Permissions:
    """A RabbitMQ user's permissions, as regular expressions of queue and exchange names and routing keys."""

    configure: str
    write: str
    read: str
    keys: tuple[KeyPatterns, ...]


@dataclass(frozen=True)
class UserLimits:
    """The limits of one RabbitMQ user.

    RabbitMQ cannot limit how many queues a user declares; the user's permissions restrict the queue names.
    """

    connections: int
    channels: int
    queue_bytes: int  # maximum size of the messages in each queue that the user may declare
    overflow: Literal["reject-publish", "drop-head"] = "reject-publish"  # what a full queue does

    @property
    def of_user(self) -> dict[str, int]:
        """Return the limits of connections and channels in the format of RabbitMQ's `import_definitions`."""
        return {"max-connections": self.connections, "max-channels": self.channels}


@dataclass(frozen=True)
class BrokerUser:
    password: str  # empty: only permissions are set; the existing user keeps its password and user limits
    permissions: Permissions
    limits: UserLimits | None = None


def hashed(password: str, salt: bytes) -> str:
    """Return RabbitMQ's hash of a password with four bytes of salt."""
    return b64encode(salt + sha256(salt + password.encode()).digest()).decode()


# A full queue of a client drops its oldest messages: if it refused new ones, conductors would retry forever.
CLIENT_LIMITS = UserLimits(connections=20, channels=200, queue_bytes=64 * 1024 * 1024, overflow="drop-head")

# maximum size of the messages in a queue to which only one cell, or only clients, publish
FLOOD_BYTES = 64 * 1024 * 1024


def definitions(users: Mapping[str, BrokerUser], cells: Sequence[str] = (), exchange: str = "berth",
                vhost: str = "/", flood_bytes: int = FLOOD_BYTES, *,
                bounds_clients: bool = False) -> dict[str, Any]:  # fmt: skip
    """Return RabbitMQ users with permissions and limits, in the format of RabbitMQ's `import_definitions`.
    `flood_bytes` limits each queue to which only one of the `cells` publishes, and with `bounds_clients` the
    queues to which only clients publish.
    """
    permissions = [(name, user.permissions) for name, user in users.items()]
    return {
        "users": [
            {
                "name": name,
                "password_hash": hashed(user.password, token_bytes(4)),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "",
                "limits": user.limits.of_user if user.limits else {},
            }
            for name, user in users.items()
            if user.password
        ],
        "permissions": [
            {"user": name, "vhost": vhost, "configure": may.configure, "write": may.write, "read": may.read}
            for name, may in permissions
        ],
        "topic_permissions": [
            {"user": name, "vhost": vhost, "exchange": keys.exchange, "write": keys.write, "read": keys.read}
            for name, may in permissions
            for keys in may.keys
        ],
        "policies": _policies(users, cells, exchange, vhost, flood_bytes, bounds_clients=bounds_clients),
    }


def _policies(
    users: Mapping[str, BrokerUser],
    cells: Sequence[str],
    exchange: str,
    vhost: str,
    flood_bytes: int,
    *,
    bounds_clients: bool,
) -> list[dict[str, Any]]:
    """Return RabbitMQ policies that limit the bytes in each queue of a user with limits, and (`flood_bytes`)
    in each queue that only one cell, or only clients, publish to.
    """
    limited: list[tuple[str, str, int, str]] = [
        (flood_policy(cell, exchange), filled_by(cell, exchange), flood_bytes, "reject-publish")
        for cell in cells
    ]
    if bounds_clients:
        pattern = filled_by_clients(exchange)
        limited.append((f"{exchange} flood of clients", pattern, flood_bytes, "reject-publish"))
    limited += [
        (queue_policy(name), user.permissions.configure, user.limits.queue_bytes, user.limits.overflow)
        for name, user in users.items()
        if user.limits is not None
    ]
    return [
        {
            "name": name,
            "vhost": vhost,
            "pattern": pattern,
            "apply-to": "queues",
            "priority": 10,
            "definition": {"max-length-bytes": limit, "overflow": overflow},
        }
        for name, pattern, limit, overflow in limited
    ]


def queue_policy(user: str) -> str:
    """Return the name of the policy that limits the queues of this user."""
    return f"{user} queues"


def flood_policy(cell: str, exchange: str = "berth") -> str:
    return f"{exchange} flood {cell}"


def filled_by(cell: str, exchange: str) -> str:
    """Return a regular expression that matches the names of placement's queues for messages of this cell."""
    names, of = BrokerNames(exchange), re.escape(cell)
    return _any_of(_named(names, [rf"placement:inventory\.reported\.{of}", rf"ask:placement\..+\.{of}"]))


def filled_by_clients(exchange: str) -> str:
    """Return a regular expression that matches the names of the scheduler's queues for clients."""
    asked = [re.escape(f"ask:{query.at(client='*')}") for query in QUERIES if query.of_client]
    queues = [re.escape(f"scheduler:{topics.CLIENT_REQUESTED.at().key}"), *asked]
    return _any_of(_named(BrokerNames(exchange), [queue.replace(r"\*", r"\+") for queue in queues]))


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
    queues = _named(names, [*sorted(map(re.escape, suspects)), *sorted(declared), replies])
    emitted = {message for worker in workers for message in worker.emits}
    writes = sorted(_published_by(TOPIC_OF[message], cell) for message in emitted)
    writes += sorted({_asked_by(query, cell) for worker in workers for query in worker.asks})
    writes += sorted({rf"{re.escape(reply_prefix(row.query, row.cell))}{_WORD}\.{_WORD}" for row in answered})
    reads = sorted({re.escape(row.address.key) for worker in workers for row in worker.consumes})
    reads += sorted(re.escape(f"ask.{row.key}") for row in answered)
    to = rf"[0-9]+\.({'|'.join(queues)})"
    return Permissions(
        configure=_any_of(queues),
        write=_any_of([*queues, *_exchanges(names, "", "queues", "delay", "dead")]),
        read=_any_of([*queues, *_exchanges(names, "", "queues")]),
        keys=(
            KeyPatterns(names.exchange, _any_of(writes), _any_of([*reads, replies])),
            KeyPatterns(names.queues, _any_of([to]), _any_of([rf"\*\.{name}" for name in queues])),
            KeyPatterns(names.delay, _any_of([to]), _NONE),
            KeyPatterns(names.dead, _any_of([re.escape(letter_key(cell))]), _NONE),
        ),
    )


def _queue_pattern(worker: Worker, row: On | Answers) -> str:
    spec = worker.queue_of(row)
    return re.escape(spec.name.replace("*", "+")) + ("" if spec.durable else _RANDOM)


def queues_within(cell: str, exchange: str = "berth") -> str:
    """Return a pattern of the names of all queues that any worker of this cell can have declared."""
    of = re.escape(cell)
    queues = [
        rf"(agent|conductor|gateway)\.{of}[.:].+",
        rf"ask:cell\.{_WORD}\.{of}",
        rf"ask:agent\.{_WORD}\.{of}\..+",
        _replies_to(cell),
    ]
    return _any_of(_named(BrokerNames(exchange), queues))


def of_ferry(
    crossings: Sequence[Crossing], *, at_cell_broker: bool = False, exchange: str = "berth"
) -> Permissions:
    """Return a ferry's RabbitMQ permissions.

    At the central broker the ferry may consume messages into the cell, and publish messages out of the cell;
    at the cell's broker the reverse, and there it also declares the exchanges.
    """
    names = BrokerNames(exchange)
    (cell,) = {crossing.cell for crossing in crossings}
    owned = _named(names, [rf"ferry\.{re.escape(cell)}:.+"])
    # the exchanges and queues that all workers of the broker share
    made = [re.escape(names.exchange) + r"(\.(queues|delay|dead)(\.[0-9]+)?)?"] if at_cell_broker else []
    letters = _any_of([LETTER, rf"{LETTER}\.\*", r"[0-9]+\.#"]) if at_cell_broker else _NONE
    consumed = [crossing for crossing in crossings if crossing.way is (Way.OUT if at_cell_broker else Way.IN)]
    writes = sorted({_carried_by(crossing) for crossing in crossings if crossing not in consumed})
    reads = [re.escape(key) for crossing in consumed for key in crossing.keys]
    to = rf"[0-9]+\.({'|'.join(owned)})"
    return Permissions(
        configure=_any_of([*owned, *made]),
        write=_any_of([*owned, *_exchanges(names, "", "queues", "delay", "dead"), *made]),
        read=_any_of([*owned, *_exchanges(names, "", "queues"), *made]),
        keys=(
            KeyPatterns(names.exchange, _any_of(writes), _any_of(reads)),
            KeyPatterns(names.queues, _any_of([to]), _any_of([rf"\*\.{name}" for name in owned])),
            KeyPatterns(names.delay, _NONE, _any_of([r"[0-9]+\.#"]) if at_cell_broker else _NONE),
            KeyPatterns(names.dead, _any_of([re.escape(letter_key(cell))]), letters),
        ),
    )


def of_client(
    name: str, exchange: str = "berth", *, has_role: bool = False, is_former: bool = False
) -> Permissions:
    """Return an API client's broker permissions: to publish requests and queries, and consume results. A
    client with a role may also relay messages, and declares private queues with random names.

    A client may not write to the exchange of berth's workers, because RabbitMQ 3.10 does not check the
    additional keys (CC, BCC) of a message, nor the keys of messages that another exchange or a queue forwards
    to it. With `is_former` it may, as before berth 0.2: it can then forge messages to all other clients.
    """
    names, client = BrokerNames(exchange), re.escape(name)
    below = rf"client\.{client}\.[A-Za-z0-9._-]+"
    numbers = [rf"client\.{client}\.[0-9]{{1,2}}"]
    keys = [rf"client\.{client}", rf"ask\.scheduler\.client\.{client}"]
    shared, to_queues = [""], _NONE
    if has_role:
        numbers.append(rf"client\.{client}\.{_RANDOM}\.{_RANDOM}")
        keys.append(rf"ask\.scheduler\.relay\.{client}")
        shared.append("queues")
        to_queues = _any_of([rf"\*\.{queue}" for queue in _named(names, numbers)])
    queues = _named(names, numbers)
    client_key = rf"{client}(_{_WORD})?"
    any_cell = rf"({_WORD}|\\*)"
    patterns = [_FIELD.sub(any_cell, topic.pattern.replace(".", r"\.")) for topic in topics.client_topics()]
    results = [rf"{pattern}\.{client_key}" for pattern in patterns]
    writable = _exchanges(names, "clients", *([""] if is_former else []))
    return Permissions(
        configure=_any_of(queues),
        write=_any_of([*queues, *writable]),
        read=_any_of([*queues, *_exchanges(names, *shared)]),
        keys=(
            KeyPatterns(names.clients, _any_of(keys), _NONE),
            KeyPatterns(names.exchange, _any_of(keys) if is_former else _NONE, _any_of([*results, below])),
            KeyPatterns(names.queues, _NONE, to_queues),
            *(KeyPatterns(exchange_name, _NONE, _NONE) for exchange_name in (names.delay, names.dead)),
        ),
    )


def _carried_by(crossing: Crossing) -> str:
    if isinstance(crossing.of, Topic):
        return _published_by(crossing.of, crossing.cell)
    if isinstance(crossing.of, Query):
        return _asked_by(crossing.of, crossing.cell)
    return rf"{re.escape(crossing.name)}\.{_WORD}\.{_WORD}"


def _published_by(topic: Topic[Any], cell: str) -> str:
    """Return a regular expression of a topic's routing keys, for one cell or (if `cell` is empty) for all."""
    keys = _filled(topic.pattern, cell)
    return rf"{keys}(\.{_WORD})?" if topic.outsiders else keys


def _asked_by(query: Query[Any, Any], cell: str) -> str:
    return rf"ask\.{_filled(query.name, cell)}"


def _replies_to(cell: str, askers: Sequence[str] = ()) -> str:
    """Return a regular expression of a cell's reply addresses, for the given workers or for all of them."""
    if askers:
        return rf"reply\.{re.escape(cell)}\.({'|'.join(map(re.escape, askers))})-{_RANDOM}\.{_RANDOM}"
    return rf"reply\.{re.escape(cell)}\.{_WORD}\.{_WORD}"


def _filled(pattern: str, cell: str) -> str:
    escaped = pattern.replace(".", r"\.")
    return _FIELD.sub(lambda field: re.escape(cell) if cell and field[1] == "cell" else _WORD, escaped)


def _named(names: BrokerNames, queues: Iterable[str]) -> list[str]:
    before = re.escape(names.queue(""))
    return [before + queue for queue in queues]


def _exchanges(names: BrokerNames, *parts: str) -> list[str]:
    return [re.escape(f"{names.exchange}.{part}" if part else names.exchange) for part in parts]


def _any_of(patterns: Sequence[str]) -> str:
    return f"^({'|'.join(patterns)})$"
