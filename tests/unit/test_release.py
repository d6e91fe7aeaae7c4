"""`make release` refuses unless everything of a release is present, and packages have all data files."""

import re
import runpy
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from berth.layouts import COMPLETIONS
from tests.support.snippets import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts/release"))
missing: Callable[[Path], list[str]] = SCRIPT["missing"]
version_of: Callable[[Path], str] = SCRIPT["version_of"]
notes_of: Callable[[Path, str], str] = SCRIPT["notes_of"]
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2026-01-31\n\n- A change.\n\n## [1.1.0] - 2025-12-01\n"
)
RECORDING = "tests/data/release-1.2.0.tar.gz"
CHART = "deploy/helm/berth/Chart.yaml"


def git(root: Path, *words: str) -> str:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    return subprocess.run(
        ["git", *author, *words], cwd=root, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("released")
    texts = {"berth/__init__.py": '__version__ = "1.2.0"\n', "CHANGELOG.md": CHANGELOG}
    texts |= {CHART: 'version: 1.2.0\nappVersion: "1.2.0"\n', RECORDING: "SQL"}
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=All")
    (root / ".git/ci-passed").write_text(git(root, "rev-parse", "HEAD"))
    return root


def test_nothing_is_missing_in_a_complete_release(released: Path) -> None:
    assert missing(released) == []
    assert notes_of(released, "1.2.0") == "## [1.2.0] - 2026-01-31\n\n- A change."


@pytest.mark.parametrize(
    ("name", "before", "after", "why"),
    [
        ("berth/__init__.py", "1.2.0", "1.2", "write MAJOR.MINOR.PATCH"),
        ("berth/__init__.py", "1.2.0", "1.3.0", "no section `## [1.3.0] - YYYY-MM-DD`"),
        ("CHANGELOG.md", "- A change.\n", "", "no section `## [1.2.0]"),
        ("CHANGELOG.md", "2026-01-31", "soon", "no section `## [1.2.0]"),
        (CHART, 'appVersion: "1.2.0"', 'appVersion: "1.1.0"', 'appVersion: "1.2.0"'),
        ("berth/__init__.py", "1.2.0", "1.3.0", "scripts/record-release-state 1.3.0"),
        ("CHANGELOG.md", "A change", "Another", "files are changed or untracked"),
        (".git/HEAD", "main", "other", "the branch is other: git switch main"),
        (".git/HEAD", "main", "other", "has not passed .ci/run"),
        (".git/ci-passed", "", "0", "has not passed .ci/run"),
        (".git/refs/tags/v1.2.0", "", "", "the tag v1.2.0 exists"),
    ],
)
def test_a_release_that_lacks_something_is_refused(
    name: str, before: str, after: str, why: str, released: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(released, tmp_path / "copy"))
    if name.startswith(".git/refs"):
        git(root, "tag", "v1.2.0")
    else:
        text = (root / name).read_text()
        (root / name).write_text(text.replace(before, after, 1))
    assert any(why in sentence for sentence in missing(root)), missing(root)


def test_the_version_of_the_chart_is_the_version_of_the_program() -> None:
    assert not [sentence for sentence in missing(ROOT) if "Chart.yaml" in sentence]


def test_the_notes_of_the_next_release_have_at_most_600_words() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## \[|\Z)", text, re.M | re.S)
    assert section and len(section[1].split()) <= 600


def test_every_data_file_of_a_package_is_in_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    data = project["package-data"]
    packages = {name.partition(".")[0] for name in project["packages"]["find"]["include"]}
    tracked = subprocess.run(
        ["git", "ls-files", *packages], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in tracked.stdout.splitlines():
        package, _, inside = name.partition("/")
        if package == "features" and "/" in inside:
            if "/tests/" in name:
                continue
            inside = inside.partition("/")[2]
        patterns = [*data["*"], *data.get(package, [])]
        if not name.endswith((".py", ".md", ".svg")):
            assert any(fnmatch(inside, pattern) for pattern in patterns), name


@pytest.mark.soak
def test_berth_from_the_sdist_and_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    made = subprocess.run(
        [ROOT / ".venv/bin/python", ROOT / "scripts/packages", tmp_path],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "audit: clean" in made.stdout
    assert re.fullmatch(r".*/berth-.*-py3-none-any\.whl", made.stdout.splitlines()[-1])
    version = version_of(ROOT)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"berth-{version}-py3-none-any.whl",
        f"berth-{version}.tar.gz",
        f"berth-{version}.cdx.json",
        f"berth-chart-{version}.tgz",
        f"berth-pages-{version}.tar.gz",
    }
    with tarfile.open(tmp_path / f"berth-pages-{version}.tar.gz") as pages:
        assert {"share/man/man1/berth.1", *(f"share/{path}" for path in COMPLETIONS.values())} <= {
            *pages.getnames()
        }
    with tarfile.open(tmp_path / f"berth-chart-{version}.tgz") as chart:
        assert {"berth/Chart.yaml", "berth/values.schema.json", "berth/templates/workers.yaml"} <= {
            *chart.getnames()
        }
