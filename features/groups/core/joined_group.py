"""The server group that instances of a request join, as the scheduler's filters and weighers see it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from features.groups.messages import ServerGroup
from scheduler_worker.extension import Alternative, Order


@dataclass(frozen=True, slots=True)
class JoinedGroup:
    """The server group of an alternative's instances; placement checks its policy again when they are
    claimed.
    """

    group: ServerGroup
    members: Mapping[str, int] = field(default_factory=dict)  # root of a host → number of members there

    @property
    def without(self) -> str:
        """Return the words by which an explanation names the request without this group."""
        topology = self.group.topology
        return f"without {topology}" if topology.levels else f"without server group {self.group.name}"

    @property
    def is_joint(self) -> bool:
        """Return whether hosts of all instances must be chosen together, because the group has constraints of
        domains.
        """
        return bool(self.group.topology.levels)

    def most_on(self, root: str) -> int | None:
        """Return how many further members the host may take; None if the policy does not limit them."""
        if self.group.policy != "anti-affinity":
            return None
        return self.group.max_per_host - self.members.get(root, 0)


def group_of_alternative(alternative: Alternative) -> ServerGroup | None:
    """Return the server group that the instances of an alternative join."""
    joined = alternative.part(JoinedGroup)
    return None if joined is None else joined.group


def members_on(alternative: Alternative) -> Mapping[str, int]:
    """Return the number of members of the alternative's server group on each host, by root."""
    joined = alternative.part(JoinedGroup)
    return {} if joined is None else joined.members


def with_group(order: Order, group: ServerGroup) -> Order:
    """Return an order whose instances join a server group."""
    return order.changed(lambda alternative: alternative.with_part(JoinedGroup(group)))
