"""Decides claims and releases from data in memory, and records the changes to write. Each claim is checked
against the capacity that earlier claims have left; a refused claim changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from bus import claims
from bus.claims import STARTED
from bus.parts import TYPES, Part, Parts
from bus.replication import ConsumerChange
from bus.vocabulary import Allocations, joined, without
from placement_worker.core.cell_limits import UNKNOWN_OWNER, CellLimits, Owner, kept_on_return, shared_by

# The data by which claims and releases are decided: first as read, then with the changes of each claim.
#
# A Holder is any consumer with its allocations; cells and rules restrict where it may be placed.


K = TypeVar("K")
V = TypeVar("V")


def roots_of(places: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """Return the roots of a consumer's providers, except sharing providers; if all share, the roots of all.
    `places` has, for each provider, its root and whether the provider shares.
    """
    listed = list(places)
    not_shared = frozenset(root for root, shares in listed if not shares)
    return not_shared or frozenset(root for root, _ in listed)


@dataclass(slots=True)
class Stock:
    """The inventory of one resource class at a provider, with the used amount."""

    class_id: int
    capacity: int  # (total - reserved) × allocation_ratio
    used: int
    was: int  # the used amount as read from the database
    min_unit: int
    max_unit: int
    step_size: int


@dataclass(slots=True)
class ClaimedProvider:
    """A provider with its inventories and its shape, against which claims are checked."""

    id: int
    uuid: str
    root: str
    shape: int  # counts changes of inventory, traits, aggregates and tree; a claim names the expected one
    generation: int
    was: int  # the generation as read from the database
    stocks: dict[str, Stock] = field(default_factory=dict)
    excludes: tuple[str, ...] = ()  # siblings that must be unused while this provider is claimed

    @property
    def in_use(self) -> bool:
        return any(stock.used for stock in self.stocks.values())


@dataclass(slots=True)
class Holder:
    """A consumer of any type, with its allocations; without allocations its generation is 0."""

    uuid: str
    id: int
    generation: int = 0
    held: Allocations = field(default_factory=dict)
    by: claims.ConsumerClaim | None = None  # the claim that gave the consumer its present allocations
    heir_of: "Holder | None" = None  # consumer from which allocations, project and user were taken over
    heir_type: str = claims.CLEANUP  # consumer type, if `heir_of` is set
    keeps_for: str | None = None  # for a holder consumer: the instance whose guest may still exist
    project_id: int = 0  # database id of the project as read from the database; 0: the consumer is new
    owner: Owner = UNKNOWN_OWNER  # read if a cell sent the requests
    marks: dict[str, Any] = field(default_factory=dict)  # values of the columns that rules have, by column
    marks_were: Mapping[str, Any] = field(default_factory=dict)  # `marks` as read from the database


class ClaimJournal:
    """Records how to undo the changes of a ClaimWorld. Every change by a claim that may still be refused is
    recorded; a change that is not recorded would remain after a refusal.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def note(self, undo: Callable[..., object], *values: Any) -> None:
        """Record that `undo(*values)` undoes a change that the caller has made."""
        self._undo.append((undo, values))

    def set(self, target: object, field_: str, value: object) -> None:
        """Set a field of an object."""
        self._undo.append((setattr, (target, field_, getattr(target, field_))))
        setattr(target, field_, value)

    def set_item(self, items: dict[K, V], key: K, value: V) -> None:
        """Set an item of a dictionary, so that a refusal of the claim restores the former one."""
        if key in items:
            self._undo.append((items.__setitem__, (key, items[key])))
        else:
            self._undo.append((items.pop, (key,)))
        items[key] = value

    def mark(self) -> int:
        """Return the present position, for `undo`."""
        return len(self._undo)

    def undo(self, after: int) -> None:
        """Undo all changes after the position `after`, the newest first."""
        while len(self._undo) > after:
            undo, values = self._undo.pop()
            undo(*values)


