"""The list of features, the only place that names them. What a feature adds is found in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from bus import acts, context, decisions, invalid_requests, parts, topics
from bus.feature import MODULES, Feature, FeatureProcess, MakesPart, MessagesPart, PartNeeds

if TYPE_CHECKING:
    from placement_worker.http.extension import HttpPart

T = TypeVar("T")
N = TypeVar("N", bound=PartNeeds)
P = TypeVar("P")

FEATURES = (
    "nova_filters",
    "guest_hardware",
    "fragmentation",
    "reservations",
    "preemption",
    "groups",
    "topology",
    "quotas",
    "group_limits",
    "headroom",
    "history",
    "moves",
    "waiting",
    "suggestions",
    "what_if",
    "capacity_plans",
    "policies",
    "replay",
    "quality_replay",
    "planning",
    "maintenance",
    "capacity_history",
    "adoption",
    "shared_nodes",
    "shared_queues",
    "clients",
    "keystone",
    "nova",
    "placement_additions",
    "pools",
)


@cache
def features() -> tuple[Feature, ...]:
    """Return the declarations of all features, in the order of the list."""
    found: list[Feature] = [import_module(f"features.{name}.feature").FEATURE for name in FEATURES]
    for name, feature in zip(FEATURES, found, strict=True):
        assert feature.name == name, name
        if missing := [need for need in feature.needs if need not in FEATURES]:
            raise ImportError(
                f"berth/features.py: {name} needs {', '.join(missing)}: list it too, or delete {name}"
            )
    _check_modules(found)
    return tuple(found)


def _check_modules(listed: Sequence[Feature]) -> None:
    """Raise ImportError for a module that a declaration names and that is unknown or missing, and for a
    module with a known name that its feature does not declare.
    """
    known = {*MODULES, *(name for feature in listed for name in feature.defines)}
    for feature in listed:
        folder = folder_of(feature)
        for path in feature.adds:
            join, name = _in_join(path)
            if join and join not in _joins_in(folder):
                continue
            if path.startswith("bench.") and not (folder / "bench").is_dir():
                continue  # packages have no benchmarks
            where = f"features/{feature.name}/feature.py: adds {path}"
            if name not in known:
                near = get_close_matches(name, known, n=1)
                raise ImportError(f"{where}: no such module is known{f', but {near[0]}' if near else ''}")
            if not folder.joinpath(*path.split(".")).with_suffix(".py").exists():
                raise ImportError(f"{where}: the module is missing")
        for package in ("", *_joins_in(folder)):
            for file in (folder / package).glob("*.py"):
                path = f"{package}.{file.stem}" if package else file.stem
                if file.stem in known and path not in feature.adds:
                    raise ImportError(
                        f"{file}: features/{feature.name}/feature.py does not name it in `adds`"
                    )


@cache
def add_messages() -> None:
    """Add the messages, parts of messages, topics, queries, acts and reason codes of all features to those of
    this process.
    """
    for feature in features():
        decisions.add_reasons(feature.reasons)
        decisions.WAKES.update(feature.wakes)
        for module in modules_of(feature, "messages"):
            topics.add(module)
            part = part_in(module, MessagesPart)
            context.BEGINNINGS.update(type_.__name__ for type_ in part.beginnings)
            for owner, type_ in part.parts.items():
                parts.TYPES.add(feature.name, owner, type_)
            acts.add(part.acts, part.requested, part.done)
            invalid_requests.add(part.request_kinds)
    parts.TYPES.freeze()


@cache
def add_filters() -> None:
    """Register the filters and weighers of all features in this process, so that settings can name them."""
    from scheduler_worker import FILTER_BOOK, WEIGHER_BOOK  # commands without a scheduler need no NumPy
    from scheduler_worker.core.extension import RulesPart

    for part in added(RulesPart, "filters"):
        for more in part.filters:
            FILTER_BOOK.add(more)
        for more in part.weighers:
            WEIGHER_BOOK.add(more)


def rule_options(settings: Any) -> dict[str, Mapping[str, Any]]:
    """Return the options of filters and weighers that follow from the settings of features."""
    from scheduler_worker.core.extension import RulesPart

    found: dict[str, Mapping[str, Any]] = {}
    for feature in features():
        for part in added(RulesPart, "filters", of=feature):
            found |= part.options(_settings_of(feature, settings))
    return found


def request_readers(settings: Any = None) -> tuple[Any, ...]:
    """Return the readers of requests of all features. Without settings they accept every name that a setting
    may define.
    """
    from scheduler_worker.core.extension import RequestReaderPart

    found = []
    for feature in features():
        for part in added(RequestReaderPart, "request_reader", of=feature):
            found.append(part.reader(None if settings is None else _settings_of(feature, settings)))
    return tuple(found)


def _settings_of(feature: Feature, settings: Any) -> Any:
    return None if feature.settings is None else settings.of(feature.settings)


def modules_of(feature: Feature, name: str) -> list[ModuleType]:
    """Import the modules with this name of a feature and of its joins."""
    return [import_module(f"{package_of(feature)}.{path}") for path in _paths_of(feature, name)]


def _paths_of(feature: Feature, name: str) -> list[str]:
    """Return the modules with this name that a feature declares and that are loaded, such as
    `with_moves.scheduler`.
    """
    return [path for path in feature.adds if _in_join(path)[1] == name and _is_listed(feature, path)]


def _in_join(path: str) -> tuple[str, str]:
    """Return the folder `with_NAME` of a declared module, or "" if it is of no join, and its name."""
    join, _, name = path.partition(".")
    return (join, name) if join.startswith("with_") else ("", path)


@cache
def _joins_in(folder: Path) -> tuple[str, ...]:
    joins = (f"with_{name}" for name in FEATURES)
    # git leaves the folder of a deleted join behind, with the bytecode of Python
    return tuple(join for join in joins if any((folder / join).glob("*.py")))


def commands_of(feature: Feature, panel: str) -> dict[str, str]:
    """Return the commands that a feature has in a panel of `berth --help`, with their modules. A command of a
    join counts only if both features are in the list.
    """
    return {
        name: f"{package_of(feature)}.{module}"
        for name, module in feature.commands.get(panel, {}).items()
        if _is_listed(feature, module)
    }


def _is_listed(feature: Feature, module: str) -> bool:
    """Return whether a module that a declaration names is not that of a join, or both features are listed."""
    join, _ = _in_join(module)
    return not join or join in _joins_in(folder_of(feature))


def package_of(feature: Feature) -> str:
    return f"features.{feature.name}"


def folder_of(feature: Feature) -> Path:
    return Path(__file__).parents[1] / "features" / feature.name


def processes() -> Iterator[tuple[Feature, FeatureProcess]]:
    """Yield the processes that features declare, each with its feature."""
    for feature in features():
        for process in feature.processes:
            if _is_listed(feature, process.module):
                yield feature, process


def meters() -> Iterator[tuple[str, str]]:
    """Yield the modules with metrics of all features and joins, each with the process that serves them."""
    for feature in features():
        for module, process in feature.meters:
            if _is_listed(feature, module.removeprefix(f"{package_of(feature)}.")):
                yield module, process


def added(kind: type[T], name: str, of: Feature | None = None) -> list[T]:
    """Return the values PART of the modules with this name, of all features and their joins, or of one
    feature. `kind` is their type (`bus.feature.MODULES`, or of the feature that defines the module). Raise
    ImportError, with the name of the module, if the value is missing or has another type.
    """
    listed = features() if of is None else (of,)
    return [part_in(module, kind) for feature in listed for module in modules_of(feature, name)]


def part_in(module: ModuleType, kind: type[T]) -> T:
    """Return the value PART of a feature's module; raise ImportError if it is missing or of another type."""
    if not isinstance(part := getattr(module, "PART", None), kind):
        raise ImportError(f"{module.__name__}: PART is no {kind.__name__}")
    return part


