"""The interface of drivers that run guests on a real hypervisor. Operators write subclasses of `GuestDriver`.

An agent makes one call for a guest at a time, and repeats calls: after a crash it does not know which calls
had an effect. docs/howto/driver.md lists the rules; `berth cell agent check` tests them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from bus.requests import BuildSpec
from compute_sim.core.ownership import GuestState
from compute_sim.core.provider_tree import ProviderTree
from compute_sim.guests import GuestRecord


class DriverError(Exception):
    """Error: a hypervisor driver's call failed. Without `retry`, no other host is tried for the build."""

    def __init__(self, cause: str, *, retry: bool = True) -> None:
        super().__init__(cause)
        self.cause, self.retry = cause, retry


class DriverGuest(msgspec.Struct, frozen=True, kw_only=True):
    """A guest on a hypervisor; the hypervisor driver stores the build and attempt with the guest."""

    build: str
    attempt: int
    root: str
    state: GuestState = "running"


class HypervisorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a hypervisor that heartbeats report, for filters to compare with requests."""

    hypervisor: str  # its type, such as QEMU
    version: int = 0  # 8002000 is 8.2.0
    architecture: str = ""  # empty: that of the simulated host
    vm_modes: tuple[str, ...] = ("hvm",)
    capabilities: Mapping[str, str] = msgspec.field(default_factory=dict)
    metrics: Mapping[str, float] = msgspec.field(default_factory=dict)


class GuestDriver(ABC):
    """The base class of drivers for hypervisors. One object serves all hosts of a machine type in a process.

    The constructor's arguments are the options that operators set for the driver. The constructor must open
    no connection: every command that reads the settings constructs the driver.
    """

    @abstractmethod
    def update_provider_tree(self, tree: ProviderTree) -> None:
        """Add a host's resources to its provider tree."""

    def facts(self) -> HypervisorFacts:
        """Return the hypervisor's properties from memory, as the agent calls this for every heartbeat."""
        return HypervisorFacts(hypervisor=type(self).__name__)

    @abstractmethod
    async def guests(self) -> Sequence[DriverGuest]:
        """Return all existing guests that this driver created, also in earlier processes."""

    @abstractmethod
    async def create(self, guest: GuestRecord, spec: BuildSpec) -> None:
        """Create a guest and start it; complete a guest that an interrupted call left incomplete."""

    @abstractmethod
    async def start(self, guest: GuestRecord) -> None:
        """Start an existing guest; do nothing if it runs."""

    @abstractmethod
    async def stop(self, guest: GuestRecord) -> None:
        """Stop an existing guest; do nothing if it does not run."""

    @abstractmethod
    async def destroy(self, guest: GuestRecord) -> None:
        """Delete a guest and all its parts; do nothing if it does not exist."""