class ClaimJudge:
    """The part of a feature's rule that decides claims and releases on data in memory. A rule overrides the
    methods that it needs. It records every change in the journal, because the claim may still be refused.
    """

    name: ClassVar[str]
    # Columns of `consumers` that the rule has: column → why no other consumer may take the capacity of one
    # with a value there; "": another one may.
    columns: ClassVar[Mapping[str, str]] = {}
    holder_types: ClassVar[tuple[str, ...]] = ()  # consumer types that the rule has and that are no instances

    def admits_cell(self, part: Part, claim: claims.ConsumerClaim, world: "ClaimWorld") -> bool:
        """Return whether a cell may send this part of a claim or choice. Parts that no rule admits are
        refused.
        """
        return False

    def bars(self, claim: claims.ConsumerClaim, world: "ClaimWorld") -> claims.RuleRefused | None:
        """Return why no choice of a claim is possible."""
        return None

    def before(
        self, claim: claims.ConsumerClaim, choice: claims.Choice, world: "ClaimWorld"
    ) -> claims.RuleRefused | None:
        """Return why a choice is not possible, or provide capacity for it, before its capacity is judged."""
        return None

    def after(
        self, claim: claims.ConsumerClaim, choice: claims.Choice, world: "ClaimWorld"
    ) -> claims.RuleRefused | None:
        """Return why a choice for which there is capacity is not possible."""
        return None

    def judge_request(
        self, request: claims.ClaimRequested, results: Sequence[claims.ClaimResult], world: "ClaimWorld"
    ) -> Sequence[claims.ClaimResult]:
        """Return the results of a request's claims, some of them replaced by refusals."""
        return results

    def changed(self, holder: Holder, was: Allocations, world: "ClaimWorld") -> None:
        """Adapt the rule's data after a consumer's allocations were replaced; `was`: those before."""

    def inherited(
        self, source: Holder, heir: Holder, claim: claims.ConsumerClaim | None, world: "ClaimWorld"
    ) -> None:
        """Adapt the rule's data before a consumer gets the allocations of another one, by a claim that takes
        them over, or (None) as the holder consumer of the source.
        """

    def released(self, holder: Holder, was: Allocations, world: "ClaimWorld") -> None:
        """Adapt the rule's data after a release, which is no claim; `was` are the released allocations. Raise
        Unread if more data is needed, and name it in `world.unread`.
        """

    def accepted(self, request: claims.ClaimRequested, world: "ClaimWorld") -> None:
        """Record the effects of a request whose claims have all succeeded."""


