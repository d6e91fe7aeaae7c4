"""Derives the permissions of RabbitMQ users from the workers' tables: patterns of queue and exchange names,
and of routing keys to publish and bind. A user may bind only the wildcards that its workers bind.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_bytes
from types import MappingProxyType
from typing import Any, Literal

from berth.ferry.crossings import Crossing, Way
from bus.rabbit.topology import LETTER, BrokerNames, letter_key
from bus.topics import TOPIC_OF, Query, Topic
from bus.worker import Answers, On, Worker, asks_as, reply_prefix, suspects_queue

WORD = r"[A-Za-z0-9_-]+"
RANDOM = "[0-9a-f]{8}"
NONE = "^$"  # a pattern that matches no name and no key: neither is ever empty
FIELD = re.compile(r"\{(\w+)\}")


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


# maximum size of the messages in a queue to which only one cell, or only programs outside berth, publish
FLOOD_BYTES = 64 * 1024 * 1024


def definitions(
    users: Mapping[str, BrokerUser],
    floods: Mapping[str, str] = MappingProxyType({}),
    vhost: str = "/",
    flood_bytes: int = FLOOD_BYTES,
) -> dict[str, Any]:
    """Return RabbitMQ users with permissions and limits, in the format of RabbitMQ's `import_definitions`.
    `flood_bytes` limits each queue whose name matches a pattern in `floods`, given by names of policies.
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
        "policies": _policies(users, floods, vhost, flood_bytes),
    }


def _policies(
    users: Mapping[str, BrokerUser], floods: Mapping[str, str], vhost: str, flood_bytes: int
) -> list[dict[str, Any]]:
    """Return RabbitMQ policies that limit the bytes in each queue of a user with limits, and in the queues
    of `floods`.
    """
    limited: list[tuple[str, str, int, str]] = [
        (name, pattern, flood_bytes, "reject-publish") for name, pattern in floods.items()
    ]
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
    return any_of(named(names, [rf"placement:inventory\.reported\.{of}", rf"ask:placement\..+\.{of}"]))


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
    queues = named(names, [*sorted(map(re.escape, suspects)), *sorted(declared), replies])
    emitted = {message for worker in workers for message in worker.emits}
    writes = sorted(_published_by(TOPIC_OF[message], cell) for message in emitted)
    writes += sorted({_asked_by(query, cell) for worker in workers for query in worker.asks})
    writes += sorted({rf"{re.escape(reply_prefix(row.query, row.cell))}{WORD}\.{WORD}" for row in answered})
    reads = sorted({re.escape(row.address.key) for worker in workers for row in worker.consumes})
    reads += sorted(re.escape(f"ask.{row.key}") for row in answered)
    to = rf"[0-9]+\.({'|'.join(queues)})"
    return Permissions(
        configure=any_of(queues),
        write=any_of([*queues, *exchanges(names, "", "queues", "delay", "dead")]),
        read=any_of([*queues, *exchanges(names, "", "queues")]),
        keys=(
            KeyPatterns(names.exchange, any_of(writes), any_of([*reads, replies])),
            KeyPatterns(names.queues, any_of([to]), any_of([rf"\*\.{name}" for name in queues])),
            KeyPatterns(names.delay, any_of([to]), NONE),
            KeyPatterns(names.dead, any_of([re.escape(letter_key(cell))]), NONE),
        ),
    )


def _queue_pattern(worker: Worker, row: On | Answers) -> str:
    spec = worker.queue_of(row)
    return re.escape(spec.name.replace("*", "+")) + ("" if spec.durable else RANDOM)


def queues_within(cell: str, exchange: str = "berth") -> str:
    """Return a pattern of the names of all queues that any worker of this cell can have declared."""
    of = re.escape(cell)
    queues = [
        rf"(agent|conductor|gateway)\.{of}[.:].+",
        rf"ask:cell\.{WORD}\.{of}",
        rf"ask:agent\.{WORD}\.{of}\..+",
        _replies_to(cell),
    ]
    return any_of(named(BrokerNames(exchange), queues))


