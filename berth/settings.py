"""Defines `Settings`: all settings, in the groups of `setting_groups.py`, `openstack_settings.py` and of
features.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from berth.features import features
from berth.openstack_settings import IronicSettings
from berth.setting_groups import (
    AgentSettings,
    BusSettings,
    CellAccountLimits,
    CellSettings,
    ConductorSettings,
    ControlRoomSettings,
    DatabaseSettings,
    LimitSettings,
    PlacementHttpSettings,
    ProcessSettings,
    RequestSettings,
    RestSettings,
    RetentionSettings,
    SchedulerSettings,
)
from berth.simulator_settings import PREFIX, SimulatorSettings
from bus.broker_urls import user_of
from bus.feature import SettingsGroup

# With at most so many processor cores, workers share processes by default. A process uses one core, and
# broker and database use another.
COMPACT_CORES = 2


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BadSetting(ValueError):
    """Error: a setting cannot be used; the text has its name, value and source."""


G = TypeVar("G", bound=SettingsGroup)


class Cell(msgspec.Struct, frozen=True):
    """A cell in the settings; an empty broker or database stands for the common broker or database."""

    name: str
    broker: str = ""  # the URL of its workers' RabbitMQ: a separate user, or another node of the cluster
    database: str = ""  # the URL of its conductor's database
    ferry: str = ""  # the URL by which its ferry connects to the cell's separate RabbitMQ; empty: no ferry

    @property
    def user(self) -> str:
        """Return the RabbitMQ user of the cell's workers."""
        return user_of(self.broker) or ""


if TYPE_CHECKING:

    class FeatureSettings(SettingsGroup, frozen=True, kw_only=True): ...