def messages() -> list[MessagesPart]:
    """Return what the modules `messages` of all features and joins add."""
    return added(MessagesPart, "messages")


def authentication_methods() -> tuple[str, ...]:
    """Return the values of placement_auth that select methods of authentication of features."""
    return tuple(feature.authentication for feature in features() if feature.authentication)


def http_parts() -> list[HttpPart]:
    """Return the parts of all features of the Placement API over HTTP."""
    from berth.kit.http_descriptions import HttpApiPart

    return [each.part for each in added(HttpApiPart, "http")]


def http_rules() -> dict[str, str]:
    """Return the policy rules of all features for the Placement API, with their defaults."""
    return {name: text for part in http_parts() for name, text in part.rules.items()}


def parts_of(kind: type[MakesPart[N, P]], worker: str, needs: N, settings: Any) -> list[P]:
    """Return the parts of all features for a worker (placement, scheduler, conductor, agent or metal), in the
    order of the list, the parts of its joins after each feature. A part is made after those of the features
    that it needs, and gets what these offer. The parts of joins are made last.
    """
    made: dict[tuple[str, str], P] = {}

    paths = {feature.name: _paths_of(feature, worker) for feature in features()}

    def make(feature: Feature, *, joins: bool) -> None:
        for path in paths[feature.name]:
            if joins == bool(_in_join(path)[0]):
                module = import_module(f"{package_of(feature)}.{path}")
                part: Any = part_in(module, kind).make(needs, _settings_of(feature, settings))
                made[feature.name, path] = part
                needs.offers.add(*part.offers)

    for feature in _after_needed(features()):
        make(feature, joins=False)
    for feature in features():
        make(feature, joins=True)
    return [made[name, path] for name, found in paths.items() for path in found]


def _after_needed(listed: Sequence[Feature]) -> list[Feature]:
    """Return features in an order in which each is after those that it needs."""
    named = {feature.name: feature for feature in listed}
    ordered: dict[str, Feature] = {}

    def add(feature: Feature) -> None:
        for name in feature.needs:
            add(named[name])
        ordered.setdefault(feature.name, feature)

    for feature in listed:
        add(feature)
    return list(ordered.values())


def taken_along(name: str) -> tuple[str, ...]:
    """Return the features that cannot run without a feature, in the order of the list."""
    taken = {name}
    for feature in _after_needed(features()):
        if not taken.isdisjoint(feature.needs):
            taken.add(feature.name)
    return tuple([each.name for each in features() if each.name in taken and each.name != name])


def joined_by(feature: Feature) -> tuple[str, ...]:
    """Return the listed features that a feature joins."""
    return tuple([join.removeprefix("with_") for join in _joins_in(folder_of(feature))])


# The packages that have tables in each worker's database, as `bus.sql.migrations` names them.


OWN = {  # by worker
    "placement": "placement_worker",
    "scheduler": "scheduler_worker",
    "conductor": "cell_conductor",
    "rest": "berth.rest",
    **{process.name: package_of(feature) for feature, process in processes() if process.has_database},
}


def packages(worker: str) -> tuple[str, ...]:
    """Return the packages with tables in the database of a worker: its own package, and the features that
    have migrations for this database.
    """
    with_tables = (feature for feature in features() if _has_tables(feature, worker))
    return (OWN[worker], *(f"{package_of(feature)}/{worker}" for feature in with_tables))


def _has_tables(feature: Feature, worker: str) -> bool:
    folder = folder_of(feature) / "migrations" / worker
    # git leaves the folder of a deleted migration behind, with the bytecode of Python
    return any(folder.glob("*.py"))
