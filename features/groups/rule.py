"""The rule of server groups: a claim can join a group, whose policy restricts the hosts of its members."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from bus.claims import Choice, ClaimRequested, ConsumerClaim, RuleRefused
from bus.sql.statement import BoundStatement, Transaction
from bus.vocabulary import Allocations
from features.groups import store as server_groups
from features.groups.messages import GroupClaim, claimed_group, groups_of
from features.groups.places import GroupPlaces, no_group
from placement_worker.extension import ClaimRule, ClaimScope, ClaimWorld, Holder

GROUP = "group_id"  # column of consumers: the database id of the group, which may have been deleted since


@dataclass(slots=True)
class GroupWorld:
    """The server groups that claims name or that their consumers have joined."""

    groups: dict[int, GroupPlaces] = field(default_factory=dict)  # database id → group
    named: dict[str, int] = field(default_factory=dict)  # uuid → database id

    def group_of(self, claim: ConsumerClaim, holder: Holder) -> GroupPlaces | None:
        """Return the group of a consumer after its claim; None if it is in none, or its group was deleted."""
        named = claimed_group(claim.parts)
        number = self.named.get(named) if named is not None else holder.marks.get(GROUP)
        return None if number is None else self.groups.get(number)


def may_have_members(scope: ClaimScope) -> bool:
    """Return whether claims join a group, or consumers may exist, which may be members of a group."""
    claimed = any(GroupClaim in claim.parts or claim.generation == "any" for claim in scope.claims)
    return claimed or scope.leaves_holders or bool(scope.other_consumers)


class GroupRule(ClaimRule):
    """The rule of claims for server groups: refuses a claim that breaks the policy of its group."""

    name = "groups"
    locks = "groups"
    columns: ClassVar = {GROUP: "it is in a server group"}

    def needs(self, scope: ClaimScope) -> bool:
        if any(GroupClaim in claim.parts for claim in scope.claims):
            scope.locks.add(self.locks)
        return may_have_members(scope)

    async def read(self, tx: Transaction, scope: ClaimScope, world: ClaimWorld) -> None:
        state = world.state[GroupRule] = GroupWorld()
        if not scope.claims:  # a release violates no policy
            return
        named = groups_of(scope.claims)
        joined = {
            holder.marks[GROUP] for holder in world.holders.values() if holder.marks.get(GROUP) is not None
        }
        if not named and not joined:
            return
        for group in await server_groups.lock(tx, named, joined):
            state.groups[group.id] = group
            state.named[group.uuid] = group.id
        await server_groups.read_places(tx, [group for group in state.groups.values() if group.is_checked])
        self.mark_holders(state, world)
        scope.reads_pools |= bool(state.groups)

    @staticmethod
    def mark_holders(state: GroupWorld, world: ClaimWorld) -> None:
        """Record in the holder consumers of the groups' members for which instance they are."""
        for group in state.groups.values():
            for consumer in group.holder_consumers.keys() & world.holders.keys():
                world.holders[consumer].keeps_for = group.holder_consumers[consumer]

    def bars(self, claim: ConsumerClaim, world: ClaimWorld) -> RuleRefused | None:
        if (named := claimed_group(claim.parts)) is None:
            return None
        state: GroupWorld = world.state[GroupRule]
        group = state.group_of(claim, world.holders[claim.consumer])
        return no_group(named) if group is None or group.project != claim.project else None

    def after(self, claim: ConsumerClaim, choice: Choice, world: ClaimWorld) -> RuleRefused | None:
        state: GroupWorld = world.state[GroupRule]
        group = state.group_of(claim, world.holders[claim.consumer])
        return None if group is None else group.refusal(world.roots(choice.allocations), claim.consumer)

    def changed(self, holder: Holder, was: Allocations, world: ClaimWorld) -> None:
        """Replace the hosts of a member by its present ones."""
        state: GroupWorld = world.state[GroupRule]
        number = holder.marks.get(GROUP)
        if holder.by is not None and (named := claimed_group(holder.by.parts)) is not None:
            number = state.named.get(named)
        self._join(holder, number, state, world)
        group = None if number is None else state.groups.get(number)
        if group is not None and holder.held:
            group.put(holder.uuid, world.roots(holder.held), holder.keeps_for)
            world.journal.note(group.drop, holder.uuid)

    def inherited(self, source: Holder, heir: Holder, claim: ConsumerClaim | None, world: ClaimWorld) -> None:
        first, second = (source, heir) if claim is None else (heir, source)
        number = second.marks.get(GROUP) if first.marks.get(GROUP) is None else first.marks[GROUP]
        self._join(heir, number, world.state[GroupRule], world)

    def _join(self, holder: Holder, number: int | None, state: GroupWorld, world: ClaimWorld) -> None:
        """Let a consumer without hosts be a member of a group, and of no other."""
        former = holder.marks.get(GROUP)
        group = None if former is None else state.groups.get(former)
        if group is not None and holder.uuid in group.places:
            place = group.places[holder.uuid], group.holder_consumers.get(holder.uuid)
            group.drop(holder.uuid)
            world.journal.note(group.put, holder.uuid, *place)
        if number != former:
            world.journal.set_item(holder.marks, GROUP, number)

    def accepted(self, request: ClaimRequested, world: ClaimWorld) -> None:
        for claim in request.claims:
            holder = world.holders[claim.consumer]
            if not holder.held and holder.marks.get(GROUP) is not None:
                holder.marks[GROUP] = None

    def write(self, world: ClaimWorld) -> Iterable[BoundStatement]:
        if rows := world.marked(GROUP):
            yield server_groups.JOIN.of(rows)
