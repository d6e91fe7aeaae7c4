"""Features: their parts of a worker are made after the parts that they need, and are given in list order."""

import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from berth import features
from bus.feature import Feature, MakesPart, PartNeeds


@dataclass(frozen=True)
class ScriptedPart:
    of: str
    offers: tuple[object, ...] = ()


class ForScript(MakesPart[PartNeeds, ScriptedPart]):
    """The part of a feature for the worker of these tests."""


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

    adds = ("scheduler", "answers")
    declared = (
        Feature(name="first", says="", needs=("second",), adds=adds),
        Feature(name="second", says="", adds=adds),
    )
    monkeypatch.setattr(features, "FEATURES", ("first", "second"))
    monkeypatch.setattr(features, "features", lambda: declared)
    monkeypatch.setattr(features, "package_of", lambda feature: f"made_{feature.name}")
    for name, part in (("first", first), ("second", second)):
        module = ModuleType(f"made_{name}.scheduler")
        module.PART = ForScript(part)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"made_{name}.scheduler", module)


def test_a_folder_in_which_only_bytecode_is_left_has_no_migrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, made = tmp_path / "left", tmp_path / "made"
    (left / "migrations/scheduler/__pycache__").mkdir(parents=True)
    (made / "migrations/scheduler").mkdir(parents=True)
    (made / "migrations/scheduler/0001_first.py").touch()
    declared = Feature(name="left", says=""), Feature(name="made", says="")
    monkeypatch.setattr(features, "features", lambda: declared)
    monkeypatch.setattr(features, "folder_of", lambda feature: tmp_path / feature.name)
    assert features.packages("scheduler") == ("scheduler_worker", "features.made/scheduler")


@pytest.mark.usefixtures("listed")
def test_parts_are_made_after_those_that_they_need_and_given_in_the_order_of_the_list() -> None:
    found = features.parts_of(ForScript, "scheduler", PartNeeds(), settings=None)

    assert [part.of for part in found] == ["first", "second"]


@pytest.mark.usefixtures("listed")
def test_a_worker_in_which_features_have_no_module_has_no_parts() -> None:
    assert features.parts_of(ForScript, "placement", PartNeeds(), settings=None) == []


def test_what_no_needed_feature_offers_is_an_error() -> None:
    with pytest.raises(LookupError, match="no feature offers Classes"):
        PartNeeds().of(Classes)


@pytest.mark.usefixtures("listed")
def test_a_part_for_another_feature_has_the_type_that_this_feature_defines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right, wrong = ModuleType("made_first.answers"), ModuleType("made_second.answers")
    right.PART = Classes()  # type: ignore[attr-defined]
    for module in (right, wrong):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    first, second = features.features()
    assert features.added(Classes, "answers", of=first) == [Classes()]
    for of in (None, second):
        with pytest.raises(ImportError, match=r"made_second\.answers: PART is no Classes"):
            features.added(Classes, "answers", of=of)


MODULES_DECLARED = {
    "a module with an unknown name": (
        {"one/schedular.py"},
        ("schedular",),
        "features/one/feature.py: adds schedular: no such module is known, but scheduler",
    ),
    "a module that is missing": (
        {"one/placement.py"},
        ("placement", "pages"),
        "features/one/feature.py: adds pages: the module is missing",
    ),
    "a module that is not declared": (
        {"one/placement.py"},
        (),
        "one/placement.py: features/one/feature.py does not name it in `adds`",
    ),
    "a module of a join that is not declared": (
        {"one/with_two/placement.py"},
        (),
        "one/with_two/placement.py: features/one/feature.py does not name it in `adds`",
    ),
}


