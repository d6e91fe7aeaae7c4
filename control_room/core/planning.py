"""Computes how many instances fit on hosts by amounts, traits, zones and cells, without filters and weighers.

The instances are packed host by host, so this number certainly fits; another packing may fit a few more.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from bus.amounts import totals
from bus.host_health import DISABLED, FORCED_DOWN, HELD
from bus.quotas import Quota, QuotaBound, quota_bound
from bus.reservations import FAILOVER, ReservationsFound
from bus.vocabulary import MAX_CAPACITY
from control_room.core.hosts import Counts, HostStock, KnownHost, StockColumns
from control_room.core.what_if_form import AddedHosts, InvalidPlan, Plan, PlannedFlavor

MOST_STOCKS = 400_000  # limit of the number of inventories of all added hosts
FreeByClass = dict[str, Counts]  # resource class → free amount of each inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCapacity:
    """Amounts of one resource class if instances of one flavor fill the hosts: free before, used by the
    instances, and left over, by the reason why no further instance fits.
    """

    resource_class: str
    amount: int  # amount that one instance takes
    free: int
    taken: int
    largest: int  # free amount of one provider
    small: int  # free in amounts too small for one more instance
    in_addition: int  # free on hosts where another class has run out
    ends: int  # hosts where this class runs out first


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorCapacity:
    """The number of instances of one flavor that fit if no other flavor is built."""

    name: str
    fits: int  # at most as many as the project's quota permits
    on_hosts: int  # instances that fit on the hosts, whatever the quota permits
    hosts: int
    in_sum: int  # instances that the sum of free amounts allows
    unfit: int  # hosts that lack a trait, or have a forbidden one
    classes: tuple[ClassCapacity, ...]
    quota: QuotaBound | None = None  # the limit that permits fewer than the hosts

    @property
    def lost(self) -> int:
        return max(0, self.in_sum - self.on_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """The free amount of one resource class after packing as many mixes (sets of flavors) as fit."""

    resource_class: str
    free: int
    largest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSide:
    """The instances of a mix of flavors that fit on the present hosts, or after changes of the hosts."""

    hosts: int
    closed: int  # further hosts, which are disabled
    flavors: tuple[FlavorCapacity, ...]
    mixes: int  # at most as many as the project's quota permits
    on_hosts: int  # mixes that fit on the hosts, whatever the quota permits
    mixes_in_sum: int
    left: tuple[LeftOver, ...]
    short: tuple[str, ...]  # flavors for which one more mix does not fit
    quota: QuotaBound | None = None  # the limit that permits fewer mixes than the hosts

    @property
    def lost(self) -> int:
        return max(0, self.mixes_in_sum - self.on_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    now: PlanSide
    then: PlanSide | None  # None: no host was added or removed
    added: int
    taken: tuple[str, ...]  # names of the removed hosts
    homeless: tuple[tuple[str, int], ...]  # allocations of removed hosts: they must move, and are not counted
    reserved: tuple[tuple[str, int], ...] = ()  # undrawn capacity of reservations, which counts as used
    headroom: tuple[tuple[str, int], ...] = ()  # undrawn capacity of failover headroom


def with_reserved(answer: PlanAnswer, found: ReservationsFound) -> PlanAnswer:
    """Return a copy of the answer that also has the undrawn capacity held by the slots in `found`, by
    resource class, separately for reservations and for failover headroom.
    """
    reserved, headroom = Counter[str](), Counter[str]()
    for reservation in found.reservations:
        held = headroom if reservation.use == FAILOVER else reserved
        for slot in found.slots.get(reservation.id, ()):
            held.update(totals(slot.held))
    return replace(answer, reserved=tuple(sorted(reserved.items())), headroom=tuple(sorted(headroom.items())))


def with_quota(answer: PlanAnswer, plan: Plan, quota: Quota) -> PlanAnswer:
    """Return a copy of the answer to `plan`, with instances limited to what a project's quota permits."""

    def bound(growth: Counter[str], most: int) -> QuotaBound | None:
        found = quota_bound(quota.effective, quota.used, growth)
        return found if found is not None and found.permits < most else None

    def limited(side: PlanSide) -> PlanSide:
        pairs = zip(side.flavors, plan.mix, strict=True)
        found = [(fit, bound(flavor.growth(1), fit.fits)) for fit, flavor in pairs]
        flavors = [replace(fit, fits=its.permits, quota=its) if its else fit for fit, its in found]
        whole = bound(sum((flavor.growth(flavor.parts) for flavor in plan.mix), Counter()), side.mixes)
        mixes = whole.permits if whole else side.mixes
        return replace(side, flavors=tuple(flavors), mixes=mixes, quota=whole)

    return replace(answer, now=limited(answer.now), then=limited(answer.then) if answer.then else None)


class PlanStopped(Exception):
    """Error: the computation of how many instances fit was cancelled."""


