"""A small cloud around the real waiting queues: hosts with amounts, and request classes that ask for them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler_worker.core.waiting_queue import CapacityNeeded, HostsFound, NextRequest, Prospect, QueueKey
from scheduler_worker.core.waiting_queues import WaitingQueues

Amounts = dict[str, int]


@dataclass
class CountedHost:
    capacity: Amounts
    free: Amounts
    refuses: set[str] = field(default_factory=set)  # request classes that a filter rejects here
    passing: bool = False

    def fits(self, asked: Mapping[str, int]) -> int:
        return min(self.free.get(name, 0) // amount for name, amount in asked.items())

    def ever(self, asked: Mapping[str, int]) -> int:
        return min(self.capacity.get(name, 0) // amount for name, amount in asked.items())


class PlainCloud:
    def __init__(self, hosts: Mapping[str, Amounts], kinds: Mapping[str, Amounts]) -> None:
        self.hosts = {root: CountedHost(dict(amounts), dict(amounts)) for root, amounts in hosts.items()}
        self.kinds = dict(kinds)
        self.queues = WaitingQueues(self)
        self.waiting: dict[str, tuple[QueueKey, str, int]] = {}  # request → queue key, class, instances
        self.placed: list[tuple[str, str]] = []  # request, root
        self.rescued: list[str] = []
        self.asked: list[str] = []

    # The interface that the waiting queues call

    def free(self, root: str) -> Mapping[str, int]:
        return self.hosts[root].free if root in self.hosts else {}

    def watches(self, kind: str) -> Sequence[CapacityNeeded]:
        asked = self.kinds[kind]
        scarcest = min(
            asked, key=lambda name: sum(h.free.get(name, 0) >= asked[name] for h in self.hosts.values())
        )
        return (CapacityNeeded(scarcest, asked[scarcest]),)

    def search(
        self, kind: str, among: Collection[str] | None, beside: Collection[str], enough: int
    ) -> HostsFound:
        self.asked.append(kind)
        fits: dict[str, int] = {}
        refused, passing, more = [], False, False
        for root in self.hosts if among is None else among:
            host = self.hosts.get(root)
            if host is None or root in beside or not (several := host.fits(self.kinds[kind])):
                continue
            if kind in host.refuses:
                refused.append(root)
                passing = passing or host.passing
            elif among is None and sum(fits.values()) >= enough:
                more = True
            else:
                fits[root] = several
        return HostsFound(fits, refused, passing, more)

    def prospect(self, kind: str) -> Prospect:
        asked, roots = self.kinds[kind], list(self.hosts)
        ever = [(index, self.hosts[root]) for index, root in enumerate(roots) if self.hosts[root].ever(asked)]
        lacks = [
            sum(max(amount - host.free.get(name, 0), 0) / amount for name, amount in asked.items())
            for _, host in ever
        ]
        return Prospect(
            len(roots),
            np.array([index for index, _ in ever], np.intp),
            np.array(lacks, np.float64),
            np.array([host.ever(asked) for _, host in ever], np.float64),
            lambda position: roots[position],
            lambda position: (
                kind not in self.hosts[roots[position]].refuses or self.hosts[roots[position]].passing
            ),
        )

    # Events

    def park(self, number: int, kind: str, *, priority: int = 0, since: float = 0.0, needs: int = 1) -> None:
        self.enter((-priority, since, f"r{number:05}"), kind, self.queues.mark, needs)

    def enter(self, key: QueueKey, kind: str, mark: int | None = None, needs: int = 1) -> None:
        self.queues.enter(key, kind, needs, mark)
        self.waiting[key[-1]] = key, kind, needs

    def leave(self, request: str) -> None:
        self.queues.leave(request)
        del self.waiting[request]

    def frees(self, root: str, **amounts: int) -> None:
        for name, amount in amounts.items():
            self.hosts[root].free[name] = self.hosts[root].free.get(name, 0) + amount
        self.queues.changed([root])

    def takes(self, root: str, asked: Mapping[str, int], sign: int = 1) -> None:
        for name, amount in asked.items():
            self.hosts[root].free[name] -= sign * amount

    def place(self, kind: str, beside: Collection[str], needs: int = 1) -> list[str]:
        taken: list[str] = []
        for root, host in self.hosts.items():
            while len(taken) < needs and root not in beside and kind not in host.refuses:
                if not host.fits(self.kinds[kind]):
                    break
                self.takes(root, self.kinds[kind])
                taken.append(root)
        if len(taken) < needs:
            for root in taken:
                self.takes(root, self.kinds[kind], -1)
            return []
        return taken

    def plays(self, now: float = 0.0) -> list[tuple[str, str]]:
        before = len(self.placed)
        while turns := self.queues.next_requests(now):
            for turn in turns:
                self.take(turn)
        return self.placed[before:]

    def take(self, turn: NextRequest) -> None:
        _, kind, needs = self.waiting[turn.request]
        roots = self.place(kind, turn.excluded, needs)
        if not roots:
            self.queues.requeue(turn.request)
            return
        self.rescued += [turn.request] * turn.forgotten
        self.placed += [(turn.request, root) for root in roots]
        self.leave(turn.request)

    def overlooked(self) -> list[str]:
        kept = self.queues.reserved
        found = []
        for request, (key, kind, needs) in self.waiting.items():
            for root, host in self.hosts.items():
                whose = kept.get(root)
                if whose is not None and whose.key < key and whose.kind != kind:
                    continue
                if kind not in host.refuses and host.fits(self.kinds[kind]) >= needs:
                    found.append(f"{request} on {root}")
        return found
