"""The wheel alone, without the repository on Python's path, runs berth.

The environment has the packages of requirements.lock only, as links to those of the environment that runs the
tests: nothing is downloaded. The soak test of tests/unit/test_release.py installs them.
"""

import re
import runpy
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from tests.support.snippets import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts/packages"))
TOP_LEVEL = {  # names that the wheel claims in site-packages: the workers and what runs them
    "berth",
    "bus",
    "cell_conductor",
    "compute_sim",
    "control_room",
    "features",
    "ironic_sync",
    "placement_worker",
    "scheduler_worker",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scratch, target = tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("dist")
    built: Path = SCRIPT["build"](target, scratch)
    return built


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _locked() -> list[Distribution]:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    names = {_canonical(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    return [found for found in distributions() if _canonical(found.name) in names]


def _install(wheel: Path, environment: Path) -> None:
    """Make a virtual environment with the wheel, and with links to the packages of requirements.lock."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        environment,
        "install",
    ]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", "--no-compile", wheel], check=True)
    target = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    for distribution in _locked():
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (target / name).exists():
                (target / name).symlink_to(Path(str(distribution.locate_file(name))))


@pytest.mark.slow
def test_the_wheel_runs_berth_with_the_packages_of_the_lock_file_only(wheel: Path, tmp_path: Path) -> None:
    _install(wheel, tmp_path / "venv")
    assert "audit: clean" in SCRIPT["use"](tmp_path)


@pytest.mark.slow
def test_the_wheel_claims_the_names_of_workers_and_of_berth_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        paths = archive.namelist()
    assert {path.partition("/")[0] for path in paths} == {
        *TOP_LEVEL,
        f"{wheel.name.rpartition('-py3')[0]}.dist-info",
    }
    assert not [path for path in paths if "/tests/" in path or "/bench/" in path]
