"""A small cloud around the real waiting queues: hosts with amounts, and request classes that ask for them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from features.waiting.core.fitting import HostsFound
from features.waiting.core.reserved_hosts import Prospect
from features.waiting.core.shares import QueueKey, Size
from features.waiting.core.waiting_queue import CapacityNeeded, NextRequest
from features.waiting.core.waiting_queues import WaitingQueues
from features.waiting.settings import HELD_SHARE

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


def of_project(kind: str, project: str) -> str:
    """Return the equivalence class of a project's requests that are otherwise equal to those of `kind`."""
    return f"{kind}@{project}" if project else kind


def base_of(kind: str) -> str:
    return kind.partition("@")[0]


class PlainCloud:
    def __init__(
        self,
        hosts: Mapping[str, Amounts],
        kinds: Mapping[str, Amounts],
        *,
        zones: Mapping[str, str] | None = None,  # host, or class of requests → its zone
        held_share: float = HELD_SHARE,
    ) -> None:
        self.zones = dict(zones or {})
        self.hopeless: set[str] = set()  # requests that have no chance to start in time
        self.hosts = {root: CountedHost(dict(amounts), dict(amounts)) for root, amounts in hosts.items()}
        self.kinds = dict(kinds)
        self.ends: dict[str, float] = {}  # request → when it expires; others have just begun to wait
        self.queues = WaitingQueues(
            self, held_share, lambda request: request not in self.hopeless, self.passed
        )
        # request → queue key, class, instances, project
        self.waiting: dict[str, tuple[QueueKey, str, int, str]] = {}
        self.placed: list[tuple[str, str]] = []  # request, root
        self.rescued: list[str] = []
        self.asked: list[str] = []
        self.now = 0.0

    # The interface that the waiting queues call

    def free(self, root: str) -> Mapping[str, int]:
        return self.hosts[root].free if root in self.hosts else {}

    def watches(self, kind: str) -> Sequence[CapacityNeeded]:
        asked = self.asked_by(kind)
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
            if host is None or root in beside or not self.is_in_zone(root, kind):
                continue
            if not (several := host.fits(self.asked_by(kind))):
                continue
            if base_of(kind) in host.refuses:
                refused.append(root)
                passing = passing or host.passing
            elif among is None and sum(fits.values()) >= enough:
                more = True
            else:
                fits[root] = several
        return HostsFound(fits, refused, passing, more)

    def prospect(self, kind: str) -> Prospect:
        asked, roots = self.asked_by(kind), list(self.hosts)
        ever = [
            (index, self.hosts[root])
            for index, root in enumerate(roots)
            if self.hosts[root].ever(asked) and self.is_in_zone(root, kind)
        ]
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
                base_of(kind) not in self.hosts[roots[position]].refuses
                or self.hosts[roots[position]].passing
            ),
        )

    def zone(self, root: str) -> str:
        return self.zones.get(root, "")

    def hosts_by_zone(self) -> Mapping[str, int]:
        return Counter(map(self.zone, self.hosts))

    def named_zone(self, kind: str) -> str:
        return self.zones.get(base_of(kind), "")

    def is_in_zone(self, root: str, kind: str) -> bool:
        return self.named_zone(kind) in ("", self.zone(root))

    def base(self, kind: str) -> str:
        return base_of(kind)

    def size(self, kind: str) -> Size:
        whole = {
            name: sum(host.capacity.get(name, 0) for host in self.hosts.values())
            for name in self.asked_by(kind)
        }
        return {name: amount / whole[name] for name, amount in self.asked_by(kind).items() if whole[name]}

    def asked_by(self, kind: str) -> Mapping[str, int]:
        return self.kinds[base_of(kind)]

    def passed(self, request: str) -> float:
        (_, since, _), *_ = self.waiting[request]
        return (self.now - since) / (self.ends[request] - since) if request in self.ends else 0.0

    # Events

    def wait(
        self,
        number: int,
        kind: str,
        *,
        priority: int = 0,
        since: float = 0.0,
        needs: int = 1,
        project: str = "",
    ) -> None:
        self.enter((-priority, since, f"r{number:05}"), kind, self.queues.mark, needs, project)

    def enter(
        self, key: QueueKey, kind: str, mark: int | None = None, needs: int = 1, project: str = ""
    ) -> None:
        self.queues.enter(key, project, of_project(kind, project), needs, mark)
        self.waiting[key[-1]] = key, of_project(kind, project), needs, project

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
            while len(taken) < needs and root not in beside and self.admits(root, kind):
                if not host.fits(self.asked_by(kind)):
                    break
                self.takes(root, self.asked_by(kind))
                taken.append(root)
        if len(taken) < needs:
            for root in taken:
                self.takes(root, self.asked_by(kind), -1)
            return []
        return taken

    def admits(self, root: str, kind: str) -> bool:
        return base_of(kind) not in self.hosts[root].refuses and self.is_in_zone(root, kind)

    def plays(self, now: float = 0.0) -> list[tuple[str, str]]:
        self.now = now
        before = len(self.placed)
        while turns := self.queues.next_requests(now):
            for turn in turns:
                self.take(turn)
        return self.placed[before:]

    def take(self, turn: NextRequest) -> None:
        _, kind, needs, _ = self.waiting[turn.request]
        roots = self.place(kind, turn.excluded, needs)
        if not roots:
            self.queues.requeue(turn.request)
            return
        self.rescued += [turn.request] * turn.forgotten
        self.placed += [(turn.request, root) for root in roots]
        self.queues.on_started(turn.request, self.now)
        self.leave(turn.request)

    def overlooked(self) -> list[str]:
        found = []
        for request, (_, kind, needs, _) in self.waiting.items():
            closed = self.queues.reserved_before(request)
            for root, host in self.hosts.items():
                if root in closed:
                    continue
                if self.admits(root, kind) and host.fits(self.asked_by(kind)) >= needs:
                    found.append(f"{request} on {root}")
        return found
