"""Generates simulated hosts with reproducible names and ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid5

from bus.reports import Inventory
from compute_sim.core.drivers import Driver, FlatDriver
from compute_sim.machines import FLAT, Machine

_NAMES = UUID("6f3f0c9e-8f5b-4c1e-9d57-2b8a5c0e7a11")
_TRAITS = ("COMPUTE_NODE", "HW_CPU_X86_AVX2", "STORAGE_DISK_SSD")
X86 = "x86_64"


@dataclass(frozen=True, slots=True)
class SimHost:
    """One host: a root provider and its hardware."""

    root: str
    host: str
    inventory: Mapping[str, Inventory]
    traits: tuple[str, ...] = ()
    zone: str = ""
    aggregates: tuple[str, ...] = ()
    metal: str = ""  # the resource class of a bare-metal node, which Ironic reports
    drivers: tuple[Driver, ...] = ()  # additional hardware
    architecture: str = X86
    ip: str = ""
    disabled: str = ""  # why the host is disabled

    @property
    def all_drivers(self) -> tuple[Driver, ...]:
        return (FlatDriver(self.inventory, self.traits, self.aggregates), *self.drivers)


@dataclass(frozen=True, slots=True)
class SimAgent:
    """One agent and its hosts."""

    agent: str
    cell: str
    hosts: tuple[SimHost, ...]


def fleet(
    cells: Sequence[str] | int = 4,
    hosts: int = 1000,
    agents_per_cell: int = 1,
    *,
    vcpus: int = 32,
    memory_mb: int = 131_072,
    disk_gb: int = 2000,
    vcpu_ratio: float = 4.0,
    zones: Sequence[str] = ("",),
    architectures: Sequence[str] = (X86,),
    traits: Sequence[str] = _TRAITS,
    machines: Sequence[Machine] = (FLAT,),
    baremetal: int = 0,
    seed: int = 0,
) -> list[SimAgent]:
    """Return agents with so many hypervisors and bare-metal nodes in total, spread over cells and agents."""
    inventory = {
        "VCPU": Inventory(total=vcpus, max_unit=vcpus, allocation_ratio=vcpu_ratio),
        "MEMORY_MB": Inventory(total=memory_mb, reserved=512, max_unit=memory_mb),
        "DISK_GB": Inventory(total=disk_gb, max_unit=disk_gb),
    }
    names = [f"cell{number + 1}" for number in range(cells)] if isinstance(cells, int) else list(cells)
    places = len(names) * agents_per_cell
    dealt: list[list[SimHost]] = [[] for _ in range(places)]
    addresses: list[str] = []

    def deal(count: int, kind: str, made: Sequence[Machine], metal: str) -> None:
        for number in range(count):
            name = f"{names[number % len(names)]}-{kind}{number // len(names) + 1:05}"
            place = number % places
            root = str(uuid5(_NAMES, f"{seed}/{name}"))
            zone = zones[number // places % len(zones)]
            kind_of = architectures[number // places // len(zones) % len(architectures)]
            machine = made[number // places // len(zones) // len(architectures) % len(made)]
            has, can = (inventory, tuple(traits)) if machine.flat and not metal else ({}, ())
            ip = _address(len(addresses))
            addresses.append(ip)
            dealt[place].append(
                SimHost(
                    root,
                    name,
                    has,
                    _can(can, kind_of),
                    zone,
                    metal=metal,
                    drivers=machine.drivers,
                    architecture=kind_of,
                    ip=ip,
                )
            )

    deal(hosts, "host", machines, "")
    deal(baremetal, "metal", (FLAT,), "baremetal")
    return [
        _agent(names[place % len(names)], place // len(names) + 1, theirs)
        for place, theirs in enumerate(dealt)
    ]


def _can(traits: tuple[str, ...], architecture: str) -> tuple[str, ...]:
    """Return the traits that this architecture supports: only x86 has its extensions."""
    if architecture == X86:
        return traits
    return tuple(trait for trait in traits if "_X86_" not in trait)


def _address(number: int) -> str:
    """Return an address in 10.0.0.0/8, one for each host."""
    number += 1
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _agent(cell: str, number: int, hosts: Sequence[SimHost]) -> SimAgent:
    return SimAgent(agent_name(cell, number), cell, tuple(hosts))


def agent_name(cell: str, number: int) -> str:
    """Return the name of an agent of this cell, counted from 1."""
    return f"{cell}-agent{number}"
