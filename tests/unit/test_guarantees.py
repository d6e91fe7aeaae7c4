"""Each guarantee of ARCHITECTURE.md has planted bugs, and the tests that the table names find them.

The bugs are in `planted.toml` of tests/ and of each feature. A bug replaces one text of a file. It is planted
in a copy of the project, because some tests run berth in processes of their own.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (.+?) \| .+ \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"`([^`]+)`")
SIMULATED = "all of it together"  # the bugs of this row are in tests/simulation/planted.py
# How a test says that it expected something else; another exception does not show the loss of the guarantee.
EXPECTED = (
    "AssertionError", "assert ", "DID NOT RAISE", "Failed: DID NOT RAISE", "TimeoutError",
    "ValueError: too many values to unpack",
)  # fmt: skip


@dataclass(frozen=True)
class GuaranteeBug:
    """A text of a file and its replacement, which breaks a guarantee, and the tests that fail then."""

    missing: str  # the mechanism that the replacement removes
    file: str
    old: str
    new: str
    tests: Sequence[str]

    @property
    def test_files(self) -> list[str]:
        return [test.partition("::")[0] for test in self.tests]

    @property
    def is_deleted(self) -> bool:
        """Return whether a test was deleted, with a feature that it imports (scripts/without-features)."""
        return not all((ROOT / file).exists() for file in self.test_files)

    def plant(self, root: Path) -> None:
        file = root / self.file
        text = file.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.file} has {text.count(self.old)} times: {self.old}"
        broken = text.replace(self.old, self.new)
        compile(broken, self.file, "exec")
        file.write_text(broken, encoding="utf-8")


def _bugs() -> dict[str, list[GuaranteeBug]]:
    """Return the planted bugs of each guarantee."""
    found = defaultdict[str, list[GuaranteeBug]](list)
    for listed in (ROOT / "tests/planted.toml", *ROOT.glob("features/**/tests/planted.toml")):
        for guarantee, bugs in msgspec.toml.decode(
            listed.read_bytes(), type=dict[str, list[GuaranteeBug]]
        ).items():
            found[guarantee] += [bug for bug in bugs if not bug.is_deleted]
    return found


BUGS_OF = _bugs()
BUGS = [bug for bugs in BUGS_OF.values() for bug in bugs]


def _table() -> dict[str, str]:
    """Return the cells of the table of guarantees: guarantee → its tests."""
    section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Guarantees")[2]
    return {row[1]: row[2] for row in list(ROW.finditer(section.partition("\n## ")[0]))[1:]}


def test_the_tests_of_each_guarantee_find_its_bugs() -> None:
    table = _table()
    assert BUGS_OF.keys() <= table.keys()
    for guarantee, cell in table.items():
        found = {file.removeprefix("tests/") for bug in BUGS_OF[guarantee] for file in bug.test_files}
        named = set(NAME.findall(cell)) - {"simulation/", "compliance/"}
        assert found == named, guarantee
        assert named or guarantee == SIMULATED or "features/" in cell, f"{guarantee}: no test finds a bug"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.missing)
def test_a_bug_fits_the_code(bug: GuaranteeBug, tmp_path: Path) -> None:
    (tmp_path / bug.file).parent.mkdir(parents=True)
    shutil.copy(ROOT / bug.file, tmp_path / bug.file)
    bug.plant(tmp_path)
    for test in bug.tests:
        file, name = test.partition("[")[0].split("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("planted")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, made / name)
    return made


def _failures(copy: Path, tests: Sequence[str]) -> dict[str, list[str]]:
    """Run tests of the copy; return the first line of each failure, by names of tests without parameters."""
    results = copy / "results.xml"
    options = ["-q", "-m", "not soak", "-p", "no:cacheprovider", f"--junitxml={results}"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stdout[-5000:]  # else they could not be collected
    failures = defaultdict[str, list[str]](list)
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            failures[case.attrib["name"].partition("[")[0]].append(problem.attrib["message"])
    return failures


@pytest.mark.soak
def test_without_a_bug_no_test_fails(copy: Path) -> None:
    assert _failures(copy, sorted({test for bug in BUGS for test in bug.tests})) == {}


@pytest.mark.soak
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.missing)
def test_a_bug_is_found_by_each_of_its_tests(bug: GuaranteeBug, copy: Path) -> None:
    bug.plant(copy)
    try:
        failures = _failures(copy, bug.tests)
    finally:
        shutil.copy2(ROOT / bug.file, copy / bug.file)
    for test in bug.tests:
        found = failures[test.partition("[")[0].partition("::")[2]]
        assert found, f"{test} does not find it"
        assert any(why.startswith(EXPECTED) for why in found), found
