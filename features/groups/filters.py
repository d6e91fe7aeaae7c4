"""Filters and weighers for the policies of server groups."""

from features.groups.core.joined_group import group_of_alternative, members_on
from features.groups.core.members import AFFINITY
from features.groups.messages import GroupPolicy
from scheduler_worker.core.extension import (
    HostFacts,
    MoreRules,
    Number,
    Rule,
    RulesPart,
    View,
    Weigher,
    array_rule,
)
from scheduler_worker.extension import Alternative

CODE = "server_group"
READS = ("parts",)
SOFT = 10.0  # multiplier of the soft (anti-)affinity weighers; with Nova's 1, ram and cpu would outweigh them


def _has_policy(alternative: Alternative, policy: GroupPolicy) -> bool:
    group = group_of_alternative(alternative)
    return group is not None and group.policy == policy


def server_group_anti_affinity() -> Rule:
    """Accept hosts with fewer members of the request's anti-affinity group than `max_per_host`."""

    def admits(view: View, alternative: Alternative) -> Number:
        group = group_of_alternative(alternative)
        most = group.max_per_host if group is not None else 1
        members = view.by_root(members_on(alternative))
        return (members < most) | (view.among(alternative.current_roots) == 1)

    def why(host: HostFacts, alternative: Alternative) -> str:
        members, group = members_on(alternative).get(host.root, 0), group_of_alternative(alternative)
        return f"{members} of server group {group.name} there, at most {group.max_per_host}" if group else ""

    return array_rule(
        "server_group_anti_affinity",
        admits,
        why,
        lambda alternative: _has_policy(alternative, "anti-affinity"),
        code=CODE,
        reads=READS,
    )


def server_group_affinity() -> Rule:
    """Accept hosts with members of the affinity group; if it has no members, hosts with capacity for all new
    members.
    """

    def concerns(alternative: Alternative) -> bool:
        is_hard = _has_policy(alternative, "affinity")
        return is_hard and bool(members_on(alternative) or alternative.together)

    def admits(view: View, alternative: Alternative) -> Number:
        members = view.by_root(members_on(alternative))
        if alternative.together is None or members_on(alternative):
            return members > 0
        enough = members == 0
        for name, amount in alternative.together.asked.items():
            enough = enough & (view.free(name) >= amount)
        return enough

    def why(host: HostFacts, alternative: Alternative) -> str:
        group = group_of_alternative(alternative)
        name = group.name if group is not None else ""
        if members_on(alternative) or alternative.together is None:
            return f"none of server group {name} there"
        return f"no room for {alternative.together.several} of server group {name} together"

    return array_rule(AFFINITY, admits, why, concerns, code=CODE, reads=READS)


def _members(view: View, alternative: Alternative, policy: GroupPolicy) -> Number:
    return view.by_root(members_on(alternative)) if _has_policy(alternative, policy) else 0.0


def soft_affinity() -> Weigher:
    """Prefer hosts with more members of the request's soft-affinity group."""
    return Weigher(
        "soft_affinity",
        lambda view, alternative: _members(view, alternative, "soft-affinity"),
        SOFT,
        reads=READS,
    )


def soft_anti_affinity() -> Weigher:
    """Prefer hosts with fewer members of the request's soft-anti-affinity group."""
    return Weigher(
        "soft_anti_affinity",
        lambda view, alternative: -_members(view, alternative, "soft-anti-affinity"),
        SOFT,
        reads=READS,
    )


PART = RulesPart(
    filters=(
        MoreRules(
            made=(server_group_anti_affinity, server_group_affinity),
            before="same_host",
            called={
                "ServerGroupAntiAffinityFilter": ("server_group_anti_affinity",),
                "ServerGroupAffinityFilter": ("server_group_affinity",),
            },
        ),
    ),
    weighers=(
        MoreRules(
            made=(soft_affinity, soft_anti_affinity),
            before="build_failure",
            called={
                "ServerGroupSoftAffinityWeigher": ("soft_affinity",),
                "ServerGroupSoftAntiAffinityWeigher": ("soft_anti_affinity",),
            },
        ),
    ),
)
