"""Machine types: the drivers of a host. Some are built in, others described in an operator's file.

[edge]                                  # berth up --driver edge,flat
drivers = ["numa", "sriov"]
numa = {cells = 2, vcpus = 8}
sriov = {functions = [{device = "ens1f0", vfs = 16, network = "physnet1"}]}
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

DRIVERS: Mapping[str, type[Any]] = {
    "numa": NumaDriver,
    "sriov": SriovDriver,
    "vgpu": VgpuDriver,
    "devices": DeviceDriver,
}
_SOMEBODY = "00000000-0000-4000-8000-000000000000"


class BadMachine(ValueError):
    """A machine type is invalid; the text names it, the field and the reason."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A type of host. Without a driver for processors the root has the inventory of flat hosts."""

    drivers: tuple[Driver, ...] = ()

    @property
    def flat(self) -> bool:
        return not any(isinstance(driver, NumaDriver) for driver in self.drivers)


FLAT = Machine()
BUILT_IN: Mapping[str, Machine] = {
    "flat": FLAT,
    "numa": Machine((NumaDriver(),)),
    "sriov": Machine((NumaDriver(), SriovDriver())),
    "vgpu": Machine((VgpuDriver(),)),
    "devices": Machine((NumaDriver(), DeviceDriver())),
}


def machines(named: Sequence[str], described: str = "", configured: str = "") -> tuple[Machine, ...]:
    """Return the named machine types, built in or from the file `described`.

    Each also gets the additions from the provider.yaml, or directory of such files, `configured`.
    """
    known = {**BUILT_IN, **(_described(Path(described)) if described else {})}
    adds = (ProviderConfigDriver(_configured(Path(configured))),) if configured else ()
    found = []
    for name in named or ("flat",):
        if name not in known:
            raise BadMachine(f"there is no machine {name!r}; there are: {', '.join(known)}")
        machine = Machine((*known[name].drivers, *adds))
        try:
            build_tree(_SOMEBODY, "HOST", (_ANY_FLAT, *machine.drivers) if machine.flat else machine.drivers)
        except (TreeMistake, BadProviderConfig) as mistake:
            raise BadMachine(f"{name}: {mistake}") from None
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
        if name not in DRIVERS:
            raise BadMachine(
                f"{at}.drivers: there is no driver {name!r}; there are: flat, {', '.join(DRIVERS)}"
            )
        try:
            drivers.append(msgspec.convert(table.get(name, {}), DRIVERS[name]))
        except msgspec.ValidationError as problem:
            what, _, where = str(problem).partition(" - at `")
            field = where.rstrip("`").removeprefix("$")
            raise BadMachine(f"{at}.{name}{field}: {what}") from None
    if strange := sorted(table.keys() - {"drivers", *names}):
        raise BadMachine(f"{at}.{strange[0]}: is none of its drivers ({', '.join(names)})")
    if "flat" in names and "numa" in names:
        raise BadMachine(f"{at}.drivers: flat and numa both tell of its processors")
    return Machine(tuple(sorted(drivers, key=lambda one: not isinstance(one, NumaDriver))))


def _configured(path: Path) -> tuple[ConfiguredProvider, ...]:
    """Return all content of the file, or of *.yaml in a directory."""
    try:
        from yaml import YAMLError, safe_load  # type: ignore[import-untyped]
    except ImportError:
        raise BadMachine(f"{path}: reading YAML takes PyYAML, which is not installed") from None
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise BadMachine(f"{path}: there is no *.yaml in it")
    found: list[ConfiguredProvider] = []
    for file in files:
        text = _text(file)
        try:
            said = provider_config(safe_load(text))
        except BadProviderConfig as wrong:
            raise BadMachine(f"{file}: {wrong}") from None
        except (YAMLError, RecursionError, ValueError) as problem:
            raise BadMachine(f"{file}: not YAML: {problem}") from None
        for provider in said:
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
