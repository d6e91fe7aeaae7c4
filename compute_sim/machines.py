"""Defines machine types: drivers of a host's hardware, built in or from an operator's file.

Also makes simulated agents with hosts of these types. An example of an operator's file:

[edge]                                  # berth up --driver edge,flat
drivers = ["numa", "sriov"]
numa = {cells = 2, vcpus = 8}
sriov = {functions = [{device = "ens1f0", vfs = 16, network = "physnet1"}]}
"""

import importlib
import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID, uuid5

import msgspec

from bus.reports import Inventory
from compute_sim.core.drivers import (
    DeviceDriver,
    Driver,
    FlatDriver,
    NumaDriver,
    SriovDriver,
    VgpuDriver,
    build_tree,
)
from compute_sim.core.provider_config import (
    BadProviderConfig,
    ConfiguredProvider,
    ProviderConfigDriver,
    provider_config,
)
from compute_sim.core.provider_tree import TreeMistake
from compute_sim.guest_driver import GuestDriver

# Loads operators' drivers, of hypervisors and of hosts' hardware, from a name `module:Class` and options.


class BadDriver(ValueError):
    """Error: a driver's module, Python class or option is wrong; `option` names the option."""

    def __init__(self, why: str, option: str = "") -> None:
        super().__init__(why)
        self.option = option


def load_driver(name: str, options: Mapping[str, Any], *, strict: bool = True) -> Driver:
    """Return a new driver of the class that `name` names as `module:Class`, constructed with `options`.

    With `strict=False`, options may be texts, which are converted to the options' types.
    """
    class_ = driver_class(name)
    if issubclass(class_, msgspec.Struct):
        made: Driver = converted(options, class_, strict=strict)
        return made
    parameters = inspect.signature(class_).parameters
    for option in options.keys() - parameters.keys():
        known = f"there are: {', '.join(parameters)}" if parameters else "there are none"
        raise BadDriver(f"no such option; {known}", option)
    for option, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if required and option not in options:
            raise BadDriver("is required", option)
    hints = get_type_hints(class_.__init__)
    given = {
        option: converted(value, hints.get(option, Any), option, strict=strict)
        for option, value in options.items()
    }
    try:
        return class_(**given)  # type: ignore[no-any-return]
    except Exception as problem:  # an operator's code may raise anything
        raise BadDriver(f"cannot be constructed: {type(problem).__name__}: {problem}") from None


def driver_class(name: str) -> type[Any]:
    """Return the Python class of a driver that `module:Class` names."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as problem:  # an operator's code may raise anything
        raise BadDriver(f"cannot import {module!r}: {type(problem).__name__}: {problem}") from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise BadDriver(f"there is no class {path!r} in {module!r}")
    if not callable(getattr(found, "update_provider_tree", None)):
        raise BadDriver(f"{path!r} in {module!r} has no method update_provider_tree, so it is no driver")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise BadDriver(f"{path!r} in {module!r} lacks the method {missing[0]}")
    return found


def converted(value: Any, type_: Any, option: str = "", *, strict: bool = True) -> Any:
    """Convert an option's value, or a mapping of all options, to `type_`; raise BadDriver if impossible.
    Without `strict`, texts such as "2" can become numbers.
    """
    try:
        return msgspec.convert(value, type_, strict=strict)
    except msgspec.ValidationError as problem:
        text, _, where = str(problem).partition(" - at `")
        raise BadDriver(text, option or where.rstrip("`").removeprefix("$.")) from None


DRIVERS: Mapping[str, type[Any]] = {
    "numa": NumaDriver,
    "sriov": SriovDriver,
    "vgpu": VgpuDriver,
    "devices": DeviceDriver,
}
_SOMEBODY = "00000000-0000-4000-8000-000000000000"


class BadMachine(ValueError):
    """The error for an invalid machine type; the text names the type, the field and the reason."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type: the drivers of a host's hardware and, if guests are not simulated, its hypervisor."""

    drivers: tuple[Driver, ...] = ()

    @property
    def flat(self) -> bool:
        """Return whether the host is one provider with all inventories, without NUMA cells."""
        return not any(isinstance(driver, NumaDriver | GuestDriver) for driver in self.drivers)

    @property
    def guest_driver(self) -> GuestDriver | None:
        """Return the hypervisor driver of this type of host; None if its guests are simulated."""
        return next((driver for driver in self.drivers if isinstance(driver, GuestDriver)), None)


FLAT = Machine()
BUILT_IN: Mapping[str, Machine] = {
    "flat": FLAT,
    "numa": Machine((NumaDriver(),)),
    "sriov": Machine((NumaDriver(), SriovDriver())),
    "vgpu": Machine((VgpuDriver(),)),
    "devices": Machine((NumaDriver(), DeviceDriver())),
}


