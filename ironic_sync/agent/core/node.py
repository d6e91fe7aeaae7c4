"""A node as the agent reads it: its state, its instance, and the build attempts that it has seen."""

from collections.abc import Mapping
from typing import Any

import msgspec

Json = dict[str, Any]

ATTEMPT = "berth_attempt"  # in instance_info
SEEN = "berth_seen"  # in extra


class SeenAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The last attempt of a build on the node; with a cause if it failed."""

    build: str
    attempt: int
    cause: str = ""


class MetalNode(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a node that decide the next step."""

    uuid: str
    provision_state: str | None = None
    instance_uuid: str | None = None
    instance_info: Json = {}
    extra: Json = {}
    maintenance: bool = False
    maintenance_reason: str | None = None
    resource_class: str | None = None
    last_error: str | None = None
    deploy_interface: str | None = None

    @property
    def seen(self) -> list[SeenAttempt]:
        """The attempts, newest last. Anyone can write `extra`, so unreadable content is ignored."""
        try:
            return msgspec.convert(self.extra.get(SEEN, []), list[SeenAttempt])
        except msgspec.ValidationError:
            return []

    def last(self, build: str) -> SeenAttempt:
        found = (one for one in reversed(self.seen) if one.build == build)
        return next(found, SeenAttempt(build=build, attempt=0))

    def attempt_of(self, build: str) -> int | None:
        """Return the attempt that holds the node, 0 if it was not recorded, None if the build does not hold
        it.
        """
        if self.instance_uuid != build:
            return None
        attempt = self.instance_info.get(ATTEMPT)
        return attempt if isinstance(attempt, int) else 0


FIELDS = MetalNode.__struct_fields__


def node_of(said: Mapping[str, Any]) -> MetalNode:
    """Return the node in the answer to a read."""
    return msgspec.convert({name: said[name] for name in FIELDS if said.get(name) is not None}, MetalNode)
