"""The rule of the topologies of server groups: they pack members into a domain, or spread them."""

from bus.claims import Choice, ConsumerClaim, RuleRefused
from bus.sql.database import Database
from bus.sql.statement import Transaction
from features.groups import store as server_groups
from features.groups.messages import topology_claimed
from features.groups.rule import GroupRule, GroupWorld, may_have_members
from placement_worker.extension import ClaimRule, ClaimScope, ClaimWorld


class TopologyRule(ClaimRule):
    """Refuses claims that break the constraints of a group about failure domains."""

    name = "topology"

    def __init__(self, database: Database) -> None:
        self._database = database

    async def prepare(self, scope: ClaimScope, now: float) -> None:
        """Create the server groups that claims make with a topology."""
        claims = [claim for claim in scope.claims if topology_claimed(claim.parts) is not None]
        if claims:
            async with self._database.write() as tx:
                await server_groups.make_of_requests(tx, claims, now)

    def needs(self, scope: ClaimScope) -> bool:
        return bool(scope.claims) and may_have_members(scope)

    async def read(self, tx: Transaction, scope: ClaimScope, world: ClaimWorld) -> None:
        state: GroupWorld | None = world.state.get(GroupRule)
        groups = (
            () if state is None else [each for each in state.groups.values() if each.topology.is_required]
        )
        if groups:
            roots = {provider.root for provider in world.providers.values() if provider is not None}
            await server_groups.read_labels(tx, groups, roots)
            world.state[TopologyRule] = groups

    def after(self, claim: ConsumerClaim, choice: Choice, world: ClaimWorld) -> RuleRefused | None:
        state: GroupWorld = world.state[GroupRule]
        group = state.group_of(claim, world.holders[claim.consumer])
        if group is None:
            return None
        return group.topology_refusal(world.roots(choice.allocations), claim.consumer)
