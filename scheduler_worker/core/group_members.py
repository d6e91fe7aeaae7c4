"""Applies the policies of server groups to the hosts of their members, also of members just chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler_worker.core.domain_rules import Constraints, DomainRules, InstanceGroup, required_constraints
from scheduler_worker.core.rule import AllowedHosts, Alternative, Together
from scheduler_worker.core.rules.state import AFFINITY

if TYPE_CHECKING:
    from scheduler_worker.core.choosing import Choosing


def with_members(alternative: Alternative, several: int, choosing: "Choosing") -> Alternative:
    """Return a copy of `alternative` with the data by which filters apply its server group's policy to
    `several` new members, such as the number of present members on each host.
    """
    group = alternative.group
    if group is None:
        return alternative
    members: dict[str, int] = {}
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
        allowed = AllowedHosts(
            rules.open_to(), str(rules.constraints), lambda root: rules.why(position(root))
        )
    within = frozenset(members) if group.policy == "affinity" else frozenset[str]()
    return replace(alternative, members=members, together=together, allowed=allowed, within_roots=within)


def _placed_on(alternative: Alternative, root: str, several: int) -> Alternative:
    return replace(alternative, members={root: several})


def domain_rules(choosing: "Choosing", group: InstanceGroup | None, constraints: Constraints) -> DomainRules:
    """Return the rules of the constraints on domains, given the hosts of the server group's members. Members
    placed by unfinished batches also count.
    """
    if group is None:
        return DomainRules.of(choosing.source, constraints, {}, {})
    members = {**group.members, **choosing.tentative.of(group.id)}
    return DomainRules.of(choosing.source, constraints, members, group.left)