@dataclass(slots=True)
class ClaimWorld:
    """All data by which claims and releases are decided, as read and then as changed by them."""

    providers: dict[str, ClaimedProvider | None]  # None: the provider does not exist
    holders: dict[str, Holder]
    retired: dict[str, claims.Retired]  # consumers that have ended: claims for them are refused
    rules: Sequence[ClaimJudge] = ()  # the active rules, in the order in which they judge
    state: dict[type[ClaimJudge], Any] = field(default_factory=dict)  # the data of each active rule
    protected: Mapping[str, str] = field(default_factory=dict)  # `columns` of all rules
    holder_types: Collection[str] = claims.HOLDER_TYPES  # consumer types that are no instances, of all rules
    sharing: set[str] = field(default_factory=set)  # sharing providers
    cell_limits: CellLimits | None = None  # limits of the cell that sent the requests; None: no cell did
    touched: dict[str, ClaimedProvider] = field(default_factory=dict)  # providers to update
    changed_holders: dict[str, Holder] = field(default_factory=dict)  # consumers that claimed or released
    to_retire: dict[str, claims.Retired] = field(default_factory=dict)  # consumers to be retired
    started: dict[str, str] = field(default_factory=dict)  # moves that claims began → their projects
    woken: set[str] = field(default_factory=set)  # retired consumers whose retirement ends
    # consumers that this transaction inserted → their claims
    placeholders: Mapping[str, claims.ConsumerClaim | None] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)  # consumers that must be read before a decision is possible
    now: float = 0.0
    # undoes the changes of a refused claim
    journal: ClaimJournal = field(default_factory=ClaimJournal, compare=False)
    # consumers that the present request has changed, with their allocations before: uuid → both
    changed: dict[str, tuple[Holder, Allocations]] = field(default_factory=dict)
    heirs: dict[str, Holder] = field(
        default_factory=dict
    )  # holder consumers that got allocations by the request

    def provider(self, uuid: str) -> ClaimedProvider:
        """Return a provider that the transaction has read."""
        provider = self.providers[uuid]
        assert provider is not None  # callers pass only providers with allocations
        return provider

    def holds(self, consumer: str) -> bool:
        """Return whether the consumer has allocations."""
        holder = self.holders.get(consumer)
        return holder is not None and bool(holder.held)

    def released_projects(self) -> set[int]:
        """Return the database ids of the projects that may use less now: the projects of changed consumers
        that existed before.
        """
        changed = (holder for holder in self.changed_holders.values() if holder.uuid not in self.placeholders)
        return {holder.project_id for holder in changed if holder.project_id}

    @property
    def frees(self) -> bool:
        """Return whether claims and releases have increased the free capacity of any provider since it was
        read.
        """
        return any(
            stock.used < stock.was for provider in self.touched.values() for stock in provider.stocks.values()
        )

    @property
    def former_classes(self) -> dict[str, set[str]]:
        """Return the root providers that may be nodes with another class since a consumer claimed them, and
        the classes without capacity whose last unit this consumer has released.
        """
        found = {}
        for provider in self.touched.values():
            if len(provider.stocks) > 1 and provider.uuid == provider.root:
                stocks = provider.stocks.items()
                left = {name for name, has in stocks if has.was and not has.used and has.capacity <= 0}
                if left:
                    found[provider.uuid] = left
        return found

    def retire(self, consumer: str, ended: claims.Retired) -> None:
        """Record that a consumer has ended: later claims for it are refused."""
        self.retired[consumer] = self.to_retire[consumer] = ended

    def wake(self, consumer: str) -> None:
        """Record that a retired consumer may claim again."""
        del self.retired[consumer]
        self.to_retire.pop(consumer, None)
        self.woken.add(consumer)

    def before(self, consumer: str) -> Allocations:
        """Return what a consumer held before the present request."""
        if consumer in self.changed:
            return self.changed[consumer][1]
        return self.holders[consumer].held

    def why_protected(self, holder: Holder) -> str:
        """Return why no other consumer may take its capacity; "" if one may."""
        marked = (why for column, why in self.protected.items() if holder.marks.get(column) is not None)
        return next(filter(None, marked), "")

    def marked(self, column: str) -> list[tuple[int, Any]]:
        """Return the consumers whose value of a rule's column is to be stored: database id and value."""
        return [
            (holder.id, holder.marks.get(column))
            for holder in self.changed_holders.values()
            if holder.held and holder.marks.get(column) != holder.marks_were.get(column)
        ]

    def hold(
        self, holder: Holder, generation: int, allocations: Allocations, by: claims.ConsumerClaim | None
    ) -> None:
        """Replace a consumer's allocations, generation and claim (`by`), and adapt the usage of providers."""
        was = holder.held
        if holder.uuid not in self.changed:
            self.journal.set_item(self.changed, holder.uuid, (holder, was))
        self.journal.note(self._set_held, holder, holder.generation, was, holder.by)
        self._set_held(holder, generation, allocations, by)
        for rule in self.rules:
            rule.changed(holder, was, self)

    def _set_held(
        self, holder: Holder, generation: int, allocations: Allocations, by: claims.ConsumerClaim | None
    ) -> None:
        self.count(holder.held, -1)
        self.count(allocations, +1)
        holder.generation, holder.held, holder.by = generation, allocations, by

    def leave(self, holder: Holder, heir: Holder, type_: str) -> None:
        """Give the allocations of a consumer to a holder consumer (`heir`), in addition to what it holds."""
        both = joined(heir.held, holder.held)
        self.hold(holder, 0, {}, None)
        journal = self.journal
        journal.set(heir, "heir_of", holder)
        journal.set(heir, "heir_type", type_)
        journal.set(heir, "keeps_for", holder.keeps_for or holder.uuid)
        journal.set_item(self.heirs, heir.uuid, heir)
        for rule in self.rules:
            rule.inherited(holder, heir, None, self)
        self.hold(heir, heir.generation + 1, both, None)

    def accept(self) -> list[tuple[Holder, Allocations]]:
        """End a request that succeeded: its consumers and their providers are to be written. Return the
        changed consumers with their allocations before the request.
        """
        changed = [*self.changed.values()]
        self.changed, self.heirs, self.journal = {}, {}, ClaimJournal()
        for holder, before in changed:
            for provider in (*before, *holder.held):
                self.touched[provider] = self.provider(provider)
            if before or holder.held:
                self.changed_holders[holder.uuid] = holder
        return changed

    def count(self, allocations: Allocations, sign: int) -> None:
        """Add allocations to the used amounts of their providers, or subtract them if `sign` is -1."""
        for provider, resources in allocations.items():
            stocks = self.provider(provider).stocks
            for name, amount in resources.items():
                stocks[name].used += sign * amount

    def roots(self, allocations: Allocations) -> frozenset[str]:
        """Return the roots of the trees with these allocations, except pools; if all are pools, the roots of
        all.
        """
        return roots_of((self.provider(provider).root, provider in self.sharing) for provider in allocations)