def machines(named: Sequence[str], described: str = "", configured: str = "") -> tuple[Machine, ...]:
    """Return the named machine types, built in or defined in the file `described`.

    The file `configured`, a provider.yaml, adds inventories and traits to each type.
    """
    known = {**BUILT_IN, **(_described(Path(described)) if described else {})}
    adds = (ProviderConfigDriver(_configured(Path(configured))),) if configured else ()
    found = []
    for name in named or ("flat",):
        if name not in known and ":" not in name:
            raise BadMachine(f"there is no machine {name!r}; there are: {', '.join(known)}")
        machine = known[name] if name in known else Machine((_driver(name, name, {}),))
        machine = Machine((*machine.drivers, *adds))
        if machine.guest_driver is not None:  # this driver can build a provider tree only on a real host
            found.append(machine)
            continue
        try:
            build_tree(_SOMEBODY, "HOST", (_ANY_FLAT, *machine.drivers) if machine.flat else machine.drivers)
        except (TreeMistake, BadProviderConfig) as mistake:
            raise BadMachine(f"{name}: {mistake}") from None
        except Exception as problem:  # an operator's driver may raise anything
            raise BadMachine(f"{name}: {type(problem).__name__}: {problem}") from None
        found.append(machine)
    return tuple(found)


_ANY_FLAT = FlatDriver(
    {"VCPU": Inventory(total=1), "MEMORY_MB": Inventory(total=1), "DISK_GB": Inventory(total=1)}
)


def _described(path: Path) -> dict[str, Machine]:
    try:
        tables = tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise BadMachine(f"{path}: not TOML: {problem}") from None
    return {name: _machine(f"{path}: {name}", table) for name, table in tables.items()}


def _machine(at: str, table: Any) -> Machine:
    names = table.get("drivers") if isinstance(table, dict) else None
    if not isinstance(names, list) or not names:
        raise BadMachine(f"{at}.drivers: names its drivers: {', '.join(DRIVERS)}")
    drivers = []
    for name in names:
        if name == "flat":
            continue
        if name not in DRIVERS and ":" not in str(name):
            raise BadMachine(
                f"{at}.drivers: no such driver: {name!r}; there are: flat, {', '.join(DRIVERS)}, module:Class"
            )
        drivers.append(_driver(name, f"{at}.{name}", table.get(name, {})))
    if strange := sorted(table.keys() - {"drivers", *names}):
        raise BadMachine(f"{at}.{strange[0]}: is none of its drivers ({', '.join(names)})")
    if "flat" in names and "numa" in names:
        raise BadMachine(f"{at}.drivers: flat and numa both report processors")
    if sum(isinstance(driver, GuestDriver) for driver in drivers) > 1:
        raise BadMachine(f"{at}.drivers: only one driver can run the guests")
    return Machine(tuple(sorted(drivers, key=lambda driver: not isinstance(driver, NumaDriver))))


def _driver(name: str, at: str, options: Any) -> Driver:
    try:
        if name in DRIVERS:
            return converted(options, DRIVERS[name])  # type: ignore[no-any-return]
        return load_driver(name, converted(options, dict[str, Any]))
    except BadDriver as problem:
        raise BadMachine(f"{at}{'.' * bool(problem.option)}{problem.option}: {problem}") from None


