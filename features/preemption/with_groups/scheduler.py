"""Limits the hosts on which members of a server group preempt instances, by the policy of the group."""

import numpy as np

from bus.domains import HOST
from features.groups.core.domain_rules import DomainRules, required_constraints
from features.groups.core.joined_group import group_of_alternative
from features.groups.core.members import domain_rules
from features.preemption.core.domain_limits import DomainLimits
from features.preemption.core.victims import UNLIMITED
from features.preemption.victim_search import VictimSearch
from scheduler_worker.extension import Choosing, ForScheduler, Order, SchedulerNeeds, SchedulerPart


def limits_of(choosing: Choosing, order: Order) -> DomainLimits | None:
    """Return the limits of the required constraints of the order's server group; None without a group."""
    group = group_of_alternative(order.alternative)
    if group is None:
        return None
    return _limits(domain_rules(choosing, group, required_constraints(group)))


def _limits(rules: DomainRules) -> DomainLimits:
    size = len(rules.domains)
    hosts, spread, left = np.full(size, UNLIMITED), np.zeros(size, np.intp), None
    for level, most in rules.spreads:
        free = np.full(len(level.labels), most)
        for domain, there in rules.counts(level).items():
            free[domain] = max(most - there, 0)
        if level.name == HOST:
            hosts = np.minimum(hosts, free[level.ids])
        else:
            spread, left = level.ids, dict(enumerate(free.tolist()))
    return DomainLimits(rules.open_to(), rules.domains, len(rules.names), hosts, spread, left)


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    needs.of(VictimSearch).limits_of = limits_of
    return SchedulerPart()


PART = ForScheduler(part)