def changed_consumers(world: ClaimWorld) -> list[ConsumerChange]:
    """Return the consumers that claimed or released, as the change log records them."""
    changed = []
    for holder in world.changed_holders.values():
        by, heir_of = holder.by, holder.heir_of
        if by is not None:
            project, type_, heir = by.project, by.type or "", ""
        else:
            project, type_, heir = "", holder.heir_type if heir_of else "", heir_of.uuid if heir_of else ""
        changed.append(ConsumerChange(holder.uuid, holder.generation, holder.held, project, type_, heir))
    return changed


class Unread(Exception):
    """The error that a claim cannot be decided before more data is read."""


def as_held(holder: Holder, world: ClaimWorld) -> claims.Held:
    """Return the refusal of a claim or release that names an outdated generation of a consumer: it contains
    the consumer's present generation, allocations and roots.
    """
    held = [world.providers.get(uuid) for uuid in holder.held]
    roots = {provider.root for provider in held if provider is not None}
    return claims.Held(generation=holder.generation, allocations=holder.held, roots=tuple(sorted(roots)))


def fence(claim: claims.ConsumerClaim, world: ClaimWorld) -> claims.ClaimResult | None:
    """Return the refusal of a claim for another reason than capacity, such as a retired consumer or an
    outdated generation; None if there is no such reason.
    """
    for name in (claim.begins, claim.consumer, claim.keep):
        if name and name in world.retired and not (name == claim.consumer and revives(claim, world)):
            return world.retired[name]
    for name in (claim.begins, claim.keep):
        if name and name not in world.holders:
            raise Unread
    if why := _bars_claim(claim, world):
        return claims.Refused(refusals=(claims.OutsideCell(why=why),) * len(claim.choices))
    holder = world.holders.get(claim.consumer)
    if holder is None:
        if claim.generation in (None, "any"):
            raise Unread
        return claims.Held(generation=0, allocations={})
    if claim.generation not in ("any", holder.generation or None):
        return as_held(holder, world)
    if claim.begins and claim.keep and world.holds(claim.keep):
        return as_held(holder, world)  # the guest that this attempt left behind must be deleted first
    if claim.take_over and not world.holds(claim.take_over):
        return claims.Refused(refusals=(claims.NothingHeld(consumer=claim.take_over),) * len(claim.choices))
    return None


