"""Features: their parts of a worker are made after the parts that they need, and are given in list order."""

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from berth import features
from bus.feature import Feature, PartNeeds


@dataclass(frozen=True)
class ScriptedPart:
    of: str
    offers: tuple[object, ...] = ()


@dataclass(frozen=True)
class Classes:
    """Offered by the feature `second`."""


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of two features, of which the first needs the second."""

    def first(needs: PartNeeds, settings: Any) -> ScriptedPart:
        needs.of(Classes)
        return ScriptedPart("first")

    def second(needs: PartNeeds, settings: Any) -> ScriptedPart:
        return ScriptedPart("second", offers=(Classes(),))

    declared = Feature(name="first", says="", needs=("second",)), Feature(name="second", says="")
    monkeypatch.setattr(features, "FEATURES", ("first", "second"))
    monkeypatch.setattr(features, "features", lambda: declared)
    monkeypatch.setattr(features, "package_of", lambda feature: f"made_{feature.name}")
    monkeypatch.setattr(features, "find_spec", sys.modules.get)
    for name, part in (("first", first), ("second", second)):
        module = ModuleType(f"made_{name}.scheduler")
        module.part = part  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"made_{name}.scheduler", module)


@pytest.mark.usefixtures("listed")
def test_parts_are_made_after_those_that_they_need_and_given_in_the_order_of_the_list() -> None:
    found = features.parts_of("scheduler", PartNeeds(), settings=None)

    assert [part.of for part in found] == ["first", "second"]


@pytest.mark.usefixtures("listed")
def test_a_worker_in_which_features_have_no_module_has_no_parts() -> None:
    assert features.parts_of("placement", PartNeeds(), settings=None) == []


def test_what_no_needed_feature_offers_is_an_error() -> None:
    with pytest.raises(LookupError, match="no feature offers Classes"):
        PartNeeds().of(Classes)