def _configured(path: Path) -> tuple[ConfiguredProvider, ...]:
    from yaml import YAMLError, safe_load  # type: ignore[import-untyped]

    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise BadMachine(f"{path}: there is no *.yaml in it")
    found: list[ConfiguredProvider] = []
    for file in files:
        text = _text(file)
        try:
            providers = provider_config(safe_load(text))
        except BadProviderConfig as wrong:
            raise BadMachine(f"{file}: {wrong}") from None
        except (YAMLError, RecursionError, ValueError) as problem:
            raise BadMachine(f"{file}: not YAML: {problem}") from None
        for provider in providers:
            if any(provider.identification == other.identification for other in found):
                name = provider.identification.uuid or provider.identification.name
                raise BadMachine(f"{file}: {name} is in another file, too")
            found.append(provider)
    return tuple(found)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise BadMachine(f"{path}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadMachine(f"{path}: not text") from None


_NAMES = UUID("6f3f0c9e-8f5b-4c1e-9d57-2b8a5c0e7a11")
_TRAITS = ("COMPUTE_NODE", "HW_CPU_X86_AVX2", "STORAGE_DISK_SSD")
X86 = "x86_64"


@dataclass(frozen=True, slots=True)
class SimHost:
    """One simulated host: its inventory, zone and aggregates, and its drivers of hardware and hypervisor."""

    root: str
    host: str
    inventory: Mapping[str, Inventory]
    traits: tuple[str, ...] = ()
    zone: str = ""
    aggregates: tuple[str, ...] = ()
    metal: str = ""  # the resource class of a bare-metal node, which Ironic reports
    drivers: tuple[Driver, ...] = ()  # additional hardware, or the driver of its guests
    architecture: str = X86
    ip: str = ""
    disabled: str = ""  # why the host is disabled
    labels: Mapping[str, str] = field(default_factory=dict)  # by level, such as rack

    @property
    def all_drivers(self) -> tuple[Driver, ...]:
        """Return the driver of the root's inventory, and the drivers of the machine."""
        return (FlatDriver(self.inventory, self.traits, self.aggregates), *self.drivers)

    @property
    def guest_driver(self) -> GuestDriver | None:
        """Return the hypervisor driver that runs the host's guests, or None if they are simulated."""
        return Machine(self.drivers).guest_driver


@dataclass(frozen=True, slots=True)
class SimAgent:
    """A simulated agent with its hosts."""

    agent: str
    cell: str
    hosts: tuple[SimHost, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A simulated cloud's hardware: machine types, size of a host without NUMA cells, bare-metal nodes."""

    vcpus: int = 32
    memory_mb: int = 131_072
    disk_gb: int = 2000
    vcpu_ratio: float = 4.0
    zones: Sequence[str] = ("",)
    architectures: Sequence[str] = (X86,)
    machines: Sequence[Machine] = (FLAT,)
    baremetal: int = 0  # number of bare-metal nodes
    labels: Mapping[str, int] = field(default_factory=dict)  # level → neighbouring hosts with the same label

    @property
    def inventory(self) -> dict[str, Inventory]:
        """Return the inventory of the root provider of a host without NUMA cells."""
        return {
            "VCPU": Inventory(total=self.vcpus, max_unit=self.vcpus, allocation_ratio=self.vcpu_ratio),
            "MEMORY_MB": Inventory(total=self.memory_mb, reserved=512, max_unit=self.memory_mb),
            "DISK_GB": Inventory(total=self.disk_gb, max_unit=self.disk_gb),
        }


def fleet(
    cells: Sequence[str] | int = 4,
    hosts: int = 1000,
    agents_per_cell: int = 1,
    *,
    hardware: Hardware | None = None,
    seed: int = 0,
) -> list[SimAgent]:
    """Return the simulated agents of all cells (names, or how many). `hosts` hypervisors in all, and the
    bare-metal nodes of `hardware`, are spread over the agents. Ids of hosts are derived from `seed`.
    """
    hardware = hardware or Hardware()
    zones, architectures, inventory = hardware.zones, hardware.architectures, hardware.inventory
    names = [f"cell{number + 1}" for number in range(cells)] if isinstance(cells, int) else list(cells)
    places = len(names) * agents_per_cell
    dealt: list[list[SimHost]] = [[] for _ in range(places)]
    addresses = (f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}" for n in count(1))

    def deal(several: int, kind: str, made: Sequence[Machine], metal: str) -> None:
        for number in range(several):
            name = f"{names[number % len(names)]}-{kind}{number // len(names) + 1:05}"
            architecture = architectures[number // places // len(zones) % len(architectures)]
            machine = made[number // places // len(zones) // len(architectures) % len(made)]
            flat = machine.flat and not metal
            # Hosts of other architectures must not have the traits of x86 extensions.
            traits = (trait for trait in _TRAITS if architecture == X86 or "_X86_" not in trait)
            host = SimHost(
                root=str(uuid5(_NAMES, f"{seed}/{name}")),
                host=name,
                inventory=inventory if flat else {},
                traits=tuple(traits) if flat else (),
                zone=zones[number // places % len(zones)],
                metal=metal,
                drivers=machine.drivers,
                architecture=architecture,
                ip=next(addresses),
                labels={
                    level: f"{level}{number // several + 1}" for level, several in hardware.labels.items()
                },
            )
            dealt[number % places].append(host)

    deal(hosts, "host", hardware.machines, "")
    deal(hardware.baremetal, "metal", (FLAT,), "baremetal")
    return [
        SimAgent(agent_name(cell, place // len(names) + 1), cell, tuple(dealt[place]))
        for place in range(places)
        for cell in [names[place % len(names)]]
    ]


def agent_name(cell: str, number: int) -> str:
    """Return the name of a cell's agent with this number, from 1."""
    return f"{cell}-agent{number}"
