"""Computes how many instances fit on hosts by amounts, traits, zones and cells, without filters and weighers.

The instances are packed host by host, so this number certainly fits; another packing may fit a few more.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from bus.host_health import DISABLED, FORCED_DOWN, HELD
from control_room.kit import HostStock, KnownHost
from features.capacity_plans.core.packing import FlavorCapacity, MixPacking, PlannedLimit
from features.capacity_plans.core.plan_form import AddedHosts, InvalidPlan, Plan

MOST_STOCKS = 400_000  # limit of the number of inventories of all added hosts


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
    quota: PlannedLimit | None = None  # the limit that permits fewer mixes than the hosts

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
    packing = MixPacking([host for host in on_side if not host.closed], plan.mix, stopped)
    mixes, left = packing.mixes()
    return PlanSide(
        hosts=len(packing.hosts),
        closed=len(on_side) - len(packing.hosts),
        flavors=tuple(packing.flavor(flavor) for flavor in plan.mix),
        mixes=mixes,
        on_hosts=mixes,
        mixes_in_sum=packing.mixes_in_sum(),
        left=tuple(
            LeftOver(resource_class=name, free=int(free.sum()), largest=int(free.max(initial=0)))
            for name, free in zip(left.classes, left.free.T, strict=True)
        ),
        short=tuple(flavor.name for flavor in plan.mix if packing.fits(flavor, left).sum() < flavor.parts),
    )
