"""Inventories of all hosts as arrays, for capacity plans."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bus.vocabulary import MAX_CAPACITY
from control_room.core.hosts import HostStock, KnownHost

Counts = NDArray[np.int64]


class StockColumns:
    """All stocks of one class, in the order of their hosts."""

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
        self.free = column(lambda one: one.free)
        self._most = column(lambda one: one.max_unit)
        self._least = column(lambda one: one.min_unit)
        self._step = np.maximum(column(lambda one: one.step), 1)
        numbers = np.arange(len(hosts))
        self._begins = np.searchsorted(self.host, numbers, side="left")
        self._ends = np.searchsorted(self.host, numbers, side="right")

    def by_host(self, values: Counts) -> Counts:
        """Return the sums over each host's stocks."""
        sums = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(values)))
        found: Counts = sums[self._ends] - sums[self._begins]
        return found

    def gives(self, amount: int) -> NDArray[np.bool_]:
        """Return which stocks give this amount to one consumer."""
        gives: NDArray[np.bool_] = (
            (amount <= self._most) & (amount >= self._least) & (amount % self._step == 0)
        )
        return gives

    def pieces(self, amount: int, free: Counts) -> Counts:
        """Return how many times each stock has this amount, if it gives it to one consumer."""
        pieces: Counts = np.where(self.gives(amount), free // amount, 0)
        return pieces

    def take(self, free: Counts, amount: int, pieces: Counts, here: Counts) -> None:
        """Take this amount `here` times from each host, from its stocks in their order."""
        before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(pieces)))
        on_host = before[:-1] - before[self._begins][self.host]
        free -= np.clip(here[self.host] - on_host, 0, pieces) * amount