def revives(claim: claims.ConsumerClaim, world: ClaimWorld) -> bool:
    """Return whether a claim begins a move of a revivable instance, or takes over the guest of an instance
    that was retired as unplaceable; all other claims for a retired instance are refused.
    """
    ended = world.retired.get(claim.consumer)
    if ended is None:
        return False
    if ended.unplaceable:
        return any(part.revives for part in claim.parts)
    return claim.begins is not None and ended.revivable


def fenced_off(
    order: claims.ClaimRequested, world: ClaimWorld, fences: Sequence[claims.ClaimResult | None]
) -> list[claims.ClaimResult]:
    """Return a result for each claim of a request that is refused for another reason than capacity. `fences`
    has a refusal or None for each claim. All claims are refused; those with None get a refusal without a
    reason, unless another claim names the same consumer.
    """
    results: list[claims.ClaimResult] = []
    further = Counter(name for claim in order.claims for name in _further_consumers(claim))
    seen = {*further}
    for claim, behind in zip(order.claims, fences, strict=True):
        twice = claim.consumer in seen or any(further[name] > 1 for name in _further_consumers(claim))
        if behind is None and twice:
            behind = as_held(world.holders[claim.consumer], world)
        seen.add(claim.consumer)
        results.append(behind or claims.Refused(refusals=()))
    return results


def named_twice(order: claims.ClaimRequested) -> bool:
    """Return whether a consumer occurs twice in the claims of one request, which placement refuses."""
    named = [name for claim in order.claims for name in (claim.consumer, *_further_consumers(claim))]
    return len(set(named)) < len(named)


def _further_consumers(claim: claims.ConsumerClaim) -> Iterator[str]:
    return (name for name in (claim.keep, claim.begins, claim.take_over) if name)


def _bars_claim(claim: claims.ConsumerClaim, world: ClaimWorld) -> str:
    if claim.begins and world.holds(claim.begins):
        return f"move {claim.begins}: a consumer has that name, and holds something"
    if world.cell_limits is None:
        return ""
    if claim.begins:
        return f"consumer {claim.consumer}: a cell begins no moves"
    if why := _bars_parts(claim, claim.parts, world):
        return why
    holder = world.holders.get(claim.consumer)
    if (holder is None or not holder.generation) and claim.generation not in (None, "any"):
        return ""  # `fence` refuses the claim, because the consumer has no allocations
    if why := _bars_holder(holder, claim.consumer, claim.keep, world):
        return why
    if holder is not None and (why := world.cell_limits.bars_owner(claim, holder.owner, world.holder_types)):
        return why
    if claim.take_over is None:
        return ""
    return _bars_holder_id(claim.consumer, claim.take_over, world)


def _bars_parts(claim: claims.ConsumerClaim, parts: Parts[Any], world: ClaimWorld) -> str:
    """Return why a cell may not send these parts of a claim; "" if it may."""
    for part in parts:
        if not any(rule.admits_cell(part, claim, world) for rule in world.rules):
            return (
                f"consumer {claim.consumer}: a cell may not claim with this part of {TYPES.feature_of(part)}"
            )
    return ""


def bars_release(order: claims.ReleaseRequested, holder: Holder | None, world: ClaimWorld) -> str:
    """Return why the cell that sent the request may not release or retire the consumer; "" if it may.
    `holder` is the consumer's record, if there is one.
    """
    if world.cell_limits is None or (not order.retire and (holder is None or not holder.generation)):
        return ""
    type_ = None if holder is None else holder.owner.type
    if type_ in world.holder_types and type_ not in claims.HOLDER_TYPES:
        return f"consumer {order.consumer}: it is of type {type_}, which no cell releases"
    return _bars_holder(holder, order.consumer, order.keep, world)


def _bars_holder(holder: Holder | None, consumer: str, holder_id: str | None, world: ClaimWorld) -> str:
    cell_limits = world.cell_limits
    assert cell_limits is not None
    if why := cell_limits.bars_holder(consumer, _places(world, holder.held if holder else {})):
        return why
    return _bars_holder_id(consumer, holder_id, world) if holder_id else ""


