"""Packs instances of a mix of flavors onto hosts by amounts and traits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bus.vocabulary import MAX_CAPACITY
from control_room.core.flavor_form import PlannedFlavor
from control_room.core.hosts import HostStock, KnownHost
from features.quotas.messages import QuotaBound

Counts = NDArray[np.int64]


class StockColumns:
    """The inventories of one resource class over many hosts, as arrays sorted by host."""

    def __init__(self, hosts: Sequence[KnownHost], resource_class: str) -> None:
        found = [
            (at, stock)
            for at, host in enumerate(hosts)
            for stock in host.stocks
            if stock.resource_class == resource_class
        ]

        def column(read: Callable[[HostStock], int]) -> Counts:
            # bounded, so that sums over all hosts fit into 64 bits
            return np.array([max(0, min(read(stock), MAX_CAPACITY)) for _, stock in found], dtype=np.int64)

        self.host = np.array([at for at, _ in found], dtype=np.int64)
        self.free = column(lambda each_stock: each_stock.free)
        self._most = column(lambda each_stock: each_stock.max_unit)
        self._least = column(lambda each_stock: each_stock.min_unit)
        self._step = np.maximum(column(lambda each_stock: each_stock.step), 1)
        numbers = np.arange(len(hosts))
        self._begins = np.searchsorted(self.host, numbers, side="left")
        self._ends = np.searchsorted(self.host, numbers, side="right")

    def by_host(self, values: Counts) -> Counts:
        """Sum `values` for each host; `values` has one value for each inventory of the resource class."""
        sums = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values)))
        found: Counts = sums[self._ends] - sums[self._begins]
        return found

    def gives(self, amount: int) -> NDArray[np.bool_]:
        """Return for each inventory whether min_unit, max_unit and step_size permit this amount."""
        gives: NDArray[np.bool_] = (
            (amount <= self._most) & (amount >= self._least) & (amount % self._step == 0)
        )
        return gives

    def pieces(self, amount: int, free: Counts) -> Counts:
        """Return, for each inventory, how many consumers of this amount its free capacity can serve."""
        pieces: Counts = np.where(self.gives(amount), free // amount, 0)
        return pieces

    def take(self, free: Counts, amount: int, pieces: Counts, placed: Counts) -> None:
        """Subtract the usage of new instances, `amount` each, from the free amounts of inventories, `free`.

        `placed` has the number of new instances by host; `pieces` has the number that fit by inventory.
        """
        before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(pieces)))
        on_host = before[:-1] - before[self._begins][self.host]
        free -= np.clip(placed[self.host] - on_host, 0, pieces) * amount


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


class PlanStopped(Exception):
    """Error: the computation of how many instances fit was cancelled."""


class MixPacking:
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
            largest=largest_amount(stocks.free[admitted[stocks.host]]),
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


def largest_amount(free: Counts) -> int:
    return int(free.max()) if free.size else 0
