"""A cloud in memory for which a real scheduler decides: filters, weighers, ranking and claims, without a bus.

Claims are granted immediately, and nothing is built. Benchmarks use it, and replays of recorded requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from berth.composition import parts_of_scheduler
from berth.kit.choice_policies import request_options
from berth.settings import Settings
from bus.candidates import Floats, OnChange, OnWakes
from bus.claims import ClaimAnswered, Claimed, ClaimRequested, ReleaseAnswered, Released, ReleaseRequested
from bus.clock import Clock
from bus.host_health import DISABLED
from bus.messages import BuildPlaced, BuildRequested, HostReported
from bus.replication import ProviderChange
from bus.reports import HostState
from bus.resources import FindProviders, ProvidersFound
from bus.vocabulary import Allocations, Id
from placement_worker import IndexedSource
from placement_worker.core.index import Index
from scheduler_worker import ChoicePolicy
from scheduler_worker.composition import plain_scheduler
from scheduler_worker.dependencies import SchedulerOptions
from scheduler_worker.queries import PlacementQueries

SILENCE = 1e12  # seconds without a report after which a host would count as down: never


PAUSE = 2.0  # seconds from one request to the next, after which no build counts as just sent


class InstantPlacement:
    """Grants claims in an index. A claim of more than is free is an error of the scheduler."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.granted = 0

    def watch_wakes(self, on_wakes: OnWakes) -> None: ...

    def watch(self, heard: OnChange) -> None: ...

    async def fresh(self) -> None: ...

    def change(self, allocations: Allocations, sign: int) -> int:
        """Claim allocations if `sign` is 1, release them if it is -1; return the change number."""
        number, changes = self.index.seen + 1, []
        for provider, amounts in allocations.items():
            row = self.index.rows[provider]
            used = {name: amount + sign * amounts.get(name, 0) for name, amount in row.used.items()}
            assert all(0 <= used[name] <= row.capacity[name] for name in amounts), (allocations, used)
            changes.append(ProviderChange(provider, row.root, row.generation + 1, used))
        self.index.accept(number, changes)
        return number

    async def claim_many(self, orders: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        """Grant all claims."""
        return [ClaimAnswered(results=tuple(self._grant(order))) for order in orders]

    def _grant(self, order: ClaimRequested) -> list[Claimed]:
        number = max(self.change(claim.choices[0].allocations, 1) for claim in order.claims)
        self.granted += len(order.claims)
        return [Claimed(choice=0, generation=1, number=number) for _ in order.claims]

    async def release(self, question: ReleaseRequested) -> ReleaseAnswered:
        return ReleaseAnswered(result=Released())

    async def providers(self, question: FindProviders) -> ProvidersFound:
        return ProvidersFound(providers=())

    async def unused(self, question: object) -> Any:
        raise NotImplementedError

    def queries(self) -> PlacementQueries:
        """Return the queries of a scheduler, answered here: every claim and release succeeds immediately."""
        return PlacementQueries(
            claim_many=self.claim_many,
            release=self.release,
            providers=self.providers,
            allocations=self.unused,
            usages=self.unused,
            edit=self.unused,
            edit_name=self.unused,
            ask=lambda query: self.unused,
        )


@dataclass
class SteppedTime:
    """A time in seconds that only a replay advances."""

    now: float = 0.0

    def advance(self, to: float) -> None:
        """Set the time to `to`, unless it is later already."""
        self.now = max(self.now, to)

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class InstantCloud:
    """The hosts of an index, which are all up and idle, and the scheduler that decides for them."""

    placement: InstantPlacement
    policy: ChoicePolicy
    settings: Settings = field(default_factory=Settings)
    seed: int = 1
    time: SteppedTime = field(default_factory=SteppedTime)

    def __post_init__(self) -> None:
        self.clock = Clock(self.time, Random(self.seed), self.time)
        self._sequence = 0
        self.source = IndexedSource(self.placement)
        self.scheduler = plain_scheduler(
            self.source,
            self.placement.queries(),
            self.clock,
            SchedulerOptions(policy=self.policy, requests=request_options(self.settings)),
            parts_of_scheduler(self.settings),
        )

    async def open(self) -> None:
        """Report all hosts as reachable and empty, so that the scheduler may choose them."""
        await self.scheduler.opened()
        await self.report({host.uuid: 0 for host in self.source.hosts()})

    async def report(self, instances: Mapping[Id, int]) -> None:
        """Report hosts, by their roots, with the number of instances on each. A host that was never reported
        counts as down.
        """
        hosts: dict[tuple[str, str], list[HostState]] = {}
        for root, number in instances.items():
            row = self.placement.index.rows.get(root)
            if row is not None and row.cell and row.agent:
                state = HostState(root=root, host=row.host, instances=number)
                hosts.setdefault((row.cell, row.agent), []).append(state)
        self._sequence += 1
        for (cell, agent), states in hosts.items():
            await self.scheduler.handle(
                HostReported(
                    cell=cell, agent=agent, sequence=self._sequence, period=SILENCE, partial=True,
                    hosts=tuple(states),
                )
            )  # fmt: skip

    async def place(self, request: BuildRequested) -> list[BuildPlaced]:
        """Place the instances of a request; return those that got a host."""
        self.time.now += PAUSE
        (outcome,) = await self.scheduler.place_many([request])
        if not isinstance(outcome, list | tuple):
            raise RuntimeError(f"{request}: {outcome}")
        return [message for message in outcome if isinstance(message, BuildPlaced)]

    def fitting(self, request: BuildRequested) -> int:
        """Estimate how many instances of a request fit, by the amounts and traits of each host alone."""
        alternatives = self.scheduler.orders.alternatives_of(request)
        if not alternatives:
            return 0
        search = self.source.search(alternatives[0].question)
        fits: Floats = np.full(search.positions.size, np.inf)
        for name, amount in alternatives[0].asked.items():
            of_host = np.where(search.capacity(name) > 0, search.free(name) // amount, np.inf)
            fits = np.minimum(fits, of_host)  # a class that only a pool has limits no host
        usable = np.isfinite(fits) & ~search.has(DISABLED)
        return int(np.sum(np.maximum(fits, 0), where=usable))
