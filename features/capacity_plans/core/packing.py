"""Packs instances of a mix of flavors onto hosts by amounts and traits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bus.packing import RowPacking
from bus.vocabulary import MAX_CAPACITY
from control_room.kit import HostStock, KnownHost, PlannedFlavor

Counts = NDArray[np.int64]


class PlannedLimit(Protocol):
    """A limit of a project that permits fewer instances than the hosts; as text, a sentence."""

    @property
    def permits(self) -> int: ...


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
    quota: PlannedLimit | None = None  # the limit that permits fewer than the hosts

    @property
    def lost(self) -> int:
        return max(0, self.in_sum - self.on_hosts)


class PlanStopped(Exception):
    """Error: the computation of how many instances fit was cancelled."""


class MixPacking:
    """Packs instances onto enabled hosts, the fullest host first: empty hosts stay for large flavors.

    Each inventory of a host is in one row of `packing`: the first of each resource class in the host's first
    row, the second in its second row, and so on.
    """

    def __init__(
        self, hosts: Sequence[KnownHost], mix: Sequence[PlannedFlavor], stopped: Callable[[], bool]
    ) -> None:
        self.mix = mix
        self.classes = list(dict.fromkeys(name for flavor in mix for name in flavor.amounts))
        self._stopped = stopped
        self.hosts = sorted(hosts, key=self._free_share)
        begins, ends, stocks = list[int](), 0, list[tuple[int, int, HostStock]]()  # row, column, inventory
        columns = {name: column for column, name in enumerate(self.classes)}
        for host in self.hosts:
            begins.append(ends)
            several = [0] * len(columns)
            for stock in host.stocks:
                if (column := columns.get(stock.resource_class)) is not None:
                    stocks.append((ends + several[column], column, stock))
                    several[column] += 1
            ends += max(*several, 1)
        self._begins = np.array(begins, np.intp)
        self._host = np.repeat(np.arange(len(begins)), np.diff([*begins, ends]))  # row → host
        at = np.array([row for row, *_ in stocks], np.intp), np.array([each[1] for each in stocks], np.intp)

        def amounts(read: Callable[[HostStock], int]) -> Counts:
            # bounded, so that sums over all hosts fit into 64 bits
            found = np.zeros((ends, len(columns)), np.int64)
            found[at] = [max(0, min(read(stock), MAX_CAPACITY)) for *_, stock in stocks]
            return found

        free = amounts(lambda stock: stock.free)
        self.packing = RowPacking(self.classes, free, free)
        self._most = amounts(lambda stock: stock.max_unit)
        self._least = amounts(lambda stock: stock.min_unit)
        self._step = np.maximum(amounts(lambda stock: stock.step), 1)
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

    def fits(self, flavor: PlannedFlavor, packing: RowPacking) -> Counts:
        """Return, for each host, how many instances of a flavor fit into what is free."""
        if self._stopped():
            raise PlanStopped
        return self._fits(
            self._admits[id(flavor)], [self._pieces(*each, packing) for each in flavor.amounts.items()]
        )

    def _fits(self, admitted: NDArray[np.bool_], pieces: Sequence[Counts]) -> Counts:
        found = np.where(admitted, MAX_CAPACITY, 0).astype(np.int64)
        for each in pieces:
            found = np.minimum(found, self._by_host(each))
        return found

    def _by_host(self, values: Counts) -> Counts:
        """Sum `values` for each host; `values` has one value for each row."""
        found: Counts = np.add.reduceat(values, self._begins) if values.size else values
        return found

    def _gives(self, column: int, amount: int) -> NDArray[np.bool_]:
        """Return for each row whether min_unit, max_unit and step_size permit this amount."""
        most, least, step = self._most[:, column], self._least[:, column], self._step[:, column]
        gives: NDArray[np.bool_] = (amount <= most) & (amount >= least) & (amount % step == 0)
        return gives

    def _pieces(self, name: str, amount: int, packing: RowPacking) -> Counts:
        """Return, for each row, how many consumers of this amount its free capacity can serve."""
        column = self.classes.index(name)
        return np.where(self._gives(column, amount), packing.free[:, column] // amount, 0)

    def _place(self, packing: RowPacking, placed: Counts, name: str, amount: int, pieces: Counts) -> None:
        """Place the given number of new instances on each host, which take `amount` each of a class. `pieces`
        has the number of instances that fit in each row.
        """
        before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(pieces)))[:-1]
        on_host = before - before[self._begins][self._host]
        taken = np.clip(placed[self._host] - on_host, 0, pieces) * amount
        packing.claim((slice(None), self.classes.index(name)), taken)

    def flavor(self, flavor: PlannedFlavor) -> FlavorCapacity:
        fits = self.fits(flavor, self.packing)
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
        of_rows = self.packing.free[:, self.classes.index(name)]
        free = np.where(admitted, self._by_host(of_rows), 0)
        left = free - np.where(admitted, fits * amount, 0)
        ends = admitted & (self._by_host(self._pieces(name, amount, self.packing)) == fits)
        return ClassCapacity(
            resource_class=name,
            amount=amount,
            free=int(free.sum()),
            taken=int(fits.sum()) * amount,
            largest=int(of_rows[admitted[self._host]].max(initial=0)),
            small=int(left[ends].sum()),
            in_addition=int(left[~ends].sum()),
            ends=int(ends.sum()),
        )

    def mixes_in_sum(self) -> int:
        admitted = np.logical_or.reduce([self._admits[id(flavor)] for flavor in self.mix])
        sums = self.packing.free[admitted[self._host]].sum(axis=0).tolist()
        return min(
            int(total) // self._mix_amounts[name] for name, total in zip(self.classes, sums, strict=True)
        )

    def mixes(self) -> tuple[int, RowPacking]:
        """Return how many mixes (sets of flavors) can be packed at most, and what is free then."""
        most = min(int(self.fits(flavor, self.packing).sum()) // flavor.parts for flavor in self.mix)
        most = min(most, self.mixes_in_sum())
        best, left = 0, self.packing
        for together in (False, True):
            found, packed = self._search(best, most, together)
            if packed is not None:
                best, left = found, packed
        return best, left

    def _search(self, known: int, most: int, together: bool) -> tuple[int, RowPacking | None]:
        low, high, left = known, most, None
        while low < high:
            middle = high if left is None and low == known and high == most else (low + high + 1) // 2
            packed = self._packed(middle, together)
            if packed is None:
                high = middle - 1
            else:
                low, left = middle, packed
        return low, left

    def _packed(self, mixes: int, together: bool) -> RowPacking | None:
        """Return what is free after packing `mixes` mixes, or None if they do not fit.

        With `together`, first pack as many mixes as possible with all instances of a mix on one host.
        """
        packing = self.packing.copy()
        done = self._pack_whole(mixes, packing) if together else 0
        sums = dict(zip(self.classes, np.maximum(self.packing.free.sum(axis=0), 1).tolist(), strict=True))
        for flavor in sorted(  # by the largest share of a resource class
            self.mix,
            key=lambda flavor: max(n / sums[name] for name, n in flavor.amounts.items()),
            reverse=True,
        ):
            wanted = (mixes - done) * flavor.parts
            fits = self.fits(flavor, packing)
            placed = np.clip(wanted - (np.cumsum(fits) - fits), 0, fits)
            if int(placed.sum()) < wanted:
                return None
            for name, amount in flavor.amounts.items():
                self._place(packing, placed, name, amount, self._pieces(name, amount, packing))
        return packing

    def _pack_whole(self, mixes: int, packing: RowPacking) -> int:
        admitted = np.logical_and.reduce([self._admits[id(flavor)] for flavor in self.mix])
        pieces = {name: self._mix_pieces(name, packing) for name in self.classes}
        found = self._fits(admitted, list(pieces.values()))
        placed = np.clip(mixes - (np.cumsum(found) - found), 0, found)
        for name, amount in self._mix_amounts.items():
            self._place(packing, placed, name, amount, pieces[name])
        return int(placed.sum())

    def _mix_pieces(self, name: str, packing: RowPacking) -> Counts:
        column = self.classes.index(name)
        amounts = [flavor.amounts[name] for flavor in self.mix if name in flavor.amounts]
        gives = np.logical_and.reduce([self._gives(column, amount) for amount in amounts])
        return np.where(gives, packing.free[:, column] // self._mix_amounts[name], 0)

    def _free_share(self, host: KnownHost) -> float:
        wanted = [stock for stock in host.stocks if stock.resource_class in self.classes]
        shares = [stock.free / stock.capacity for stock in wanted if stock.capacity > 0]
        return sum(shares) / len(shares) if shares else 0.0