else:
    FeatureSettings = msgspec.defstruct(
        "FeatureSettings",
        [(feature.name, feature.settings, feature.settings()) for feature in features() if feature.settings],
        bases=(SettingsGroup,),
        namespace={"__doc__": "The settings of features, a group for each."},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


class Settings(SettingsGroup, frozen=True, kw_only=True):
    """All settings. Every setting has a default, so berth runs without any configuration."""

    bus: BusSettings = BusSettings()
    database: DatabaseSettings = DatabaseSettings()
    cells: CellSettings = CellSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    requests: RequestSettings = RequestSettings()
    limits: LimitSettings = LimitSettings()
    placement: PlacementHttpSettings = PlacementHttpSettings()
    rest: RestSettings = RestSettings()
    control_room: ControlRoomSettings = ControlRoomSettings()
    ironic: IronicSettings = IronicSettings()
    features: FeatureSettings = FeatureSettings()
    conductor: ConductorSettings = ConductorSettings()
    keep: RetentionSettings = RetentionSettings()
    process: ProcessSettings = ProcessSettings()
    agents: AgentSettings = AgentSettings()
    simulator: SimulatorSettings = SimulatorSettings()

    def of(self, kind: type[G]) -> G:
        """Return the settings of a feature, which are of this class."""
        return next(group for group in msgspec.structs.astuple(self.features) if type(group) is kind)

    @property
    def embedded(self) -> bool:
        return not self.bus.amqp_url

    @property
    def compact(self) -> bool:
        """Return whether `berth up` runs placement and scheduler in one process, and the conductors and
        agents of a broker in another.
        """
        layout = self.process.layout
        return layout == "compact" or (layout == "auto" and usable_cores() <= COMPACT_CORES)

    @property
    def cell_limits(self) -> CellAccountLimits:
        return msgspec.convert(self.conductor.cell_limits, CellAccountLimits, strict=False)

    @property
    def cell_names(self) -> tuple[str, ...]:
        return self.cells.names

    @property
    def every_cell(self) -> tuple[Cell, ...]:
        """Return the cells, with the broker and the database that the settings give each of them."""
        urls = (self.cells.amqp_urls, self.cells.database_urls, self.cells.ferry_urls)
        return tuple(Cell(name, *(by_cell.get(name, "") for by_cell in urls)) for name in self.cells.names)

    @property
    def metal_cells(self) -> tuple[str, ...]:
        """Return the names of the cells that may have Ironic's nodes, in the order of the setting `cells`."""
        cells = {*self.ironic.nodes.cells.values(), self.metal_cell}
        return tuple(name for name in self.cell_names if name in cells)

    @property
    def metal_cell(self) -> str:
        """Return the cell of Ironic nodes that have no entry in the setting `ironic_cells`: the value of the
        setting's key "*", or "" without the key. If the setting is empty, return the first cell.
        """
        nodes = self.ironic.nodes
        return nodes.cells.get("*", "") if nodes.cells else self.cell_names[0]

    def cell(self, name: str) -> Cell:
        """Return a cell of this name, with the common broker and database unless it has separate URLs."""
        known = next((cell for cell in self.every_cell if cell.name == name), Cell(name))
        everybodys = self.database.url or f"sqlite+aiosqlite:///{Path(self.database.state_dir).resolve()}/"
        broker = known.broker or known.ferry or self.bus.amqp_url
        return Cell(name, broker, known.database or everybodys, known.ferry)

    def database_for(self, store: str) -> str:
        """Return the URL of the database of a store, such as `cell_c1` or `scheduler`. By default each has a
        separate schema or file.
        """
        return self.cell(store.removeprefix("cell_") if store.startswith("cell_") else "").database

    def having(self, **named: Any) -> "Settings":
        """Return a copy of the settings with some values changed, given by their names for users; the value
        of `simulator` is a mapping of the simulator's options that change.
        """
        options: Mapping[str, Any] = named.pop("simulator", {})
        named |= {f"{PREFIX}{option}": value for option, value in options.items()}
        if strange := named.keys() - KINDS.keys():
            raise TypeError(f"no settings: {', '.join(sorted(strange))}")
        return _made(Settings, {**by_name(self), **named})


def group_name(path: Sequence[str]) -> str:
    return " ".join(path).removeprefix("features ")


def _declared(
    kind: Any = Settings, group: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Yield, for every setting, its name for users, the path to its field, and its type."""
    for member in msgspec.structs.fields(kind):
        if isinstance(member.type, type) and issubclass(member.type, SettingsGroup):
            yield from _declared(member.type, (*group, member.name))
        else:
            yield member.encode_name, (*group, member.name), member.type


_DECLARED = tuple(_declared())
KINDS: Mapping[str, Any] = {name: kind for name, _, kind in _DECLARED}
GROUP_OF: Mapping[str, str] = {name: group_name(path[:-1]) for name, path, _ in _DECLARED}


def by_name(settings: Settings) -> dict[str, Any]:
    """Return a mapping of each setting's name, as users write it, to its value."""
    return {name: attrgetter(".".join(path))(settings) for name, path, _ in _DECLARED}


def clouds_of_features(settings: Settings) -> list[tuple[str, str]]:
    """Return the settings of features that name an entry of clouds.yaml, with this entry, if they are set."""
    values = by_name(settings)
    names = (name for feature in features() for name in feature.clouds)
    return [(name, values[name]) for name in names if values[name]]


def _made(kind: type[G], values: Mapping[str, Any]) -> G:
    parts: dict[str, Any] = {}
    for member in msgspec.structs.fields(kind):
        if isinstance(member.type, type) and issubclass(member.type, SettingsGroup):
            parts[member.name] = _made(member.type, values)
        else:
            parts[member.name] = values[member.encode_name]
    return kind(**parts)


def names_a_file(database_url: str) -> bool:
    """Return whether the URL names an SQLite file, which can hold the database of one worker only."""
    return database_url.startswith("sqlite") and not database_url.endswith("/")


def described(value: Any) -> str:
    """Describe a refused value of a setting for an error message. A text may be a password, so only its
    length is given.
    """
    match value:
        case bool() | int() | float():
            return repr(value)
        case str():
            return f"a text of {len(value)} characters"
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"a table of {len(value)}"
    return f"a {type(value).__name__}"