def _bars_holder_id(consumer: str, holder_id: str, world: ClaimWorld) -> str:
    """Return why the cell that sent the request may not use this holder consumer; "" if it may."""
    cell_limits = world.cell_limits
    assert cell_limits is not None
    if why := cell_limits.refuses_holder(consumer, holder_id):
        return why
    held = world.holders[holder_id].held if world.holds(holder_id) else {}
    return cell_limits.bars_holder(holder_id, _places(world, held)) if held else ""


def _places(world: ClaimWorld, allocations: Allocations) -> list[tuple[str, str]]:
    return [(provider, world.provider(provider).root) for provider in allocations]


# (provider, resource class) → usage before the consumers of a request released their allocations.
_UsedBefore = dict[tuple[str, str], int]


class Former(NamedTuple):
    """A consumer's generation and allocations before a claim replaces them, and the usage of providers before
    the consumers of the request released their allocations.
    """

    generation: int
    held: Allocations
    used: _UsedBefore


def claim(order: claims.ClaimRequested, world: ClaimWorld) -> tuple[claims.ClaimResult, ...] | None:
    """Decide a request for claims on the data in `world`, and record the changes there. Return a result for
    each claim: all are `Claimed`, or none is. Return None if more data must be read. First all consumers
    release their allocations, so that two of them can exchange places on full providers.
    """
    mark = world.journal.mark()
    try:
        results = _judge(order, world)
    except Unread:
        world.journal.undo(mark)
        return None
    if all(type(result) is claims.Claimed for result in results):
        _accept(order, world)
        return tuple(results)
    world.journal.undo(mark)
    return tuple(claims.Refused(refusals=()) if type(each) is claims.Claimed else each for each in results)


def _accept(order: claims.ClaimRequested, world: ClaimWorld) -> None:
    """Record the effects of a request whose claims have all succeeded."""
    heirs = world.heirs
    # The generation grows only for providers from which a consumer claims, as in the Placement API.
    claimed: set[str] = set()
    for holder, before in world.accept():
        if holder.uuid not in heirs:
            claimed.update(holder.held or before)
    for provider in claimed:
        world.touched[provider].generation += 1
    for rule in world.rules:
        rule.accepted(order, world)
    for claim in order.claims:
        if claim.begins:
            world.retire(claim.begins, claims.Retired(why=STARTED))
            world.started[claim.begins] = claim.project
        if revives(claim, world):
            world.wake(claim.consumer)


def release(order: claims.ReleaseRequested, world: ClaimWorld) -> claims.ReleaseResult | None:
    """Release a consumer's allocations in `world` or, if the request names a holder consumer in `keep`, give
    the allocations to this holder consumer.

    With `retire`, also retire the consumer. Return `Released` or a refusal; None if more data must be read.
    """
    ended = world.retired.get(order.consumer)
    ends = order.retire and not order.unplaceable and not order.revivable
    if ended is not None and not (ended.revivable and ends):
        return ended  # only a revivable instance may be retired again, for another reason than a missing host
    holder = world.holders.get(order.consumer)
    # A revivable instance is not checked: it was in this cell.
    if ended is None and (why := bars_release(order, holder, world)):
        return claims.OutsideCell(why=why)
    if holder is not None and holder.generation:
        if order.generation not in ("any", holder.generation):
            return as_held(holder, world)
        if order.keep and order.keep in world.retired:
            return claims.Retired(why=f"{order.keep}: {world.retired[order.keep].why}")
        mark = world.journal.mark()
        try:
            _release(order, holder, world)
        except Unread:
            world.journal.undo(mark)
            return None
        world.accept()  # changes the usage of providers, not their generation, as in the Placement API
        world.changed_holders[holder.uuid] = holder  # deletes a consumer without allocations, too
    if order.retire:
        if ended is not None:
            world.wake(order.consumer)
        retired = claims.Retired(
            why=order.retire, unplaceable=order.unplaceable, cell=order.cell, revivable=order.revivable
        )
        world.retire(order.consumer, retired)
    return claims.Released()


