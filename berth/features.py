"""The list of features, the only place that names them. What a feature adds is found in its folder."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from bus import acts, context, decisions, invalid_requests, parts, topics
from bus.feature import Feature, FeatureProcess, PartNeeds

T = TypeVar("T")

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
    return tuple(found)


@cache
def add_messages() -> None:
    """Add the messages, parts of messages, topics, queries, acts and reason codes of all features to those of
    this process.
    """
    for feature in features():
        decisions.add_reasons(feature.reasons)
        decisions.WAKES.update(feature.wakes)
        for messages in modules_of(feature, "messages"):
            topics.add(messages)
            context.BEGINNINGS.update(type_.__name__ for type_ in getattr(messages, "BEGINNINGS", ()))
            for owner, part in getattr(messages, "PARTS", {}).items():
                parts.TYPES.add(feature.name, owner, part)
            requested, done = getattr(messages, "REQUESTED", {}), getattr(messages, "DONE", ())
            acts.add(getattr(messages, "ACTS", ()), requested, done)
            invalid_requests.add(getattr(messages, "REQUEST_KINDS", ()))
    parts.TYPES.freeze()


@cache
def add_filters() -> None:
    """Add the filters and weighers of all features to those of this process."""
    from scheduler_worker import FILTER_BOOK, WEIGHER_BOOK  # commands without a scheduler need no NumPy

    for module in modules("filters"):
        for more in module.FILTERS:
            FILTER_BOOK.add(more)
        for more in module.WEIGHERS:
            WEIGHER_BOOK.add(more)


def rule_options(settings: Any) -> dict[str, Mapping[str, Any]]:
    """Return the options of filters and weighers that follow from the settings of features."""
    found: dict[str, Mapping[str, Any]] = {}
    for feature in features():
        if (module := module_of(feature, "filters")) is not None and hasattr(module, "options"):
            found |= module.options(settings.of(feature.settings))
    return found


def request_readers(settings: Any = None) -> tuple[Any, ...]:
    """Return the readers of requests of all features. Without settings they accept every name that a setting
    may define.
    """
    found = []
    for feature in features():
        if (module := module_of(feature, "request_reader")) is not None:
            has_settings = settings is not None and feature.settings is not None
            found.append(module.reader(settings.of(feature.settings) if has_settings else None))
    return tuple(found)


def module_of(feature: Feature, module: str) -> ModuleType | None:
    """Import a module of a feature; return None if the feature has no module of this name."""
    return _module_named(f"{package_of(feature)}.{module}")


def modules_of(feature: Feature, module: str) -> list[ModuleType]:
    """Import the modules with this name of a feature and of its joins."""
    found = (_module_named(f"{package}.{module}") for package in (package_of(feature), *joins_of(feature)))
    return [module for module in found if module is not None]


def joins_of(feature: Feature) -> tuple[str, ...]:
    """Return the packages `with_NAME` of a feature for which NAME is in the list."""
    return tuple(f"{package_of(feature)}.{join}" for join in _joins_in(folder_of(feature)))


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
    folder = module.partition(".")[0]
    return not folder.startswith("with_") or folder in _joins_in(folder_of(feature))


@cache  # looking for a module that is missing takes a millisecond
def _module_named(name: str) -> ModuleType | None:
    try:
        is_there = find_spec(name) is not None
    except ModuleNotFoundError:  # the module's package is missing
        return None
    return import_module(name) if is_there else None


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


def worker_of(feature: Feature, process: str, *arguments: Any) -> Any:
    """Return the worker of a process that a feature declares. `arguments` are those of `make` after the
    first one.
    """
    [module] = [each.module for each in feature.processes if each.name == process]
    return import_module(f"{package_of(feature)}.{module}").make(process, *arguments)


def modules(name: str) -> list[Any]:
    """Import and return the modules with this name of all features and joins that have one."""
    return [module for feature in features() for module in modules_of(feature, name)]


def added(kind: type[T], name: str) -> list[T]:
    """Return what features and joins add to a command or page of another feature: the values PART of their
    modules with this name. The other feature defines `kind`, the type of these values. Raise ImportError,
    with the name of the module, if the value is missing or has another type.
    """
    found = []
    for module in modules(name):
        if not isinstance(part := getattr(module, "PART", None), kind):
            raise ImportError(f"{module.__name__}: PART is no {kind.__name__}")
        found.append(part)
    return found


def declared(name: str) -> list[Any]:
    """Return what the `messages` modules of all features declare under a name, such as PAGE_ASKS."""
    return [value for module in modules("messages") for value in getattr(module, name, ())]


def authentication_methods() -> tuple[str, ...]:
    """Return the values of placement_auth that select methods of authentication of features."""
    return tuple(feature.authentication for feature in features() if feature.authentication)


def authentication(method: str) -> Any:
    """Return the module of a feature's method of authentication; None: no feature has this method."""
    having = (feature for feature in features() if feature.authentication == method)
    return next((module_of(feature, "authentication") for feature in having), None)


def http_parts() -> list[Any]:
    """Return the parts of all features of the Placement API over HTTP."""
    return [module.HTTP for module in modules("http")]


def http_descriptions() -> list[Any]:
    """Return the descriptions of these parts for the OpenAPI document."""
    return [module.DESCRIPTION for module in modules("http")]


def rest_parts() -> list[Any]:
    """Return the parts of all features of the REST API."""
    return [module.REST for module in modules("rest")]


def http_rules() -> dict[str, str]:
    """Return the policy rules of all features for the Placement API, with their defaults."""
    return {name: text for part in http_parts() for name, text in part.rules.items()}


def parts_of(worker: str, needs: PartNeeds, settings: Any) -> list[Any]:
    """Return the parts of all features for a worker (placement, scheduler, conductor, agent or metal), in the
    order of the list, the parts of its joins after each feature. A part is made after those of the features
    that it needs, and gets what these offer. The parts of joins are made last.
    """
    made: dict[str, Any] = {}

    def make(feature: Feature, package: str) -> None:
        if (module := _module_named(f"{package}.{worker}")) is not None:
            own = None if feature.settings is None else settings.of(feature.settings)
            made[package] = module.part(needs, own)
            needs.offers.add(*made[package].offers)

    for feature in _after_needed(features()):
        make(feature, package_of(feature))
    for feature in features():
        for package in joins_of(feature):
            make(feature, package)
    packages = [package for each in features() for package in (package_of(each), *joins_of(each))]
    return [made[package] for package in packages if package in made]


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
