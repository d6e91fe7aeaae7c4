"""The rule that limits the number of members of a server group, by the quota of its project."""

from collections.abc import Sequence

from bus.claims import Claimed, ClaimRequested, ClaimResult, ConsumerClaim
from bus.sql.statement import Transaction
from features.groups import store as server_groups
from features.groups.messages import GroupClaim
from features.groups.rule import GroupRule, GroupWorld
from features.quotas.budgets import is_counted
from features.quotas.limits import CachedLimits
from features.quotas.messages import GROUP_MEMBERS, OverQuota
from features.quotas.rule import over_quota_refused
from placement_worker.extension import ClaimRule, ClaimScope, ClaimWorld


class GroupLimitRule(ClaimRule):
    name = "group_limits"

    def __init__(self, cache: CachedLimits) -> None:
        self._cache = cache

    def needs(self, scope: ClaimScope) -> bool:
        projects = {claim.project for claim in scope.claims if GroupClaim in claim.parts}
        return any(GROUP_MEMBERS in self._cache.limits.of(project) for project in projects)

    async def read(self, tx: Transaction, scope: ClaimScope, world: ClaimWorld) -> None:
        """Read the members of the groups whose policy no claim checks: they are counted, too."""
        state: GroupWorld = world.state[GroupRule]
        await server_groups.read_places(tx, [each for each in state.groups.values() if not each.is_checked])
        GroupRule.mark_holders(state, world)
        projects = {claim.project for claim in scope.claims}
        limits = {project: self._cache.limits.of(project).get(GROUP_MEMBERS) for project in projects}
        world.state[GroupLimitRule] = {
            project: limit for project, limit in limits.items() if limit is not None
        }

    def judge_request(
        self, request: ClaimRequested, results: Sequence[ClaimResult], world: ClaimWorld
    ) -> Sequence[ClaimResult]:
        return [
            over_quota_refused(claim, over)
            if type(result) is Claimed and (over := self._over(claim, request, world)) is not None
            else result
            for claim, result in zip(request.claims, results, strict=True)
        ]

    def _over(self, claim: ConsumerClaim, request: ClaimRequested, world: ClaimWorld) -> OverQuota | None:
        limits: dict[str, int] = world.state[GroupLimitRule]
        limit, holder = limits.get(claim.project), world.holders[claim.consumer]
        if (
            limit is None
            or GroupClaim not in claim.parts
            or claim.take_over
            or not is_counted(claim, world.holder_types)
            or not holder.held
        ):
            return None
        state: GroupWorld = world.state[GroupRule]
        group = state.group_of(claim, holder)
        if group is None or group.size <= limit:
            return None
        members = [each.consumer for each in request.claims if each.consumer in group.places]
        joined = sum(not world.before(member) for member in members)
        return OverQuota(
            project=claim.project, resource=GROUP_MEMBERS, limit=limit, used=group.size - joined, asked=joined
        )