def _release(order: claims.ReleaseRequested, holder: Holder, world: ClaimWorld) -> None:
    if order.keep:
        world.leave(holder, world.holders[order.keep], claims.CLEANUP)
        return
    released = holder.held
    world.hold(holder, 0, {}, None)
    for rule in world.rules:
        rule.released(holder, released, world)


def _judge(order: claims.ClaimRequested, world: ClaimWorld) -> Sequence[claims.ClaimResult]:
    fences = [fence(claim, world) for claim in order.claims]
    if any(fences) or named_twice(order):
        return fenced_off(order, world, fences)
    holders = [world.holders[claim.consumer] for claim in order.claims]
    former = [holder.held for holder in holders]
    generations = [holder.generation for holder in holders]
    used_before: _UsedBefore = {}
    for claim, holder in zip(order.claims, holders, strict=True):
        for provider, resources in holder.held.items():
            for name in resources:
                used_before.setdefault((provider, name), world.provider(provider).stocks[name].used)
        if holder.held and claim.keep:
            type_ = claims.MIGRATION if claim.begins else claims.CLEANUP
            world.leave(holder, world.holders[claim.keep], type_)
        elif holder.held:
            world.hold(holder, 0, {}, None)
    results: Sequence[claims.ClaimResult] = [
        _take(claim, holder, Former(generation, held, used_before), world)
        for claim, holder, generation, held in zip(order.claims, holders, generations, former, strict=True)
    ]
    for rule in world.rules:
        results = rule.judge_request(order, results, world)
    return results


def _take(
    claim: claims.ConsumerClaim, holder: Holder, former: Former, world: ClaimWorld
) -> claims.Claimed | claims.Refused:
    """Claim the first of the claim's alternative sets of allocations (`choices`) that is possible; return its
    position, or why none is.
    """
    for rule in world.rules:
        if (barred := rule.bars(claim, world)) is not None:
            return claims.Refused(refusals=(barred,) * len(claim.choices))
    if claim.take_over:
        return _take_over(claim, holder, world.holders[claim.take_over], former, world)
    refusals: list[claims.Refusal] = []
    for position, choice in enumerate(claim.choices):
        shared: Allocations = {}
        if claim.begins and claim.keep:
            shared = shared_by(former.held, choice.allocations, world.sharing)
        mark = world.journal.mark()
        refusal = _choice_refusal(claim, choice, shared, former.used, world)
        if refusal is not None:
            world.journal.undo(mark)
            refusals.append(refusal)
            continue
        if shared and claim.keep:
            _reduce_holder(world, world.holders[claim.keep], shared)
        if choice.allocations:
            world.hold(holder, former.generation + 1, choice.allocations, claim)
        return claims.Claimed(
            choice=position, generation=holder.generation, number=0, refused=tuple(refusals)
        )
    return claims.Refused(refusals=tuple(refusals))


def _take_over(
    claim: claims.ConsumerClaim, holder: Holder, source: Holder, former: Former, world: ClaimWorld
) -> claims.Claimed:
    """Give the allocations of another consumer to the claim's consumer. Their capacity is not checked."""
    kept = kept_on_return(former.held, source.held, claim.choices[0].allocations, world.sharing)
    if claim.keep:
        _reduce_holder(world, world.holders[claim.keep], kept)
    held = joined(source.held, kept)
    for rule in world.rules:
        rule.inherited(source, holder, claim, world)
    world.hold(source, 0, {}, None)
    world.hold(holder, former.generation + 1, held, claim)
    return claims.Claimed(choice=0, generation=holder.generation, number=0)


