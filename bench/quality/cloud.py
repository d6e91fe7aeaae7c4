"""The hosts and requests of a trace, and a cloud in memory for which a real scheduler decides.

One request is decided at a time, as in the published simulations with which the results are compared.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from berth.kit.instant_cloud import InstantCloud, InstantPlacement
from bus.clock import Clock
from bus.messages import BuildRequested, HostFailed, HostReported
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
    ratios: Mapping[str, float] = field(default_factory=dict)  # allocation ratios of the root; default: 1


@dataclass(frozen=True)
class Asked:
    """A request of a trace; equal requests share one object."""

    flavor: Flavor
    groups: tuple[ResourceGroup, ...] = ()


class PlacingCloud(Protocol):
    """Hosts of a trace, and what decides for them."""

    def advance(self, to: float) -> None:
        """Set the time in seconds since the trace began."""

    def place(self, asked: Asked) -> Any:
        """Place an instance, and return what `release` needs; None if no host fits."""

    def release(self, held: Any) -> None: ...

    def close(self) -> None: ...


OpenCloud = Callable[[Sequence[HostSpec], int], PlacingCloud]  # from hosts and a seed


def request_ids(seed: int) -> Clock:
    """Return the source of the ids of requests, which decide between equal hosts."""
    return Clock(chance=Random(seed))


def request_for(asked: Asked, ids: Clock, reply_to: str = "") -> BuildRequested:
    return BuildRequested(
        request=ids.uuid(),
        instances=(ids.uuid(),),
        flavor=asked.flavor,
        groups=asked.groups,
        alternates=0,
        reply_to=reply_to,
    )


def provider_id(host: int, device: int | None = None) -> str:
    """Return the id of a host's root provider, or of one of its devices."""
    return f"{host:08x}-{0 if device is None else device + 1:04x}-4000-8000-{host:012x}"


def host_number(held: Allocations) -> int:
    """Return the number of the host of some allocations."""
    return int(next(iter(held))[:8], 16)


def inventories(
    resources: Mapping[str, int], ratios: Mapping[str, float] | None = None
) -> dict[str, Inventory]:
    given = ratios or {}
    return {
        resource_class: Inventory(total=total, allocation_ratio=given.get(resource_class, 1.0))
        for resource_class, total in resources.items()
    }


@dataclass(eq=False)
class TraceCloud:
    """A cloud in memory. The clock of its scheduler is that of the trace."""

    hosts: Sequence[HostSpec]
    policy: ChoicePolicy
    seed: int = 1

    def __post_init__(self) -> None:
        index = Index()
        self.devices: dict[str, tuple[int, int]] = {}  # provider → number of its host, number of the device
        self._ids = request_ids(self.seed)
        for number, spec in enumerate(self.hosts):
            index.put(self._tree(number, spec), 0)
        self.placement = InstantPlacement(index)
        self._cloud = InstantCloud(self.placement, self.policy, seed=self.seed)
        self.scheduler = self._cloud.scheduler
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._cloud.open())

    def _tree(self, number: int, spec: HostSpec) -> Tree:
        root = provider_id(number)
        providers = [_provider(root, None, f"host-{number}", spec.resources, spec.traits, spec.ratios)]
        for nth, device in enumerate(spec.devices):
            uuid = provider_id(number, nth)
            self.devices[uuid] = number, nth
            providers.append(_provider(uuid, root, f"host-{number}-{nth}", device.resources, device.traits))
        agent = f"agent-{number % AGENTS}"
        return Tree(root, f"host-{number}", "cell-1", agent, "az1", 1, False, tuple(providers))

    def advance(self, to: float) -> None:
        self._cloud.time.advance(to)

    def place(self, asked: Asked) -> Allocations | None:
        """Place an instance, and return its allocations; None if no host fits."""
        return self.place_request(request_for(asked, self._ids))

    def place_request(self, request: BuildRequested) -> Allocations | None:
        placed = self._loop.run_until_complete(self._cloud.place(request))
        return placed[0].chosen.choice.allocations if placed else None

    def handle(self, message: HostReported | HostFailed) -> None:
        """Let the scheduler handle a message about a host."""
        if isinstance(message, HostFailed):
            self._loop.run_until_complete(self.scheduler.on_host_failed(message))
        else:
            self._loop.run_until_complete(self.scheduler.handle(message))

    def release(self, held: Allocations) -> None:
        self.placement.change(held, -1)

    def close(self) -> None:
        self._loop.close()


def _provider(
    uuid: str,
    parent: str | None,
    name: str,
    resources: Mapping[str, int],
    traits: tuple[str, ...],
    ratios: Mapping[str, float] | None = None,
) -> ProviderState:
    stock = inventories(resources, ratios)
    used = dict.fromkeys(stock, 0)
    return ProviderState(0, uuid, name, parent, 1, 1, stock, used, tuple(sorted(traits)), ())
