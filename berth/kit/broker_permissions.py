"""The permissions and limits of RabbitMQ users, and patterns of the names of queues and exchanges."""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from secrets import token_bytes
from types import MappingProxyType
from typing import Any, Literal

from bus.rabbit.topology import BrokerNames

NAME_PATTERN = r"[A-Za-z0-9_-]+"


RANDOM_PATTERN = "[0-9a-f]{8}"


MATCHES_NOTHING = "^$"  # a pattern that matches no name and no key: neither is ever empty


KEY_FIELD = re.compile(r"\{(\w+)\}")


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
    """A RabbitMQ user as it should be: password, permissions and limits."""

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


def queue_patterns(names: BrokerNames, queues: Iterable[str]) -> list[str]:
    """Return regular expressions for the queues, with the prefix of this berth's names. `queues` are
    expressions themselves.
    """
    before = re.escape(names.queue(""))
    return [before + queue for queue in queues]


def exchange_patterns(names: BrokerNames, *parts: str) -> list[str]:
    """Return regular expressions that match exactly these exchanges of berth; "" is its main exchange."""
    return [re.escape(f"{names.exchange}.{part}" if part else names.exchange) for part in parts]


def any_of(patterns: Sequence[str]) -> str:
    """Return an anchored regular expression that matches what one of the patterns matches completely."""
    return f"^({'|'.join(patterns)})$"