def _choice_refusal(
    claim: claims.ConsumerClaim,
    choice: claims.Choice,
    shared: Allocations,
    used_before: _UsedBefore,
    world: ClaimWorld,
) -> claims.Refusal | None:
    """Return the first refusal of a choice: by the rules that provide capacity, by the capacity, by the other
    rules; None if the choice is possible. The amounts in `shared` are not counted, because the consumer holds
    them already. `used_before` is the usage before the consumers of the request released their allocations.
    """
    refusal: claims.Refusal | None
    if world.cell_limits is not None and choice.parts and (why := _bars_parts(claim, choice.parts, world)):
        return claims.OutsideCell(why=why)
    for rule in world.rules:
        if (refusal := rule.before(claim, choice, world)) is not None:
            return refusal
    mark = world.journal.mark()
    world.journal.note(world.count, shared, +1)
    world.count(shared, -1)
    refusal = _refusal(choice, used_before, world)
    world.journal.undo(mark)
    if refusal is not None:
        return refusal
    for rule in world.rules:
        if (refusal := rule.after(claim, choice, world)) is not None:
            return refusal
    return None


def _refusal(choice: claims.Choice, used_before: _UsedBefore, world: ClaimWorld) -> claims.Refusal | None:
    shapes = choice.shapes
    if world.cell_limits is not None:
        if any(uuid not in world.providers for uuid in choice.allocations):
            raise Unread
        chosen = [found for uuid in choice.allocations if (found := world.providers[uuid]) is not None]
        places = [(found.uuid, found.root) for found in chosen]
        if len(chosen) == len(choice.allocations) and (why := world.cell_limits.bars_choice(places)):
            return claims.OutsideCell(why=why)
    for provider, resources in choice.allocations.items():
        if provider not in world.providers:
            raise Unread
        claimed = world.providers[provider]
        if claimed is None:
            return claims.NoSuchProvider(provider=provider)
        if shapes and shapes.get(provider, claimed.shape) != claimed.shape:
            return claims.Moved(provider=provider)
        is_excluded = any(_is_taken(sibling, choice, world) for sibling in claimed.excludes)
        for name, asked in resources.items():
            stock = claimed.stocks.get(name)
            if stock is None:
                return claims.Full(
                    provider=provider, resource_class=name, asked=asked, free=0, limit="inventory"
                )
            # A limit is named before the free amount, because no release would help.
            if limit := broken_limit(asked, stock.min_unit, stock.max_unit, stock.step_size):
                free = max(stock.capacity - stock.used, 0)
                return claims.Full(
                    provider=provider, resource_class=name, asked=asked, free=free, limit=limit
                )
            after = stock.used + asked
            # On an overcommitted provider a consumer may still claim as much as it had before.
            if (is_excluded or after > stock.capacity) and after > used_before.get((provider, name), 0):
                free = 0 if is_excluded else max(stock.capacity - stock.used, 0)
                return claims.Full(provider=provider, resource_class=name, asked=asked, free=free)
    return None


def _is_taken(sibling: str, choice: claims.Choice, world: ClaimWorld) -> bool:
    if sibling not in world.providers:
        raise Unread
    claimed = world.providers[sibling]
    return sibling in choice.allocations or (claimed is not None and claimed.in_use)


def broken_limit(asked: int, min_unit: int, max_unit: int, step_size: int) -> str:
    """Return which inventory limit (min_unit, max_unit or step_size) this amount violates, or ""."""
    if asked < min_unit:
        return "min_unit"
    if asked > max_unit:
        return "max_unit"
    return "step_size" if asked % step_size else ""


def _reduce_holder(world: ClaimWorld, holder: Holder, shared: Allocations) -> None:
    """Remove from a holder consumer's allocations the amounts at sharing providers (`shared`) that the
    instance holds instead.
    """
    left = without(holder.held, shared)
    if left != holder.held:
        world.hold(holder, holder.generation if left else 0, left, None)


def providers_of(orders: Sequence[claims.ClaimRequested], *, all_choices: bool) -> set[str]:
    """Return the uuids of the providers in the first choice of each claim; with `all_choices`, in all choices
    of each claim. A choice is a set of allocations.
    """
    return {
        provider
        for order in orders
        for claim in order.claims
        for choice in (claim.choices if all_choices else claim.choices[:1])
        for provider in choice.allocations
    }
