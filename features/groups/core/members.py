"""Applies the policies of server groups to the hosts of their members, also of members just chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from features.groups.core.domain_rules import Constraints, DomainRules, open_hosts, required_constraints
from features.groups.core.joined_group import JoinedGroup
from features.groups.messages import ServerGroup
from scheduler_worker.extension import Alternative, Together

if TYPE_CHECKING:
    from scheduler_worker.extension import Choosing

AFFINITY = "server_group_affinity"  # the filter that demands one host for new members


def with_members(alternative: Alternative, several: int, choosing: "Choosing") -> Alternative:
    """Return a copy of `alternative` with the data by which filters apply its server group's policy to
    `several` new members, such as the number of present members on each host.
    """
    joined = alternative.part(JoinedGroup)
    if joined is None:
        return alternative
    group, members = joined.group, dict[str, int]()
    on: Mapping[str, Sequence[str]] = {**group.members, **choosing.tentative.of(group.id)}
    if group.policy == "anti-affinity":  # a host with a guest left behind is not permitted either
        on = {**group.left, **on}
    for roots in on.values():
        for root in roots:
            members[root] = members.get(root, 0) + 1
    together = None
    if group.policy == "affinity" and not members and several > 1:
        shared = set[str]().union(*choosing.source.sharing.values())
        asked = {name: several * amount for name, amount in alternative.asked.items() if name not in shared}
        together = Together(several, asked, AFFINITY, _placed_on)
    allowed = alternative.allowed
    if allowed is None and group.topology.is_required:
        rules = domain_rules(choosing, group, required_constraints(group))
        position = choosing.source.position
        allowed = open_hosts(rules.open_to(), str(rules.constraints), lambda root: rules.why(position(root)))
    within = frozenset(members) if group.policy == "affinity" else frozenset[str]()
    alternative = alternative.with_part(JoinedGroup(group, members))
    return replace(alternative, together=together, allowed=allowed, within_roots=within)


def _placed_on(alternative: Alternative, root: str, several: int) -> Alternative:
    joined = alternative.part(JoinedGroup)
    assert joined is not None
    return alternative.with_part(JoinedGroup(joined.group, {root: several}))


def domain_rules(choosing: "Choosing", group: ServerGroup | None, constraints: Constraints) -> DomainRules:
    """Return the rules of the constraints on domains, given the hosts of the server group's members. Members
    placed by unfinished batches also count.
    """
    if group is None:
        return DomainRules.of(choosing.source, constraints, {}, {})
    members = {**group.members, **choosing.tentative.of(group.id)}
    return DomainRules.of(choosing.source, constraints, members, group.left)
