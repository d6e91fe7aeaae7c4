"""The hosts and requests of a trace, for which a real scheduler decides in memory.

One request is decided at a time, as in the published simulations with which the results are compared. The
clock of the scheduler is that of the trace.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from berth.instant_cloud import InstantCloud, InstantPlacement, SteppedTime
from bus.messages import BuildRequested
from bus.reports import Inventory
from bus.requests import Flavor, ResourceGroup
from bus.vocabulary import Allocations
from placement_worker.core.index import Index
from placement_worker.core.trees import ProviderState, Tree
from scheduler_worker import ChoicePolicy

AGENTS = 16


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


@dataclass(eq=False)
class TraceCloud:
    """Hosts, and the scheduler that decides for them."""

    hosts: Sequence[HostSpec]
    policy: ChoicePolicy
    seed: int = 1
    time: SteppedTime = field(default_factory=SteppedTime)

    def __post_init__(self) -> None:
        index = Index()
        self.devices: dict[str, tuple[int, int]] = {}  # provider → number of its host, number of the device
        for number, spec in enumerate(self.hosts):
            index.put(self._tree(number, spec), 0)
        self.placement = InstantPlacement(index)
        self._cloud = InstantCloud(self.placement, self.policy, seed=self.seed, time=self.time)
        self.scheduler, self.clock = self._cloud.scheduler, self._cloud.clock
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._cloud.open())

    def _tree(self, number: int, spec: HostSpec) -> Tree:
        root = _uuid(number, 0)
        providers = [_provider(root, None, f"host-{number}", spec.resources, spec.traits)]
        for nth, device in enumerate(spec.devices):
            uuid = _uuid(number, nth + 1)
            self.devices[uuid] = number, nth
            providers.append(_provider(uuid, root, f"host-{number}-{nth}", device.resources, device.traits))
        agent = f"agent-{number % AGENTS}"
        return Tree(root, f"host-{number}", "cell-1", agent, "az1", 1, False, tuple(providers))

    def place(self, asked: Asked) -> Allocations | None:
        """Place an instance, and return its allocations; None if no host fits."""
        request = BuildRequested(
            request=self.clock.uuid(),
            instances=(self.clock.uuid(),),
            flavor=asked.flavor,
            groups=asked.groups,
            alternates=0,
        )
        placed = self._loop.run_until_complete(self._cloud.place(request))
        return placed[0].chosen.choice.allocations if placed else None

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
