"""A cloud in memory for which a real scheduler decides: filters, weighers, ranking and claims, without a bus.

One request is decided at a time, as in the published simulations with which the results are compared. The
clock of the scheduler is that of the trace.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.instant_placement import InstantPlacement
from berth.choice import request_options
from berth.composition import parts_of_scheduler
from berth.features import add_filters
from berth.settings import Settings
from bus.clock import Clock
from bus.messages import BuildPlaced, BuildRequested, HostReported
from bus.reports import HostState, Inventory
from bus.requests import Flavor, ResourceGroup
from bus.vocabulary import Allocations
from placement_worker import IndexedSource
from placement_worker.core.index import Index
from placement_worker.core.trees import ProviderState, Tree
from scheduler_worker import ChoicePolicy
from scheduler_worker.composition import plain_scheduler
from scheduler_worker.dependencies import SchedulerOptions

add_filters()
SILENCE = 1e12  # seconds without a report after which a host would count as down: never in a trace
AGENTS = 16
PAUSE = 2.0  # seconds from one request to the next, after which no build counts as just sent


@dataclass(frozen=True)
class DeviceSpec:
    """A child provider of a host, such as a GPU or a NUMA node."""

    resources: Mapping[str, int]
    traits: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostSpec:
    """The inventories of a host: of its root provider and of its devices."""

    resources: Mapping[str, int]
    traits: tuple[str, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A request of a trace; equal requests share one object."""

    flavor: Flavor
    groups: tuple[ResourceGroup, ...] = ()


@dataclass
class TraceClock:
    """The time of a trace, in seconds."""

    now: float = 0.0

    def advance(self, to: float) -> None:
        self.now = max(self.now, to)

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class TraceCloud:
    """Hosts, and the scheduler that decides for them."""

    hosts: Sequence[HostSpec]
    policy: ChoicePolicy
    seed: int = 1
    time: TraceClock = field(default_factory=TraceClock)

    def __post_init__(self) -> None:
        index = Index()
        self.devices: dict[str, tuple[int, int]] = {}  # provider → number of its host, number of the device
        for number, spec in enumerate(self.hosts):
            index.put(self._tree(number, spec), 0)
        self.placement = InstantPlacement(index)
        self.clock = Clock(self.time, random.Random(self.seed), self.time)
        self.scheduler = plain_scheduler(
            IndexedSource(self.placement),
            self.placement.queries(),
            self.clock,
            SchedulerOptions(policy=self.policy, requests=request_options(Settings())),
            parts_of_scheduler(Settings()),
        )
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._open())

    def _tree(self, number: int, spec: HostSpec) -> Tree:
        root = _uuid(number, 0)
        providers = [_provider(root, None, f"host-{number}", spec.resources, spec.traits)]
        for nth, device in enumerate(spec.devices):
            uuid = _uuid(number, nth + 1)
            self.devices[uuid] = number, nth
            providers.append(_provider(uuid, root, f"host-{number}-{nth}", device.resources, device.traits))
        agent = f"agent-{number % AGENTS}"
        return Tree(root, f"host-{number}", "cell-1", agent, "az1", 1, False, tuple(providers))

    async def _open(self) -> None:
        await self.scheduler.opened()
        index = self.placement.index
        for row in index.at[: index.high]:
            if row is not None and row.parent is None:
                state = HostState(root=row.uuid, host=row.host)
                report = HostReported(
                    cell=row.cell, agent=row.agent, sequence=1, period=SILENCE, hosts=(state,)
                )
                await self.scheduler.handle(report)

    def place(self, asked: Asked) -> Allocations | None:
        """Place an instance, and return its allocations; None if no host fits."""
        self.time.now += PAUSE
        request = BuildRequested(
            request=self.clock.uuid(),
            instances=(self.clock.uuid(),),
            flavor=asked.flavor,
            groups=asked.groups,
            alternates=0,
        )
        (outcome,) = self._loop.run_until_complete(self.scheduler.place_many([request]))
        if not isinstance(outcome, list | tuple):
            raise RuntimeError(f"{request}: {outcome}")
        (message,) = outcome
        return message.chosen.choice.allocations if isinstance(message, BuildPlaced) else None

    def release(self, held: Allocations) -> None:
        self.placement.change(held, -1)

    def close(self) -> None:
        self._loop.close()


def _uuid(host: int, provider: int) -> str:
    return f"{host:08x}-{provider:04x}-4000-8000-{host:012x}"


def _provider(
    uuid: str, parent: str | None, name: str, resources: Mapping[str, int], traits: tuple[str, ...]
) -> ProviderState:
    stock = {resource_class: Inventory(total=total) for resource_class, total in resources.items()}
    used = dict.fromkeys(stock, 0)
    return ProviderState(0, uuid, name, parent, 1, 1, stock, used, tuple(sorted(traits)), ())