def planned(
    hosts: Sequence[KnownHost], plan: Plan, stopped: Callable[[], bool] = lambda: False
) -> PlanAnswer:
    """Return how many instances of a mix of flavors fit now, and after hosts are added and removed. Raise
    PlanStopped as soon as `stopped()` is true."""
    taken = _named(hosts, plan.without)
    removed = {host.root for host in taken}
    added = [host for wanted in plan.added for host in _added(wanted, hosts)]
    if sum(len(host.stocks) for host in added) > MOST_STOCKS:
        raise InvalidPlan(f"the hosts to add have {MOST_STOCKS:,} inventories at most in all")
    held = Counter[str]()
    for stock in (stock for host in taken for stock in host.stocks):
        held[stock.resource_class] += stock.capacity - stock.free
    then = [*(host for host in hosts if host.root not in removed), *added]
    return PlanAnswer(
        now=_side(hosts, plan, stopped),
        then=_side(then, plan, stopped) if taken or added else None,
        added=len(added),
        taken=tuple(sorted(host.name for host in taken)),
        homeless=tuple((name, amount) for name, amount in sorted(held.items()) if amount > 0),
    )


def _named(hosts: Sequence[KnownHost], names: Sequence[str]) -> list[KnownHost]:
    found: dict[str, KnownHost] = {}
    unknown = []
    for name in names:
        meant = [host for host in hosts if name == host.root or fnmatchcase(host.name, name)]
        if not meant:
            unknown.append(f"there is no host {name!r} to take away")
        found.update((host.root, host) for host in meant)
    if unknown:
        raise InvalidPlan(*unknown)
    return list(found.values())


def _added(wanted: AddedHosts, hosts: Sequence[KnownHost]) -> list[KnownHost]:
    if wanted.like:
        model = next((host for host in hosts if wanted.like in (host.root, host.name)), None)
        if model is None:
            raise InvalidPlan(f"there is no host {wanted.like!r} to be like")
        open_traits = {trait for trait in model.traits if trait not in (DISABLED, FORCED_DOWN)}
        made = replace(
            model,
            closed=False,
            traits=frozenset(trait for trait in open_traits if not trait.startswith(HELD)),
            stocks=tuple(replace(stock, free=stock.capacity) for stock in model.stocks),
        )
    else:
        stocks = tuple(
            HostStock(resource_class=name, free=amount, capacity=amount)
            for name, amount in wanted.amounts.items()
        )
        made = KnownHost(root="", name="", zone=wanted.zone, traits=wanted.traits, stocks=stocks)
    return [replace(made, root="", name=f"new {wanted.name}", new=True)] * wanted.number


def _side(hosts: Sequence[KnownHost], plan: Plan, stopped: Callable[[], bool]) -> PlanSide:
    on_side = [
        host
        for host in hosts
        if (not plan.cell or host.cell == plan.cell or (host.new and not host.cell))
        and (not plan.zone or host.zone == plan.zone or (host.new and not host.zone))
    ]
    packing = _Packing([host for host in on_side if not host.closed], plan.mix, stopped)
    mixes, left = packing.mixes()
    return PlanSide(
        hosts=len(packing.hosts),
        closed=len(on_side) - len(packing.hosts),
        flavors=tuple(packing.flavor(flavor) for flavor in plan.mix),
        mixes=mixes,
        on_hosts=mixes,
        mixes_in_sum=packing.mixes_in_sum(),
        left=tuple(
            LeftOver(resource_class=name, free=int(left[name].sum()), largest=_largest(left[name]))
            for name in packing.classes
        ),
        short=tuple(flavor.name for flavor in plan.mix if packing.fits(flavor, left).sum() < flavor.parts),
    )


