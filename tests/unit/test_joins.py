"""Joins of features: a folder `with_NAME` is loaded only if its feature and NAME are in the list."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from berth import features
from bus.feature import Feature, FeatureProcess, MakesPart, PartNeeds

FIRST = Feature(
    name="first",
    says="",
    adds=("scheduler", "with_second.scheduler"),
    commands={"plain": "commands", "joint": "with_second.commands"},
    processes=(
        FeatureProcess(name="alone", runs_with=bool),
        FeatureProcess(name="both", runs_with=bool, module="with_second.processes"),
    ),
    meters=(("made_first.alone", "alone"), ("made_first.with_second.both", "both")),
)
SECOND = Feature(name="second", says="", adds=("scheduler",))
JOIN = "made_first.with_second"


class JoinPart(str):
    offers: tuple[object, ...] = ()


class ForJoinScript(MakesPart[PartNeeds, JoinPart]):
    """The part of a feature for the worker of these tests."""


def a_module(name: str) -> ModuleType:
    def part(needs: PartNeeds, settings: Any) -> JoinPart:
        return JoinPart(name)

    module = ModuleType(name)
    module.PART = ForJoinScript(part)  # type: ignore[attr-defined]
    return module


@pytest.fixture(params=[("first", "second"), ("second", "first"), ("first",), ("second",)])
def listed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ...]]:
    """Yield a list of features, of which `first` has a join with `second`."""
    declared = {"first": FIRST, "second": SECOND}
    (tmp_path / "first/with_second").mkdir(parents=True)
    (tmp_path / "first/with_second/scheduler.py").touch()
    names: tuple[str, ...] = request.param
    monkeypatch.setattr(features, "FEATURES", names)
    monkeypatch.setattr(features, "features", lambda: tuple(declared[name] for name in names))
    monkeypatch.setattr(features, "package_of", lambda feature: f"made_{feature.name}")
    monkeypatch.setattr(features, "folder_of", lambda feature: tmp_path / feature.name)
    for package in ("made_first", "made_second", JOIN):
        monkeypatch.setitem(sys.modules, f"{package}.scheduler", a_module(f"{package}.scheduler"))
    features._joins_in.cache_clear()
    yield names
    features._joins_in.cache_clear()


def test_the_part_of_a_join_follows_that_of_its_feature_if_both_are_listed(listed: tuple[str, ...]) -> None:
    found = features.parts_of(ForJoinScript, "scheduler", PartNeeds(), settings=None)
    packages = [package for name in listed for package in _packages(name, listed)]
    assert found == [f"{package}.scheduler" for package in packages]
    assert [part.make(PartNeeds(), None) for part in features.added(ForJoinScript, "scheduler")] == found


def _packages(name: str, listed: tuple[str, ...]) -> list[str]:
    return [f"made_{name}", *([JOIN] if name == "first" and "second" in listed else [])]


def test_commands_processes_and_metrics_of_a_join_exist_only_with_both(listed: tuple[str, ...]) -> None:
    has_both, has_first = len(listed) == 2, "first" in listed
    commands = features.commands_of(FIRST) if has_first else {}
    assert ("plain" in commands, "joint" in commands) == (has_first, has_both)
    processes = {process.name for _, process in features.processes()}
    assert processes == {*(["alone"] if has_first else []), *(["both"] if has_both else [])}
    assert {process for _, process in features.meters()} == processes
    assert features.joined_by(FIRST) == (("second",) if "second" in listed else ())


def test_what_a_deletion_takes_along_follows_from_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = (
        Feature(name="third", says="", needs=("second",)),
        Feature(name="second", says="", needs=("first",)),
        Feature(name="first", says=""),
    )
    monkeypatch.setattr(features, "features", lambda: declared)
    assert features.taken_along("first") == ("third", "second")
    assert features.taken_along("second") == ("third",)
    assert features.taken_along("third") == ()