@pytest.mark.parametrize(("files", "adds", "why"), MODULES_DECLARED.values(), ids=MODULES_DECLARED)
def test_a_module_that_the_declaration_names_wrongly_stops_the_start(
    files: set[str], adds: tuple[str, ...], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setattr(features, "FEATURES", ("one", "two"))
    monkeypatch.setattr(features, "folder_of", lambda feature: tmp_path / feature.name)
    features._joins_in.cache_clear()
    with pytest.raises(ImportError, match=re.escape(why)):
        features._check_modules([Feature(name="one", says="", adds=adds), Feature(name="two", says="")])
    features._joins_in.cache_clear()


SCRIPT = Path(__file__).parents[2] / "scripts/feature-imports"

VIOLATIONS: dict[str, tuple[dict[str, str], str]] = {
    "the kernel imports a feature": (
        {"bus/topics.py": "from features.moves import messages"},
        "bus/topics.py:1: the kernel imports features.moves.messages",
    ),
    "a feature imports more of a worker than its extension": (
        {"features/moves/scheduler.py": "from scheduler_worker.owners import Owners"},
        "features/moves/scheduler.py:1: imports scheduler_worker.owners: a worker offers features its module"
        " `extension`",
    ),
    "a feature imports more of berth than its kit": (
        {"features/moves/commands.py": "from berth.settings import Settings"},
        "features/moves/commands.py:1: imports berth.settings: berth offers features the names of"
        " `berth.kit`",
    ),
    "a feature imports a module of the kit": (
        {"features/moves/pages.py": "from control_room.kit.frame import Renderer"},
        "features/moves/pages.py:1: imports control_room.kit.frame: control_room offers features the names of"
        " `control_room.kit`",
    ),
    "a feature imports one that it does not need": (
        {"features/moves/scheduler.py": "from features.waiting import messages"},
        "features/moves/scheduler.py:1: imports features.waiting.messages: its declaration does not need it",
    ),
    "a test of the kernel imports a feature": (
        {"tests/unit/test_placing.py": "from features.moves import messages"},
        "tests/unit/test_placing.py:1: imports features.moves.messages, which is not needed there",
    ),
    "a test of a feature imports one that it does not need": (
        {"features/moves/tests/unit/test_moves.py": "from features.waiting import messages"},
        "features/moves/tests/unit/test_moves.py:1: imports features.waiting.messages, which is not needed"
        " there",
    ),
    "a test of a feature imports internals of a worker": (
        {"features/moves/tests/unit/test_moves.py": "from scheduler_worker.owners import Owners"},
        "features/moves/tests/unit/test_moves.py:1: imports scheduler_worker.owners: tests and benchmarks"
        " import of scheduler_worker `scheduler_worker.extension` and `scheduler_worker.testing`",
    ),
    "a test of a feature imports how berth is composed": (
        {
            "features/moves/tests/unit/test_moves.py": "from berth.settings import Settings",
            "features/moves/tests/integration/test_moves.py": "from berth.settings import Settings",
        },
        "features/moves/tests/unit/test_moves.py:1: imports berth.settings: tests and benchmarks import of"
        " berth `berth.kit` and `berth.kit.testing`",
    ),
    "a test of a feature imports fixtures of the kernel's tests": (
        {"features/moves/tests/unit/test_moves.py": "from tests.unit.conftest import ironic"},
        "features/moves/tests/unit/test_moves.py:1: imports tests.unit.conftest: tests and benchmarks import"
        " of tests `tests.support`",
    ),
    "a benchmark of a feature imports internals of a worker": (
        {"features/moves/bench/moving.py": "import scheduler_worker.owners\nimport berth.settings"},
        "features/moves/bench/moving.py:1: imports scheduler_worker.owners: tests and benchmarks import of"
        " scheduler_worker `scheduler_worker.extension` and `scheduler_worker.testing`",
    ),
    "a test imports another one": (
        {"tests/unit/test_one.py": "from tests.unit.test_two import TWO"},
        "tests/unit/test_one.py:1: imports tests.unit.test_two: what tests share is in `support`",
    ),
    "two features need each other": (
        {
            "features/moves/feature.py": "FEATURE = Feature(needs=('waiting',))",
            "features/waiting/feature.py": "FEATURE = Feature(needs=('moves',))",
        },
        "features need each other: moves, waiting",
    ),
    "a deletion takes too many features along": (
        {f"features/f{number}/feature.py": "FEATURE = Feature(needs=('groups',))" for number in range(5)}
        | {"features/groups/feature.py": "FEATURE = Feature()"},
        "the deletion of groups takes 5 features along: f0, f1, f2, f3, f4",
    ),
    "modules import each other for types": (
        {
            "bus/topics.py": "if TYPE_CHECKING:\n    from bus import parts",
            "bus/parts.py": "from bus import topics",
        },
        "modules import each other in a circle: bus.parts, bus.topics",
    ),
}


@pytest.mark.parametrize(("written", "problem"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_forbidden_import_is_found(tmp_path: Path, written: dict[str, str], problem: str) -> None:
    files = {
        "bus/parts.py": "",
        "bus/topics.py": "",
        "scheduler_worker/owners.py": "",
        "features/moves/feature.py": "FEATURE = Feature()",
        "features/moves/messages.py": "",
        "features/waiting/feature.py": "FEATURE = Feature()",
        "features/waiting/messages.py": "",
    }
    problems_of = runpy.run_path(str(SCRIPT))["problems_of"]
    for text in (files, files | written):
        for name, source in text.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(source)
        assert problems_of(tmp_path) == ([problem] if text is not files else [])
