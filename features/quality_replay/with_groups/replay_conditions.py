"""Server groups in a replay: their members are the instances that the replay has placed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.claims import ConsumerClaim
from bus.delivery.runner import Bus
from bus.messages import BuildRequested
from bus.parts import Part
from bus.protocol import Ask
from bus.topics import Query
from bus.vocabulary import Id, portions
from features.groups.messages import (
    GROUPS,
    FindGroups,
    GroupPart,
    GroupsFound,
    ServerGroup,
    claimed_group,
    group_of,
)
from features.quality_replay.repeated_conditions import ConditionPart, HostsOf

GROUPS_ASKED = 100  # server groups in one query to placement


@dataclass(frozen=True)
class RepeatedGroups:
    """The server groups that recorded requests name, and that still exist."""

    groups: Mapping[Id, ServerGroup]

    unknown = "no_group"
    sentence = "instances joined a server group that was deleted since: they are replayed without it"

    def judges(self, part: Part) -> bool:
        return isinstance(part, GroupPart)

    def repeats(self, part: Part) -> bool:
        return isinstance(part, GroupPart) and part.group in self.groups

    def replayed(self, earlier: Mapping[Id, BuildRequested], hosts_of: HostsOf) -> "ReplayedGroups":
        replayed = ReplayedGroups(self.groups, hosts_of)
        for consumer, request in earlier.items():
            if group := group_of(request.parts):
                replayed.members[group].add(consumer)
        return replayed


@dataclass(eq=False)
class ReplayedGroups:
    """The server groups of one replay."""

    groups: Mapping[Id, ServerGroup]
    hosts_of: HostsOf
    members: defaultdict[Id, set[Id]] = field(default_factory=lambda: defaultdict(set))

    @property
    def answers(self) -> Sequence[tuple[Query[Any, Any], Ask[Any, Any]]]:
        return ((GROUPS, self.find),)

    async def find(self, question: FindGroups) -> GroupsFound:
        found = []
        for id_ in question.ids:
            if (group := self.groups.get(id_)) is not None:
                on = {member: hosts for member in self.members[id_] if (hosts := self.hosts_of(member))}
                found.append(group.on_hosts(on, {}))
        return GroupsFound(groups=tuple(found))

    def granted(self, claim: ConsumerClaim) -> None:
        if (group := claimed_group(claim.parts)) is not None:
            self.members[group].add(claim.consumer)


async def read(bus: Bus, requests: Iterable[BuildRequested]) -> RepeatedGroups:
    """Return the server groups that requests name, and that still exist."""
    ask, found = bus.asker(GROUPS), dict[Id, ServerGroup]()
    ids = dict.fromkeys(id_ for each in requests if (id_ := group_of(each.parts)))
    for some in portions(ids, GROUPS_ASKED):
        found |= {group.id: group for group in (await ask(FindGroups(ids=some))).groups}
    return RepeatedGroups(found)


PART = ConditionPart(read)
