"""The list of features, the only place that names them. What a feature adds is found in its folder."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from bus import parts, topics
from bus.feature import Feature, FeatureProcess

FEATURES = ("groups", "nova")


@cache
def features() -> tuple[Feature, ...]:
    """Return the declarations of all features, in the order of the list."""
    found: list[Feature] = [import_module(f"features.{name}.feature").FEATURE for name in FEATURES]
    for name, feature in zip(FEATURES, found, strict=True):
        assert feature.name == name and {*feature.needs} <= {*FEATURES}, name
    return tuple(found)


@cache
def add_messages() -> None:
    """Add the messages, parts of messages, topics and queries of all features to those of this process."""
    for feature in features():
        if (messages := module_of(feature, "messages")) is not None:
            topics.add(messages)
            for owner, part in getattr(messages, "PARTS", {}).items():
                parts.TYPES.add(feature.name, owner, part)
    parts.TYPES.freeze()


def module_of(feature: Feature, module: str) -> ModuleType | None:
    """Import a module of a feature; return None if the feature has no module of this name."""
    name = f"{package_of(feature)}.{module}"
    return import_module(name) if find_spec(name) is not None else None


def package_of(feature: Feature) -> str:
    return f"features.{feature.name}"


def folder_of(feature: Feature) -> Path:
    return Path(__file__).parents[1] / "features" / feature.name


def processes() -> Iterator[tuple[Feature, FeatureProcess]]:
    """Yield the processes that features declare, each with its feature."""
    for feature in features():
        for process in feature.processes:
            yield feature, process