def of_ferry(
    crossings: Sequence[Crossing], *, at_cell_broker: bool = False, exchange: str = "berth"
) -> Permissions:
    """Return a ferry's RabbitMQ permissions.

    At the central broker the ferry may consume messages into the cell, and publish messages out of the cell;
    at the cell's broker the reverse, and there it also declares the exchanges.
    """
    names = BrokerNames(exchange)
    (cell,) = {crossing.cell for crossing in crossings}
    owned = named(names, [rf"ferry\.{re.escape(cell)}:.+"])
    # the exchanges and queues that all workers of the broker share
    made = [re.escape(names.exchange) + r"(\.(queues|delay|dead)(\.[0-9]+)?)?"] if at_cell_broker else []
    letters = any_of([LETTER, rf"{LETTER}\.\*", r"[0-9]+\.#"]) if at_cell_broker else NONE
    consumed = [crossing for crossing in crossings if crossing.way is (Way.OUT if at_cell_broker else Way.IN)]
    writes = sorted({_carried_by(crossing) for crossing in crossings if crossing not in consumed})
    reads = [re.escape(key) for crossing in consumed for key in crossing.keys]
    to = rf"[0-9]+\.({'|'.join(owned)})"
    return Permissions(
        configure=any_of([*owned, *made]),
        write=any_of([*owned, *exchanges(names, "", "queues", "delay", "dead"), *made]),
        read=any_of([*owned, *exchanges(names, "", "queues"), *made]),
        keys=(
            KeyPatterns(names.exchange, any_of(writes), any_of(reads)),
            KeyPatterns(names.queues, any_of([to]), any_of([rf"\*\.{name}" for name in owned])),
            # to forward messages again later that a client's queue does not confirm
            KeyPatterns(names.delay, any_of([to]), any_of([r"[0-9]+\.#"]) if at_cell_broker else NONE),
            KeyPatterns(names.dead, any_of([re.escape(letter_key(cell))]), letters),
        ),
    )


def _carried_by(crossing: Crossing) -> str:
    if isinstance(crossing.of, Topic):
        return _published_by(crossing.of, crossing.cell)
    if isinstance(crossing.of, Query):
        return _asked_by(crossing.of, crossing.cell)
    return rf"{re.escape(crossing.name)}\.{WORD}\.{WORD}"


def _published_by(topic: Topic[Any], cell: str) -> str:
    """Return a regular expression of a topic's routing keys, for one cell or (if `cell` is empty) for all."""
    keys = _filled(topic.pattern, cell)
    return rf"{keys}(\.{WORD})?" if topic.outsiders else keys


def _asked_by(query: Query[Any, Any], cell: str) -> str:
    return rf"ask\.{_filled(query.name, cell)}"


def _replies_to(cell: str, askers: Sequence[str] = ()) -> str:
    """Return a regular expression of a cell's reply addresses, for the given workers or for all of them."""
    if askers:
        return rf"reply\.{re.escape(cell)}\.({'|'.join(map(re.escape, askers))})-{RANDOM}\.{RANDOM}"
    return rf"reply\.{re.escape(cell)}\.{WORD}\.{WORD}"


def _filled(pattern: str, cell: str) -> str:
    escaped = pattern.replace(".", r"\.")
    return FIELD.sub(lambda field: re.escape(cell) if cell and field[1] == "cell" else WORD, escaped)


def named(names: BrokerNames, queues: Iterable[str]) -> list[str]:
    before = re.escape(names.queue(""))
    return [before + queue for queue in queues]


def exchanges(names: BrokerNames, *parts: str) -> list[str]:
    return [re.escape(f"{names.exchange}.{part}" if part else names.exchange) for part in parts]


def any_of(patterns: Sequence[str]) -> str:
    return f"^({'|'.join(patterns)})$"
