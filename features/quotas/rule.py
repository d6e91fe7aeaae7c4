"""The rule of quotas: a claim is refused if its project would exceed a limit of a resource.

Clients such as Nova move an instance by several requests, without consumer types. Either a consumer for
the migration takes over the allocations of the instance, which then claims its destination. Or the instance
claims the destination in addition to its source. Such consumers are marked as parts of the instance's move.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import structs

from bus.claims import Claimed, ClaimRequested, ClaimResult, ConsumerClaim, Refused, RuleRefused
from bus.sql.statement import BoundStatement, Transaction
from bus.vocabulary import Allocations
from features.quotas import budgets, usage
from features.quotas.budgets import ProjectBudget
from features.quotas.limits import CachedLimits
from features.quotas.messages import OVER_QUOTA, OverQuota, quota_key
from placement_worker.extension import Book, ClaimRule, ClaimScope, ClaimWorld, Holder, rules_edition

# Column of consumers: the instance that a client moves, if quotas count the consumer as a part of it. For a
# holder consumer, the kernel stores there the instance whose guest may still exist.
MOVE_OF = "keeps_for"

Charges = list[tuple[str, budgets.Amounts]]  # project and growth of its usage, for the claims of a request


@dataclass(slots=True)
class QuotaWorld:
    """The limits and usage of the projects of claims, if they have a quota."""

    budgets: dict[str, ProjectBudget] = field(default_factory=dict)
    projects: Mapping[int, str] = field(default_factory=dict)  # database id → project, of the same projects
    charged: dict[str, str] = field(default_factory=dict)  # consumer → project of its last claim

    def project_of(self, holder: Holder) -> str:
        """Return the project in which a consumer counts; "" if this has no quota."""
        return self.charged.get(holder.uuid, self.projects.get(holder.project_id, ""))


class QuotaRule(ClaimRule):
    """Refuses claims beyond the quota of their project, under the lock of the project."""

    name = "quotas"
    locks = "projects"
    columns: ClassVar = {MOVE_OF: ""}

    def __init__(self, book: Book, cache: CachedLimits) -> None:
        self._book = book
        self._cache = cache

    async def prepare(self, scope: ClaimScope, now: float) -> None:
        await self._cache.refresh()

    def needs(self, scope: ClaimScope) -> bool:
        if limited := self._cache.limits.limited({claim.project for claim in scope.claims}):
            scope.projects.update(limited)
            scope.locks.add(self.locks)
        return bool(self._cache.limits) or any(claim.client for claim in scope.claims)

    async def read(self, tx: Transaction, scope: ClaimScope, world: ClaimWorld) -> None:
        state = world.state[QuotaRule] = QuotaWorld()
        limits = self._cache.limits
        limited = {self._book.projects.ids[name]: name for name in limits.limited(scope.projects)}
        if limited:
            usages = await usage.usage(tx, self._book, limited, world.holder_types)
            state.projects = limited
            state.budgets = {
                name: ProjectBudget(name, limits.of(name), usages[id_]) for id_, name in limited.items()
            }

    def judge_request(
        self, request: ClaimRequested, results: Sequence[ClaimResult], world: ClaimWorld
    ) -> Sequence[ClaimResult]:
        """Charge the claims of a request to the quotas of their projects; replace the result of each claim
        that a quota refuses.
        """
        state: QuotaWorld = world.state[QuotaRule]
        # Only API clients move instances without consumer types.
        if any(claim.client for claim in request.claims):
            mark_moves(request, world)
        if not state.budgets:
            return results
        judged, charges, overs = [*results], Charges(), dict[int, OverQuota]()
        for at in charging_order([world.holders[claim.consumer] for claim in request.claims]):
            claimed = type(results[at]) is Claimed
            if claimed and (over := _charge(request.claims[at], charges, state, world)) is not None:
                overs[at] = over
        for at, over in overs.items():
            whole = _with_whole_growth(over, overs.values(), charges)
            judged[at] = over_quota_refused(request.claims[at], whole)
        return judged

    def write(self, world: ClaimWorld) -> Iterable[BoundStatement]:
        if rows := world.marked(MOVE_OF):
            yield usage.MARK_MOVE.of(rows)

    async def wakes(self, tx: Transaction, world: ClaimWorld) -> Iterable[str]:
        """Return the keys of the projects that may use less now. If all claims were refused, perhaps because
        of outdated limits, compare the limits with the database.
        """
        state: QuotaWorld = world.state[QuotaRule]
        if state.budgets and not world.touched:
            self._book.check_rules(await rules_edition(tx))
        return map(quota_key, await usage.released(tx, self._cache.limits, world.released_projects()))


def over_quota_refused(claim: ConsumerClaim, over: OverQuota) -> Refused:
    """Return the refusal of all choices of a claim, because its project is over its quota."""
    refusal = RuleRefused(rule="quotas", code=OVER_QUOTA, why=str(over), wakes_on=quota_key(over.project))
    return Refused(refusals=(refusal,) * len(claim.choices))


def mark_moves(request: ClaimRequested, world: ClaimWorld) -> None:
    """Mark the consumers of a client's request that are parts of a move of an instance.

    A consumer is marked if it had no allocations and receives exactly those that another consumer of the
    project gives up, or if it keeps all its allocations and claims from a further provider tree.
    """
    emptied = {
        claim.consumer: claim
        for claim in request.claims
        if claim.client and world.before(claim.consumer) and not world.holds(claim.consumer)
    }
    for claim in request.claims:
        holder, held = world.holders[claim.consumer], world.before(claim.consumer)
        if not (claim.client and holder.held and budgets.is_counted(claim, world.holder_types)):
            continue
        if held:
            if _adds_a_tree(held, holder.held, world):
                _mark(holder, holder.marks.get(MOVE_OF) or holder.uuid, world)
            continue
        for giver, given in emptied.items():
            if world.before(giver) == holder.held and given.project == claim.project:
                _mark(holder, world.holders[giver].marks.get(MOVE_OF) or giver, world)
                del emptied[giver]
                break


def _mark(holder: Holder, instance: str, world: ClaimWorld) -> None:
    world.journal.set_item(holder.marks, MOVE_OF, instance)


def _adds_a_tree(before: Allocations, after: Allocations, world: ClaimWorld) -> bool:
    if len(after) <= len(before) or any(after.get(uuid) != before[uuid] for uuid in before):
        return False
    return not {world.provider(uuid).root for uuid in after} <= {world.provider(uuid).root for uuid in before}


def charging_order(holders: Sequence[Holder]) -> list[int]:
    """Return the positions of a request's consumers in the order in which their claims are charged.

    Consumers that only release allocations come first. But a consumer that gives them up in a move comes
    last: the instance keeps its quota until the other parts of its move are counted.
    """
    moved = {holder.marks.get(MOVE_OF) for holder in holders}

    def rank(at: int) -> int:
        holder = holders[at]
        if holder.held:
            return 1
        return 2 if holder.marks.get(MOVE_OF) is not None or holder.uuid in moved else 0

    return sorted(range(len(holders)), key=rank)


def _charge(claim: ConsumerClaim, charges: Charges, state: QuotaWorld, world: ClaimWorld) -> OverQuota | None:
    """Add the resources of a claim to the usage of its project, or return which limit the claim exceeds.

    Only growth beyond what the instance counted before is refused. The addition is recorded in `charges`.
    """
    budget = state.budgets.get(claim.project)
    if budget is None or claim.take_over or not budgets.is_counted(claim, world.holder_types):
        return None
    holder = world.holders[claim.consumer]
    move_of = holder.marks.get(MOVE_OF)
    instance = move_of or holder.uuid
    parts = budget.usage.parts.get(instance)
    is_moved = parts is not None or move_of is not None
    before = parts or {instance: budgets.amounts(_held_in_project(instance, claim.project, state, world))}
    now = _in_a_move(holder.held, world) if is_moved else budgets.amounts(holder.held)
    after = {**before, holder.uuid: now}
    growth = budgets.growth_of(budgets.largest(after.values()), budgets.largest(before.values()))
    if (over := budget.over(growth)) is not None:
        return structs.replace(over, used=over.used - _charged(over, charges))
    budget.take(growth)
    world.journal.note(budget.take, growth, -1)
    charges.append((claim.project, growth))
    world.journal.set_item(state.charged, holder.uuid, claim.project)
    if is_moved:
        world.journal.set_item(budget.usage.parts, instance, after)
    return None


def _with_whole_growth(over: OverQuota, overs: Iterable[OverQuota], charges: Charges) -> OverQuota:
    """Return how a request exceeds a limit of a resource, with the amount that its consumers ask together:
    those that were charged, and those that the quota refused (`overs`).
    """
    refused = sum(each.asked for each in overs if _names(each) == _names(over))
    return structs.replace(over, asked=max(_charged(over, charges) + refused, over.asked))


def _names(over: OverQuota) -> tuple[str, str]:
    return over.project, over.resource


def _charged(over: OverQuota, charges: Charges) -> int:
    """Return how much of the resource of a refusal the request was charged before."""
    return sum(growth.get(over.resource, 0) for project, growth in charges if project == over.project)


def _held_in_project(consumer: str, project: str, state: QuotaWorld, world: ClaimWorld) -> Allocations:
    """Return what a consumer held before the request, if it counted in the project."""
    holder = world.holders.get(consumer)
    return world.before(consumer) if holder is not None and state.project_of(holder) == project else {}


def _in_a_move(allocations: Allocations, world: ClaimWorld) -> Counter[str]:
    """Return what a consumer of a moved instance counts: for each resource the largest amount in a tree."""
    trees: dict[str, Allocations] = {}
    for uuid, resources in allocations.items():
        trees.setdefault(world.provider(uuid).root, {})[uuid] = resources
    return budgets.largest(budgets.amounts(tree) for tree in trees.values())
