"""Applies the policies of server groups to planned moves, and to the builds for which plans make room."""

from collections.abc import Sequence

import numpy as np

from bus.candidates import Ints
from bus.vocabulary import Id
from features.groups.core.domain_rules import required_constraints
from features.groups.core.joined_group import JoinedGroup, group_of_alternative
from features.groups.core.members import domain_rules
from features.groups.messages import group_of
from features.planning.core.room_demand import DomainLimit
from features.planning.joint_rules import JointPlacing, JointPlacingRules, Moved
from scheduler_worker.extension import Alternative, Choosing, ForScheduler, SchedulerNeeds, SchedulerPart


class GroupsInPlans(JointPlacingRules):
    """The rules of server groups for plans of moves."""

    def concerns(self, alternative: Alternative) -> bool:
        return group_of_alternative(alternative) is not None

    def apart(self, alternative: Alternative) -> Id | None:
        group = group_of_alternative(alternative)
        return group.id if group is not None and group.policy == "anti-affinity" else None

    def on_one_host(self, alternative: Alternative) -> bool:
        group = group_of_alternative(alternative)
        return group is not None and group.policy == "affinity"

    def domains(
        self, alternative: Alternative, choosing: Choosing
    ) -> tuple[Sequence[DomainLimit], Ints | None]:
        group = group_of_alternative(alternative)
        assert group is not None
        rules = domain_rules(choosing, group, required_constraints(group))
        limits = [DomainLimit(level.ids.copy(), most, rules.counts(level)) for level, most in rules.spreads]
        return limits, np.where(rules.open_to(), rules.domains, 0) if rules.packs else None

    def after(self, moved: Sequence[Moved], alternative: Alternative) -> Alternative:
        """Return an alternative whose server group has the hosts that its members would have after moves."""
        group = group_of_alternative(alternative)
        assert group is not None
        members, left = {**group.members}, {**group.left}
        for start, roots in moved:
            if group_of(start.parts) == group.id:
                members[start.asked.build] = roots
                if start.keep is not None:
                    left[start.keep] = tuple(start.current_roots)
        return alternative.with_part(JoinedGroup(group.on_hosts(members, left)))


def part(needs: SchedulerNeeds, settings: None) -> SchedulerPart:
    needs.of(JointPlacing).rules.append(GroupsInPlans())
    return SchedulerPart()


PART = ForScheduler(part)
