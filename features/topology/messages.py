"""Parts of messages about topologies and roles."""

from collections import Counter
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from bus.feature import MessagesPart
from bus.messages import BuildRequested
from bus.parts import RequestPart, RequestParts, Section
from bus.requests import Flavor
from bus.vocabulary import FREE, Amount, Value, Word
from features.groups.constraints import NO_TOPOLOGY, DomainConstraints
from features.groups.messages import group_of

RoleName = Annotated[Word, FREE]


class GangRole(Value, frozen=True, kw_only=True):
    """A part of a gang: a number of instances of one flavor. All roles of a request are claimed together."""

    name: RoleName
    flavor: Flavor
    count: Amount = 1


class TopologyPart(RequestPart, frozen=True, kw_only=True):
    """Constraints on the hosts of all instances of a request, and its roles."""

    flat: ClassVar = {"topology": "", "roles": ""}

    topology: DomainConstraints = NO_TOPOLOGY  # for all instances of this request; not of its server group
    # Roles with flavor and count: the first role is for the first instances, and the flavor of the request is
    # its flavor.
    roles: Annotated[tuple[GangRole, ...], Meta(max_length=64)] = ()

    @property
    def sections(self) -> tuple[Section, ...]:
        return tuple(
            [
                Section(role.name, role.flavor, role.count, f"roles[{number}].flavor")
                for number, role in enumerate(self.roles)
            ]
        )

    def contradiction(self, request: Any, options: Any = None) -> str:
        if not isinstance(request, BuildRequested):  # a move
            return ""
        if self.topology.levels and group_of(request.parts) is not None:
            return "topology: the request joins a server group, whose own topology decides (hints.group)"
        if self.topology.pack and self.topology.pack == self.topology.spread:
            return f"topology: pack and spread both name the level {self.topology.pack}"
        if not self.roles:
            return ""
        total = sum(role.count for role in self.roles)
        if total != (several := len(set(request.instances))):
            return f"roles: {total} instances by their counts, but {several} in the request"
        name, times = Counter(role.name for role in self.roles).most_common(1)[0]
        if times > 1:
            return f"roles: {name!r} is there twice"
        if request.or_else or request.at_least:
            field = "or_else" if request.or_else else "at_least"
            return f"{field}: not possible with roles, which are claimed all together"
        if request.flavor != self.roles[0].flavor:
            return "flavor: it must be the flavor of the first role"
        return ""


NONE = TopologyPart()


def topology_part(parts: RequestParts) -> TopologyPart:
    """Return the part of a request; one without constraints and roles if the request has none."""
    return parts.get(TopologyPart) or NONE


def topology_of(parts: RequestParts) -> DomainConstraints:
    return topology_part(parts).topology


PART = MessagesPart(parts={RequestParts: TopologyPart})