class _Packing:
    """Packs instances onto enabled hosts, the fullest host first: empty hosts stay for large flavors."""

    def __init__(
        self, hosts: Sequence[KnownHost], mix: Sequence[PlannedFlavor], stopped: Callable[[], bool]
    ) -> None:
        self.mix = mix
        self.classes = list(dict.fromkeys(name for flavor in mix for name in flavor.amounts))
        self._stopped = stopped
        self.hosts = sorted(hosts, key=self._free_share)
        self._stocks = {name: StockColumns(self.hosts, name) for name in self.classes}
        self.free: FreeByClass = {name: stocks.free for name, stocks in self._stocks.items()}
        self._admits = {  # flavor → mask of the hosts with fitting traits
            id(flavor): np.array(
                [flavor.required <= h.traits and not flavor.forbidden & h.traits for h in self.hosts],
                dtype=bool,
            )
            for flavor in mix
        }
        self._mix_amounts = {  # resource class → amount that one mix takes
            name: sum(flavor.amounts.get(name, 0) * flavor.parts for flavor in mix) for name in self.classes
        }

    def fits(self, flavor: PlannedFlavor, free: FreeByClass) -> Counts:
        """Return, for each host, how many instances of a flavor fit into the given free amounts."""
        if self._stopped():
            raise PlanStopped
        found = np.where(self._admits[id(flavor)], MAX_CAPACITY, 0).astype(np.int64)
        for name, amount in flavor.amounts.items():
            stocks = self._stocks[name]
            found = np.minimum(found, stocks.by_host(stocks.pieces(amount, free[name])))
        return found

    def flavor(self, flavor: PlannedFlavor) -> FlavorCapacity:
        fits = self.fits(flavor, self.free)
        admitted = self._admits[id(flavor)]
        classes = tuple(self._class(name, amount, fits, admitted) for name, amount in flavor.amounts.items())
        return FlavorCapacity(
            name=flavor.name,
            fits=int(fits.sum()),
            on_hosts=int(fits.sum()),
            hosts=int((fits > 0).sum()),
            in_sum=min((class_.free // class_.amount for class_ in classes), default=0),
            unfit=int((~admitted).sum()),
            classes=classes,
        )

    def _class(self, name: str, amount: int, fits: Counts, admitted: NDArray[np.bool_]) -> ClassCapacity:
        stocks = self._stocks[name]
        free = np.where(admitted, stocks.by_host(stocks.free), 0)
        left = free - np.where(admitted, fits * amount, 0)
        ends = admitted & (stocks.by_host(stocks.pieces(amount, stocks.free)) == fits)
        return ClassCapacity(
            resource_class=name,
            amount=amount,
            free=int(free.sum()),
            taken=int(fits.sum()) * amount,
            largest=_largest(stocks.free[admitted[stocks.host]]),
            small=int(left[ends].sum()),
            in_addition=int(left[~ends].sum()),
            ends=int(ends.sum()),
        )

    def mixes_in_sum(self) -> int:
        admitted = np.logical_or.reduce([self._admits[id(flavor)] for flavor in self.mix])
        return min(
            int(self.free[name][admitted[self._stocks[name].host]].sum()) // amount
            for name, amount in self._mix_amounts.items()
        )

    def mixes(self) -> tuple[int, FreeByClass]:
        """Return how many mixes (sets of flavors) can be packed at most, and the free amounts left then."""
        most = min(int(self.fits(flavor, self.free).sum()) // flavor.parts for flavor in self.mix)
        most = min(most, self.mixes_in_sum())
        best, left = 0, self.free
        for together in (False, True):
            found, free = self._search(best, most, together)
            if free is not None:
                best, left = found, free
        return best, left

    def _search(self, known: int, most: int, together: bool) -> tuple[int, FreeByClass | None]:
        low, high, left = known, most, None
        while low < high:
            middle = high if left is None and low == known and high == most else (low + high + 1) // 2
            free = self._packed(middle, together)
            if free is None:
                high = middle - 1
            else:
                low, left = middle, free
        return low, left

    def _packed(self, mixes: int, together: bool) -> FreeByClass | None:
        """Return the free amounts after packing `mixes` mixes, or None if they do not fit.

        With `together`, first pack as many mixes as possible with all instances of a mix on one host.
        """
        free = {name: amounts.copy() for name, amounts in self.free.items()}
        done = self._pack_whole(mixes, free) if together else 0
        sums = {name: max(1, int(amounts.sum())) for name, amounts in self.free.items()}
        for flavor in sorted(  # by the largest share of a resource class
            self.mix,
            key=lambda flavor: max(n / sums[name] for name, n in flavor.amounts.items()),
            reverse=True,
        ):
            wanted = (mixes - done) * flavor.parts
            fits = self.fits(flavor, free)
            placed = np.clip(wanted - (np.cumsum(fits) - fits), 0, fits)
            if int(placed.sum()) < wanted:
                return None
            for name, amount in flavor.amounts.items():
                stocks = self._stocks[name]
                stocks.take(free[name], amount, stocks.pieces(amount, free[name]), placed)
        return free

    def _pack_whole(self, mixes: int, free: FreeByClass) -> int:
        admitted = np.logical_and.reduce([self._admits[id(flavor)] for flavor in self.mix])
        found = np.where(admitted, MAX_CAPACITY, 0).astype(np.int64)
        for name in self.classes:
            found = np.minimum(found, self._stocks[name].by_host(self._mix_pieces(name, free)))
        placed = np.clip(mixes - (np.cumsum(found) - found), 0, found)
        for name, amount in self._mix_amounts.items():
            self._stocks[name].take(free[name], amount, self._mix_pieces(name, free), placed)
        return int(placed.sum())

    def _mix_pieces(self, name: str, free: FreeByClass) -> Counts:
        stocks = self._stocks[name]
        amounts = [flavor.amounts[name] for flavor in self.mix if name in flavor.amounts]
        gives = np.logical_and.reduce([stocks.gives(amount) for amount in amounts])
        pieces: Counts = np.where(gives, free[name] // self._mix_amounts[name], 0)
        return pieces

    def _free_share(self, host: KnownHost) -> float:
        wanted = [stock for stock in host.stocks if stock.resource_class in self.classes]
        shares = [stock.free / stock.capacity for stock in wanted if stock.capacity > 0]
        return sum(shares) / len(shares) if shares else 0.0


def _largest(free: Counts) -> int:
    return int(free.max()) if free.size else 0
